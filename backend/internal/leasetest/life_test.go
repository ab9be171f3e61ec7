package leasetest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/outbox"
	"github.com/leasehold/leasehold/workflows/leasing"
)

// TestALeaseLivesOnARealServer has one server and one set of nodes for its parts, which follow each other.
func TestALeaseLivesOnARealServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 16)
	stop := w.startWorker(t)
	w.book(t, time.Now().Add(time.Hour*24*30), time.Hour) // a lease that is far ahead is only rows; nobody may start it
	w.Exec(t, "UPDATE allocation SET occupied = tstzrange(now() + interval '29 days', now() + interval '31 days')")

	first := w.book(t, time.Now(), 5*time.Second)
	began := time.Now()
	active := w.await(t, first, lease.Active)
	took := time.Since(began)
	t.Logf("16 nodes that take no time: from start to active in %s", took)
	require.Less(t, took, 4*time.Second, "control plane's own time; loaded machines included")
	w.within(t, func(ctx context.Context) error {
		l, err := w.leases.GetForUpdate(ctx, first)
		if err != nil {
			return err
		}
		l.End = active.End.Add(2 * time.Second) // an extension
		if err := w.leases.Update(ctx, l); err != nil {
			return err
		}
		return w.box.Put(ctx, outbox.LeaseNudge, first.String(), nil, time.Now())
	})
	closed := w.await(t, first, lease.Closed)
	require.Equal(t, lease.Completed, closed.Outcome)
	require.Equal(t, active.End.Add(2*time.Second), closed.ReleasedAt)
	w.requireClean(t, first)
	w.record(t, first, "completed")

	// The worker dies while the lease is being delivered, and another takes over.
	second := w.book(t, time.Now().Add(time.Second), 3*time.Second)
	w.await(t, second, lease.Provisioning)
	stop()
	stop = w.startWorker(t)
	w.await(t, second, lease.Active)

	// The workflow is lost, and the reconciler starts it again from the rows.
	require.NoError(t, w.temporal.TerminateWorkflow(t.Context(), leasing.WorkflowID(second), "", "lost"))
	require.Eventually(t, func() bool {
		running, err := w.reconciler(t).Running(t.Context())
		return err == nil && !running[second]
	}, 20*time.Second, 100*time.Millisecond)
	require.NoError(t, w.reconciler(t).Compare(t.Context()))
	require.Equal(t, lease.Completed, w.await(t, second, lease.Closed).Outcome)
	w.requireClean(t, second)

	third := w.book(t, time.Now().Add(5*time.Minute), time.Hour)
	w.await(t, third, lease.Provisioning)
	w.within(t, func(ctx context.Context) error {
		l, err := w.leases.GetForUpdate(ctx, third)
		if err != nil {
			return err
		}
		l.WantedEnd = time.Now().UTC() // a cancellation
		if err := w.leases.Update(ctx, l); err != nil {
			return err
		}
		return w.box.Put(ctx, outbox.LeaseNudge, third.String(), nil, time.Now())
	})
	require.Equal(t, lease.CancelledOutcome, w.await(t, third, lease.Closed).Outcome)
	w.requireClean(t, third)
	w.record(t, third, "cancelled")

	findings, err := postgres.NewDoctor(w.db).Examine(t.Context())
	require.NoError(t, err)
	for _, f := range findings {
		require.Contains(t, []int{2, 4, 5, 7}, f.Invariant, "%s", f) // partitions, money and nodes answer from memory here
	}
	stop()
}

func (w *world) requireClean(t *testing.T, id ids.Lease) {
	t.Helper()
	var held, wiped int
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT count(*) FROM allocation WHERE lease_id = $1 AND state <> 'released'", id).Scan(&held))
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT count(*) FROM wipe_certificate WHERE lease_id = $1 AND result = 'wiped'", id).Scan(&wiped))
	require.Zero(t, held)
	require.Equal(t, len(w.nodes), wiped)
}
