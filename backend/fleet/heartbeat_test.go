package fleet_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/outbox"
)

func beat(sequence int64) protocol.Heartbeat {
	return protocol.Heartbeat{BootID: "boot-1", Sequence: sequence}
}

func (w *world) liveness(t *testing.T, a *agent) (boot string, sequence int64, seen time.Time) {
	t.Helper()
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT boot_id, sequence, seen_at FROM node_liveness WHERE node_id = $1", a.node).Scan(&boot, &sequence, &seen))
	return boot, sequence, seen.UTC()
}

func TestASequenceThatWasSeenIsIgnoredWithinItsBoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.enroll(t, protocol.NodeAgent, "a")
	reply, err := w.fleet.Heartbeat(t.Context(), w.call(t, a), beat(5))
	require.NoError(t, err)
	require.Equal(t, start(), reply.ServerTime)
	require.True(t, reply.InventoryWanted)
	w.clock.Advance(10 * time.Second)
	for _, old := range []int64{5, 4, 0} {
		_, err = w.fleet.Heartbeat(t.Context(), w.call(t, a), beat(old))
		require.NoError(t, err, "it is answered all the same")
		_, sequence, seen := w.liveness(t, a)
		require.EqualValues(t, 5, sequence)
		require.Equal(t, start(), seen)
	}
	_, err = w.fleet.Heartbeat(t.Context(), w.call(t, a), beat(6))
	require.NoError(t, err)
	_, sequence, seen := w.liveness(t, a)
	require.EqualValues(t, 6, sequence)
	require.Equal(t, start().Add(10*time.Second), seen)
	_, err = w.fleet.Heartbeat(t.Context(), w.call(t, a), protocol.Heartbeat{BootID: "boot-2", Sequence: 1})
	require.NoError(t, err)
	boot, sequence, _ := w.liveness(t, a)
	require.Equal(t, "boot-2", boot)
	require.EqualValues(t, 1, sequence)
}

func TestConcurrentHeartbeatsLeaveTheHighestSequence(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	agents := []*agent{w.enroll(t, protocol.NodeAgent, "a"), w.enroll(t, protocol.NodeAgent, "b"), w.enroll(t, protocol.FabricAgent, "ib0")}
	for _, err := range together(120, func(i int) error {
		_, err := w.fleet.Heartbeat(t.Context(), w.call(t, agents[i%3]), beat(int64(i/3)))
		return err
	}) {
		require.NoError(t, err)
	}
	for _, a := range agents[:2] {
		_, sequence, _ := w.liveness(t, a)
		require.EqualValues(t, 39, sequence)
	}
}

func TestTheReplyTellsOfWorkAndOfAMissingInventory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, f := w.enroll(t, protocol.NodeAgent, "a"), w.enroll(t, protocol.FabricAgent, "ib0")
	w.Exec(t, `UPDATE node SET reported = '{}' WHERE id = $1`, a.node)
	reply, err := w.fleet.Heartbeat(t.Context(), w.call(t, a), beat(1))
	require.NoError(t, err)
	require.True(t, reply.InventoryWanted, "it is a new boot")
	reply, err = w.fleet.Heartbeat(t.Context(), w.call(t, a), beat(2))
	require.NoError(t, err)
	require.False(t, reply.InventoryWanted)
	require.Zero(t, reply.OperationsPending)
	_, err = w.fleet.Issue(t.Context(), fleet.Step{Lease: w.lease(t), Kind: "revoke", Attempt: 1}, []fleet.Work{revokeOf(a), {
		Fabric: w.Fabric, Kind: protocol.ObserveFabric, Spec: protocol.ObserveFabricSpec{}, PickUpWithin: time.Minute, DoneWithin: time.Minute,
	}})
	require.NoError(t, err)
	for _, one := range []*agent{a, f} {
		reply, err = w.fleet.Heartbeat(t.Context(), w.call(t, one), beat(3))
		require.NoError(t, err)
		require.Equal(t, 1, reply.OperationsPending)
	}
	require.True(t, reply.InventoryWanted)
	w.Exec(t, "UPDATE fabric SET observed_at = now()")
	reply, err = w.fleet.Heartbeat(t.Context(), w.call(t, f), beat(4))
	require.NoError(t, err)
	require.False(t, reply.InventoryWanted)
}

// conditions are the node's live ones, by name and device.
func (w *world) conditions(t *testing.T, a *agent) map[string]string {
	t.Helper()
	rows, err := w.Pool.Query(t.Context(), "SELECT name || '/' || device, class || ' ' || evidence FROM node_condition WHERE node_id = $1 AND cleared_at IS NULL", a.node)
	require.NoError(t, err)
	defer rows.Close()
	found := map[string]string{}
	for rows.Next() {
		var name, evidence string
		require.NoError(t, rows.Scan(&name, &evidence))
		found[name] = evidence
	}
	require.NoError(t, rows.Err())
	return found
}

func TestConditionsAreWhatTheLatestHeartbeatSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.enroll(t, protocol.NodeAgent, "a")
	hot := protocol.Condition{Name: "gpu-hot", Device: "GPU-1", Class: protocol.Degrades, Onset: start(), Evidence: "91 C", Exit: "clears_itself"}
	lost := protocol.Condition{Name: "gpu-xid-79", Device: "GPU-2", Class: protocol.PreventsAllocation, Onset: start(), Evidence: "off the bus", Exit: "reboot"}
	say := func(sequence int64, conditions ...protocol.Condition) map[string]string {
		report := beat(sequence)
		report.Conditions = conditions
		_, err := w.fleet.Heartbeat(t.Context(), w.call(t, a), report)
		require.NoError(t, err)
		return w.conditions(t, a)
	}
	require.Equal(t, map[string]string{"gpu-hot/GPU-1": "degrades 91 C", "gpu-xid-79/GPU-2": "prevents_allocation off the bus"}, say(1, hot, lost, hot))
	hot.Evidence = "93 C"
	require.Equal(t, map[string]string{"gpu-hot/GPU-1": "degrades 93 C"}, say(2, hot))
	require.Equal(t, map[string]string{"gpu-hot/GPU-1": "degrades 93 C"}, say(1, lost), "an old word changes nothing")
	require.Empty(t, say(3))
	require.Equal(t, map[string]string{"gpu-xid-79/GPU-2": "prevents_allocation off the bus"}, say(4, lost), "the same may come back")
	before := w.version(t)
	say(5, lost)
	require.Equal(t, before, w.version(t), "what has not changed is not written")
}

func (w *world) version(t *testing.T) (version string) {
	t.Helper()
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT string_agg(xmin::text || ' ' || xmax::text, ',') FROM node_condition").Scan(&version))
	return version
}

// rent puts a lease on the node.
func (w *world) rent(t *testing.T, a *agent) ids.Lease {
	t.Helper()
	lease := w.lease(t)
	w.Exec(t, `INSERT INTO allocation (id, node_id, purpose, lease_id, slots, occupied, state, epoch, created_at)
		VALUES ($1, $2, 'lease', $3, '[0,64)', '[2026-03-01,2026-03-02)', 'in_use', 1, now())`, ids.Make[ids.Allocation](), a.node, lease)
	return lease
}

func TestAFailureUnderATenantIsNewsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.enroll(t, protocol.NodeAgent, "a")
	lease := w.rent(t, a)
	report := beat(1)
	report.Conditions = []protocol.Condition{{Name: "gpu-xid-79", Class: protocol.PreventsAllocation, Onset: start()}, {Name: "warm", Class: protocol.Informs, Onset: start()}}
	for range 3 {
		report.Sequence++
		_, err := w.fleet.Heartbeat(t.Context(), w.call(t, a), report)
		require.NoError(t, err)
	}
	require.Equal(t, 1, w.nudges(t, outbox.LeaseNudge, lease.String()))
	require.Equal(t, 1, w.nudges(t, outbox.Notify, "operator"))
}

func TestMetersAreKeptOnlyWhileSomebodyRents(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.enroll(t, protocol.NodeAgent, "a")
	sample := func(at time.Time, value float64) protocol.Sample {
		return protocol.Sample{At: at, Device: "GPU-1", Values: map[string]float64{"gpu_power_watts": value}}
	}
	report := beat(1)
	report.Samples = []protocol.Sample{sample(start(), 1)}
	_, err := w.fleet.Heartbeat(t.Context(), w.call(t, a), report)
	require.NoError(t, err)
	none, err := w.fleet.Samples(t.Context(), a.node, start().Add(-time.Hour), start().Add(time.Hour))
	require.NoError(t, err)
	require.Empty(t, none)

	w.rent(t, a)
	report.Sequence, report.Samples = 2, []protocol.Sample{
		sample(start().Add(-25*time.Hour), 2), sample(start().Add(-time.Minute), 3), sample(start(), 4), sample(start().Add(time.Hour), 5),
	}
	_, err = w.fleet.Heartbeat(t.Context(), w.call(t, a), report)
	require.NoError(t, err)
	w.clock.Advance(10 * time.Second)
	report.Sequence, report.Samples = 3, []protocol.Sample{sample(w.clock.Now(), 6)}
	_, err = w.fleet.Heartbeat(t.Context(), w.call(t, a), report)
	require.NoError(t, err)
	kept, err := w.fleet.Samples(t.Context(), a.node, start().Add(-48*time.Hour), start().Add(48*time.Hour))
	require.NoError(t, err)
	require.Equal(t, []protocol.Sample{sample(start().Add(-time.Minute), 3), sample(start(), 4), sample(start().Add(10*time.Second), 6)}, kept,
		"what is too old or from the future is dropped")
	part, err := w.fleet.Samples(t.Context(), a.node, start(), start().Add(5*time.Second))
	require.NoError(t, err)
	require.Len(t, part, 1)
	var chunks int
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT count(*) FROM metric_chunk").Scan(&chunks))
	require.Equal(t, 2, chunks, "one a minute")
	require.NoError(t, w.fleet.Retain(t.Context(), start().Add(25*time.Hour)))
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT count(*) FROM metric_chunk").Scan(&chunks))
	require.Zero(t, chunks)
}

func TestAHeartbeatThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.enroll(t, protocol.NodeAgent, "a")
	good := protocol.Condition{Name: "x", Class: protocol.Informs, Onset: start()}
	for name, change := range map[string]func(*protocol.Heartbeat){
		"no boot":               func(b *protocol.Heartbeat) { b.BootID = "" },
		"a huge boot":           func(b *protocol.Heartbeat) { b.BootID = strings.Repeat("x", 1_000) },
		"a negative sequence":   func(b *protocol.Heartbeat) { b.Sequence = -1 },
		"too many conditions":   func(b *protocol.Heartbeat) { b.Conditions = make([]protocol.Condition, 1_001) },
		"too many samples":      func(b *protocol.Heartbeat) { b.Samples = make([]protocol.Sample, 20_001) },
		"an unknown class":      func(b *protocol.Heartbeat) { b.Conditions[0].Class = "fatal" },
		"a condition sans name": func(b *protocol.Heartbeat) { b.Conditions[0].Name = "" },
		"no onset":              func(b *protocol.Heartbeat) { b.Conditions[0].Onset = time.Time{} },
		"a novel as evidence":   func(b *protocol.Heartbeat) { b.Conditions[0].Evidence = strings.Repeat("x", 5_000) },
	} {
		report := beat(1)
		report.Conditions = []protocol.Condition{good}
		change(&report)
		_, err := w.fleet.Heartbeat(t.Context(), w.call(t, a), report)
		require.Equal(t, fault.Invalid, fault.KindOf(err), name)
	}
}
