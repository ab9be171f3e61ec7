package keys_test

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/keys"
	"github.com/leasehold/leasehold/backend/tenant"
)

func TestManyStartersEndUpWithOneKey(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	var wait sync.WaitGroup
	names := make([]string, 16)
	for i := range names {
		wait.Go(func() {
			key, err := keys.LoadOrCreate(dir, keys.Session)
			if err == nil {
				names[i], _ = key.KeyID()
			}
		})
	}
	wait.Wait()
	for _, name := range names {
		require.NotEmpty(t, name)
		require.Equal(t, names[0], name)
	}
	info, err := os.Stat(filepath.Join(dir, "session.key"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "no temporary file stays")
}

func TestAKeyThatOthersCanReadIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := keys.LoadOrCreate(dir, keys.Attestation)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(filepath.Join(dir, "attestation.key"), 0o640))
	_, err = keys.LoadOrCreate(dir, keys.Attestation)
	require.ErrorContains(t, err, "chmod 600")
}

func TestTheThumbprintIsThatOfRFC8037(t *testing.T) {
	t.Parallel()
	public, err := base64.RawURLEncoding.DecodeString("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo") // RFC 8037, appendix A.2
	require.NoError(t, err)
	require.Equal(t, "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k", keys.Thumbprint(public)) // appendix A.3
}

type fakeRegistry struct {
	keys  []keys.Published
	reads int
	err   error
}

func (r *fakeRegistry) PublishKey(_ context.Context, _ keys.Purpose, key keys.Published) error {
	r.keys = append(r.keys, key)
	return nil
}

func (r *fakeRegistry) PublishedKeys(context.Context, keys.Purpose) ([]keys.Published, error) {
	r.reads++
	return r.keys, r.err
}

func generate(t *testing.T) *keys.Key {
	t.Helper()
	key, err := keys.Generate()
	require.NoError(t, err)
	return key
}

func claims(now time.Time) tenant.Claims {
	return tenant.Claims{
		Session: ids.Make[ids.Session](), User: ids.Make[ids.User](), Org: ids.Make[ids.Org](), OrgKind: tenant.Provider, Project: ids.Make[ids.Project](),
		Role: tenant.Member, IssuedAt: now, ExpiresAt: now.Add(15 * time.Minute),
	}
}

func TestATokenOfAnotherReplicaIsAcceptedOnceItsKeyIsPublished(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	registry, fake := &fakeRegistry{}, clock.NewFake(now)
	here, there := keys.NewTokens(generate(t), registry, fake), generate(t)
	want := claims(now)
	text, err := keys.NewTokens(there, registry, fake).Sign(want)
	require.NoError(t, err)

	for range 5 {
		_, err = here.Verify(t.Context(), text)
		require.True(t, fault.Is(err, fault.Unauthenticated), err)
	}
	require.Equal(t, 1, registry.reads, "unknown keys do not become database load")

	require.NoError(t, there.Publish(t.Context(), registry, keys.Session, now))
	fake.Advance(11 * time.Second)
	got, err := here.Verify(t.Context(), text)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestARegistryThatDoesNotAnswerIsNotTheCallersFault(t *testing.T) {
	t.Parallel()
	fake := clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	text, err := keys.NewTokens(generate(t), &fakeRegistry{}, fake).Sign(claims(fake.Now()))
	require.NoError(t, err)
	_, err = keys.NewTokens(generate(t), &fakeRegistry{err: errors.New("down")}, fake).Verify(t.Context(), text)
	require.True(t, fault.Is(err, fault.Unavailable), err)
}

func TestForgedTokensAreRefused(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	fake, key := clock.NewFake(now), generate(t)
	tokens := keys.NewTokens(key, &fakeRegistry{}, fake)
	kid, err := key.KeyID()
	require.NoError(t, err)
	body := jwt.MapClaims{
		"iss": "leasehold", "aud": "leasehold-api", "sub": ids.Make[ids.User]().String(), "exp": now.Add(time.Hour).Unix(),
		"sid": ids.Make[ids.Session]().String(), "org": ids.Make[ids.Org]().String(), "org_kind": "operator", "role": "owner",
	}
	forge := func(method jwt.SigningMethod, with any, change func(jwt.MapClaims)) string {
		mine := maps.Clone(body)
		change(mine)
		token := jwt.NewWithClaims(method, mine)
		token.Header["kid"] = kid
		text, err := token.SignedString(with)
		require.NoError(t, err)
		return text
	}
	_, other, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	same := func(jwt.MapClaims) {}
	for name, text := range map[string]string{
		"another key":                  forge(jwt.SigningMethodEdDSA, other, same),
		"no signature":                 forge(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, same),
		"the public key as a password": forge(jwt.SigningMethodHS256, []byte(key.Public()), same),
		"garbage":                      "a.b.c",
		"empty":                        "",
	} {
		_, err := tokens.Verify(t.Context(), text)
		require.True(t, fault.Is(err, fault.Unauthenticated), name)
	}
}

func TestATokenWithWrongClaimsIsRefused(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	tokens := keys.NewTokens(generate(t), &fakeRegistry{}, clock.NewFake(now))
	for name, change := range map[string]func(*tenant.Claims){
		"expired":    func(c *tenant.Claims) { c.ExpiresAt = now.Add(-time.Minute) },
		"no role":    func(c *tenant.Claims) { c.Role = "" },
		"no org":     func(c *tenant.Claims) { c.Org = ids.Org{} },
		"no user":    func(c *tenant.Claims) { c.User = ids.User{} },
		"not yet":    func(c *tenant.Claims) { c.IssuedAt = now.Add(time.Minute) },
		"no session": func(c *tenant.Claims) { c.Session = ids.Session{} },
	} {
		mine := claims(now)
		change(&mine)
		text, err := tokens.Sign(mine)
		require.NoError(t, err)
		_, err = tokens.Verify(t.Context(), text)
		require.True(t, fault.Is(err, fault.Unauthenticated), "%s: %v", name, err)
	}
}
