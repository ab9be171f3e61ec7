package delivery

import (
	"cmp"
	"context"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
)

// task is what a step asks of each of its nodes.
type task struct {
	name   string // of the step
	words  string // what it is to people; "": its name
	kind   protocol.OperationKind
	within time.Duration
	// undo steps are asked more often, and again also after a failure that the agent calls final.
	undo bool
	// lasting steps are asked until they succeed: somebody is paying for what they do.
	lasting bool
	spec    func(ctx context.Context, i Instance) (any, error)
	// holds says whether a success is the one that is wanted now; nil: any success since the hand-over is.
	holds func(i Instance, o Operation) bool
	// why says in words what a success lacks that does not hold; nil: nothing is known but that it does not.
	why func(i Instance, o Operation) string
}

// failed says in words that the instance could not do it.
func (k task) failed(l loss) string { return cmp.Or(k.words, k.name) + " failed: " + k.trouble(l) }

// trouble says in words why the instance's last operation is not the success that was wanted.
func (k task) trouble(l loss) string {
	if l.op.State == Succeeded && k.why != nil {
		if why := k.why(l.Instance, l.op); why != "" {
			return why
		}
	}
	return l.op.trouble()
}

// survey is how far a step's set of nodes is.
type survey struct {
	done   map[ids.Allocation]Operation
	lost   []loss    // given up
	open   []loss    // under way, or to be asked again
	lookAt time.Time // the next deadline or retry; zero when nothing is under way
}

// loss is an instance and the last operation that its node was asked for: one that failed for good, or one under way.
type loss struct {
	Instance
	op       Operation
	failures int // in a row, before that one if it is under way
}

func (s *survey) complete(instances []Instance) bool { return len(s.done) == len(instances) }

func (s *survey) wakeAt(at time.Time) {
	if s.lookAt.IsZero() || at.Before(s.lookAt) {
		s.lookAt = at
	}
}

// advance looks at what was asked of the instances in this step, and asks every one that still needs it: once for all of them in
// the common case, once more for those that failed. It holds the lease's lock, so nothing is asked twice.
func (t *turn) advance(ctx context.Context, k task, instances []Instance) (survey, error) {
	found := survey{done: map[ids.Allocation]Operation{}}
	asked, err := t.Work.Operations(ctx, t.lease.ID, k.name)
	if err != nil {
		return found, err
	}
	var needed []Instance
	for _, i := range instances {
		if t.judge(k, i, history(asked, i), &found) {
			needed = append(needed, i)
		}
	}
	if needed, err = t.recall(ctx, k, needed, &found); err != nil || len(needed) == 0 {
		return found, err
	}
	orders := make([]Order, len(needed))
	for n, i := range needed {
		spec, err := k.spec(ctx, i)
		if err != nil {
			return found, err
		}
		orders[n] = Order{Allocation: i.ID, Node: i.Node, Kind: k.kind, Epoch: i.Epoch, Slots: i.Slots, Spec: spec}
	}
	limits := Limits{PickUpWithin: t.Policy.PickUpWithin, DoneWithin: t.Policy.PickUpWithin + k.within}
	found.wakeAt(t.now.Add(limits.PickUpWithin + time.Second))
	return found, t.Agents.Issue(ctx, Step{Lease: t.lease.ID, Kind: k.name, Attempt: lastAttempt(asked) + 1, Node: t.reclaims}, orders, limits)
}

// judge files one instance by its operations in this step, oldest first, and returns true when it must be asked (again) now.
func (t *turn) judge(k task, i Instance, ops []Operation, found *survey) bool {
	if len(ops) == 0 {
		return true
	}
	last := ops[len(ops)-1]
	switch {
	case last.inFlight():
		found.open = append(found.open, loss{i, last, k.failures(ops[:len(ops)-1])})
		found.wakeAt(last.DoneBy.Add(time.Second))
		return false
	case last.State == Succeeded && (k.holds == nil || k.holds(i, last)):
		found.done[i.ID] = last
		return false
	}
	failures := k.failures(ops)
	if failures == 0 {
		return true
	}
	if t.isFinal(k, last, failures) {
		found.lost = append(found.lost, loss{i, last, failures})
		return false
	}
	found.open = append(found.open, loss{i, last, failures})
	if retryAt := last.FinishedAt.Add(t.Policy.pause(failures)); retryAt.After(t.now) {
		found.wakeAt(retryAt)
		return false
	}
	return true
}

// failures counts the failures at the end of the list. A success that is not what is wanted now (the lease's end has moved) asks
// for another operation at once; on the way back, a success that shows nothing is a failure.
func (k task) failures(ops []Operation) int {
	n := 0
	for at := len(ops) - 1; at >= 0 && (k.undo || ops[at].State != Succeeded); at-- {
		n++
	}
	return n
}

// isFinal reports whether asking again is pointless. A fenced operation stays fenced: the slots have gone to somebody else.
func (t *turn) isFinal(k task, last Operation, failures int) bool {
	switch {
	case last.State == Fenced:
		return true
	case k.lasting:
		return false
	case k.undo:
		return failures >= t.Policy.UndoAttempts
	case last.Fault != nil && !last.Fault.Retryable:
		return true
	case last.Fault != nil && last.Fault.Code == protocol.FaultPortsNotClear:
		return failures >= t.Policy.UndoAttempts // its fabric is audited and repaired meanwhile; the next machine's ports would be no better
	default:
		return failures >= t.Policy.Attempts
	}
}

// history returns the operations of the instance since its hand-over.
func history(asked []Operation, i Instance) []Operation {
	var own []Operation
	for _, o := range asked {
		if o.Allocation == i.ID && o.Epoch == i.Epoch {
			own = append(own, o)
		}
	}
	return own
}

func lastAttempt(asked []Operation) int {
	last := 0
	for _, o := range asked {
		last = max(last, o.Attempt)
	}
	return last
}
