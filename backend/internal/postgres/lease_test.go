package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/markettest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/tenant"
)

// leaseWorld is a database with one booked lease on one node.
type leaseWorld struct {
	*markettest.Market
	db          *postgres.DB
	leases      *postgres.Leases
	allocations *postgres.Allocations
	customer    markettest.Customer
	lease       ids.Lease
	node        ids.Node
	start       time.Time
}

func newLeaseWorld(t *testing.T) *leaseWorld {
	t.Helper()
	m := markettest.New(t)
	db, err := postgres.Open(t.Context(), m.URL, 16)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	w := &leaseWorld{Market: m, db: db, leases: postgres.NewLeases(db), allocations: postgres.NewAllocations(db), customer: m.Customer(t, "Acme")}
	w.start = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
	w.node = m.Nodes(t, "h100", "h100-sxm-80gb.8", "bare_metal", 1, 4)[0]
	w.lease = m.Lease(t, w.customer, m.InstanceType(t, "h100-sxm.8x.ndr", "h100-sxm-80gb.8", "bare_metal", 8), w.start, w.start.Add(time.Hour))
	return w
}

func (w *leaseWorld) within(t *testing.T, ctx context.Context, fn func(ctx context.Context)) { //nolint:revive // the test comes first, as everywhere
	t.Helper()
	require.NoError(t, w.db.WithinTx(ctx, func(ctx context.Context) error {
		fn(ctx)
		return nil
	}))
}

func (w *leaseWorld) allocation() lease.Allocation {
	return lease.Allocation{
		ID: ids.Make[ids.Allocation](), Node: w.node, Lease: w.lease, Slots: lease.Slots{From: 0, To: 64}, State: lease.Held,
		Occupied: lease.Window{Start: w.start.Add(-10 * time.Minute), End: w.start.Add(75 * time.Minute)}, CreatedAt: w.start,
	}
}

func TestALeaseComesBackAsItWasWritten(t *testing.T) {
	t.Parallel()
	w := newLeaseWorld(t)
	w.within(t, t.Context(), func(ctx context.Context) {
		l, err := w.leases.GetForUpdate(ctx, w.lease)
		require.NoError(t, err)
		l.Tags, l.Name, l.Version, l.Reason = map[string]string{"team": "nlp"}, "renamed", 2, "waits"
		require.NoError(t, l.MoveTo(lease.Provisioning, w.start))
		l.WantedEnd = w.start.Add(30 * time.Minute)
		require.NoError(t, w.leases.Update(ctx, l))
		again, err := w.leases.Get(ctx, w.lease)
		require.NoError(t, err)
		require.Equal(t, l, again)
		segments, err := w.leases.Segments(ctx, w.lease)
		require.NoError(t, err)
		require.Len(t, segments, 1)
		require.EqualValues(t, 2490000, segments[0].Rate.Micros)
		require.EqualValues(t, "USD", segments[0].Rate.Currency)
		require.EqualValues(t, 8, segments[0].Terms.UnitsPerInstance)
		keys, err := w.leases.SSHKeys(ctx, w.lease)
		require.NoError(t, err)
		require.Equal(t, []lease.SSHKey{{ID: w.customer.Key, Name: "laptop", PublicKey: "ssh-ed25519 AAAA"}}, keys)
	})
}

func TestEventsAreNumberedWithoutGapsByConcurrentWriters(t *testing.T) {
	t.Parallel()
	w := newLeaseWorld(t)
	writers, ctx := errgroup.WithContext(t.Context())
	const each, writersCount = 5, 8
	for range writersCount {
		writers.Go(func() error {
			for range each {
				err := w.db.WithinTx(ctx, func(ctx context.Context) error {
					_, err := w.leases.AppendEvent(ctx, lease.Event{Lease: w.lease, Type: lease.EventNotice, At: w.start, Data: map[string]any{"remaining_seconds": 60}})
					return err
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, writers.Wait())
	w.within(t, t.Context(), func(ctx context.Context) {
		events, err := w.leases.Events(ctx, w.lease, 0, 0)
		require.NoError(t, err)
		require.Len(t, events, each*writersCount)
		for i, e := range events {
			require.EqualValues(t, i+1, e.Seq)
			require.Equal(t, w.customer.Org, e.Org)
			require.Equal(t, "system", e.Actor)
		}
		rest, err := w.leases.Events(ctx, w.lease, 38, 1)
		require.NoError(t, err)
		require.Len(t, rest, 1)
		require.EqualValues(t, 39, rest[0].Seq)
	})
}

func TestAnotherOrganizationsLeaseIsNotFound(t *testing.T) {
	t.Parallel()
	w := newLeaseWorld(t)
	stranger := tenant.WithActor(t.Context(), tenant.Actor{Org: w.Customer(t, "Stranger").Org})
	w.within(t, t.Context(), func(ctx context.Context) { require.NoError(t, w.allocations.Insert(ctx, w.allocation())) })
	w.within(t, stranger, func(ctx context.Context) {
		_, err := w.leases.Get(ctx, w.lease)
		require.Equal(t, fault.NotFound, fault.KindOf(err))
		_, err = w.leases.AppendEvent(ctx, lease.Event{Lease: w.lease, Type: lease.EventNotice, At: w.start})
		require.Equal(t, fault.NotFound, fault.KindOf(err))
		list, err := w.leases.List(ctx, lease.Filter{})
		require.NoError(t, err)
		require.Empty(t, list)
		held, err := w.allocations.ByLease(ctx, w.lease)
		require.NoError(t, err)
		require.Empty(t, held)
	})
	own := tenant.WithActor(t.Context(), tenant.Actor{Org: w.customer.Org})
	w.within(t, own, func(ctx context.Context) {
		held, err := w.allocations.ByLease(ctx, w.lease)
		require.NoError(t, err)
		require.Len(t, held, 1)
		list, err := w.leases.List(ctx, lease.Filter{States: []lease.State{lease.Reserved}, Project: w.customer.Project, Limit: 10})
		require.NoError(t, err)
		require.Len(t, list, 1)
		page, err := w.leases.List(ctx, lease.Filter{After: w.lease})
		require.NoError(t, err)
		require.Empty(t, page)
	})
}

func TestAnAllocationComesBackAsItWasWritten(t *testing.T) {
	t.Parallel()
	w := newLeaseWorld(t)
	w.within(t, t.Context(), func(ctx context.Context) {
		a := w.allocation()
		require.NoError(t, w.allocations.Insert(ctx, a))
		got, err := w.allocations.GetForUpdate(ctx, a.ID)
		require.NoError(t, err)
		require.Equal(t, a, got)
		epoch, err := w.allocations.NextEpoch(ctx)
		require.NoError(t, err)
		require.Positive(t, epoch)
		a.Epoch, a.Access = epoch, &lease.Access{Host: "127.0.0.1", Port: 22, User: "lease", HostKeys: []string{"ssh-ed25519 AAAA"}}
		require.NoError(t, a.MoveTo(lease.Preparing, w.start))
		require.NoError(t, a.MoveTo(lease.Cleaning, w.start))
		require.NoError(t, a.MoveTo(lease.Released, w.start))
		require.NoError(t, w.allocations.Update(ctx, a))
		got, err = w.allocations.Get(ctx, a.ID)
		require.NoError(t, err)
		require.Equal(t, a, got)
	})
}

func TestAnOverlapIsRefusedByTheDatabase(t *testing.T) {
	t.Parallel()
	w := newLeaseWorld(t)
	first, second := w.allocation(), w.allocation()
	second.Slots = lease.Slots{From: 56, To: 64}
	w.within(t, t.Context(), func(ctx context.Context) { require.NoError(t, w.allocations.Insert(ctx, first)) })
	err := w.db.WithinTx(t.Context(), func(ctx context.Context) error { return w.allocations.Insert(ctx, second) })
	require.Equal(t, fault.Conflict, fault.KindOf(err))
	require.Equal(t, "overlap", fault.CodeOf(err))

	second.Occupied.Start = first.Occupied.End
	second.Occupied.End = first.Occupied.End.Add(time.Hour)
	w.within(t, t.Context(), func(ctx context.Context) {
		require.NoError(t, w.allocations.Insert(ctx, second), "half-open: what begins at the end of another does not touch it")
	})
}

func TestAnEmptyAllocationIsRefusedByTheDatabase(t *testing.T) {
	t.Parallel()
	w := newLeaseWorld(t)
	for name, spoil := range map[string]func(*lease.Allocation){
		"no slots": func(a *lease.Allocation) { a.Slots = lease.Slots{From: 8, To: 8} },
		"no time":  func(a *lease.Allocation) { a.Occupied.End = a.Occupied.Start },
		"backward": func(a *lease.Allocation) { a.Slots = lease.Slots{From: 8, To: 0} },
	} {
		a := w.allocation()
		spoil(&a)
		err := w.db.WithinTx(t.Context(), func(ctx context.Context) error { return w.allocations.Insert(ctx, a) })
		require.Error(t, err, name)
	}
}
