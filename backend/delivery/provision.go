package delivery

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// loginUser is the name that tenants log in with.
const loginUser = "lease"

// ending says whether the lease must no longer be delivered, and how it ends then.
func (t *turn) ending() *Ending {
	switch deadline := t.deadline(); {
	case !t.lease.WantedEnd.IsZero() && !t.now.Before(t.lease.EffectiveEnd()):
		return &Ending{lease.CancelledOutcome, "it was cancelled before it was delivered"}
	case t.now.Before(deadline):
		return nil
	case t.lease.Reason != "":
		return &Ending{lease.FailedOutcome, t.lease.Reason}
	default:
		return &Ending{lease.FailedOutcome, "it could not be delivered in time"}
	}
}

// deadline is when a lease that is not active yet is given up.
func (t *turn) deadline() time.Time {
	deadline := t.lease.Start.Add(t.Policy.DeliverWithin)
	if end := t.lease.EffectiveEnd(); end.Before(deadline) {
		return end
	}
	return deadline
}

// provisioning is step for the way to a running lease: it asks for the lease's end where that is due.
func (s *Service) provisioning(ctx context.Context, id ids.Lease, name string, fn func(ctx context.Context, t *turn) (Progress, error)) (Progress, error) {
	return s.step(ctx, id, name, []lease.State{lease.Provisioning}, func(ctx context.Context, t *turn) (Progress, error) {
		if ending := t.ending(); ending != nil {
			return Progress{Ending: ending}, nil
		}
		progress, err := fn(ctx, t)
		if err == nil && !progress.Done && !progress.Again {
			progress.LookAt = sooner(progress.LookAt, t.deadline())
		}
		return progress, err
	})
}

func sooner(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// HandOver begins provisioning: each of the lease's slots passes from whoever had them before to this lease, which draws an epoch
// that fences every earlier command on them. While an earlier allocation of any of the slots is not released, nothing is handed
// over: the lease waits, visibly, until its deadline.
func (s *Service) HandOver(ctx context.Context, id ids.Lease) (Progress, error) {
	return s.step(ctx, id, "hand over", []lease.State{lease.Reserved, lease.Provisioning}, func(ctx context.Context, t *turn) (Progress, error) {
		if early, err := t.tooEarly(ctx); err != nil || !early.IsZero() {
			return Progress{LookAt: early}, err
		}
		if t.lease.State == lease.Reserved {
			if err := t.begin(ctx); err != nil {
				return Progress{}, err
			}
		}
		if ending := t.ending(); ending != nil {
			return Progress{Ending: ending}, nil
		}
		return t.handOver(ctx)
	})
}

// tooEarly returns when a reserved lease's slots begin to be held for it, if that is still to come.
func (t *turn) tooEarly(ctx context.Context) (time.Time, error) {
	if t.lease.State != lease.Reserved {
		return time.Time{}, nil
	}
	begin, err := t.Work.Begin(ctx, t.lease.ID)
	if err != nil || !begin.After(t.now) {
		return time.Time{}, err
	}
	return begin, nil
}

func (t *turn) begin(ctx context.Context) error {
	if err := t.lease.MoveTo(lease.Provisioning, t.now); err != nil {
		return err
	}
	if err := t.record(ctx, lease.EventProvisioning, nil); err != nil {
		return err
	}
	return t.save(ctx)
}

func (t *turn) handOver(ctx context.Context) (Progress, error) {
	held := t.in(lease.Held)
	if len(held) == 0 {
		return Progress{Done: true}, nil
	}
	blockers, err := t.Work.Blockers(ctx, t.lease.ID)
	if err != nil {
		return Progress{}, err
	}
	if len(blockers) > 0 {
		return t.awaitSlots(ctx, blockers)
	}
	for _, i := range held {
		epoch, err := t.Allocations.NextEpoch(ctx)
		if err != nil {
			return Progress{}, err
		}
		if err := t.move(ctx, i.ID, lease.Preparing, func(a *lease.Allocation) { a.Epoch = epoch }); err != nil {
			return Progress{}, err
		}
	}
	return Progress{Done: true}, t.explain(ctx, "")
}

// awaitSlots waits for slots that cannot be handed over yet, and looks for others in place of those that are not there at the
// lease's start, or whose node is lost.
func (t *turn) awaitSlots(ctx context.Context, blockers []Blocker) (Progress, error) {
	progress := Progress{LookAt: sooner(t.now.Add(t.Policy.Recheck), t.deadline())}
	if t.now.Before(t.lease.Start) {
		progress.LookAt = sooner(progress.LookAt, t.lease.Start)
	}
	for _, b := range blockers {
		if !b.NodeLost && t.now.Before(t.lease.Start) {
			continue
		}
		replaced, err := t.replaceHeld(ctx, b)
		if err != nil {
			return Progress{}, err
		}
		if replaced { // one a transaction, as in orReplace
			return Progress{Again: true}, nil
		}
	}
	return progress, t.explain(ctx, waitsFor(blockers))
}

// replaceHeld swaps slots that were never handed over for others, and reports whether it could.
func (t *turn) replaceHeld(ctx context.Context, b Blocker) (bool, error) {
	by, err := t.findOther(ctx, b.Allocation)
	if err != nil || by.IsZero() {
		return false, err
	}
	reason := "it was not free in time"
	if b.NodeLost {
		reason = "its machine is out of service"
	}
	err = t.move(ctx, b.Allocation, lease.Released, func(a *lease.Allocation) { a.ReplacedBy, a.Reason = by, reason })
	if err != nil {
		return false, err
	}
	swap := map[string]any{"allocation": b.Allocation.String(), "node": b.NodeName, "by": by.String(), "reason": reason}
	return true, t.record(ctx, lease.EventNodeReplaced, swap)
}

// waitsFor says, without naming anybody, what stands in the way.
func waitsFor(blockers []Blocker) string {
	var cleaned, lost []string
	for _, b := range blockers {
		if b.NodeLost {
			lost = append(lost, b.NodeName)
		} else {
			cleaned = append(cleaned, b.NodeName)
		}
	}
	var words []string
	if len(cleaned) > 0 {
		words = append(words, names(cleaned)+" to be cleaned after earlier use")
	}
	if len(lost) > 0 {
		words = append(words, names(lost)+", out of service, to come back or be replaced")
	}
	return "waits for " + strings.Join(words, "; and for ")
}

// names lists each name once.
func names(all []string) string {
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ", ")
}

// noReplacement is the code of the fault that says that there is no other machine now.
const noReplacement = "no-replacement"

// findOther holds other slots for the lease in place of the allocation's; the zero id when there are none now, or when the customer
// does not want that.
func (t *turn) findOther(ctx context.Context, instead ids.Allocation) (ids.Allocation, error) {
	if t.Placement == nil || t.lease.FailurePolicy != lease.Replace {
		return ids.Allocation{}, nil
	}
	by, err := t.Placement.Replace(ctx, instead)
	if fault.CodeOf(err) == noReplacement {
		return ids.Allocation{}, nil
	}
	return by, err // a race that was lost or a database in trouble has spoilt the transaction: the whole look is taken again
}

// Prepare has the nodes readied for the tenant.
func (s *Service) Prepare(ctx context.Context, id ids.Lease) (Progress, error) {
	return s.provisioning(ctx, id, "prepare", func(ctx context.Context, t *turn) (Progress, error) {
		// On a fabric that is open every machine's ports would be found wanting, one replacement after the other.
		if progress, waits, err := t.awaitFabric(ctx); err != nil || waits {
			return progress, err
		}
		instances := t.in(lease.Preparing)
		found, err := t.advance(ctx, t.prepareTask(), instances)
		if err != nil {
			return Progress{}, err
		}
		if err := t.recordPrepared(ctx, found, instances); err != nil {
			return Progress{}, err
		}
		return t.orReplace(ctx, found, instances)
	})
}

func (t *turn) prepareTask() task {
	return task{
		name: "prepare", kind: protocol.Prepare, within: t.Policy.PrepareWithin,
		spec: func(ctx context.Context, i Instance) (any, error) {
			source, err := t.source(ctx, i)
			if err != nil {
				return nil, err
			}
			return protocol.PrepareSpec{
				Source:  source,
				LeaseID: t.lease.ID.String(), Hostname: i.NodeName, Mode: i.Mode, GPUUUIDs: nonNil(i.GPUUUIDs), MIGProfile: i.MIGProfile,
				PortGUIDs: nonNil(i.Ports), Image: t.lease.Image, UserData: t.lease.UserData,
				ManagedLow: i.Managed.Low, ManagedHi: i.Managed.High, Reserved: i.Managed.Reserved,
			}, nil
		},
	}
}

// recordPrepared notes each node that is ready, once.
func (t *turn) recordPrepared(ctx context.Context, found survey, instances []Instance) error {
	if len(found.done) == 0 {
		return nil
	}
	known, err := t.Work.Recorded(ctx, t.lease.ID, lease.EventNodePrepared, "allocation")
	if err != nil {
		return err
	}
	for _, i := range instances {
		if _, ok := found.done[i.ID]; !ok || slices.Contains(known, i.ID.String()) {
			continue
		}
		if err := t.record(ctx, lease.EventNodePrepared, about(i)); err != nil {
			return err
		}
	}
	return nil
}

// orReplace turns a survey on the way to a running lease into progress. A node that failed for good, or that has fallen silent over its
// work, is replaced where placement finds another; else the lease waits with a reason until its deadline.
func (t *turn) orReplace(ctx context.Context, found survey, instances []Instance) (Progress, error) {
	silent, err := t.silent(ctx, found.open)
	if err != nil {
		return Progress{}, err
	}
	missing := append(slices.Clone(found.lost), silent...)
	if len(missing) == 0 {
		return Progress{Done: found.complete(instances), LookAt: found.lookAt}, t.explain(ctx, "")
	}
	for _, l := range missing {
		replaced, err := t.replace(ctx, l)
		if err != nil {
			return Progress{}, err
		}
		if replaced { // one a transaction: each locks a machine, and bookings lock theirs in order
			return Progress{Again: true}, nil
		}
	}
	l := missing[0]
	reason := fmt.Sprintf("%s failed (%s) and no replacement is free yet", l.NodeName, l.op.trouble())
	found.wakeAt(t.now.Add(6 * t.Policy.Recheck))
	return Progress{LookAt: found.lookAt}, t.explain(ctx, reason)
}

// silent returns those of the open ones whose node has sent no heartbeat for too long, with words for it. On the way to a running lease
// such a node may come back and finish: until another one is found, it is waited for.
func (t *turn) silent(ctx context.Context, open []loss) ([]loss, error) {
	open = slices.DeleteFunc(slices.Clone(open), func(l loss) bool { return l.away() }) // no heartbeat is expected of those
	if len(open) == 0 {
		return nil, nil
	}
	nodes := make([]ids.Node, len(open))
	for i, b := range open {
		nodes[i] = b.Node
	}
	since, err := t.Work.Silent(ctx, nodes, t.now.Add(-t.Policy.SilentAfter))
	if err != nil {
		return nil, err
	}
	var silent []loss
	for _, b := range open {
		if at, ok := since[b.Node]; ok {
			b.op.Fault = &protocol.Fault{Code: protocol.FaultSilent, Detail: "no heartbeat since " + at.UTC().Format(time.RFC3339), Retryable: true}
			silent = append(silent, b)
		}
	}
	return silent, nil
}

// replace swaps a lost instance for another node's slots, and reports whether it could. The lost one is cleaned at the lease's end, with the
// rest, or before when an admin has its node tested again; its node, where it is to blame, is sold to nobody else until an admin has seen to it.
func (t *turn) replace(ctx context.Context, l loss) (bool, error) {
	if l.op.Fault == nil || l.op.Fault.Code != protocol.FaultSilent {
		if err := t.fail(ctx, l); err != nil {
			return false, err
		}
	}
	by, err := t.findOther(ctx, l.ID)
	if err != nil || by.IsZero() {
		return false, err
	}
	// A new epoch: whatever the old node was told to do for this lease and has not done is fenced by the first order to clean up.
	epoch, err := t.Allocations.NextEpoch(ctx)
	if err != nil {
		return false, err
	}
	if err := t.move(ctx, l.ID, lease.Cleaning, func(a *lease.Allocation) { a.ReplacedBy, a.Reason, a.Epoch = by, l.op.trouble(), epoch }); err != nil {
		return false, err
	}
	swap := about(l.Instance)
	swap["by"], swap["reason"] = by.String(), l.op.trouble()
	return true, t.record(ctx, lease.EventNodeReplaced, swap)
}

// fail notes, once, that an instance's node failed for good.
func (t *turn) fail(ctx context.Context, l loss) error {
	epoch := strconv.FormatInt(l.Epoch, 10)
	known, err := t.Work.Recorded(ctx, t.lease.ID, lease.EventNodeFailed, "epoch")
	if err != nil || slices.Contains(known, epoch) {
		return err
	}
	failed := about(l.Instance)
	failed["epoch"], failed["code"], failed["detail"] = epoch, string(l.op.State), l.op.trouble()
	if l.op.Fault != nil {
		failed["code"] = l.op.Fault.Code
	}
	if err := t.record(ctx, lease.EventNodeFailed, failed); err != nil || !l.op.blamesNode() {
		return err
	}
	reason := "it failed on the way to a lease: " + l.op.trouble()
	if err := t.Work.QuarantineNode(ctx, l.Node, reason); err != nil {
		return err
	}
	warning := about(l.Instance)
	warning["reason"] = reason
	return t.alert(ctx, lease.EventNodeQuarantined, warning)
}

// Isolate wants the lease's partition as its allocations stand, and is done when both ends of every link were read and agree.
func (s *Service) Isolate(ctx context.Context, id ids.Lease) (Progress, error) {
	return s.provisioning(ctx, id, "isolate", func(ctx context.Context, t *turn) (Progress, error) {
		if t.lease.Fabric.IsZero() {
			return Progress{Done: true}, nil // this type comes without InfiniBand: there is nothing to isolate
		}
		if err := t.Fabric.Join(ctx, id); err != nil {
			return Progress{}, err
		}
		status, words, err := t.Fabric.Status(ctx, id)
		if err != nil {
			return Progress{}, err
		}
		if status == Broken {
			return Progress{LookAt: t.now.Add(t.Policy.Recheck)}, t.explain(ctx, "the fabric cannot isolate it yet: "+words)
		}
		return Progress{Done: status == Verified}, t.explain(ctx, "")
	})
}

// Grant lets the tenant in: not before the lease's start, not before isolation was proved, and until its end as it stands. On an
// active lease whose end has moved, the nodes are told the new end.
func (s *Service) Grant(ctx context.Context, id ids.Lease) (Progress, error) {
	return s.step(ctx, id, "grant", []lease.State{lease.Provisioning, lease.Active}, func(ctx context.Context, t *turn) (Progress, error) {
		return t.grant(ctx)
	})
}

func (t *turn) grant(ctx context.Context) (Progress, error) {
	state := lease.InUse
	if t.lease.State == lease.Provisioning {
		state = lease.Preparing
		if ending := t.ending(); ending != nil {
			return Progress{Ending: ending}, nil
		}
		if t.now.Before(t.lease.Start) {
			return Progress{LookAt: t.lease.Start}, nil
		}
		if err := t.mustBeProved(ctx); err != nil {
			return Progress{}, err
		}
		if progress, waits, err := t.awaitFabric(ctx); err != nil || waits {
			return progress, err
		}
	}
	instances := t.in(state)
	found, err := t.advance(ctx, t.grantTask(), instances)
	if err != nil {
		return Progress{}, err
	}
	if found, err = t.boot(ctx, found, instances); err != nil {
		return Progress{}, err
	}
	if err := t.keepAccess(ctx, found, instances); err != nil {
		return Progress{}, err
	}
	if t.lease.State == lease.Provisioning {
		return t.orReplace(ctx, found, instances)
	}
	return Progress{Done: found.complete(instances), LookAt: found.lookAt}, nil
}

func (t *turn) grantTask() task {
	return task{
		name: "grant", kind: protocol.Grant, within: t.Policy.QuickWithin, lasting: t.lease.State == lease.Active,
		spec: func(ctx context.Context, i Instance) (any, error) {
			keys, err := t.Leases.SSHKeys(ctx, t.lease.ID)
			if err != nil {
				return nil, err
			}
			seed, err := t.seed(ctx, i)
			if err != nil {
				return nil, err
			}
			spec := protocol.GrantSpec{LeaseID: t.lease.ID.String(), User: loginUser, AuthorizedKeys: []string{}, NotAfter: t.lease.EffectiveEnd(), Seed: seed}
			for _, k := range keys {
				spec.AuthorizedKeys = append(spec.AuthorizedKeys, k.PublicKey)
			}
			return spec, nil
		},
		holds: func(i Instance, o Operation) bool {
			if i.Metal {
				return true // its system knows of no end: at the lease's, the power goes
			}
			var asked protocol.GrantSpec
			return json.Unmarshal(o.Spec, &asked) == nil && asked.NotAfter.Equal(t.lease.EffectiveEnd())
		},
	}
}

// keepAccess notes where to log in, as the agents said it.
func (t *turn) keepAccess(ctx context.Context, found survey, instances []Instance) error {
	for _, i := range instances {
		o, ok := found.done[i.ID]
		if !ok || i.Access != nil {
			continue
		}
		var evidence protocol.GrantEvidence
		if err := json.Unmarshal(o.Evidence, &evidence); err != nil {
			return fault.New(fault.Invalid, "grant-evidence", "%s did not say where to log in: %w", i.NodeName, err)
		}
		i.Access = &lease.Access{Host: evidence.Host, Port: evidence.Port, User: cmp.Or(evidence.User, loginUser), HostKeys: nonNil(evidence.HostKeys)}
		if err := t.put(ctx, i.Allocation); err != nil {
			return err
		}
	}
	return nil
}

// put writes an allocation, in the row and in the turn.
func (t *turn) put(ctx context.Context, a lease.Allocation) error {
	for n := range t.instances {
		if t.instances[n].ID == a.ID {
			t.instances[n].Allocation = a
		}
	}
	return t.Allocations.Update(ctx, a)
}

// Activate starts the clock, once every instance is open to its tenant.
func (s *Service) Activate(ctx context.Context, id ids.Lease) (Progress, error) {
	return s.step(ctx, id, "activate", []lease.State{lease.Provisioning, lease.Active}, func(ctx context.Context, t *turn) (Progress, error) {
		if t.lease.State == lease.Active {
			return Progress{Done: true}, nil
		}
		return t.activate(ctx)
	})
}

func (t *turn) activate(ctx context.Context) (Progress, error) {
	if ending := t.ending(); ending != nil {
		return Progress{Ending: ending}, nil
	}
	if t.now.Before(t.lease.Start) {
		return Progress{LookAt: t.lease.Start}, nil
	}
	if err := t.mustBeProved(ctx); err != nil {
		return Progress{}, err
	}
	instances := t.in(lease.Preparing)
	for _, i := range instances {
		if i.Access == nil {
			return Progress{Again: true}, nil
		}
	}
	for _, i := range instances {
		if err := t.move(ctx, i.ID, lease.InUse, nil); err != nil {
			return Progress{}, err
		}
	}
	return Progress{Done: true}, t.startClock(ctx)
}

func (t *turn) startClock(ctx context.Context) error {
	if err := t.lease.MoveTo(lease.Active, t.now); err != nil {
		return err
	}
	t.lease.Reason = ""
	isolation := "proved"
	if t.lease.Fabric.IsZero() {
		isolation = "not applicable: no InfiniBand comes with it"
	}
	data := map[string]any{"isolation": isolation}
	if err := t.record(ctx, lease.EventActive, data); err != nil {
		return err
	}
	if err := t.tell(ctx, lease.EventActive, data); err != nil {
		return err
	}
	return t.save(ctx)
}

func about(i Instance) map[string]any {
	return map[string]any{"allocation": i.ID.String(), "node": i.NodeName}
}

func nonNil[T any](in []T) []T {
	if in == nil {
		return []T{}
	}
	return in
}
