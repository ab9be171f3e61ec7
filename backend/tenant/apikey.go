package tenant

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"fmt"
	"hash/crc32"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// APIKey lets a program act with its maker's role, narrowed to scopes and perhaps one project.
type APIKey struct {
	ID         ids.APIKey
	Org        ids.Org
	Project    ids.Project // zero: the whole organization
	Name       string
	SecretHash []byte // SHA-256; the secret is random, so a slow hash would add nothing
	Scopes     []string
	CreatedBy  ids.User       // zero: a service account's key made it
	Service    ids.Service    // zero: it acts with its maker's role
	Networks   []netip.Prefix // where it may be used from; none: anywhere
	// PreviousHash is of the secret before the last rotation, which is good until PreviousUntil.
	PreviousHash  []byte
	PreviousUntil time.Time
	CreatedAt     time.Time
	ExpiresAt     time.Time // zero: never
	LastUsedAt    time.Time // zero: never; to the minute
	RevokedAt     time.Time // zero: it lives
}

// Credential is a key with the rights of its maker, or of its service account, at this moment.
type Credential struct {
	Key     APIKey
	OrgKind OrgKind
	Role    Role
	Service ServiceAccount // its zero value: it is nobody's
}

const (
	secretBytes = 32
	crcDigits   = 8
	maxNetworks = 50
	// touchEvery is how exact LastUsedAt is: a write per request would make reads expensive.
	touchEvery = time.Minute
)

// secretEncoding has no characters that need quoting, and a double click selects the whole key.
func secretEncoding() *base32.Encoding {
	return base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
}

// formatAPIKey is lh_<env>_<id>_<secret><crc>: the prefix lets scanners find leaked keys, the id finds the row, the checksum refuses
// typing errors without a look at the database.
func formatAPIKey(environment string, id ids.APIKey, secret string) string {
	body := "lh_" + environment + "_" + strings.TrimPrefix(id.String(), "key_") + "_" + secret
	return body + fmt.Sprintf("%0*x", crcDigits, crc32.ChecksumIEEE([]byte(body)))
}

// Prefix is what the key's text begins with.
func (s *Service) Prefix(id ids.APIKey) string {
	return "lh_" + s.options.Environment + "_" + strings.TrimPrefix(id.String(), "key_") + "_"
}

// IsAPIKey reports whether a bearer credential looks like an API key rather than an access token.
func IsAPIKey(credential string) bool { return strings.HasPrefix(credential, "lh_") }

func parseAPIKey(text string) (environment string, id ids.APIKey, secret string, ok bool) { //nolint:nonamedreturns // four
	if len(text) < crcDigits || len(text) > 256 {
		return "", id, "", false
	}
	body, sum := text[:len(text)-crcDigits], text[len(text)-crcDigits:]
	if fmt.Sprintf("%0*x", crcDigits, crc32.ChecksumIEEE([]byte(body))) != sum {
		return "", id, "", false
	}
	parts := strings.Split(body, "_")
	if len(parts) != 4 || parts[0] != "lh" {
		return "", id, "", false
	}
	id, err := ids.Read[ids.APIKey]("key_" + parts[2])
	return parts[1], id, parts[3], err == nil && !id.IsZero()
}

// APIKeyInput is what a new key shall be.
type APIKeyInput struct {
	Name      string
	Scopes    []string
	Project   ids.Project // zero: the whole organization
	ExpiresAt time.Time   // zero: never
	Service   ids.Service // zero: the key is the actor's own
	Networks  []netip.Prefix
}

// Validate reports defects that need no look at the database.
func (in APIKeyInput) Validate(now time.Time, actor Actor) error {
	invalid := fault.New(fault.Invalid, "invalid-request", "the request has defects")
	if n := len([]rune(in.Name)); n < 1 || n > 100 {
		invalid = invalid.At("/name", "has 1 to 100 characters")
	}
	if len(in.Scopes) == 0 {
		invalid = invalid.At("/scopes", "has at least one scope")
	}
	for i, scope := range in.Scopes {
		if !slices.Contains(AllScopes(), scope) {
			invalid = invalid.At(fmt.Sprintf("/scopes/%d", i), "is not a scope")
		}
	}
	if !in.ExpiresAt.IsZero() && !in.ExpiresAt.After(now) {
		invalid = invalid.At("/expires_at", "lies in the past")
	}
	if len(in.Networks) > maxNetworks {
		invalid = invalid.At("/allowed_networks", fmt.Sprintf("has at most %d", maxNetworks))
	}
	if len(invalid.Fields) > 0 {
		return invalid
	}
	for _, scope := range in.Scopes {
		if !actor.Role.Allows(scope, actor.OrgKind) || !actor.HasScope(scope) {
			return fault.New(fault.Forbidden, "beyond-your-rights", "you cannot give a key the scope %s, since you do not have it", scope)
		}
	}
	return nil
}

// CreateAPIKey makes a key and returns it with the text that proves it, which nobody can show again. A key never has more rights than
// whoever makes it: Forbidden otherwise.
func (s *Service) CreateAPIKey(ctx context.Context, in APIKeyInput) (APIKey, string, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return APIKey{}, "", err
	}
	now := s.clock.Now()
	if err := in.Validate(now, actor); err != nil {
		return APIKey{}, "", err
	}
	raw := make([]byte, secretBytes)
	if _, err := rand.Read(raw); err != nil {
		return APIKey{}, "", fmt.Errorf("draw secret: %w", err)
	}
	secret := secretEncoding().EncodeToString(raw)
	key := APIKey{
		ID: ids.Make[ids.APIKey](), Org: actor.Org, Name: in.Name, SecretHash: hashSecret(secret), Scopes: in.Scopes,
		CreatedBy: actor.User, CreatedAt: now, ExpiresAt: in.ExpiresAt, Service: in.Service, Networks: in.Networks,
	}
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if key.Project, err = s.keyProject(ctx, in.Project, actor); err != nil {
			return err
		}
		if err := s.keyService(ctx, key, actor); err != nil {
			return err
		}
		if err := s.keyWithin(ctx, key); err != nil {
			return err
		}
		if err := s.apiKeys.CreateAPIKey(ctx, key); err != nil {
			return err
		}
		return s.audit.Record(ctx, "api_key.created", key.ID.String(), nil,
			map[string]any{
				"name": key.Name, "scopes": key.Scopes, "project_id": key.Project.String(), "expires_at": key.ExpiresAt,
				"service_account_id": key.Service.String(), "allowed_networks": key.Networks,
			})
	})
	if err != nil {
		return APIKey{}, "", fmt.Errorf("create API key: %w", err)
	}
	return key, formatAPIKey(s.options.Environment, key.ID, secret), nil
}

// keyService checks the service account that a key is for: the organization's, no stronger than the maker, who may look after such accounts; and the
// key wants no scope that the account has not.
func (s *Service) keyService(ctx context.Context, key APIKey, actor Actor) error {
	if key.Service.IsZero() {
		if actor.User.IsZero() {
			return errRequest().At("/service_account_id", "is required, since a service account's key makes keys of service accounts only")
		}
		return nil
	}
	if !actor.Role.Allows(OrganizationWrite, actor.OrgKind) || !actor.HasScope(OrganizationWrite) {
		return fault.New(fault.Forbidden, "role", "your role does not allow that").With("needed_scope", OrganizationWrite)
	}
	account, err := s.services.ServiceAccountForUpdate(ctx, key.Service)
	if fault.Is(err, fault.NotFound) {
		return errNoServiceAccount()
	}
	if err != nil {
		return err
	}
	if err := mayGrant(actor, account.Role); err != nil {
		return err
	}
	for _, scope := range key.Scopes {
		if !account.Role.Allows(scope, actor.OrgKind) {
			return fault.New(fault.Forbidden, "beyond-its-rights", "the service account has not the scope %s", scope)
		}
	}
	if !account.Project.IsZero() && key.Project != account.Project {
		return errRequest().At("/project_id", "is not the service account's project")
	}
	return nil
}

const (
	defaultKeyOverlap = 24 * time.Hour
	maxKeyOverlap     = 30 * 24 * time.Hour
)

// RotateAPIKey gives a key another secret, and returns the text that proves it. The old one is good for overlap (nil: a day), so that programs can
// be given the new one in between; 0 ends it at once. A key can be rotated by itself. Conflict for one that has ended.
func (s *Service) RotateAPIKey(ctx context.Context, id ids.APIKey, overlap *time.Duration) (APIKey, string, error) {
	wait := defaultKeyOverlap
	if overlap != nil {
		wait = *overlap
	}
	if wait < 0 || wait > maxKeyOverlap {
		return APIKey{}, "", errRequest().At("/overlap_seconds", "is from 0 to 2592000")
	}
	actor, err := MustAct(ctx)
	if err != nil {
		return APIKey{}, "", err
	}
	secret, err := drawToken("")
	if err != nil {
		return APIKey{}, "", err
	}
	now := s.clock.Now()
	var key APIKey
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if key, err = s.apiKeys.APIKey(ctx, id); err != nil {
			return err
		}
		if !actor.Project.IsZero() && key.Project != actor.Project {
			return fault.New(fault.NotFound, "not-found", "there is no such API key")
		}
		if err := s.mayHold(ctx, key, actor); err != nil {
			return err
		}
		if !key.RevokedAt.IsZero() || !key.ExpiresAt.IsZero() && !now.Before(key.ExpiresAt) {
			return fault.New(fault.Conflict, "api-key-ended", "the key has ended; make another one")
		}
		key.PreviousHash, key.PreviousUntil = key.SecretHash, now.Add(wait)
		if wait == 0 {
			key.PreviousHash, key.PreviousUntil = nil, time.Time{}
		}
		key.SecretHash = hashSecret(secret)
		if err := s.apiKeys.RotateAPIKey(ctx, key); err != nil {
			return err
		}
		return s.audit.Record(ctx, "api_key.rotated", id.String(), nil, map[string]any{"previous_valid_until": key.PreviousUntil})
	})
	if err != nil {
		return APIKey{}, "", fmt.Errorf("rotate API key: %w", err)
	}
	return key, formatAPIKey(s.options.Environment, id, secret), nil
}

// mayHold answers Forbidden when the key can do more than the actor: whoever gets its new secret could then do that.
func (s *Service) mayHold(ctx context.Context, key APIKey, actor Actor) error {
	if key.ID == actor.APIKey {
		return nil
	}
	for _, scope := range key.Scopes {
		if !actor.Role.Allows(scope, actor.OrgKind) || !actor.HasScope(scope) {
			return fault.New(fault.Forbidden, "beyond-your-rights", "the key has the scope %s, and you have not", scope)
		}
	}
	if key.Service.IsZero() && key.CreatedBy != actor.User {
		return fault.New(fault.Forbidden, "somebody-elses-key", "only its maker can rotate a key that acts for its maker; revoke it instead")
	}
	return s.keyService(ctx, key, actor)
}

// keyProject is the wanted project, which must be one that the maker reaches; a maker with a limit passes it on.
func (s *Service) keyProject(ctx context.Context, wanted ids.Project, actor Actor) (ids.Project, error) {
	if wanted.IsZero() {
		return actor.Project, nil
	}
	project, err := s.ProjectFor(ctx, wanted)
	return project.ID, err
}

// APIKeys lists the organization's keys (those of the actor's project, when it is limited to one), newest first, without anything that proves them.
func (s *Service) APIKeys(ctx context.Context, page Page[ids.APIKey]) ([]APIKey, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return nil, err
	}
	var keys []APIKey
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		keys, err = s.apiKeys.APIKeys(ctx, actor.Org, actor.Project, page)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list API keys: %w", err)
	}
	return keys, nil
}

// RevokeAPIKey ends a key at once; ending it twice is fine. NotFound for another organization's, and for one outside the actor's
// project.
func (s *Service) RevokeAPIKey(ctx context.Context, id ids.APIKey) error {
	actor, err := MustAct(ctx)
	if err != nil {
		return err
	}
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		key, err := s.apiKeys.APIKey(ctx, id)
		if err == nil && !actor.Project.IsZero() && key.Project != actor.Project {
			return fault.New(fault.NotFound, "not-found", "there is no such API key")
		}
		if err != nil || !key.RevokedAt.IsZero() {
			return err
		}
		if err := s.apiKeys.RevokeAPIKey(ctx, id, s.clock.Now()); err != nil {
			return err
		}
		return s.audit.Record(ctx, "api_key.revoked", id.String(), nil, nil)
	})
	if err != nil {
		return fmt.Errorf("revoke API key: %w", err)
	}
	return nil
}

// Authenticate tells who a bearer credential is: an access token or an API key. Whatever is wrong with it, the answer is
// Unauthenticated.
func (s *Service) Authenticate(ctx context.Context, credential string) (Actor, error) {
	if IsAPIKey(credential) {
		return s.authenticateKey(AsPlatform(ctx), credential)
	}
	claims, err := s.tokens.Verify(ctx, credential)
	if err != nil {
		return Actor{}, fmt.Errorf("authenticate: %w", err)
	}
	actor, err := s.standing(AsPlatform(ctx), claims)
	if err != nil {
		return Actor{}, fmt.Errorf("authenticate: %w", err)
	}
	return actor, nil
}

func (s *Service) authenticateKey(ctx context.Context, text string) (Actor, error) {
	source := sourceFrom(ctx)
	refusal := fault.New(fault.Unauthenticated, "invalid-credential", "the API key is not valid")
	environment, id, secret, ok := parseAPIKey(text)
	if !ok || environment != s.options.Environment {
		return Actor{}, refusal
	}
	var credential Credential
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		if credential, err = s.apiKeys.Credential(ctx, id); err != nil {
			return err
		}
		now := s.clock.Now()
		if !credential.Key.proves(secret, now) || !credential.Key.Service.IsZero() && !credential.Service.alive(now) {
			return refusal
		}
		if !credential.Key.from(source) {
			return fault.New(fault.Unauthenticated, "network-not-allowed", "the API key may not be used from this address")
		}
		if now.Sub(credential.Key.LastUsedAt) < touchEvery {
			return nil
		}
		return s.apiKeys.TouchAPIKey(ctx, id, now)
	})
	if fault.Is(err, fault.NotFound) {
		return Actor{}, refusal
	}
	if err != nil {
		return Actor{}, fmt.Errorf("authenticate: %w", err)
	}
	return credential.actor(), nil
}

// proves reports whether the secret is the key's own, and the key lives.
func (k APIKey) proves(secret string, now time.Time) bool {
	hash := hashSecret(secret)
	same := subtle.ConstantTimeCompare(hash, k.SecretHash) == 1
	if now.Before(k.PreviousUntil) && subtle.ConstantTimeCompare(hash, k.PreviousHash) == 1 {
		same = true
	}
	return same && k.RevokedAt.IsZero() && (k.ExpiresAt.IsZero() || now.Before(k.ExpiresAt))
}

// from reports whether the key may be used from the address.
func (k APIKey) from(source netip.Addr) bool {
	return len(k.Networks) == 0 || slices.ContainsFunc(k.Networks, func(n netip.Prefix) bool { return source.IsValid() && n.Contains(source.Unmap()) })
}

func (c Credential) actor() Actor {
	return Actor{
		Service: c.Key.Service,
		Org:     c.Key.Org, OrgKind: c.OrgKind, User: c.Key.CreatedBy, APIKey: c.Key.ID, Project: c.Key.Project, Role: c.Role,
		Scopes: append([]string{}, c.Key.Scopes...), // never nil: nil means all
	}
}

func hashSecret(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}
