package keys

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/tenant"
)

const (
	issuer   = "leasehold"
	audience = "leasehold-api"
	// A token of a replica whose clock is a little ahead is still good.
	leeway = 5 * time.Second
	// An unknown key id makes us read the published keys again, at most this often: garbage must not become database load.
	reloadEvery = 10 * time.Second
)

// Tokens signs access tokens as EdDSA JWTs and verifies those of every replica, whose keys it finds in the registry.
type Tokens struct {
	key      *Key
	registry Registry
	clock    clock.Clock

	mu       sync.Mutex
	known    map[string]ed25519.PublicKey
	reloadAt time.Time
}

var _ tenant.Tokens = (*Tokens)(nil)

// NewTokens returns the tokens that key signs.
func NewTokens(key *Key, registry Registry, clock clock.Clock) *Tokens {
	return &Tokens{key: key, registry: registry, clock: clock, known: map[string]ed25519.PublicKey{key.kid: key.Public()}}
}

type accessClaims struct {
	jwt.RegisteredClaims
	Session ids.Session    `json:"sid"`
	Org     ids.Org        `json:"org"`
	OrgKind tenant.OrgKind `json:"org_kind"`
	Project string         `json:"project,omitempty"`
	Role    tenant.Role    `json:"role"`
}

// Sign implements tenant.Tokens.
func (t *Tokens) Sign(claims tenant.Claims) (string, error) {
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, accessClaims{
		RegisteredClaims: jwt.RegisteredClaims{
			Issuer: issuer, Audience: jwt.ClaimStrings{audience}, Subject: claims.User.String(),
			IssuedAt: jwt.NewNumericDate(claims.IssuedAt), ExpiresAt: jwt.NewNumericDate(claims.ExpiresAt),
		},
		Session: claims.Session, Org: claims.Org, OrgKind: claims.OrgKind, Project: claims.Project.String(), Role: claims.Role,
	})
	token.Header["kid"] = t.key.kid
	signed, err := token.SignedString(t.key.private)
	if err != nil {
		return "", fmt.Errorf("sign access token: %w", err)
	}
	return signed, nil
}

// Verify implements tenant.Tokens.
func (t *Tokens) Verify(ctx context.Context, text string) (tenant.Claims, error) {
	var claims accessClaims
	_, err := jwt.ParseWithClaims(text, &claims, func(token *jwt.Token) (any, error) {
		kid, _ := token.Header["kid"].(string)
		return t.public(ctx, kid)
	}, jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithIssuer(issuer), jwt.WithAudience(audience),
		jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(leeway), jwt.WithTimeFunc(t.clock.Now))
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return tenant.Claims{}, fault.New(fault.Unauthenticated, "token-expired", "the access token has expired; refresh it")
	case fault.Is(err, fault.Unavailable):
		return tenant.Claims{}, fmt.Errorf("verify access token: %w", err)
	case err != nil:
		return tenant.Claims{}, errInvalidToken()
	}
	return claims.toDomain()
}

func errInvalidToken() error {
	return fault.New(fault.Unauthenticated, "invalid-credential", "the access token is not valid")
}

func (c accessClaims) toDomain() (tenant.Claims, error) {
	user, userErr := ids.Read[ids.User](c.Subject)
	project, projectErr := ids.Read[ids.Project](c.Project)
	if userErr != nil || projectErr != nil || user.IsZero() || c.Org.IsZero() || c.Session.IsZero() || c.Role == "" {
		return tenant.Claims{}, errInvalidToken()
	}
	claims := tenant.Claims{
		Session: c.Session, User: user, Org: c.Org, OrgKind: c.OrgKind, Project: project, Role: c.Role, ExpiresAt: c.ExpiresAt.UTC(),
	}
	if c.IssuedAt != nil {
		claims.IssuedAt = c.IssuedAt.UTC()
	}
	return claims, nil
}

// public finds the key of that id, in memory or else in the registry.
func (t *Tokens) public(ctx context.Context, kid string) (ed25519.PublicKey, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	if key, ok := t.known[kid]; ok {
		return key, nil
	}
	if now.Before(t.reloadAt) {
		return nil, errInvalidToken()
	}
	t.reloadAt = now.Add(reloadEvery)
	published, err := t.registry.PublishedKeys(ctx, Session)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "keys-unavailable", "the signing keys cannot be read now: %w", err)
	}
	for _, key := range published {
		if key.RetiredAt.IsZero() {
			t.known[key.KeyID] = key.Public
		}
	}
	if key, ok := t.known[kid]; ok {
		return key, nil
	}
	return nil, errInvalidToken()
}
