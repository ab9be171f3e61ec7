package booking_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
)

// allocations reads a lease's, replaced ones included.
func (s *shop) allocations(t *testing.T, id ids.Lease) (all []lease.Allocation) {
	t.Helper()
	require.NoError(t, s.db.WithinTx(t.Context(), func(ctx context.Context) (err error) {
		all, err = postgres.NewAllocations(s.db).ByLease(ctx, id)
		return err
	}))
	return all
}

func (s *shop) bookedOf(t *testing.T, wish booking.Wish) []lease.Allocation {
	t.Helper()
	c, ctx := s.customer(t, "acme", 10_000_000)
	l, err := s.book(ctx, c, wish)
	require.NoError(t, err)
	return s.allocations(t, l.ID)
}

func TestAReplacementHasTheRestOfTheLeaseOnAnotherMachineOfTheFabric(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	nodes := s.Nodes(t, "h100", "hw", "bare_metal", 8, 4)
	s.InstanceType(t, "h100", "hw", "bare_metal", 8)
	wish := s.in(time.Hour, 2*time.Hour)
	wish.Instances = 2
	before := s.bookedOf(t, wish)
	lost := before[1]

	s.clock.Advance(2 * time.Hour) // it is under way
	made, err := s.sales.Replace(t.Context(), lost.ID)
	require.NoError(t, err)
	after := s.allocations(t, lost.Lease)
	require.Len(t, after, 3)
	at := slices.IndexFunc(after, func(a lease.Allocation) bool { return a.ID == made })
	require.Equal(t, lost.Ordinal, after[at].Ordinal)
	require.Equal(t, lost.Slots, after[at].Slots)
	require.Equal(t, lease.Held, after[at].State)
	require.Equal(t, lease.Window{Start: s.clock.Now(), End: lost.Occupied.End}, after[at].Occupied)
	require.NotContains(t, []ids.Node{before[0].Node, lost.Node}, after[at].Node)
	leaf := func(n ids.Node) int { return slices.Index(nodes, n) / 4 }
	require.Equal(t, leaf(before[0].Node), leaf(after[at].Node), "under the leaf switch that it has already")
}

func TestAReplacementKeepsTheTopologyThatWasPromised(t *testing.T) {
	t.Parallel()
	for topology, want := range map[booking.Topology]bool{booking.SameLeaf: false, booking.SamePod: true, booking.Anywhere: true} {
		t.Run(string(topology), func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.Nodes(t, "h100", "hw", "bare_metal", 4, 2) // two leaves of one pod
			s.InstanceType(t, "h100", "hw", "bare_metal", 8)
			wish := s.in(time.Hour, 2*time.Hour)
			wish.Instances, wish.Topology = 2, topology
			booked := s.bookedOf(t, wish)
			_, err := s.sales.Replace(t.Context(), booked[0].ID)
			if want {
				require.NoError(t, err)
				return
			}
			require.Equal(t, "no-replacement", fault.CodeOf(err), "the leaf is full, and another is not what was sold: %v", err)
			require.True(t, fault.Is(err, fault.Unavailable))
			require.Len(t, s.allocations(t, booked[0].Lease), 2)
		})
	}
}

func TestSparesAreForReplacementsAndBookedMachinesAreNot(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.Nodes(t, "h100", "hw", "bare_metal", 3, 4)
	s.InstanceType(t, "h100", "hw", "bare_metal", 8)
	s.Exec(t, "UPDATE fabric SET spares = 1")
	c, ctx := s.customer(t, "bolt", 10_000_000)
	wish := s.in(time.Hour, 2*time.Hour)
	wish.Instances = 2
	booked := s.bookedOf(t, wish)
	wish.Instances = 1
	_, err := s.book(ctx, c, wish)
	require.Equal(t, "no-capacity", fault.CodeOf(err), "the spare is kept back: %v", err)
	_, err = s.sales.Replace(t.Context(), booked[0].ID)
	require.NoError(t, err)
	_, err = s.sales.Replace(t.Context(), booked[1].ID)
	require.Equal(t, "no-replacement", fault.CodeOf(err), "%v", err)
}

func TestReplacementsAtOnceNeverShareAMachine(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.Nodes(t, "h100", "hw", "bare_metal", 12, 12)
	s.InstanceType(t, "h100", "hw", "bare_metal", 8)
	c, ctx := s.customer(t, "bolt", 10_000_000)
	var lost []lease.Allocation
	for range 8 {
		l, err := s.book(ctx, c, s.in(time.Hour, 2*time.Hour))
		require.NoError(t, err)
		lost = append(lost, s.allocations(t, l.ID)...)
	}
	var wait sync.WaitGroup
	made := make([]ids.Allocation, len(lost))
	for i, a := range lost {
		wait.Go(func() {
			for range 20 { // the loser of a race looks again, as the workflow does
				by, err := s.sales.Replace(context.WithoutCancel(t.Context()), a.ID)
				if made[i] = by; err == nil || fault.CodeOf(err) != "no-replacement" {
					return
				}
			}
		})
	}
	wait.Wait()
	found := 0
	for _, by := range made {
		if !by.IsZero() {
			found++
		}
	}
	require.Equal(t, 4, found, "as many as there were machines")
	var overlaps int
	require.NoError(t, s.Pool.QueryRow(t.Context(), `SELECT count(*) FROM allocation a JOIN allocation b ON a.node_id = b.node_id AND a.id < b.id
		AND a.slots && b.slots AND a.occupied && b.occupied`).Scan(&overlaps))
	require.Zero(t, overlaps)
}
