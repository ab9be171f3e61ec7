package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/outbox"
)

// Issue writes the step and its operations for the agents to pull. Issuing the same again changes nothing: an operation is known by
// its step, its allocation (or node, or fabric) and its epoch. Work whose place has no living agent has expired at once.
//
// It returns an Invalid fault for a step or work that names not exactly one owner.
func (s *Service) Issue(ctx context.Context, step Step, work []Work) (ids.Step, error) {
	if step.Lease.IsZero() == step.Fabric.IsZero() || step.Kind == "" {
		return ids.Step{}, fault.New(fault.Invalid, "step", "a step belongs to one lease or one fabric, and has a kind")
	}
	var id ids.Step
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		now := s.Clock.Now()
		var err error
		if id, err = s.Operations.OpenStep(ctx, step, now); err != nil {
			return err
		}
		added, orphans, err := s.add(ctx, id, step, work, now)
		if err != nil || added == 0 {
			return err
		}
		if _, _, err := s.Operations.CountDown(ctx, id, orphans-added, orphans, now); err != nil || orphans == 0 {
			return err
		}
		return s.nudge(ctx, step.Lease, step.Fabric, step.Node, now)
	})
	if err != nil {
		return ids.Step{}, fmt.Errorf("issue %s: %w", step.Kind, err)
	}
	return id, nil
}

// add writes the operations, and tells how many are new, and for how many of those there was nobody to ask. It costs the same few
// statements for one node as for hundreds.
func (s *Service) add(ctx context.Context, id ids.Step, step Step, work []Work, now time.Time) (added, orphans int, err error) {
	agents, err := s.beside(ctx, work)
	if err != nil {
		return 0, 0, err
	}
	operations := make([]Operation, len(work))
	keys := make([]string, len(work))
	for i, w := range work {
		if operations[i], err = newOperation(id, step, w, now); err != nil {
			return 0, 0, err
		}
		keys[i] = dedupKey(step, w)
		if agent, found := agents[w.place()]; found && !ours(w.Kind) {
			operations[i].Agent = agent
			continue
		}
		if ours(w.Kind) {
			continue
		}
		operations[i].State, operations[i].FinishedAt = Expired, now
		operations[i].Fault = &protocol.Fault{Code: "no-agent", Detail: "it has no agent that could be asked", Retryable: true}
	}
	written, err := s.Operations.AddOperations(ctx, operations, keys)
	if err != nil {
		return 0, 0, err
	}
	for _, o := range operations {
		if !written[o.ID] {
			continue
		}
		added++
		if o.State == Expired {
			orphans++
		}
	}
	return added, orphans, nil
}

// beside finds the agents that can be asked, by the node or fabric that they stand beside.
func (s *Service) beside(ctx context.Context, work []Work) (map[string]ids.Agent, error) {
	var nodes []ids.Node
	var fabrics []ids.Fabric
	for _, w := range work {
		switch {
		case w.Node.IsZero() == w.Fabric.IsZero():
			return nil, fault.New(fault.Invalid, "work", "work is for one node or one fabric")
		case w.Fabric.IsZero():
			nodes = append(nodes, w.Node)
		default:
			fabrics = append(fabrics, w.Fabric)
		}
	}
	living, err := s.Agents.Beside(ctx, nodes, fabrics)
	if err != nil {
		return nil, err
	}
	found := make(map[string]ids.Agent, len(living))
	for _, agent := range living {
		found[place(agent.Node, agent.Fabric)] = agent.ID
	}
	return found, nil
}

func (w Work) place() string { return place(w.Node, w.Fabric) }

// place names a node or a fabric.
func place(node ids.Node, fabric ids.Fabric) string { return node.String() + fabric.String() }

func newOperation(id ids.Step, step Step, w Work, now time.Time) (Operation, error) {
	spec, err := json.Marshal(w.Spec)
	if err != nil {
		return Operation{}, fmt.Errorf("encode spec: %w", err)
	}
	return Operation{
		ID: ids.Make[ids.Operation](), Step: id, Lease: step.Lease, Allocation: w.Allocation, Node: w.Node, Fabric: w.Fabric,
		Kind: w.Kind, Epoch: w.Epoch, Slots: w.Slots, Spec: spec, State: Queued,
		PickUpBy: now.Add(w.PickUpWithin), DoneBy: now.Add(w.DoneWithin), CreatedAt: now,
	}, nil
}

// dedupKey names an operation by what it is about.
func dedupKey(step Step, w Work) string {
	owner, place := step.Lease.String()+step.Fabric.String(), w.place()
	if !w.Allocation.IsZero() {
		place = w.Allocation.String()
	}
	return strings.Join([]string{owner, step.Kind, fmt.Sprint(step.Attempt), place, fmt.Sprint(w.Epoch), string(w.Kind)}, "/")
}

// maxPoll bounds how much work one poll's answer carries, and how long a poll may wait.
const (
	maxPollWork = 100
	maxPollWait = 30 * time.Second
)

// Poll returns the operations that the agent has not begun, oldest first, and waits for one up to wait (at most 30 s) when there is
// none. The empty list says that the wait ran out. It holds no transaction while it waits.
func (s *Service) Poll(ctx context.Context, caller Caller, wait time.Duration) ([]protocol.Operation, error) {
	var wake <-chan struct{}
	if s.Waker != nil {
		channel, cancel := s.Waker.Subscribe(Channel, caller.ID.String()) // before the first look: nothing falls in between
		defer cancel()
		wake = channel
	}
	deadline := time.NewTimer(min(max(wait, 0), maxPollWait))
	defer deadline.Stop()
	look := time.NewTicker(s.Recheck)
	defer look.Stop()
	for {
		found, err := s.queued(ctx, caller.ID)
		if err != nil {
			return nil, fmt.Errorf("poll: %w", err)
		}
		if len(found) > 0 || wait <= 0 {
			return found, nil
		}
		select {
		case <-wake:
		case <-look.C:
		case <-deadline.C:
			return []protocol.Operation{}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// waiting answers many polls at once: nearly all of them find nothing.
func (s *Service) waiting(ctx context.Context, agents []ids.Agent) ([]bool, error) {
	answers := make([]bool, len(agents))
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		found, err := s.Operations.Waiting(ctx, agents, s.Clock.Now())
		for i, id := range agents {
			answers[i] = found[id]
		}
		return err
	})
	return answers, err
}

func (s *Service) queued(ctx context.Context, agent ids.Agent) ([]protocol.Operation, error) {
	if some, err := s.polls.ask(ctx, agent); err != nil || !some {
		return []protocol.Operation{}, err
	}
	var found []Operation
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		found, err = s.Operations.OfAgent(ctx, agent, []State{Queued}, s.Clock.Now(), maxPollWork)
		return err
	})
	if err != nil {
		return nil, err
	}
	out := make([]protocol.Operation, len(found))
	for i, o := range found {
		out[i] = protocol.Operation{
			ID: o.ID.String(), Kind: o.Kind, LeaseID: o.Lease.String(), Epoch: o.Epoch, Slots: o.Slots, Spec: o.Spec,
			PickUpBy: o.PickUpBy, DoneBy: o.DoneBy,
		}
	}
	return out, nil
}

// Progress notes how far the agent is with an operation; the first one is the pick-up. Progress of an operation that is over changes
// nothing.
//
// It returns a NotFound fault, also for another agent's operation, and an Invalid fault for a percentage out of range.
func (s *Service) Progress(ctx context.Context, caller Caller, id ids.Operation, p protocol.Progress) error {
	if p.Percent < 0 || p.Percent > 100 {
		return fault.New(fault.Invalid, "progress", "the progress makes no sense").At("/percent", "0 to 100")
	}
	if len(p.Phase) > maxName {
		return fault.New(fault.Invalid, "progress", "the progress makes no sense").At("/phase", fmt.Sprintf("at most %d bytes", maxName))
	}
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		return s.Operations.Advance(ctx, caller.ID, id, p, s.Clock.Now())
	})
	if err != nil {
		return fmt.Errorf("note progress: %w", err)
	}
	return nil
}

// Complete ends an operation with the agent's result, and counts its step down in the same transaction. Only the last completion of
// a step, or a failure, wakes who waits for it. The first result counts: repeats and later, other results change nothing.
//
// It returns an Unauthenticated fault for a token that was used before, a NotFound fault, also for another agent's operation, and an
// Invalid fault for a result that makes no sense or lacks its proof; in the last case the operation has failed.
func (s *Service) Complete(ctx context.Context, caller Caller, id ids.Operation, r protocol.Result) error {
	var refused error
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		first, err := s.Agents.UseOnce(ctx, caller.ID, caller.token, caller.expires)
		if err != nil {
			return err
		}
		if !first {
			return fault.New(fault.Unauthenticated, "token-replayed", "the token was used before; sign the request anew")
		}
		o, err := s.Operations.ForUpdate(ctx, caller.ID, id)
		if err != nil || o.State.Final() {
			return err
		}
		ended, problem := examine(caller.Agent, o, r)
		if ended.State == "" {
			return problem
		}
		refused = problem
		ended.At = s.Clock.Now()
		return s.end(ctx, []Operation{o}, []Ended{ended})
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return fmt.Errorf("complete operation: %w", err)
	}
	return nil
}

// end ends operations that are not over, counts their steps down in the order of their ids, and wakes who waits.
func (s *Service) end(ctx context.Context, operations []Operation, how []Ended) error {
	type count struct {
		owner        Operation
		done, failed int
		at           time.Time
	}
	counts := map[ids.Step]*count{}
	for i, o := range operations {
		ended, err := s.Operations.Finish(ctx, o.ID, how[i])
		if err != nil {
			return err
		}
		if !ended || o.Step.IsZero() {
			continue
		}
		c := counts[o.Step]
		if c == nil {
			c = &count{owner: o}
			counts[o.Step] = c
		}
		c.at = how[i].At
		if c.done++; how[i].State != Succeeded {
			c.failed++
		}
	}
	for _, id := range stepsInOrder(counts) {
		c := counts[id]
		remaining, node, err := s.Operations.CountDown(ctx, id, c.done, c.failed, c.at)
		if err != nil {
			return err
		}
		if remaining > 0 && c.failed == 0 {
			continue
		}
		fabric := c.owner.Fabric
		if !c.owner.Lease.IsZero() {
			fabric = ids.Fabric{} // the step is the lease's, though a fabric's agent did the work
		}
		if err := s.nudge(ctx, c.owner.Lease, fabric, node, c.at); err != nil {
			return err
		}
	}
	return nil
}

func stepsInOrder[T any](counts map[ids.Step]T) []ids.Step {
	var order []ids.Step
	for id := range counts {
		order = append(order, id)
	}
	slices.SortFunc(order, func(a, b ids.Step) int { return strings.Compare(a.String(), b.String()) })
	return order
}

// nudge wakes the workflow of whoever waits for the step.
func (s *Service) nudge(ctx context.Context, lease ids.Lease, fabric ids.Fabric, node ids.Node, at time.Time) error {
	if !node.IsZero() {
		return s.Outbox.Put(ctx, outbox.NodeNudge, node.String(), nil, at)
	}
	if lease.IsZero() {
		return s.Outbox.Put(ctx, outbox.FabricNudge, fabric.String(), nil, at)
	}
	return s.Outbox.Put(ctx, outbox.LeaseNudge, lease.String(), nil, at)
}

// Step reads how far the step is; the zero value when it was never issued.
func (s *Service) Step(ctx context.Context, step Step) (StepStatus, error) {
	var status StepStatus
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		status, err = s.Operations.StepOf(ctx, step)
		return err
	})
	if err != nil {
		return StepStatus{}, fmt.Errorf("read step: %w", err)
	}
	return status, nil
}

// lateAtOnce bounds one transaction of ExpireLate.
const lateAtOnce = 200

// ExpireLate ends the operations whose deadline has passed: to be picked up, while they are queued, or to be done. It also forgets
// used tokens that have expired.
func (s *Service) ExpireLate(ctx context.Context, now time.Time) error {
	for found := lateAtOnce; found == lateAtOnce; {
		err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
			late, err := s.Operations.Late(ctx, now, lateAtOnce)
			if err != nil {
				return err
			}
			found = len(late)
			return s.endAll(ctx, late, lateness, now)
		})
		if err != nil {
			return fmt.Errorf("expire late operations: %w", err)
		}
	}
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error { return s.Agents.ForgetUsed(ctx, now) })
	if err != nil {
		return fmt.Errorf("forget used tokens: %w", err)
	}
	return nil
}

// lateness tells an agent that is offline from one that is slow.
func lateness(o Operation) *protocol.Fault {
	if o.State == Queued {
		return &protocol.Fault{Code: protocol.FaultNotPickedUp, Detail: "its agent did not pick the work up in time", Retryable: true}
	}
	return &protocol.Fault{Code: protocol.FaultNotDoneInTime, Detail: "its agent did not finish the work in time", Retryable: true}
}

// endAll ends operations as expired.
func (s *Service) endAll(ctx context.Context, operations []Operation, why func(Operation) *protocol.Fault, at time.Time) error {
	how := make([]Ended, len(operations))
	for i, o := range operations {
		how[i] = Ended{State: Expired, Fault: why(o), At: at}
	}
	return s.end(ctx, operations, how)
}

// Retain drops raw samples that are older than KeepSamples.
func (s *Service) Retain(ctx context.Context, now time.Time) error {
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error { return s.Beats.ForgetSamples(ctx, now.Add(-KeepSamples)) })
	if err != nil {
		return fmt.Errorf("forget samples: %w", err)
	}
	return nil
}
