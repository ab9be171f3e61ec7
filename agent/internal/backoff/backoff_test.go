package backoff

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestPausesGrowStayWithinTheirBoundsAndStartOverAfterASuccess(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		policy := Policy{Min: time.Duration(rapid.IntRange(1, 1000).Draw(t, "min")) * time.Millisecond}
		policy.Max = policy.Min * time.Duration(rapid.IntRange(1, 5000).Draw(t, "factor"))
		b := New(policy)
		for n := range rapid.IntRange(1, 80).Draw(t, "failures") {
			pause := b.next()
			require.LessOrEqual(t, pause, policy.Max)
			require.GreaterOrEqual(t, pause, min(policy.Min<<min(n, 12), policy.Max)/2)
		}
		b.Reset()
		require.LessOrEqual(t, b.next(), policy.Min)
	})
}

func TestAPauseEndsWhenItIsWokenOrItsContextEnds(t *testing.T) {
	t.Parallel()
	wake := make(chan struct{}, 1)
	wake <- struct{}{}
	require.NoError(t, Wait(t.Context(), time.Hour, wake))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, Wait(ctx, time.Hour, nil), context.Canceled)
}
