package postgres_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/tenant"
)

func TestABucketGivesExactlyItsBurstHoweverManyDraw(t *testing.T) {
	t.Parallel()
	limits, now := postgres.NewRateLimits(open(t)), time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	ctx := tenant.WithActor(t.Context(), tenant.Actor{Org: ids.Make[ids.Org]()}) // a tenant's request draws with the platform's role
	var (
		wait  sync.WaitGroup
		taken atomic.Int32
		errs  = make(chan error, 64)
	)
	for range 64 {
		wait.Go(func() {
			ok, _, err := limits.Draw(ctx, "k", 1, time.Second, 10, now)
			if ok {
				taken.Add(1)
			}
			errs <- err
		})
	}
	wait.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
	require.Equal(t, int32(10), taken.Load())

	ok, arrival, err := limits.Draw(t.Context(), "k", 1, time.Second, 10, now)
	require.NoError(t, err)
	require.False(t, ok)
	require.Equal(t, now.Add(10*time.Second), arrival, "what a refused draw learns")
	ok, _, err = limits.Draw(t.Context(), "k", 1, time.Second, 10, now.Add(time.Second))
	require.NoError(t, err)
	require.True(t, ok, "a second later there is one more")

	require.NoError(t, limits.Forget(t.Context(), now.Add(time.Hour)))
	ok, _, err = limits.Draw(t.Context(), "k", 10, time.Second, 10, now)
	require.NoError(t, err)
	require.True(t, ok, "a forgotten bucket is a full one")
}
