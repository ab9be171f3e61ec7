package ratelimit_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/internal/ratelimit"
)

// fakeStore is GCRA in memory.
type fakeStore struct {
	mu      sync.Mutex
	arrival map[string]time.Time
	asked   int
}

func newStore() *fakeStore { return &fakeStore{arrival: map[string]time.Time{}} }

func (s *fakeStore) Draw(_ context.Context, key string, n int, interval time.Duration, burst int, now time.Time) (bool, time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	next := s.arrival[key]
	if next.Before(now) {
		next = now
	}
	next = next.Add(time.Duration(n) * interval)
	if next.After(now.Add(time.Duration(burst) * interval)) {
		return false, s.arrival[key], nil
	}
	s.arrival[key] = next
	return true, next, nil
}

func TestReplicasTogetherNeverExceedThePolicy(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		store, fake := newStore(), clock.NewFake(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
		policy := ratelimit.Policy{Name: "p", Requests: rapid.IntRange(1, 200).Draw(r, "requests"), Window: time.Minute}
		replicas := []*ratelimit.Limiter{ratelimit.New(store, fake, policy), ratelimit.New(store, fake, policy), ratelimit.New(store, fake, policy)}
		start, allowed := fake.Now(), 0
		for range rapid.IntRange(1, 600).Draw(r, "calls") {
			fake.Advance(time.Duration(rapid.IntRange(0, 300).Draw(r, "gap_ms")) * time.Millisecond)
			verdict, err := replicas[rapid.IntRange(0, 2).Draw(r, "replica")].Allow(context.Background(), "k") //nolint:usetesting // rapid
			require.NoError(r, err)
			if verdict.Allowed {
				allowed++
			} else {
				require.GreaterOrEqual(r, verdict.RetryAfter, time.Second)
			}
		}
		most := policy.Requests + int(fake.Now().Sub(start)*time.Duration(policy.Requests)/policy.Window) + 1
		require.LessOrEqual(r, allowed, most)
	})
}

func TestABurstIsAllowedThenRefusedThenAllowedAgain(t *testing.T) {
	t.Parallel()
	store, fake := newStore(), clock.NewFake(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
	limiter := ratelimit.New(store, fake, ratelimit.Policy{Name: "p", Requests: 60, Window: time.Minute})
	for i := range 60 {
		verdict, err := limiter.Allow(t.Context(), "k")
		require.NoError(t, err)
		require.True(t, verdict.Allowed, i)
		require.Equal(t, 59-i, verdict.Remaining)
	}
	require.Less(t, store.asked, 25, "most requests cost no look at the database")
	verdict, err := limiter.Allow(t.Context(), "k")
	require.NoError(t, err)
	require.False(t, verdict.Allowed)
	asked := store.asked
	for range 100 {
		_, err := limiter.Allow(t.Context(), "k")
		require.NoError(t, err)
	}
	require.Equal(t, asked, store.asked, "hammering costs no look at the database")
	fake.Advance(verdict.RetryAfter)
	verdict, err = limiter.Allow(t.Context(), "k")
	require.NoError(t, err)
	require.True(t, verdict.Allowed, "Retry-After is the truth")
	other, err := limiter.Allow(t.Context(), "another")
	require.NoError(t, err)
	require.True(t, other.Allowed)
}
