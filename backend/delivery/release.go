package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/outbox"
)

// Release stops the clock and turns the lease round. The zero ending says that its window is over. A lease that is releasing or
// closed already is left as it is.
//
// It returns a Conflict fault: code "not-over" when the window is not over (its end has moved), code "lease-state" when the lease
// was cancelled before anything was touched.
func (s *Service) Release(ctx context.Context, id ids.Lease, ending Ending) error {
	states := []lease.State{lease.Reserved, lease.Provisioning, lease.Active, lease.Releasing, lease.Closed}
	err := s.within(ctx, id, states, func(ctx context.Context, t *turn) error {
		if t.lease.State == lease.Releasing || t.lease.State == lease.Closed {
			return nil
		}
		at, err := t.stopClock(&ending)
		if err != nil {
			return err
		}
		return t.turnRound(ctx, ending, at)
	})
	if err != nil {
		return fmt.Errorf("release lease: %w", err)
	}
	return nil
}

// stopClock says when the tenant's time is over: at the end that was agreed, however late this runs; else now.
func (t *turn) stopClock(ending *Ending) (time.Time, error) {
	end := t.lease.EffectiveEnd()
	if ending.Outcome != lease.NoOutcome {
		return t.now, nil
	}
	if t.now.Before(end) {
		return time.Time{}, fault.New(fault.Conflict, "not-over", "the lease ends later by now")
	}
	ending.Outcome = lease.Completed
	if end.Before(t.lease.End) {
		ending.Outcome = lease.Terminated
	}
	return end, nil
}

func (t *turn) turnRound(ctx context.Context, ending Ending, at time.Time) error {
	if t.lease.State == lease.Reserved { // could not even begin: the same way back, with nothing to clean
		if err := t.begin(ctx); err != nil {
			return err
		}
	}
	if err := t.lease.MoveTo(lease.Releasing, t.now); err != nil {
		return err
	}
	t.lease.Outcome, t.lease.Reason, t.lease.ReleasedAt = ending.Outcome, ending.Reason, at
	for _, i := range t.in(lease.Held) { // nothing was done to these yet
		if err := t.free(ctx, i); err != nil {
			return err
		}
	}
	for _, state := range []lease.AllocationState{lease.Preparing, lease.InUse} {
		for _, i := range t.in(state) {
			if err := t.move(ctx, i.ID, lease.Cleaning, nil); err != nil {
				return err
			}
		}
	}
	data := map[string]any{"outcome": string(ending.Outcome), "reason": ending.Reason}
	if err := t.recordAt(ctx, lease.EventReleasing, at, data); err != nil {
		return err
	}
	if err := t.tell(ctx, lease.EventReleasing, data); err != nil {
		return err
	}
	return t.save(ctx)
}

// free gives an instance's slots back and wakes whoever waits for them.
func (t *turn) free(ctx context.Context, i Instance) error {
	err := t.move(ctx, i.ID, lease.Released, func(a *lease.Allocation) {
		if !t.reclaims.IsZero() {
			a.Reason = "" // what it waited for has come; a reason would stand for the certificate
		}
	})
	if err != nil {
		return err
	}
	waiters, err := t.Work.Waiters(ctx, i.Allocation)
	if err != nil {
		return err
	}
	for _, w := range waiters {
		if err := t.Outbox.Put(ctx, outbox.LeaseNudge, w.String(), nil, t.now); err != nil {
			return err
		}
	}
	return nil
}

// releasing is step for the way back.
func (s *Service) releasing(ctx context.Context, id ids.Lease, name string, fn func(ctx context.Context, t *turn) (Progress, error)) (Progress, error) {
	return s.step(ctx, id, name, []lease.State{lease.Releasing}, fn)
}

// undo advances a step on the way back; nodes that fail it for good are quarantined and leave the set. So are those that were asked in vain
// more than once and are silent: the others' cleaning, and who comes after them, do not wait for a machine that is not there.
func (t *turn) undo(ctx context.Context, k task, instances []Instance) (survey, Progress, error) {
	found, err := t.advance(ctx, k, instances)
	if err != nil {
		return found, Progress{}, err
	}
	silent, err := t.silent(ctx, slices.DeleteFunc(slices.Clone(found.open), func(l loss) bool { return l.failures < patienceWithSilence }))
	if err != nil {
		return found, Progress{}, err
	}
	found.lost = append(found.lost, silent...)
	for _, l := range found.lost {
		if err := t.quarantine(ctx, k.failed(l), l.Instance); err != nil {
			return found, Progress{}, err
		}
	}
	return found, Progress{Done: len(found.done)+len(found.lost) == len(instances), LookAt: found.lookAt}, nil
}

// Revoke ends the tenant's access on every node. A node that cannot show that a log-in is refused is quarantined.
func (s *Service) Revoke(ctx context.Context, id ids.Lease) (Progress, error) {
	return s.releasing(ctx, id, "revoke", func(ctx context.Context, t *turn) (Progress, error) {
		progress, err := t.shutOut(ctx, t.revokeTask(revokeStep), t.in(lease.Cleaning))
		if err != nil || !progress.Done {
			return progress, err
		}
		return progress, t.recordRevoked(ctx)
	})
}

// recordRevoked notes, once, that access was ended, and on which nodes nobody could show it. Where no node has shown it nothing is claimed.
func (t *turn) recordRevoked(ctx context.Context) error {
	if len(t.in(lease.Cleaning)) == 0 && len(t.in(lease.Quarantined)) > 0 {
		return nil
	}
	data := map[string]any{"lease": t.lease.ID.String()}
	var unconfirmed []string
	for _, i := range t.in(lease.Quarantined) {
		unconfirmed = append(unconfirmed, i.NodeName)
	}
	if len(unconfirmed) > 0 {
		data["unconfirmed"] = unconfirmed
	}
	return t.recordOnce(ctx, lease.EventRevoked, "lease", t.lease.ID.String(), data)
}

// patienceWithSilence is how often a node that turns out to be silent was asked in vain before it is given up on the way back.
const patienceWithSilence = 2

// revokeStep is the step in which a lease's nodes end its tenant's access.
const revokeStep = "revoke"

func (t *turn) revokeTask(name string) task {
	return task{
		name: name, kind: protocol.Revoke, within: t.Policy.QuickWithin, undo: true,
		spec: func(context.Context, Instance) (any, error) {
			return protocol.RevokeSpec{LeaseID: t.lease.ID.String()}, nil
		},
		holds: func(_ Instance, o Operation) bool {
			var evidence protocol.RevokeEvidence
			return json.Unmarshal(o.Evidence, &evidence) == nil && evidence.LoginRefused
		},
	}
}

// Leave takes the lease's ports out of its partition, and is done when both ends of every link were seen clear of it. Ports that
// are not seen clear in time take their nodes to quarantine.
func (s *Service) Leave(ctx context.Context, id ids.Lease) (Progress, error) {
	return s.releasing(ctx, id, "leave", func(ctx context.Context, t *turn) (Progress, error) {
		if t.lease.Fabric.IsZero() {
			return Progress{Done: true}, nil
		}
		if err := t.Fabric.Leave(ctx, id); err != nil {
			return Progress{}, err
		}
		status, words, err := t.Fabric.Status(ctx, id)
		if err != nil {
			return Progress{}, err
		}
		if status == Clear || status == NoPartition {
			return Progress{Done: true}, nil
		}
		deadline, err := t.clearBy(ctx, revokeStep, t.onFabric(lease.Cleaning))
		if err != nil {
			return Progress{}, err
		}
		if t.now.Before(deadline) {
			return Progress{LookAt: deadline}, nil
		}
		if words == "" {
			words = "it is still " + string(status)
		}
		uncleared, err := t.Fabric.Uncleared(ctx, id)
		if err != nil {
			return Progress{}, err
		}
		dirty := withAny(t.onFabric(lease.Cleaning), uncleared)
		return Progress{Done: true}, t.quarantine(ctx, "its ports were not seen clear of the tenant's partition: "+words, dirty...)
	})
}

// clearBy is when the instances' ports must have been seen clear: that long after access to the last of them was ended, in the step of that
// name. The lease's end is no measure: it may lie far back when nobody was there to work.
func (t *turn) clearBy(ctx context.Context, step string, instances []Instance) (time.Time, error) {
	asked, err := t.Work.Operations(ctx, t.lease.ID, step)
	if err != nil {
		return time.Time{}, err
	}
	off, err := t.Work.Operations(ctx, t.lease.ID, step+offSuffix)
	if err != nil {
		return time.Time{}, err
	}
	asked = append(asked, off...)
	closed := t.lease.ReleasedAt
	for _, i := range instances {
		for _, o := range history(asked, i) {
			if o.FinishedAt.After(closed) {
				closed = o.FinishedAt
			}
		}
	}
	return closed.Add(t.Policy.ClearWithin), nil
}

// Quarantine keeps the lease's nodes that are not known to be clean off the market, with the reason. It is the way out when a step
// back cannot be taken at all: nothing is ever given back because cleaning it does not work.
func (s *Service) Quarantine(ctx context.Context, id ids.Lease, reason string) error {
	err := s.within(ctx, id, []lease.State{lease.Releasing}, func(ctx context.Context, t *turn) error {
		return t.quarantine(ctx, reason, t.in(lease.Cleaning)...)
	})
	if err != nil {
		return fmt.Errorf("quarantine: %w", err)
	}
	return nil
}

// CleanUpAfter sees to what a lease that is over for good still holds: slots that were never handed over are given back, others go to
// quarantine. It is for the reconciler; on the regular way nothing is left.
func (s *Service) CleanUpAfter(ctx context.Context, id ids.Lease) error {
	err := s.within(ctx, id, []lease.State{lease.Closed, lease.Cancelled}, func(ctx context.Context, t *turn) error {
		for _, i := range t.in(lease.Held) {
			if err := t.free(ctx, i); err != nil {
				return err
			}
		}
		for _, state := range []lease.AllocationState{lease.Preparing, lease.InUse} {
			for _, i := range t.in(state) {
				if err := t.move(ctx, i.ID, lease.Cleaning, nil); err != nil {
					return err
				}
			}
		}
		left := slices.DeleteFunc(t.in(lease.Cleaning), func(i Instance) bool { return i.Retested })
		return t.quarantine(ctx, "its lease is over and it was not cleaned", left...)
	})
	if err != nil {
		return fmt.Errorf("clean up after lease: %w", err)
	}
	return nil
}

// quarantine keeps instances, and the whole node where they are all of it, off the market until an admin has seen to them.
func (t *turn) quarantine(ctx context.Context, reason string, instances ...Instance) error {
	for _, i := range instances {
		if err := t.move(ctx, i.ID, lease.Quarantined, func(a *lease.Allocation) { a.Reason = reason }); err != nil {
			return err
		}
		if i.WholeNode || !t.reclaims.IsZero() {
			if err := t.Work.QuarantineNode(ctx, i.Node, reason); err != nil {
				return err
			}
		}
		data := about(i)
		data["reason"] = reason
		if err := t.record(ctx, lease.EventNodeQuarantined, data); err != nil {
			return err
		}
		if err := t.alert(ctx, lease.EventNodeQuarantined, data); err != nil {
			return err
		}
	}
	return nil
}

// alert tells the operator what needs an eye: a node was lost to the market, isolation is not proved.
func (t *turn) alert(ctx context.Context, event lease.EventType, data map[string]any) error {
	payload := map[string]any{"lease": t.lease.ID, "event": event, "at": t.now, "data": data}
	return t.Outbox.Put(ctx, outbox.Notify, "operator", payload, t.now)
}

// Settle makes the final bill and closes the lease. It refuses with a Conflict fault, code "not-clean", while one of the lease's
// instances is neither released nor quarantined.
func (s *Service) Settle(ctx context.Context, id ids.Lease) error {
	err := s.within(ctx, id, []lease.State{lease.Releasing, lease.Closed}, func(ctx context.Context, t *turn) error {
		if t.lease.State == lease.Closed {
			return nil
		}
		for _, i := range t.instances {
			if i.State != lease.Released && i.State != lease.Quarantined {
				return fault.New(fault.Conflict, "not-clean", "%s is still %s", i.NodeName, i.State)
			}
		}
		invoice, err := t.Billing.Settle(ctx, id)
		if err != nil {
			return err
		}
		if err := t.lease.MoveTo(lease.Closed, t.now); err != nil {
			return err
		}
		if err := t.record(ctx, lease.EventClosed, map[string]any{"invoice": invoice.String()}); err != nil {
			return err
		}
		return t.save(ctx)
	})
	if err != nil {
		return fmt.Errorf("settle lease: %w", err)
	}
	return nil
}
