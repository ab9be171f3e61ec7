package fleet_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/outbox"
)

func readID(t testing.TB, text string) ids.Operation {
	t.Helper()
	id, err := ids.Read[ids.Operation](text)
	require.NoError(t, err)
	return id
}

// issue asks all agents to revoke, as one step, and returns their operations by agent.
func (w *world) issue(t *testing.T, step fleet.Step, agents ...*agent) []ids.Operation {
	t.Helper()
	var work []fleet.Work
	for _, a := range agents {
		work = append(work, revokeOf(a))
	}
	_, err := w.fleet.Issue(t.Context(), step, work)
	require.NoError(t, err)
	operations := make([]ids.Operation, len(agents))
	for i, a := range agents {
		found, err := w.fleet.Poll(t.Context(), w.call(t, a), 0)
		require.NoError(t, err)
		require.Len(t, found, 1)
		operations[i] = readID(t, found[0].ID)
	}
	return operations
}

func TestTheLastOfManyConcurrentCompletionsNudgesExactlyOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const nodes = 64
	agents := make([]*agent, nodes)
	for i := range agents {
		agents[i] = w.enroll(t, protocol.NodeAgent, fmt.Sprintf("n%d", i))
	}
	for round := range 3 {
		step := fleet.Step{Lease: w.lease(t), Kind: "revoke", Attempt: round + 1}
		operations := w.issue(t, step, agents...)
		// Every result is sent twice, at once: repeats are harmless.
		for _, err := range together(2*nodes, func(i int) error {
			a := agents[i%nodes]
			return w.fleet.Complete(t.Context(), w.call(t, a), operations[i%nodes], revoked())
		}) {
			require.NoError(t, err)
		}
		status, err := w.fleet.Step(t.Context(), step)
		require.NoError(t, err)
		require.Zero(t, status.Remaining, "nothing is lost, nothing counted twice")
		require.Zero(t, status.Failed)
		require.Len(t, status.Operations, nodes)
		for _, o := range status.Operations {
			require.Equal(t, fleet.Succeeded, o.State)
			require.Equal(t, 100, o.Percent)
		}
		require.Equal(t, 1, w.nudges(t, outbox.LeaseNudge, step.Lease.String()))
	}
}

func TestAFailureNudgesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.enroll(t, protocol.NodeAgent, "a"), w.enroll(t, protocol.NodeAgent, "b")
	step := fleet.Step{Lease: w.lease(t), Kind: "revoke", Attempt: 1}
	operations := w.issue(t, step, a, b)
	failed := protocol.Result{State: protocol.Failed, Fault: &protocol.Fault{Code: "login-not-refused", Detail: "a log-in worked", Retryable: true}}
	require.NoError(t, w.fleet.Complete(t.Context(), w.call(t, a), operations[0], failed))
	require.Equal(t, 1, w.nudges(t, outbox.LeaseNudge, step.Lease.String()))
	status, err := w.fleet.Step(t.Context(), step)
	require.NoError(t, err)
	require.Equal(t, 1, status.Remaining)
	require.Equal(t, 1, status.Failed)
	require.Equal(t, failed.Fault, status.Operations[0].Fault)

	require.NoError(t, w.fleet.Complete(t.Context(), w.call(t, b), operations[1], revoked()))
	require.Equal(t, 2, w.nudges(t, outbox.LeaseNudge, step.Lease.String()))
}

func TestAStepThatANodesOwnProcessWaitsForWakesThatAndNotTheLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.enroll(t, protocol.NodeAgent, "a")
	node := revokeOf(a).Node
	step := fleet.Step{Lease: w.lease(t), Kind: "reclaim-revoke", Attempt: 1, Node: node}
	operations := w.issue(t, step, a)
	require.NoError(t, w.fleet.Complete(t.Context(), w.call(t, a), operations[0], revoked()))
	require.Equal(t, 1, w.nudges(t, outbox.NodeNudge, node.String()))
	require.Zero(t, w.nudges(t, outbox.LeaseNudge, step.Lease.String()))
}

func TestTheFirstResultStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.enroll(t, protocol.NodeAgent, "a")
	step := fleet.Step{Lease: w.lease(t), Kind: "revoke", Attempt: 1}
	operations := w.issue(t, step, a)
	require.NoError(t, w.fleet.Complete(t.Context(), w.call(t, a), operations[0], revoked()))
	require.NoError(t, w.fleet.Complete(t.Context(), w.call(t, a), operations[0], protocol.Result{State: protocol.Failed}))
	require.NoError(t, w.fleet.Progress(t.Context(), w.call(t, a), operations[0], protocol.Progress{Percent: 10}))
	status, err := w.fleet.Step(t.Context(), step)
	require.NoError(t, err)
	require.Equal(t, fleet.Succeeded, status.Operations[0].State)
	require.Zero(t, status.Failed)
	require.Equal(t, 1, w.nudges(t, outbox.LeaseNudge, step.Lease.String()))
}

func TestAnotherAgentsOperationIsNotFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.enroll(t, protocol.NodeAgent, "a"), w.enroll(t, protocol.NodeAgent, "b")
	operations := w.issue(t, fleet.Step{Lease: w.lease(t), Kind: "revoke", Attempt: 1}, a)
	require.Equal(t, fault.NotFound, fault.KindOf(w.fleet.Complete(t.Context(), w.call(t, b), operations[0], revoked())))
	require.Equal(t, fault.NotFound, fault.KindOf(w.fleet.Progress(t.Context(), w.call(t, b), operations[0], protocol.Progress{})))
	require.Equal(t, fault.NotFound, fault.KindOf(w.fleet.Complete(t.Context(), w.call(t, a), ids.Make[ids.Operation](), revoked())))
}

func TestAReplayedResultIsRefusedAndItsOperationUntouched(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.enroll(t, protocol.NodeAgent, "a")
	operations := append(w.issue(t, fleet.Step{Lease: w.lease(t), Kind: "revoke", Attempt: 1}, a), ids.Operation{})
	caller := w.call(t, a)
	require.NoError(t, w.fleet.Complete(t.Context(), caller, operations[0], revoked()))
	err := w.fleet.Complete(t.Context(), caller, operations[0], protocol.Result{State: protocol.Failed})
	require.Equal(t, "token-replayed", fault.CodeOf(err))
	require.Equal(t, fault.Unauthenticated, fault.KindOf(err))

	w.clock.Advance(time.Hour)
	require.NoError(t, w.fleet.ExpireLate(t.Context(), w.clock.Now()))
	var left int
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT count(*) FROM agent_jti").Scan(&left))
	require.Zero(t, left, "what has expired is forgotten")
}

func TestIssuingTheSameAgainChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.enroll(t, protocol.NodeAgent, "a"), w.enroll(t, protocol.NodeAgent, "b")
	step := fleet.Step{Lease: w.lease(t), Kind: "revoke", Attempt: 1}
	work := []fleet.Work{revokeOf(a), revokeOf(b)}
	var issued atomic.Value
	for _, err := range together(16, func(int) error {
		id, err := w.fleet.Issue(t.Context(), step, work)
		issued.CompareAndSwap(nil, id)
		if err == nil && issued.Load() != id {
			err = fmt.Errorf("another step: %v", id)
		}
		return err
	}) {
		require.NoError(t, err)
	}
	status, err := w.fleet.Step(t.Context(), step)
	require.NoError(t, err)
	require.Equal(t, 2, status.Remaining)
	require.Len(t, status.Operations, 2)

	next := revokeOf(a)
	next.Epoch = 2 // the slots were handed over again
	_, err = w.fleet.Issue(t.Context(), step, []fleet.Work{next})
	require.NoError(t, err)
	status, err = w.fleet.Step(t.Context(), step)
	require.NoError(t, err)
	require.Equal(t, 3, status.Remaining)
}

func TestStepsOfNobodyAndWorkForNobodyAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.enroll(t, protocol.NodeAgent, "a")
	lease := w.lease(t)
	for _, step := range []fleet.Step{{Kind: "x"}, {Lease: lease}, {Lease: lease, Fabric: w.Fabric, Kind: "x"}} {
		_, err := w.fleet.Issue(t.Context(), step, []fleet.Work{revokeOf(a)})
		require.Equal(t, fault.Invalid, fault.KindOf(err))
	}
	_, err := w.fleet.Issue(t.Context(), fleet.Step{Lease: lease, Kind: "x", Attempt: 1}, []fleet.Work{{Kind: protocol.Revoke}})
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	status, err := w.fleet.Step(t.Context(), fleet.Step{Lease: lease, Kind: "x", Attempt: 1})
	require.NoError(t, err)
	require.Equal(t, fleet.StepStatus{}, status, "a refused issue leaves nothing behind")
}

func TestANodeWithoutALivingAgentFailsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.enroll(t, protocol.NodeAgent, "a")
	id, err := ids.Read[ids.Agent](a.id)
	require.NoError(t, err)
	first := fleet.Step{Lease: w.lease(t), Kind: "revoke", Attempt: 1}
	w.issue(t, first, a)
	require.NoError(t, w.fleet.Revoke(t.Context(), id))
	require.NoError(t, w.fleet.Revoke(t.Context(), id), "twice changes nothing")
	status, err := w.fleet.Step(t.Context(), first)
	require.NoError(t, err)
	require.Zero(t, status.Remaining)
	require.Equal(t, 1, status.Failed)
	require.Equal(t, "agent-revoked", status.Operations[0].Fault.Code)
	require.Equal(t, 1, w.nudges(t, outbox.LeaseNudge, first.Lease.String()))

	second := fleet.Step{Lease: w.lease(t), Kind: "revoke", Attempt: 1}
	_, err = w.fleet.Issue(t.Context(), second, []fleet.Work{revokeOf(a)})
	require.NoError(t, err)
	status, err = w.fleet.Step(t.Context(), second)
	require.NoError(t, err)
	require.Zero(t, status.Remaining)
	require.Equal(t, 1, status.Failed)
	require.Equal(t, fleet.Expired, status.Operations[0].State)
	require.Equal(t, "no-agent", status.Operations[0].Fault.Code)
	require.Equal(t, 1, w.nudges(t, outbox.LeaseNudge, second.Lease.String()))
	require.Equal(t, fault.NotFound, fault.KindOf(w.fleet.Revoke(t.Context(), ids.Make[ids.Agent]())))
}

func TestLateOperationsExpireAndTellOfflineFromSlow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c := w.enroll(t, protocol.NodeAgent, "a"), w.enroll(t, protocol.NodeAgent, "b"), w.enroll(t, protocol.NodeAgent, "c")
	step := fleet.Step{Lease: w.lease(t), Kind: "revoke", Attempt: 1}
	operations := w.issue(t, step, a, b, c)
	require.NoError(t, w.fleet.Progress(t.Context(), w.call(t, b), operations[1], protocol.Progress{Percent: 0, Phase: "picked up"}))
	require.NoError(t, w.fleet.Progress(t.Context(), w.call(t, c), operations[2], protocol.Progress{Percent: 40, Phase: "half"}))
	require.NoError(t, w.fleet.Progress(t.Context(), w.call(t, c), operations[2], protocol.Progress{Percent: 20, Phase: "late word"}))

	w.clock.Advance(time.Minute)
	require.NoError(t, w.fleet.ExpireLate(t.Context(), w.clock.Now()))
	status, err := w.fleet.Step(t.Context(), step)
	require.NoError(t, err)
	require.Equal(t, 2, status.Remaining)
	require.Equal(t, "not-picked-up", status.Operations[0].Fault.Code)
	require.Equal(t, fleet.Running, status.Operations[2].State)
	require.Equal(t, 40, status.Operations[2].Percent, "progress never goes back")
	require.Equal(t, start(), status.Operations[2].StartedAt)

	w.clock.Advance(time.Minute)
	require.NoError(t, w.fleet.Complete(t.Context(), w.call(t, c), operations[2], revoked()))
	for _, err := range together(4, func(int) error { return w.fleet.ExpireLate(t.Context(), w.clock.Now()) }) {
		require.NoError(t, err)
	}
	status, err = w.fleet.Step(t.Context(), step)
	require.NoError(t, err)
	require.Zero(t, status.Remaining)
	require.Equal(t, 2, status.Failed)
	require.Equal(t, "not-done-in-time", status.Operations[1].Fault.Code)
	require.NoError(t, w.fleet.Complete(t.Context(), w.call(t, b), operations[1], revoked()), "a result that comes too late is harmless")
	status, err = w.fleet.Step(t.Context(), step)
	require.NoError(t, err)
	require.Equal(t, fleet.Expired, status.Operations[1].State)
}

func TestExpiryAndCompletionAtOnceCountEachOperationOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const nodes = 24
	agents := make([]*agent, nodes)
	for i := range agents {
		agents[i] = w.enroll(t, protocol.NodeAgent, fmt.Sprintf("n%d", i))
	}
	step := fleet.Step{Lease: w.lease(t), Kind: "revoke", Attempt: 1}
	operations := w.issue(t, step, agents...)
	w.clock.Advance(time.Minute)
	for _, err := range together(2*nodes, func(i int) error {
		if i%2 == 0 {
			return w.fleet.ExpireLate(t.Context(), w.clock.Now())
		}
		return w.fleet.Complete(t.Context(), w.call(t, agents[i/2]), operations[i/2], revoked())
	}) {
		require.NoError(t, err)
	}
	require.NoError(t, w.fleet.ExpireLate(t.Context(), w.clock.Now()))
	status, err := w.fleet.Step(t.Context(), step)
	require.NoError(t, err)
	require.Zero(t, status.Remaining)
	failed := 0
	for _, o := range status.Operations {
		require.True(t, o.State.Final())
		if o.State != fleet.Succeeded {
			failed++
		}
	}
	require.Equal(t, failed, status.Failed)
}

func TestAPollIsWokenByNewWorkAndLooksByItself(t *testing.T) {
	t.Parallel()
	for name, quiet := range map[string]bool{"woken": false, "looking": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(d *fleet.Deps) { d.Recheck = 10 * time.Millisecond })
			if !quiet {
				w = newWorld(t, func(d *fleet.Deps) { d.Waker = hubOf(t, d) }) // it looks by itself once an hour
			}
			a := w.enroll(t, protocol.NodeAgent, "a")
			lease, caller := w.lease(t), w.call(t, a)
			got := make(chan []protocol.Operation, 1)
			go func() {
				found, _ := w.fleet.Poll(t.Context(), caller, 30*time.Second)
				got <- found
			}()
			_, err := w.fleet.Issue(t.Context(), fleet.Step{Lease: lease, Kind: "revoke", Attempt: 1}, []fleet.Work{revokeOf(a)})
			require.NoError(t, err)
			found := <-got
			require.Len(t, found, 1)
			require.Equal(t, protocol.Revoke, found[0].Kind)
			require.Equal(t, lease.String(), found[0].LeaseID)
			require.Equal(t, protocol.Slots{From: 0, To: 8}, found[0].Slots)
			require.JSONEq(t, `{"lease_id":"l"}`, string(found[0].Spec))
			require.Equal(t, start().Add(time.Minute), found[0].PickUpBy)
			require.Equal(t, start().Add(2*time.Minute), found[0].DoneBy)
		})
	}
}

func TestAPollEndsEmptyWhenItsTimeIsOverAndWithItsCaller(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.enroll(t, protocol.NodeAgent, "a")
	found, err := w.fleet.Poll(t.Context(), w.call(t, a), 10*time.Millisecond)
	require.NoError(t, err)
	require.NotNil(t, found)
	require.Empty(t, found)
	caller := w.call(t, a)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = w.fleet.Poll(ctx, caller, time.Hour)
	require.ErrorIs(t, err, context.Canceled)
}
