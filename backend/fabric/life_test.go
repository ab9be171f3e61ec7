package fabric_test

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

func TestALeaseIsIsolatedAndReleasedWithProof(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	id := w.lease(w.nodes[0], w.nodes[1])
	require.Equal(t, fabric.None, w.status(id))
	require.False(t, w.plan(), "nothing is wanted yet")

	w.join(id)
	w.join(id)
	require.Equal(t, fabric.Pending, w.status(id))
	require.Equal(t, 1, w.count("SELECT count(*) FROM outbox WHERE topic = 'fabric.nudge' AND key = $1", w.Fabric.String()), "the second time changes nothing")
	order := w.sweep()
	require.Equal(t, protocol.ApplyPartitions, order.Kind)
	require.Equal(t, fabric.Isolated, w.status(id))
	require.Equal(t, 1, w.count("SELECT count(*) FROM outbox WHERE topic = 'lease.nudge' AND key = $1", id.String()))
	key := w.pkey(id)
	for _, m := range w.nodes[:2] {
		require.True(t, w.subnet.of(m.port).isolated(key))
	}
	require.Nil(t, w.sweep(), "everything is as it should be")

	w.witness(id, fabric.BeforeActive, 1)
	verdict, statement := w.attest(id, fabric.BeforeActive)
	require.Equal(t, fabric.Proven, verdict, statement.Predicate.Reasons)
	require.Len(t, statement.Predicate.Witnesses, 3)
	require.Len(t, statement.Predicate.Ports, 2)
	require.Equal(t, order.Epoch, statement.Predicate.Epoch)

	w.leave(id)
	w.leave(id)
	require.Equal(t, fabric.Leaving, w.status(id))
	require.Equal(t, "partition-state", fault.CodeOf(w.fabric.Join(t.Context(), id)))
	w.sweep()
	require.Equal(t, fabric.Gone, w.status(id))
	require.Equal(t, fabric.Clear, w.state(id))
	w.witness(id, fabric.AfterRelease, 1)
	verdict, statement = w.attest(id, fabric.AfterRelease)
	require.Equal(t, fabric.Proven, verdict, statement.Predicate.Reasons)

	_, lookAt, err := w.fabric.Plan(t.Context(), w.Fabric)
	require.NoError(t, err)
	require.Equal(t, start().Add(2*time.Second), lookAt, "the second look has its time")
	w.clock.Set(lookAt)
	require.Equal(t, protocol.ObserveFabric, w.sweep().Kind)
	require.Equal(t, fabric.Quarantined, w.state(id))
	w.turn(id, "released")

	other := w.lease(w.nodes[0])
	w.join(other)
	require.Equal(t, key+1, w.pkey(other), "a key at rest is not used")
	w.sweep()
	require.Equal(t, fabric.Isolated, w.status(other))
	w.clock.Advance(10 * time.Minute)
	third := w.lease(w.nodes[2])
	w.join(third)
	require.Equal(t, key, w.pkey(third), "the lowest free one is")
	require.Equal(t, fabric.Free, w.state(id))
	require.Equal(t, fabric.Gone, w.status(id))
}

func TestLeasesThatStartTogetherHaveKeysOfTheirOwnAndOneSweep(t *testing.T) {
	t.Parallel()
	const leases = 24
	w := newWorld(t, leases)
	all := make([]ids.Lease, leases)
	for i := range all {
		all[i] = w.lease(w.nodes[i])
	}
	var group sync.WaitGroup
	errs := make([]error, 3*leases)
	for i := range errs {
		group.Go(func() {
			if i%3 == 2 {
				_, _, errs[i] = w.fabric.Plan(t.Context(), w.Fabric)
				return
			}
			errs[i] = w.fabric.Join(t.Context(), all[i/3])
		})
	}
	group.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.LessOrEqual(t, w.count("SELECT count(*) FROM operation WHERE state = 'queued'"), 1, "one in flight at most")
	for w.sweep() != nil {
	}
	seen := map[protocol.PKey]bool{}
	for _, id := range all {
		require.Equal(t, fabric.Isolated, w.status(id), w.words(id))
		require.False(t, seen[w.pkey(id)])
		seen[w.pkey(id)] = true
	}
	require.LessOrEqual(t, len(w.subnet.orders), 2, "all that was pending went together")
	require.Len(t, seen, leases)
	require.Equal(t, leases, w.count("SELECT epoch FROM fabric WHERE id = $1", w.Fabric))
}

func TestAChangeDuringASweepGoesWithTheNext(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	first, second := w.lease(w.nodes[0]), w.lease(w.nodes[1])
	w.join(first)
	require.True(t, w.plan())
	orders := w.orders()
	w.join(second)
	require.True(t, w.plan())
	require.Len(t, w.orders(), 1, "the one in flight is waited for")
	w.answer(orders[0])
	require.NoError(t, w.fabric.Absorb(t.Context(), w.Fabric))
	require.Equal(t, fabric.Isolated, w.status(first))
	require.Equal(t, fabric.Pending, w.status(second))
	next := w.sweep()
	require.Greater(t, next.Epoch, orders[0].Epoch)
	require.Equal(t, fabric.Isolated, w.status(second))
}

func TestALeaseThatLeavesDuringItsSweepIsNotCalledClearByIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	id := w.lease(w.nodes[0])
	w.join(id)
	require.True(t, w.plan())
	orders := w.orders()
	w.leave(id)
	w.answer(orders[0])
	require.NoError(t, w.fabric.Absorb(t.Context(), w.Fabric))
	require.Equal(t, fabric.Leaving, w.status(id))
	w.sweep()
	require.Equal(t, fabric.Gone, w.status(id))
}

func TestUnreadableIsUnknownAndNeverVerifiedNorClear(t *testing.T) {
	t.Parallel()
	for name, darken := range map[string]func(*link, bool){
		"the port":        func(l *link, dark bool) { l.dark = dark },
		"the switch port": func(l *link, dark bool) { l.swDark = dark },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 3)
			dark, other := w.lease(w.nodes[0], w.nodes[1]), w.lease(w.nodes[2])
			darken(w.subnet.of(w.nodes[0].port), true)
			w.join(dark)
			w.join(other)
			w.sweep()
			require.Equal(t, fabric.Isolated, w.status(other), "one dead host does not keep others waiting")
			require.Equal(t, fabric.Broken, w.status(dark))
			require.Contains(t, w.words(dark), "could not be read")
			require.Equal(t, fabric.Programmed, w.state(dark))

			require.False(t, w.plan(), "the next try has its pause")
			w.clock.Advance(time.Second)
			darken(w.subnet.of(w.nodes[0].port), false)
			w.sweep()
			require.Equal(t, fabric.Isolated, w.status(dark))

			darken(w.subnet.of(w.nodes[1].port), true)
			w.leave(dark)
			for range 5 {
				w.sweep()
				require.Equal(t, fabric.Leaving, w.status(dark))
				w.clock.Advance(time.Minute)
			}
			require.Contains(t, w.words(dark), "could not be read")
			darken(w.subnet.of(w.nodes[1].port), false)
			w.sweep()
			require.Equal(t, fabric.Gone, w.status(dark))
			darken(w.subnet.of(w.nodes[1].port), true)
			w.clock.Advance(time.Minute)
			w.sweep()
			require.Equal(t, fabric.Clear, w.state(dark), "a second look that sees nothing is none")
			darken(w.subnet.of(w.nodes[1].port), false)
			w.clock.Advance(time.Minute)
			w.sweep()
			require.Equal(t, fabric.Quarantined, w.state(dark))
		})
	}
}

func TestAKeyThatStaysAtOneEndIsSeen(t *testing.T) {
	t.Parallel()
	for name, stick := range map[string]func(*link, bool){
		"at the port":   func(l *link, stuck bool) { l.stuck = stuck },
		"at the switch": func(l *link, stuck bool) { l.swStuck = stuck },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			id, l := w.lease(w.nodes[0]), w.subnet.of(w.nodes[0].port)
			stick(l, true)
			w.join(id)
			w.sweep()
			require.Equal(t, fabric.Broken, w.status(id))
			require.Contains(t, w.words(id), "lacks 0x8001")
			stick(l, false)
			w.clock.Advance(time.Minute)
			w.sweep()
			require.Equal(t, fabric.Isolated, w.status(id))
			stick(l, true)
			w.leave(id)
			w.sweep()
			require.Equal(t, fabric.Leaving, w.status(id))
			require.Contains(t, w.words(id), "still holds 0x8001")
			stick(l, false)
			w.clock.Advance(time.Minute)
			w.sweep()
			require.Equal(t, fabric.Gone, w.status(id))

			l.hca = []protocol.PKey{0x0001, protocol.DefaultLimited} // it comes back, as a limited member
			w.clock.Advance(time.Minute)
			require.Equal(t, protocol.ObserveFabric, w.sweep().Kind)
			require.Equal(t, fabric.Leaving, w.status(id))
			w.clock.Advance(time.Minute)
			require.Equal(t, protocol.ApplyPartitions, w.sweep().Kind)
			require.Equal(t, fabric.Gone, w.status(id))
		})
	}
}

func TestAReplacedNodeLeavesAndItsSuccessorJoins(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	id := w.lease(w.nodes[0], w.nodes[1])
	w.join(id)
	w.sweep()
	w.Exec(t, "UPDATE allocation SET state = 'cleaning' WHERE lease_id = $1 AND node_id = $2", id, w.nodes[1].node)
	w.subnet.of(w.nodes[1].port).dark = true // it died
	w.allocate(id, 1, w.nodes[2])
	require.Equal(t, fabric.Pending, w.status(id), "what is verified is not what is wanted now")
	w.join(id)
	require.Equal(t, fabric.Desired, w.state(id))
	w.sweep()
	require.Equal(t, fabric.Isolated, w.status(id))
	key := w.pkey(id)
	require.True(t, w.subnet.of(w.nodes[2].port).isolated(key))
	require.Equal(t, 1, w.count("SELECT count(*) FROM partition_member WHERE NOT wanted AND left_at IS NULL"), "the dead one was not seen gone")

	w.subnet.of(w.nodes[1].port).dark = false
	w.clock.Advance(time.Minute)
	w.sweep()
	require.Zero(t, w.count("SELECT count(*) FROM partition_member WHERE NOT wanted AND left_at IS NULL"))
	require.Equal(t, fabric.Isolated, w.status(id))
	w.witness(id, fabric.BeforeActive, 1)
	verdict, statement := w.attest(id, fabric.BeforeActive)
	require.Equal(t, fabric.Proven, verdict, statement.Predicate.Reasons)
}

func TestAPortThatHasNotLeftItsPartitionJoinsNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	first := w.lease(w.nodes[0])
	w.join(first)
	w.sweep()
	w.leave(first)
	w.turn(first, "released") // the hand-over check forbids it; isolation does not rely on that
	second := w.lease(w.nodes[0])
	w.join(second)
	require.Equal(t, fabric.Broken, w.status(second))
	require.Contains(t, w.words(second), "have not left an earlier partition")
	w.sweep()
	w.join(second)
	require.Equal(t, fabric.Pending, w.status(second))
}

func TestWhatCannotBeIsolatedSaysWhy(t *testing.T) {
	t.Parallel()
	t.Run("an insecure fabric, unless overridden", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 2)
		posture := `[{"item": "m_key_set", "verdict": "false"}, {"item": "sa_key_set", "verdict": "unknown"}]`
		running := w.lease(w.nodes[1])
		w.join(running)
		w.Exec(t, "UPDATE fabric SET posture = $1", posture)
		id := w.lease(w.nodes[0])
		w.join(id)
		require.Equal(t, fabric.Broken, w.status(id))
		require.Contains(t, w.words(id), "m_key_set failed")
		w.sweep()
		require.Equal(t, fabric.Isolated, w.status(running), "those that are there stay")
		require.NoError(t, w.fabric.Override(t.Context(), w.Fabric, "a lab"))
		require.NoError(t, w.fabric.Override(t.Context(), w.Fabric, "a lab"))
		require.Equal(t, 1, w.count("SELECT count(*) FROM audit_event WHERE action = 'fabric.posture_overridden'"))
		w.join(id)
		w.sweep()
		require.Equal(t, fabric.Isolated, w.status(id))
		w.witness(id, fabric.BeforeActive, 1)
		_, statement := w.attest(id, fabric.BeforeActive)
		require.Equal(t, "a lab", statement.Predicate.Override)
		require.Equal(t, fault.NotFound, fault.KindOf(w.fabric.Override(t.Context(), ids.Make[ids.Fabric](), "x")))
	})
	t.Run("a fabric whose keys are all in use", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 2)
		w.Exec(t, "UPDATE fabric SET managed_low = 5, managed_high = 5")
		first, second := w.lease(w.nodes[0]), w.lease(w.nodes[1])
		w.join(first)
		require.EqualValues(t, 5, w.pkey(first))
		w.join(second)
		require.Equal(t, fabric.Broken, w.status(second))
		require.Contains(t, w.words(second), "all keys")
	})
	t.Run("ports whose tables are full", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 1)
		w.Exec(t, "UPDATE fabric SET max_pkeys_per_port = 1")
		id := w.lease(w.nodes[0])
		w.join(id)
		require.Contains(t, w.words(id), "at most")
	})
	t.Run("machines without a port", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 1)
		w.Exec(t, "UPDATE hca_port SET bay = NULL, fabric_id = NULL")
		id := w.lease(w.nodes[0])
		w.join(id)
		require.Contains(t, w.words(id), "none of its machines has a port")
	})
	t.Run("a lease without a fabric", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 1)
		id := w.lease(w.nodes[0])
		w.Exec(t, "UPDATE lease SET fabric_id = NULL")
		w.join(id)
		require.NoError(t, w.fabric.Leave(t.Context(), id))
		require.NoError(t, w.fabric.Witness(t.Context(), id, fabric.BeforeActive, 1))
		require.Equal(t, fabric.None, w.status(id))
		_, _, err := w.fabric.Attest(t.Context(), id, fabric.BeforeActive)
		require.Equal(t, "no-fabric", fault.CodeOf(err))
	})
	t.Run("what is not there", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, 0)
		_, _, err := w.fabric.Plan(t.Context(), ids.Make[ids.Fabric]())
		require.Equal(t, fault.NotFound, fault.KindOf(err))
		require.Equal(t, fault.NotFound, fault.KindOf(w.fabric.Absorb(t.Context(), ids.Make[ids.Fabric]())))
		require.Equal(t, fault.NotFound, fault.KindOf(w.fabric.Join(t.Context(), ids.Make[ids.Lease]())))
	})
}

func TestAnObservationOfSomethingElseIsNone(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*protocol.FabricObservation){
		"another nonce":  func(o *protocol.FabricObservation) { o.Nonce = "old" },
		"another fabric": func(o *protocol.FabricObservation) { o.FabricID = ids.Make[ids.Fabric]().String() },
		"another epoch":  func(o *protocol.FabricObservation) { o.Epoch-- },
		"no ports":       func(o *protocol.FabricObservation) { o.Ports = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			id := w.lease(w.nodes[0])
			w.join(id)
			require.True(t, w.plan())
			w.answer(w.orders()[0], change)
			require.NoError(t, w.fabric.Absorb(t.Context(), w.Fabric))
			require.Equal(t, fabric.Broken, w.status(id))
			require.NotEmpty(t, w.words(id))
			w.clock.Advance(time.Second)
			w.sweep()
			require.Equal(t, fabric.Isolated, w.status(id), "the next honest one counts")
		})
	}
}

func TestASweepThatNobodyDoesIsTriedAgainPatiently(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	id := w.lease(w.nodes[0])
	w.join(id)
	var pauses []time.Duration
	for range 7 {
		inFlight, lookAt, err := w.fabric.Plan(t.Context(), w.Fabric)
		require.NoError(t, err)
		require.True(t, inFlight)
		w.clock.Set(lookAt)
		require.NoError(t, w.fleet.ExpireLate(t.Context(), w.clock.Now()))
		inFlight, lookAt, err = w.fabric.Plan(t.Context(), w.Fabric)
		require.NoError(t, err)
		require.False(t, inFlight)
		pauses = append(pauses, lookAt.Sub(w.clock.Now()))
		w.clock.Set(lookAt)
	}
	require.True(t, slices.IsSorted(pauses), pauses)
	require.Equal(t, time.Second, pauses[0])
	require.Equal(t, 30*time.Second, pauses[6])
	require.Contains(t, w.words(id), "the fabric's agent does not answer")
	w.sweep()
	require.Equal(t, fabric.Isolated, w.status(id))
}

func TestOnlyAShrinkThatRowsExplainIsAllowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6)
	var leases []ids.Lease
	for _, m := range w.nodes {
		leases = append(leases, w.lease(m))
		w.join(leases[len(leases)-1])
	}
	w.sweep()
	allow := func(op *protocol.Operation) bool {
		var spec protocol.ApplyPartitionsSpec
		require.NoError(t, json.Unmarshal(op.Spec, &spec))
		return spec.AllowShrink
	}
	w.leave(leases[0])
	require.False(t, allow(w.sweep()), "one may always go; the agent's guard stays up")
	for _, id := range leases[1:5] {
		w.leave(id)
	}
	require.True(t, allow(w.sweep()), "most of them go, and each has a row that says so")
	w.Exec(t, "DELETE FROM partition_member WHERE partition_id = (SELECT id FROM partition WHERE lease_id = $1)", leases[5])
	w.Exec(t, "UPDATE fabric SET epoch = epoch + 1")
	w.clock.Advance(time.Hour)
	w.turn(leases[0], "released")
	w.join(w.lease(w.nodes[0]))
	require.False(t, allow(w.sweep()), "a member that is gone without a row is a mistake")
}

// TestRandomLivesKeepTheInvariants lets leases come and go on a subnet that fails at random, and compares what the rows say with what
// the subnet really holds.
func TestRandomLivesKeepTheInvariants(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6)
	random := rnd(20260301)
	live := map[ids.Lease]*machine{}
	leaving := map[ids.Lease]*machine{}
	for step := range 150 {
		m := w.nodes[random(len(w.nodes))]
		l := w.subnet.of(m.port)
		busy := slices.Contains(machinesOf(live), m) || slices.Contains(machinesOf(leaving), m)
		switch random(8) {
		case 0, 1, 2:
			if !busy {
				id := w.lease(m)
				live[id] = m
				w.join(id)
			}
		case 3, 4:
			for id, on := range live {
				if on == m {
					w.leave(id)
					delete(live, id)
					leaving[id] = on
				}
			}
		case 5:
			l.dark, l.swDark = random(2) == 0, random(3) == 0
		case 6:
			l.stuck, l.swStuck = random(3) == 0, random(3) == 0
		case 7:
			w.clock.Advance(time.Duration(random(60)) * time.Second)
		}
		if random(3) == 0 {
			w.sweep()
		}
		for id, on := range live {
			key := w.pkey(id)
			if w.state(id) == fabric.Verified {
				require.True(t, w.subnet.of(on.port).isolated(key), "step %d: verified, and not isolated", step)
			}
		}
		for id, on := range leaving {
			if state := w.state(id); state == fabric.Clear || state == fabric.Quarantined {
				require.True(t, w.subnet.of(on.port).clear(w.pkey(id)), "step %d: %s, and not clear", step, state)
				w.turn(id, "released")
				delete(leaving, id)
			}
		}
		require.Zero(t, w.count(`SELECT count(*) FROM (SELECT 1 FROM partition WHERE state <> 'free' GROUP BY pkey HAVING count(*) > 1) x`))
		require.Zero(t, w.count(`SELECT count(*) FROM (SELECT 1 FROM partition_member m JOIN partition p ON p.id = m.partition_id
			WHERE m.left_at IS NULL AND p.state <> 'free' GROUP BY hca_port_id HAVING count(*) > 1) x`))
	}
	for _, m := range w.nodes {
		*w.subnet.of(m.port) = link{hca: w.subnet.of(m.port).hca, sw: w.subnet.of(m.port).sw}
	}
	for range 20 {
		w.clock.Advance(time.Minute)
		w.sweep()
	}
	for id := range live {
		require.Equal(t, fabric.Isolated, w.status(id), w.words(id))
	}
	for id := range leaving {
		require.Equal(t, fabric.Gone, w.status(id), w.words(id))
	}
}

func machinesOf(leases map[ids.Lease]*machine) []*machine {
	var all []*machine
	for _, m := range leases {
		all = append(all, m)
	}
	return all
}

// rnd is a small generator whose numbers are the same in every run.
func rnd(seed uint64) func(n int) int {
	state := seed
	return func(n int) int {
		state = state*6364136223846793005 + 1442695040888963407
		return int(state>>33) % n
	}
}

func TestEveryStepOfAPartitionIsInTheTableOrRefused(t *testing.T) {
	t.Parallel()
	allowed := map[fabric.State]string{
		fabric.Desired: "programmed verified draining", fabric.Programmed: "desired verified draining", fabric.Verified: "desired draining",
		fabric.Draining: "clear", fabric.Clear: "draining quarantined", fabric.Quarantined: "draining free", fabric.Free: "",
	}
	for _, from := range fabric.States() {
		row, listed := allowed[from]
		require.True(t, listed, from)
		for _, to := range fabric.States() {
			p := fabric.Partition{State: from, Reason: "why"}
			err := p.MoveTo(to, start())
			if slices.Contains(strings.Fields(row), string(to)) {
				require.NoError(t, err, "%s → %s", from, to)
				require.Equal(t, to, p.State)
				require.Equal(t, start(), p.UpdatedAt)
				require.Empty(t, p.Reason)
				continue
			}
			require.Equal(t, "partition-state", fault.CodeOf(err), "%s → %s", from, to)
			require.Equal(t, from, p.State)
		}
	}
}
