package lease_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/tenant"
)

// shelf has one lease, and tells who waits for it.
type shelf struct {
	lease.Reads
	mu      sync.Mutex
	details lease.Details
	events  []lease.Event
	wakers  []chan struct{}
	asked   lease.Filter
}

func (s *shelf) WithinTx(ctx context.Context, fn func(ctx context.Context) error) error {
	return fn(ctx)
}

func (s *shelf) Details(_ context.Context, f lease.Filter) ([]lease.Details, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = f
	if f.ID != s.details.ID || !f.Project.IsZero() && f.Project != s.details.Project {
		return nil, nil
	}
	return []lease.Details{s.details}, nil
}

func (s *shelf) Events(_ context.Context, _ ids.Lease, after int64, _ int) ([]lease.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events[after:], nil
}

func (s *shelf) Subscribe(string, string) (<-chan struct{}, func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wake := make(chan struct{}, 1)
	s.wakers = append(s.wakers, wake)
	return wake, func() {}
}

// happen adds an event and wakes whoever waits.
func (s *shelf) happen(event lease.EventType, state lease.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.details.LastEvent++
	s.details.State = state
	s.events = append(s.events, lease.Event{Seq: s.details.LastEvent, Type: event})
	for _, w := range s.wakers {
		w <- struct{}{}
	}
}

func newShelf() (*shelf, *lease.Service, ids.Lease) {
	s := &shelf{details: lease.Details{Lease: lease.Lease{ID: ids.Make[ids.Lease](), Project: ids.Make[ids.Project](), State: lease.Active}}}
	return s, lease.NewService(s, s, s), s.details.ID
}

func TestAWaitEndsWithTheNextEvent(t *testing.T) {
	t.Parallel()
	s, service, id := newShelf()
	s.happen(lease.EventActive, lease.Active)
	found := make(chan lease.Details, 1)
	go func() {
		details, err := service.Await(context.WithoutCancel(t.Context()), id, 1, time.Minute)
		if err == nil {
			found <- details
		}
	}()
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.wakers) == 1
	}, 5*time.Second, time.Millisecond)
	s.happen(lease.EventReleasing, lease.Releasing)
	select {
	case details := <-found:
		require.Equal(t, lease.Releasing, details.State)
	case <-time.After(time.Second):
		require.Fail(t, "it was woken and did not look")
	}
}

func TestAWaitWithoutNewsEndsWithWhatThereIs(t *testing.T) {
	t.Parallel()
	_, service, id := newShelf()
	details, err := service.Await(t.Context(), id, 0, 10*time.Millisecond)
	require.NoError(t, err)
	require.Equal(t, id, details.ID)
}

func TestEventsOfAFinalLeaseEndTheStream(t *testing.T) {
	t.Parallel()
	s, service, id := newShelf()
	s.happen(lease.EventReleasing, lease.Releasing)
	events, over, err := service.AwaitEvents(t.Context(), id, 0)
	require.NoError(t, err)
	require.Len(t, events, 1)
	require.False(t, over)
	s.details.State = lease.Closed
	s.details.LastEvent, s.events = 2, append(s.events, lease.Event{Seq: 2, Type: lease.EventClosed})
	events, over, err = service.AwaitEvents(t.Context(), id, 1)
	require.NoError(t, err)
	require.Len(t, events, 1)
	require.True(t, over)
}

func TestAStreamThatIsCutOffIsNoFailure(t *testing.T) {
	t.Parallel()
	_, service, id := newShelf()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	events, over, err := service.AwaitEvents(ctx, id, 0)
	require.NoError(t, err)
	require.Empty(t, events)
	require.False(t, over)
}

func TestACredentialOfOneProjectSeesThatProjectsLeasesOnly(t *testing.T) {
	t.Parallel()
	s, service, id := newShelf()
	as := func(project ids.Project) context.Context {
		return tenant.WithActor(t.Context(), tenant.Actor{Project: project})
	}
	_, err := service.Get(as(s.details.Project), id)
	require.NoError(t, err)
	_, err = service.Get(as(ids.Make[ids.Project]()), id)
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	found, err := service.List(as(ids.Make[ids.Project]()), lease.Filter{Project: s.details.Project})
	require.NoError(t, err)
	require.Empty(t, found, "asking for another project does not widen it")
}

func TestStepsHaveOneNameForPeople(t *testing.T) {
	t.Parallel()
	for kind, name := range map[string]string{"prepare": "prepare", "witness-before_active": "attest", "witness_after_release": "attest", "wipe": "wipe", "grant": "grant"} {
		require.Equal(t, name, lease.StepName(kind))
	}
}
