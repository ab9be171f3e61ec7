package delivery

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/outbox"
)

// Reclaim takes slots out of quarantine: what leases left on a node which an admin has tested again, because they are over or have another
// node instead, is closed, seen clear and wiped once more, by the rules of a lease's own end, and only then does the node come back to the market. What fails for
// good is quarantined again, and the node with it.
//
// Like Service it has no memory of its own: each method looks at the rows of one node, lease by lease in one short transaction each,
// does what is due and says how far things are. Package workflows/reclaim decides when. A step that finds the node moved on by
// somebody asks to look again; Conclude then puts back what it had begun with.
type Reclaim struct {
	ReclaimDeps
	delivery *Service
}

// ReclaimDeps are what a Reclaim works with beside the delivery service.
type ReclaimDeps struct {
	Rows  ReclaimRows
	Nodes Nodes
	Ports Ports
	Audit Audit
}

// ReclaimRows is what is known about slots that leases left behind.
type ReclaimRows interface {
	// Leftovers lists the leases that have slots of the node in quarantine, or being cleaned though the lease is over or has another node
	// instead, by id.
	Leftovers(ctx context.Context, node ids.Node) ([]ids.Lease, error)
	// Verifying reports whether the node is being verified.
	Verifying(ctx context.Context, node ids.Node) (bool, error)
}

// Nodes are the machines.
type Nodes interface {
	// Verify puts a node that is being verified on the market when nothing speaks against it, and says on it what it waits for
	// otherwise. It returns whether it still is being verified, and a NotFound fault.
	Verify(ctx context.Context, node ids.Node) (bool, error)
}

// Ports says what nodes' own readings of their ports amount to.
type Ports interface {
	// Vacancy returns what speaks against a reading, an answer of the node to an order to observe ports of the fabric: "" when it
	// shows that none of the ports holds a key of ours. It returns a NotFound fault.
	Vacancy(ctx context.Context, fabric ids.Fabric) (func(node ids.Node, order, answer json.RawMessage) string, error)
}

// Audit notes who changed what, within the transaction of the change.
type Audit interface {
	Record(ctx context.Context, action, target string, before, after any) error
}

// NewReclaim returns a Reclaim that cleans by delivery's means.
func NewReclaim(delivery *Service, deps ReclaimDeps) *Reclaim {
	return &Reclaim{ReclaimDeps: deps, delivery: delivery}
}

// The names of the steps. Their attempts are numbered on, however often a node is tested again; what counts is the epoch.
const (
	reclaimRevoke  = "reclaim-revoke"
	reclaimObserve = "reclaim-observe"
	reclaimWipe    = "reclaim-wipe"
)

// Begin takes the node's slots out of quarantine into cleaning. Each draws an epoch above all before it: commands of the lease's own
// end that are still on their way are fenced. Slots whose lease is at its end are its own affair, and waited for.
func (r *Reclaim) Begin(ctx context.Context, node ids.Node) (Progress, error) {
	return r.step(ctx, node, "begin", func(ctx context.Context, t *turn) (Progress, error) {
		quarantined := t.in(lease.Quarantined)
		for _, i := range quarantined {
			epoch, err := t.Allocations.NextEpoch(ctx)
			if err != nil {
				return Progress{}, err
			}
			err = t.move(ctx, i.ID, lease.Cleaning, func(a *lease.Allocation) { a.Epoch, a.Reason = epoch, "waits to be cleaned again" })
			if err != nil {
				return Progress{}, err
			}
		}
		if len(quarantined) == 0 || t.lease.Fabric.IsZero() {
			return Progress{Done: true}, nil
		}
		if !t.lease.Final() { // its partition lives, and does not want these ports since they were replaced
			return Progress{Done: true}, nil
		}
		if err := t.Fabric.Leave(ctx, t.lease.ID); err != nil {
			return Progress{}, err
		}
		return Progress{Done: true}, t.Outbox.Put(ctx, outbox.FabricNudge, t.lease.Fabric.String(), nil, t.now)
	})
}

// Revoke has the node end what access there may still be, and show that a log-in is refused.
func (r *Reclaim) Revoke(ctx context.Context, node ids.Node) (Progress, error) {
	return r.step(ctx, node, "revoke", func(ctx context.Context, t *turn) (Progress, error) {
		if err := t.await(ctx, "access is being ended again"); err != nil {
			return Progress{}, err
		}
		task := t.revokeTask(reclaimRevoke)
		task.words = "ending access again"
		return t.shutOut(ctx, task, t.in(lease.Cleaning))
	})
}

// Clear waits until the fabric's agent has seen the node's former ports clear of their lease's partition at both ends. Ports that are
// not seen clear in time, counted from when access was ended, send the node back to quarantine.
func (r *Reclaim) Clear(ctx context.Context, node ids.Node) (Progress, error) {
	return r.step(ctx, node, "clear", func(ctx context.Context, t *turn) (Progress, error) {
		instances := t.onFabric(lease.Cleaning)
		if len(instances) == 0 {
			return Progress{Done: true}, nil
		}
		uncleared, err := t.Fabric.Uncleared(ctx, t.lease.ID)
		if err != nil {
			return Progress{}, err
		}
		dirty := withAny(instances, uncleared)
		if len(dirty) == 0 {
			return Progress{Done: true}, nil
		}
		if err := t.await(ctx, "its ports must be seen clear of the tenant's partition"); err != nil {
			return Progress{}, err
		}
		deadline, err := t.clearBy(ctx, reclaimRevoke, dirty)
		if err != nil {
			return Progress{}, err
		}
		if t.now.Before(deadline) {
			return Progress{LookAt: sooner(deadline, t.now.Add(t.Policy.Recheck))}, nil
		}
		return Progress{Done: true}, t.quarantine(ctx, "its ports were not seen clear of the tenant's partition again", dirty...)
	})
}

// Observe has the node read its own former ports' tables, the second witness: none may hold a key of ours.
func (r *Reclaim) Observe(ctx context.Context, node ids.Node) (Progress, error) {
	return r.step(ctx, node, "observe", func(ctx context.Context, t *turn) (Progress, error) {
		instances := t.onFabric(lease.Cleaning)
		if len(instances) == 0 {
			return Progress{Done: true}, nil
		}
		if err := t.await(ctx, "it must read its own ports clear"); err != nil {
			return Progress{}, err
		}
		against, err := r.Ports.Vacancy(ctx, t.lease.Fabric)
		if err != nil {
			return Progress{}, err
		}
		_, progress, err := t.undo(ctx, t.observeTask(against), instances)
		return progress, err
	})
}

func (t *turn) observeTask(against func(node ids.Node, order, answer json.RawMessage) string) task {
	why := func(i Instance, o Operation) string { return against(i.Node, o.Spec, o.Evidence) }
	return task{
		name: reclaimObserve, words: "reading its own ports again", kind: protocol.ObservePKeys, within: t.Policy.QuickWithin, undo: true,
		spec: func(_ context.Context, i Instance) (any, error) {
			return protocol.ObservePKeysSpec{Nonce: rand.Text(), PortGUIDs: i.Ports}, nil
		},
		holds: func(i Instance, o Operation) bool { return why(i, o) == "" }, why: why,
	}
}

// Wipe has the node's slots erased again. Those whose evidence shows every device wiped are given back; anything else is quarantined
// with the node. Both get a certificate, which the lease's customer can read beside the first one.
func (r *Reclaim) Wipe(ctx context.Context, node ids.Node) (Progress, error) {
	return r.step(ctx, node, "wipe", func(ctx context.Context, t *turn) (Progress, error) {
		if err := t.await(ctx, "its wipe is awaited"); err != nil {
			return Progress{}, err
		}
		task := t.wipeTask(reclaimWipe)
		task.words = "wiping it again"
		return t.wipe(ctx, task)
	})
}

// Conclude is done when nothing is left to do on the node for now: it is on the market, or says what it waits for. When the node is
// not being verified any more, what had begun to be cleaned goes back to quarantine. trouble, when there is any, sends the node there
// too: a step was refused for good.
func (r *Reclaim) Conclude(ctx context.Context, node ids.Node, trouble string) (Progress, error) {
	leases, err := r.Rows.Leftovers(ctx, node)
	if err != nil {
		return Progress{}, fmt.Errorf("conclude: %w", err)
	}
	verifying := false
	for _, id := range leases {
		err := r.within(ctx, node, id, func(ctx context.Context, t *turn, is bool) error {
			if verifying = is; trouble != "" {
				return t.quarantine(ctx, trouble, t.in(lease.Cleaning)...)
			}
			if verifying {
				return nil
			}
			return t.putBack(ctx)
		})
		if err != nil && fault.CodeOf(err) != movedOn {
			return Progress{}, fmt.Errorf("conclude: %w", err)
		}
	}
	if _, err := r.Nodes.Verify(ctx, node); err != nil {
		return Progress{}, fmt.Errorf("conclude: %w", err)
	}
	return Progress{Done: trouble != "" || len(leases) == 0 || !verifying, LookAt: r.delivery.Clock.Now().Add(r.delivery.Policy.Recheck)}, nil
}

// putBack returns to quarantine what was being cleaned. Where the node is, somebody has decided.
func (t *turn) putBack(ctx context.Context) error {
	const reason = "its node was moved on before it was clean"
	for _, i := range t.in(lease.Cleaning) {
		if err := t.move(ctx, i.ID, lease.Quarantined, func(a *lease.Allocation) { a.Reason = reason }); err != nil {
			return err
		}
		data := about(i)
		data["reason"] = reason
		if err := t.record(ctx, lease.EventNodeQuarantined, data); err != nil {
			return err
		}
	}
	return nil
}

// await says on the slots what they wait for, for whoever looks at the node.
func (t *turn) await(ctx context.Context, what string) error {
	for n := range t.instances {
		i := &t.instances[n]
		if i.State != lease.Cleaning || i.Reason == what {
			continue
		}
		i.Reason = what
		if err := t.Allocations.Update(ctx, i.Allocation); err != nil {
			return err
		}
	}
	return nil
}

// step runs fn for each lease that left something on the node. It is done when it is for all of them; a node that has moved on asks
// to look again.
func (r *Reclaim) step(ctx context.Context, node ids.Node, name string, fn func(ctx context.Context, t *turn) (Progress, error)) (Progress, error) {
	leases, err := r.Rows.Leftovers(ctx, node)
	if err != nil {
		return Progress{}, fmt.Errorf("%s: %w", name, err)
	}
	all := Progress{Done: true}
	for _, id := range leases {
		var progress Progress
		err := r.within(ctx, node, id, func(ctx context.Context, t *turn, verifying bool) error {
			if progress.Again = !verifying; progress.Again {
				return nil
			}
			var err error
			progress, err = fn(ctx, t)
			return err
		})
		switch {
		case fault.CodeOf(err) == movedOn: // the lease is at its end, and cleans this itself
			progress = Progress{LookAt: r.delivery.Clock.Now().Add(r.delivery.Policy.Recheck)}
		case err != nil:
			return Progress{}, fmt.Errorf("%s: %w", name, err)
		}
		all.add(progress)
	}
	if all.Again {
		return all, nil
	}
	if all.Again, err = r.explain(ctx, node, all); err != nil {
		return Progress{}, fmt.Errorf("%s: %w", name, err)
	}
	return all, nil
}

// explain has the node say what it waits for, while something is awaited, and returns whether it is not being verified any more.
func (r *Reclaim) explain(ctx context.Context, node ids.Node, progress Progress) (bool, error) {
	if progress.Done {
		return false, nil // the next step says it
	}
	verifying, err := r.Nodes.Verify(ctx, node)
	return !verifying, err
}

func (p *Progress) add(o Progress) {
	p.Done, p.Again = p.Done && o.Done, p.Again || o.Again
	if !o.LookAt.IsZero() {
		p.LookAt = sooner(p.LookAt, o.LookAt)
	}
}

// within is Service.within for what a lease left on one node: all that it has there when it is over; before, what was replaced. At its end
// the lease cleans everything itself.
func (r *Reclaim) within(ctx context.Context, node ids.Node, id ids.Lease, fn func(ctx context.Context, t *turn, verifying bool) error) error {
	return r.delivery.within(ctx, id, []lease.State{lease.Provisioning, lease.Active, lease.Closed, lease.Cancelled}, func(ctx context.Context, t *turn) error {
		verifying, err := r.Rows.Verifying(ctx, node)
		if err != nil {
			return err
		}
		t.reclaims = node
		t.instances = onNode(t.instances, node)
		if !t.lease.Final() {
			t.instances = slices.DeleteFunc(t.instances, func(i Instance) bool { return i.ReplacedBy.IsZero() })
		}
		return fn(ctx, t, verifying)
	})
}

func onNode(instances []Instance, node ids.Node) []Instance {
	var found []Instance
	for _, i := range instances {
		if i.Node == node {
			found = append(found, i)
		}
	}
	return found
}

// WriteOff releases what leases that are over left on a node that is leaving for good, without a wipe: nobody will have these slots
// again. The reason stays on each of them, in its lease's log and in the audit log. For a transaction that retires the node.
//
// It returns an Invalid fault, code "retire-reason", when something is to be written off and there is no reason.
func (r *Reclaim) WriteOff(ctx context.Context, node ids.Node, reason string) error {
	leases, err := r.Rows.Leftovers(ctx, node)
	if err != nil {
		return fmt.Errorf("write off: %w", err)
	}
	if len(leases) > 0 && reason == "" {
		return fault.New(fault.Invalid, "retire-reason", "slots of the node are quarantined; to retire it without a wipe needs a reason").At("/reason", "say what becomes of the machine")
	}
	for _, id := range leases {
		err := r.within(ctx, node, id, func(ctx context.Context, t *turn, _ bool) error { return r.writeOff(ctx, t, reason) })
		if err != nil && fault.CodeOf(err) != movedOn { // a lease at its end keeps its slots, and so the node
			return fmt.Errorf("write off: %w", err)
		}
	}
	return nil
}

func (r *Reclaim) writeOff(ctx context.Context, t *turn, reason string) error {
	if !t.lease.Fabric.IsZero() && t.lease.Final() {
		if err := t.Fabric.Leave(ctx, t.lease.ID); err != nil {
			return err
		}
	}
	for _, state := range []lease.AllocationState{lease.Quarantined, lease.Cleaning} {
		for _, i := range t.in(state) {
			before := map[string]any{"state": i.State, "reason": i.Reason, "lease": t.lease.ID}
			if err := t.move(ctx, i.ID, lease.Released, func(a *lease.Allocation) { a.Reason = reason }); err != nil {
				return err
			}
			data := about(i)
			data["reason"] = reason
			if err := t.record(ctx, lease.EventNodeWrittenOff, data); err != nil {
				return err
			}
			err := r.Audit.Record(ctx, "allocation.written_off", i.ID.String(), before, map[string]any{"state": lease.Released, "reason": reason})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
