package leasing_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/lease"
)

func TestALeaseIsNotHandedOverWhileItsFabricIsOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(2, time.Hour)
	var reason string
	w.at(noon.Add(-30*time.Second), func() {
		require.Equal(t, delivery.Verified, w.isolation, "its own ports are right, and proved to be")
		w.isolation = delivery.Broken
	})
	w.at(noon.Add(2*time.Minute), func() {
		require.Equal(t, lease.Provisioning, w.rows.lease.State)
		reason = w.rows.lease.Reason
	})
	w.at(noon.Add(3*time.Minute), func() { w.isolation = delivery.Verified })
	w.run(t)
	w.requireNothingHeld(t)
	require.Contains(t, reason, "the fabric cannot isolate it yet")
	require.Equal(t, lease.Completed, w.rows.lease.Outcome, w.rows.lease.Reason)
	require.WithinDuration(t, noon.Add(3*time.Minute), w.rows.lease.ActiveAt, 30*time.Second)
}

func TestNoMachineIsPreparedWhileItsFabricIsOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(2, time.Hour)
	w.isolation = delivery.Broken // every machine's ports would be found to hold what no tenant may meet
	w.at(noon.Add(time.Minute), func() {
		require.Empty(t, w.rows.operations)
		require.Contains(t, w.rows.lease.Reason, "the fabric cannot isolate it yet")
		w.isolation = delivery.NoPartition
	})
	w.run(t)
	w.requireNothingHeld(t)
	require.Equal(t, lease.Completed, w.rows.lease.Outcome, w.rows.lease.Reason)
	require.WithinDuration(t, noon.Add(time.Minute), w.rows.lease.ActiveAt, time.Minute)
	require.Zero(t, w.count(lease.EventNodeReplaced))
}
