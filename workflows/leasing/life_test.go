package leasing_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

func TestALeaseIsDeliveredServedAndTakenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(4, 3*time.Hour)
	w.run(t)
	w.requireNothingHeld(t)
	require.Equal(t, []lease.EventType{
		lease.EventProvisioning,
		lease.EventNodePrepared, lease.EventNodePrepared, lease.EventNodePrepared, lease.EventNodePrepared,
		lease.EventIsolated, lease.EventActive, lease.EventNotice, lease.EventNotice, lease.EventReleasing, lease.EventRevoked,
		lease.EventPartitionClear, lease.EventNodeWiped, lease.EventNodeWiped, lease.EventNodeWiped, lease.EventNodeWiped, lease.EventClosed,
	}, w.log())
	l := w.rows.lease
	require.Equal(t, lease.Completed, l.Outcome)
	require.Equal(t, noon.Add(agentTakes), l.ActiveAt, "access opens at the start, not before, and the clock starts with it")
	require.Equal(t, l.End, l.ReleasedAt)
	require.Equal(t, l.ActiveAt.Add(2*time.Hour), w.rows.accrued, "hourly")
	require.Empty(t, w.rows.quarantined)
}

func TestStepsAreSetsSoTheirNumberDoesNotGrowWithNodes(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 64} {
		w := newWorld(nodes, time.Hour)
		w.run(t)
		w.requireNothingHeld(t)
		require.Equal(t, map[string]int{"prepare": 1, "grant": 1, "revoke": 1, "wipe": 1}, w.issued)
		require.LessOrEqual(t, w.runs, 4)
	}
}

func TestAnExtensionMovesTheEndAndTheAgentsAreTold(t *testing.T) {
	t.Parallel()
	w := newWorld(2, time.Hour)
	extended := noon.Add(5 * time.Hour)
	w.at(noon.Add(50*time.Minute), func() { w.change(func(l *lease.Lease) { l.End, l.Version = extended, 2 }) })
	w.run(t)
	w.requireNothingHeld(t)
	require.Equal(t, extended, w.rows.lease.ReleasedAt)
	require.Equal(t, 2, w.issued["grant"], "access has a deadline on the node itself, which must move too")
	require.Equal(t, 4, w.count(lease.EventNotice), "15 min before the first end; 4 h, 1 h, 15 min before the second")
}

func TestAnEarlyTerminationEndsTheLeaseThen(t *testing.T) {
	t.Parallel()
	w := newWorld(2, 10*time.Hour)
	w.at(noon.Add(90*time.Minute), func() { w.change(func(l *lease.Lease) { l.WantedEnd = w.now() }) })
	w.run(t)
	w.requireNothingHeld(t)
	require.Equal(t, lease.Terminated, w.rows.lease.Outcome)
	require.Equal(t, noon.Add(90*time.Minute), w.rows.lease.ReleasedAt)
}

func TestACancellationWhileProvisioningWipesWhatWasTouched(t *testing.T) {
	t.Parallel()
	w := newWorld(2, time.Hour)
	w.at(noon.Add(-lead+500*time.Millisecond), func() { w.change(func(l *lease.Lease) { l.WantedEnd = w.now() }) })
	w.run(t)
	w.requireNothingHeld(t)
	require.Equal(t, lease.CancelledOutcome, w.rows.lease.Outcome)
	require.Zero(t, w.rows.lease.ActiveAt)
	require.Len(t, w.rows.certificates, 2)
	require.Zero(t, w.count(lease.EventActive))
}

func TestSlotsThatAreNotCleanYetAreNotHandedOver(t *testing.T) {
	t.Parallel()
	w := newWorld(2, time.Hour)
	w.rows.blocked = true
	freed := noon.Add(3 * time.Minute)
	w.at(freed.Add(-time.Second), func() {
		require.Equal(t, lease.Provisioning, w.rows.lease.State)
		require.Contains(t, w.rows.lease.Reason, "to be cleaned")
		require.Empty(t, w.rows.operations)
	})
	w.at(freed, func() {
		w.mu.Lock()
		w.rows.blocked = false
		w.mu.Unlock()
		w.nudge()
	})
	w.run(t)
	w.requireNothingHeld(t)
	require.Equal(t, lease.Completed, w.rows.lease.Outcome)
	require.Equal(t, freed.Add(4*agentTakes), w.rows.lease.ActiveAt, "late delivery: the clock starts when access is there")
	require.Empty(t, w.rows.lease.Reason)
}

func TestSlotsThatNeverBecomeCleanFailTheLeaseAndTouchNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(2, time.Hour)
	w.rows.blocked = true
	w.run(t)
	w.requireNothingHeld(t)
	require.Equal(t, lease.FailedOutcome, w.rows.lease.Outcome)
	require.Contains(t, w.rows.lease.Reason, "to be cleaned")
	require.Empty(t, w.rows.operations)
}

func TestANodeThatFailsOnceIsAskedAgainAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(8, time.Hour)
	w.script[on(protocol.Prepare, 3)] = failsOnce
	w.run(t)
	w.requireNothingHeld(t)
	require.Equal(t, lease.Completed, w.rows.lease.Outcome)
	require.Equal(t, 2, w.issued["prepare"])
	prepares := 0
	for _, o := range w.rows.operations {
		if w.steps[o.ID] == "prepare" {
			prepares++
		}
	}
	require.Equal(t, 9, prepares)
}

func TestANodeThatCannotBePreparedFailsTheLeaseWhenItsToleranceRunsOut(t *testing.T) {
	t.Parallel()
	for _, how := range []verdict{failsForGood, failsAlways, silent} {
		w := newWorld(3, 2*time.Hour)
		w.script[on(protocol.Prepare, 1)] = how
		w.run(t)
		w.requireNothingHeld(t)
		require.Equal(t, lease.FailedOutcome, w.rows.lease.Outcome)
		require.Contains(t, w.rows.lease.Reason, "n1 failed")
		require.Equal(t, 1, w.count(lease.EventNodeFailed))
		require.WithinDuration(t, noon.Add(30*time.Minute), w.rows.lease.ReleasedAt, fallback)
		require.Len(t, w.rows.certificates, 3, "what was touched is wiped, the failed node too")
	}
}

const fallback = 10 * time.Second

func TestALostNudgeCostsSecondsNotALease(t *testing.T) {
	t.Parallel()
	w := newWorld(4, time.Hour)
	w.nudges = 0
	w.run(t)
	w.requireNothingHeld(t)
	require.Equal(t, lease.Completed, w.rows.lease.Outcome)
	require.WithinDuration(t, noon, w.rows.lease.ActiveAt, 2*fallback)
}

func TestADoubledNudgeChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(4, time.Hour)
	w.nudges = 2
	w.run(t)
	w.requireNothingHeld(t)
	require.Equal(t, map[string]int{"prepare": 1, "grant": 1, "revoke": 1, "wipe": 1}, w.issued)
	require.Equal(t, noon.Add(agentTakes), w.rows.lease.ActiveAt)
}

func TestALeaseIsNotOpenedWithoutProofOfIsolation(t *testing.T) {
	t.Parallel()
	for _, v := range []delivery.Verdict{delivery.NotIsolated, delivery.Unsure} {
		w := newWorld(2, time.Hour)
		w.verdicts[delivery.BeforeActive] = v
		w.run(t)
		w.requireNothingHeld(t)
		require.Equal(t, lease.FailedOutcome, w.rows.lease.Outcome)
		require.Contains(t, w.rows.lease.Reason, string(v))
		require.Zero(t, w.issued["grant"])
		require.Equal(t, 3, w.count(lease.EventIsolationFailed))
	}
}

func TestAPartitionThatIsNeverMadeFailsTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(2, time.Hour)
	w.joinFails = true
	w.run(t)
	w.requireNothingHeld(t)
	require.Equal(t, lease.FailedOutcome, w.rows.lease.Outcome)
}

func TestALeaseWithoutInfiniBandSkipsIsolationVisibly(t *testing.T) {
	t.Parallel()
	w := newWorld(2, time.Hour)
	w.rows.lease.Fabric = ids.Fabric{}
	for i := range w.rows.instances {
		w.rows.instances[i].Ports = nil
	}
	w.run(t)
	w.requireNothingHeld(t)
	require.Zero(t, w.count(lease.EventIsolated))
	for _, e := range w.rows.events {
		if e.Type == lease.EventActive {
			require.Contains(t, e.Data["isolation"], "not applicable")
		}
	}
}

func TestNodesThatAreNotKnownToBeCleanAreQuarantined(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(w *world){
		"revoke fails":        func(w *world) { w.script[on(protocol.Revoke, 0)] = failsAlways },
		"revoke is not shown": func(w *world) { w.script[on(protocol.Revoke, 0)] = lies },
		"agent is gone":       func(w *world) { w.script[on(protocol.Revoke, 0)] = silent },
		"wipe fails":          func(w *world) { w.script[on(protocol.Wipe, 0)] = failsForGood },
		"wipe is unsupported": func(w *world) { w.script[on(protocol.Wipe, 0)] = lies },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(3, time.Hour)
			spoil(w)
			w.run(t)
			w.requireNothingHeld(t)
			require.Equal(t, lease.Quarantined, w.rows.instances[0].State)
			require.Equal(t, lease.Released, w.rows.instances[1].State, "the others are not held up")
			require.Contains(t, w.rows.outbox, "notify operator")
		})
	}
}

func TestPortsThatAreNotProvedClearTakeTheirNodesToQuarantine(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(w *world){
		"never seen clear":    func(w *world) { w.leaveFails = true },
		"witnesses not sure":  func(w *world) { w.verdicts[delivery.AfterRelease] = delivery.Unsure },
		"witnesses saw a key": func(w *world) { w.verdicts[delivery.AfterRelease] = delivery.NotIsolated },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(2, time.Hour)
			spoil(w)
			w.run(t)
			w.requireNothingHeld(t)
			for _, i := range w.rows.instances {
				require.Equal(t, lease.Quarantined, i.State)
			}

			w = newWorld(3, time.Hour)
			spoil(w)
			w.dirty = w.rows.instances[1].Ports
			w.run(t)
			w.requireNothingHeld(t)
			require.Equal(t, lease.Released, w.rows.instances[0].State, "the others do not go with it")
			require.Equal(t, lease.Quarantined, w.rows.instances[1].State)
			require.Equal(t, lease.Released, w.rows.instances[2].State)
		})
	}
}

func TestANodeThatFailsIsReplacedWithoutTouchingTheOthers(t *testing.T) {
	t.Parallel()
	for _, kind := range []protocol.OperationKind{protocol.Prepare, protocol.Grant} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := newWorld(4, time.Hour)
			w.spares = 1
			w.script[on(kind, 2)] = failsForGood
			w.run(t)
			w.requireNothingHeld(t)
			require.Equal(t, lease.Completed, w.rows.lease.Outcome, w.rows.lease.Reason)
			require.Equal(t, 1, w.count(lease.EventNodeReplaced))
			require.Len(t, w.rows.instances, 5)
			require.Equal(t, w.rows.instances[4].ID, w.rows.instances[2].ReplacedBy)
			require.NotNil(t, w.rows.instances[4].Access)
			require.Nil(t, w.rows.instances[2].Access)
			require.WithinDuration(t, noon, w.rows.lease.ActiveAt, 30*time.Second)
			failed := w.rows.instances[2].Node
			require.Contains(t, w.rows.quarantined[failed], "a GPU fell off the bus", "nobody else gets it before an admin has seen to it")
			require.Len(t, w.rows.quarantined, 1)
			prepared := map[ids.Allocation]int{}
			for _, o := range w.rows.operations {
				if w.steps[o.ID] == "prepare" {
					prepared[o.Allocation]++
				}
			}
			for _, i := range w.rows.instances {
				require.Equal(t, 1, prepared[i.ID], i.NodeName)
			}
		})
	}
}

func TestANodeThatFallsSilentOverItsWorkIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(4, time.Hour)
	w.spares = 1
	w.script[on(protocol.Prepare, 2)] = dawdles
	w.rows.silent = map[ids.Node]time.Time{w.rows.instances[2].Node: noon.Add(-30 * time.Second)}
	w.run(t)
	w.requireNothingHeld(t)
	require.Equal(t, lease.Completed, w.rows.lease.Outcome, w.rows.lease.Reason)
	require.WithinDuration(t, noon.Add(30*time.Second), w.rows.lease.ActiveAt, 30*time.Second, "a minute after its last word, not when its time runs out")
	require.Equal(t, 1, w.count(lease.EventNodeReplaced))
	require.Equal(t, "no heartbeat since 2026-03-01T11:59:30Z", w.rows.instances[2].Reason)
	require.Empty(t, w.rows.quarantined, "silence is no fault of the machine's; heartbeats tell when it is over")
}

func TestASilentNodeIsWaitedForWhileThereIsNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(2, time.Hour)
	w.script[on(protocol.Prepare, 1)] = dawdles
	w.rows.silent = map[ids.Node]time.Time{w.rows.instances[1].Node: noon.Add(-30 * time.Second)}
	var reason string
	w.at(noon.Add(5*time.Minute), func() { reason = w.rows.lease.Reason })
	w.run(t)
	w.requireNothingHeld(t)
	require.Equal(t, "n1 failed (no heartbeat since 2026-03-01T11:59:30Z) and no replacement is free yet", reason)
	require.Equal(t, lease.Completed, w.rows.lease.Outcome, w.rows.lease.Reason)
	require.WithinDuration(t, noon.Add(dawdling-lead), w.rows.lease.ActiveAt, 30*time.Second)
	require.Zero(t, w.count(lease.EventNodeFailed))
}

func TestSlotsThatAreNotFreeAtTheStartAreReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(2, time.Hour)
	w.rows.blocked, w.spares = true, 1
	w.run(t)
	w.requireNothingHeld(t)
	require.Equal(t, lease.Completed, w.rows.lease.Outcome, w.rows.lease.Reason)
	require.Equal(t, lease.Released, w.rows.instances[0].State)
	require.Zero(t, w.rows.instances[0].Epoch, "it was never touched")
	require.Equal(t, 1, w.count(lease.EventNodeReplaced))
}

func TestAccessToAnExtendedLeaseIsAskedForUntilItIsThere(t *testing.T) {
	t.Parallel()
	w := newWorld(1, time.Hour)
	w.at(noon.Add(40*time.Minute), func() {
		w.script[on(protocol.Grant, 0)] = silent // the agent is away for a while
		w.change(func(l *lease.Lease) { l.End = noon.Add(3 * time.Hour) })
	})
	w.at(noon.Add(70*time.Minute), func() { w.script[on(protocol.Grant, 0)] = works })
	w.run(t)
	w.requireNothingHeld(t)
	require.Equal(t, lease.Completed, w.rows.lease.Outcome)
	last := w.rows.operations[0]
	for _, o := range w.rows.operations {
		if w.steps[o.ID] == "grant" {
			last = o
		}
	}
	require.Greater(t, w.issued["grant"], 6, "more often than any other step is tried")
	require.Equal(t, delivery.Succeeded, last.State)
	require.WithinDuration(t, noon.Add(72*time.Minute), last.FinishedAt, 2*time.Minute)
}

func TestAProofIsHadWhileTheLeaseRunsWhateverItsVerdict(t *testing.T) {
	t.Parallel()
	for _, verdict := range []delivery.Verdict{delivery.Isolated, delivery.NotIsolated, delivery.Unsure} {
		w := newWorld(3, time.Hour)
		w.verdicts[delivery.OnDemand] = verdict
		w.at(noon.Add(10*time.Minute), func() { w.wantProof("1") })
		w.at(noon.Add(30*time.Minute), func() { w.wantProof("2") })
		w.run(t)
		w.requireNothingHeld(t)
		require.Equal(t, lease.Completed, w.rows.lease.Outcome, w.rows.lease.Reason)
		var answers []lease.Event
		for _, e := range w.rows.events {
			if e.Type == lease.EventAttested {
				answers = append(answers, e)
			}
		}
		require.Len(t, answers, 2)
		for i, e := range answers {
			require.Equal(t, string(verdict), e.Data["verdict"])
			require.WithinDuration(t, noon.Add(time.Duration(10+20*i)*time.Minute), e.At, 15*time.Second)
		}
		alarms := 0
		for _, line := range w.rows.outbox {
			if line == "notify operator" {
				alarms++
			}
		}
		require.Equal(t, verdict != delivery.Isolated, alarms == 2)
	}
}

func TestASilentNodeDoesNotHoldUpTheOthersCleaning(t *testing.T) {
	t.Parallel()
	w := newWorld(3, time.Hour)
	w.script[on(protocol.Revoke, 0)] = silent
	w.rows.silent = map[ids.Node]time.Time{w.rows.instances[0].Node: noon.Add(50 * time.Minute)}
	w.run(t)
	w.requireNothingHeld(t)
	require.Equal(t, lease.Quarantined, w.rows.instances[0].State)
	require.Contains(t, w.rows.instances[0].Reason, "no heartbeat since 2026-03-01T12:50:00Z")
	require.Equal(t, lease.Released, w.rows.instances[1].State)
	revoked := w.rows.events[slices.Index(w.log(), lease.EventRevoked)]
	require.Equal(t, []string{w.rows.instances[0].NodeName}, revoked.Data["unconfirmed"], "of it nobody knows")
	require.WithinDuration(t, noon.Add(62*time.Minute), w.rows.instances[1].ReleasedAt, time.Minute, "two minutes, not six attempts")
}

func TestAccessThatNoNodeCouldEndIsNotSaidToBe(t *testing.T) {
	t.Parallel()
	w := newWorld(1, time.Hour)
	w.script[on(protocol.Revoke, 0)] = silent
	w.rows.silent = map[ids.Node]time.Time{w.rows.instances[0].Node: noon.Add(50 * time.Minute)}
	w.run(t)
	require.Equal(t, lease.Quarantined, w.rows.instances[0].State)
	require.NotContains(t, w.log(), lease.EventRevoked)
}

func TestALateEndOfAccessDoesNotCostTheNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(3, time.Hour)
	w.script[on(protocol.Revoke, 0)] = dawdles // as long as ports may take to be seen clear
	w.run(t)
	w.requireNothingHeld(t)
	for _, i := range w.rows.instances {
		require.Equal(t, lease.Released, i.State, "%s: %s", i.NodeName, i.Reason)
	}
}
