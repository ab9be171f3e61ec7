package tenant

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

func TestAPIKeysRoundTripAndTyposAreSeen(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		id := ids.Make[ids.APIKey]()
		secret := rapid.StringMatching(`[a-z2-7]{52}`).Draw(r, "secret")
		text := formatAPIKey("live", id, secret)
		environment, gotID, gotSecret, ok := parseAPIKey(text)
		require.True(r, ok)
		require.Equal(r, "live", environment)
		require.Equal(r, id, gotID)
		require.Equal(r, secret, gotSecret)

		at := rapid.IntRange(0, len(text)-1).Draw(r, "at")
		typo := []byte(text)
		typo[at] ^= 1
		_, _, _, ok = parseAPIKey(string(typo))
		require.False(r, ok, "a single wrong character is caught by the checksum")
	})
}

func FuzzAPIKeys(f *testing.F) {
	f.Add("lh_live_01h455vb4pex5vsknk084sn02q_abc00000000")
	f.Fuzz(func(_ *testing.T, text string) { parseAPIKey(text) })
}

func TestAKeyProvesNothingAfterItsEnd(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	key := APIKey{SecretHash: hashSecret("s"), ExpiresAt: now}
	require.True(t, key.proves("s", now.Add(-time.Second)))
	require.False(t, key.proves("s", now), "half-open")
	require.False(t, key.proves("other", now.Add(-time.Second)))
	key.RevokedAt = now.Add(-time.Hour)
	require.False(t, key.proves("s", now.Add(-time.Minute)))
}

func TestAKeyNeverExceedsItsMaker(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	in := APIKeyInput{Name: "k", Scopes: []string{LeasesWrite}}
	require.NoError(t, in.Validate(now, Actor{Role: Member, OrgKind: Customer}))
	require.True(t, fault.Is(in.Validate(now, Actor{Role: Viewer, OrgKind: Customer}), fault.Forbidden))
	require.True(t, fault.Is(in.Validate(now, Actor{Role: Owner, OrgKind: Customer, Scopes: []string{IdentityWrite}}), fault.Forbidden))
	in.ExpiresAt = now
	require.True(t, fault.Is(in.Validate(now, Actor{Role: Owner, OrgKind: Customer}), fault.Invalid))
	require.True(t, fault.Is(APIKeyInput{Name: "k", Scopes: []string{"leases:everything"}}.Validate(now, Actor{Role: Owner}), fault.Invalid))
}

func TestOnlyTheOperatorsAndProvidersRolesReachTheAdminScopes(t *testing.T) {
	t.Parallel()
	for _, role := range []Role{Owner, Admin, Member, Billing, Viewer} {
		for _, kind := range []OrgKind{Customer, Provider, Operator} {
			want := kind != Customer && (role == Owner || role == Admin)
			require.Equal(t, want, role.Allows(AdminWrite, kind), "%s of %s", role, kind)
		}
	}
	require.False(t, Role("").Allows(MarketRead, Customer), "no role, no rights")
}
