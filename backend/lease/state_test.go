package lease_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/lease"
)

func now() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func TestALeaseMovesAsItsTableSaysAndNoOtherWay(t *testing.T) {
	t.Parallel()
	all := []lease.State{lease.Reserved, lease.Provisioning, lease.Active, lease.Releasing, lease.Closed, lease.Cancelled}
	allowed := map[lease.State][]lease.State{
		lease.Reserved:     {lease.Provisioning, lease.Cancelled},
		lease.Provisioning: {lease.Active, lease.Releasing}, // never straight to an end: what was touched is cleaned
		lease.Active:       {lease.Releasing},
		lease.Releasing:    {lease.Closed},
	}
	for _, from := range all {
		for _, to := range all {
			l := lease.Lease{State: from}
			err := l.MoveTo(to, now())
			if slices.Contains(allowed[from], to) {
				require.NoError(t, err, "%s → %s", from, to)
				require.Equal(t, to, l.State)
				continue
			}
			require.Equal(t, fault.Conflict, fault.KindOf(err), "%s → %s", from, to)
			require.Equal(t, from, l.State, "a refused move changes nothing")
		}
	}
}

func TestAMoveStampsItsInstant(t *testing.T) {
	t.Parallel()
	for to, stamped := range map[lease.State]func(l lease.Lease) time.Time{
		lease.Provisioning: func(l lease.Lease) time.Time { return l.ProvisioningAt },
		lease.Active:       func(l lease.Lease) time.Time { return l.ActiveAt },
		lease.Closed:       func(l lease.Lease) time.Time { return l.ClosedAt },
		lease.Cancelled:    func(l lease.Lease) time.Time { return l.ClosedAt },
	} {
		from := map[lease.State]lease.State{
			lease.Provisioning: lease.Reserved, lease.Active: lease.Provisioning, lease.Closed: lease.Releasing, lease.Cancelled: lease.Reserved,
		}[to]
		l := lease.Lease{State: from}
		require.NoError(t, l.MoveTo(to, now()))
		require.Equal(t, now(), stamped(l), to)
	}
}

func TestAnAllocationMovesAsItsTableSaysAndNoOtherWay(t *testing.T) {
	t.Parallel()
	all := []lease.AllocationState{lease.Held, lease.Preparing, lease.InUse, lease.Cleaning, lease.Released, lease.Quarantined}
	allowed := map[lease.AllocationState][]lease.AllocationState{
		lease.Held:        {lease.Preparing, lease.Released},
		lease.Preparing:   {lease.InUse, lease.Cleaning},
		lease.InUse:       {lease.Cleaning}, // never straight to released: a tenant was there
		lease.Cleaning:    {lease.Released, lease.Quarantined},
		lease.Quarantined: {lease.Cleaning, lease.Released},
	}
	for _, from := range all {
		for _, to := range all {
			a := lease.Allocation{State: from}
			err := a.MoveTo(to, now())
			if !slices.Contains(allowed[from], to) {
				require.Equal(t, fault.Conflict, fault.KindOf(err), "%s → %s", from, to)
				continue
			}
			require.NoError(t, err, "%s → %s", from, to)
			require.Equal(t, to == lease.Released, !a.ReleasedAt.IsZero(), "only a release is an instant")
		}
	}
}

func TestTheEffectiveEndIsTheEarlierOne(t *testing.T) {
	t.Parallel()
	l := lease.Lease{End: now()}
	require.Equal(t, now(), l.EffectiveEnd())
	l.WantedEnd = now().Add(-time.Hour)
	require.Equal(t, l.WantedEnd, l.EffectiveEnd())
	l.WantedEnd = now().Add(time.Hour)
	require.Equal(t, now(), l.EffectiveEnd(), "asking for an end does not extend")
}
