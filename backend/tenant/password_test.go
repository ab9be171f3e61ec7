package tenant

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/backend/fault"
)

func cheap(t *testing.T) *passwords {
	t.Helper()
	p, err := newPasswords(PasswordCost{MemoryKiB: 64, Passes: 1})
	require.NoError(t, err)
	return p
}

func TestOnlyTheRightPasswordVerifies(t *testing.T) {
	t.Parallel()
	p := cheap(t)
	phc, err := p.hash(t.Context(), "open sesame now")
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(phc, "$argon2id$v=19$m=64,t=1,p=1$"), phc)
	for password, want := range map[string]bool{"open sesame now": true, "open sesame": false, "": false} {
		got, err := p.verify(t.Context(), phc, password)
		require.NoError(t, err)
		require.Equal(t, want, got, password)
	}
}

func TestNobodysPasswordIsNeverRight(t *testing.T) {
	t.Parallel()
	got, err := cheap(t).verify(t.Context(), "", "there is no such user")
	require.NoError(t, err)
	require.False(t, got, "even the text behind the dummy hash")
}

func TestAHashThatAsksForAbsurdMemoryIsRefused(t *testing.T) {
	t.Parallel()
	for _, phc := range []string{
		"$argon2id$v=19$m=99999999,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAA", "$argon2id$v=19$m=64,t=0,p=1$AA$AA", "$argon2i$v=19$m=64,t=1,p=1$AA$AA",
		"$argon2id$v=18$m=64,t=1,p=1$AA$AA", "plain", "$$$$$",
	} {
		_, err := cheap(t).verify(t.Context(), phc, "x")
		require.Error(t, err, phc)
	}
}

func TestALogInThatGetsNoTurnIsTold(t *testing.T) {
	t.Parallel()
	p := cheap(t)
	for range cap(p.turns) {
		require.NoError(t, p.wait(t.Context()))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := p.verify(ctx, "", "x")
	require.True(t, fault.Is(err, fault.Unavailable), err)
}

func TestAHashOfAnotherCostIsOutdated(t *testing.T) {
	t.Parallel()
	phc, err := cheap(t).hash(t.Context(), "whatever it may be")
	require.NoError(t, err)
	dear, err := newPasswords(PasswordCost{MemoryKiB: 128, Passes: 1})
	require.NoError(t, err)
	require.True(t, dear.outdated(phc))
	require.False(t, cheap(t).outdated(phc))
}

func FuzzPHCStrings(f *testing.F) {
	f.Add("$argon2id$v=19$m=64,t=1,p=1$AAAA$AAAA")
	f.Fuzz(func(t *testing.T, phc string) {
		_, sum, cost, err := decodePHC(phc)
		if err == nil {
			require.Len(t, sum, hashBytes)
			require.LessOrEqual(t, cost.MemoryKiB, uint32(maxMemoryKiB))
		}
	})
}

func TestAnyPasswordRoundTrips(t *testing.T) {
	t.Parallel()
	p := cheap(t)
	rapid.Check(t, func(r *rapid.T) {
		password := rapid.String().Draw(r, "password")
		phc, err := p.hash(context.Background(), password) //nolint:usetesting // rapid's T has no context
		require.NoError(r, err)
		ok, err := p.verify(context.Background(), phc, password) //nolint:usetesting // as above
		require.NoError(r, err)
		require.True(r, ok)
	})
}
