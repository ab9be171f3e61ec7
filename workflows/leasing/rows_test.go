package leasing_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// rows is what the database would hold; a transaction that fails leaves it as it was.
type rows struct {
	lease        lease.Lease
	instances    []delivery.Instance
	blocked      bool
	events       []lease.Event
	operations   []delivery.Operation
	epoch        int64
	certificates []delivery.Certificate
	quarantined  map[ids.Node]string
	silent       map[ids.Node]time.Time // since when
	outbox       []string
	accrued      time.Time
	settled      int
}

func (r *rows) copy() rows {
	c := *r
	c.instances, c.events = slices.Clone(r.instances), slices.Clone(r.events)
	c.operations, c.certificates = slices.Clone(r.operations), slices.Clone(r.certificates)
	c.quarantined, c.outbox = maps.Clone(r.quarantined), slices.Clone(r.outbox)
	return c
}

// WithinTx implements delivery.Transactor: transactions run one after the other, and roll back.
func (w *world) WithinTx(ctx context.Context, fn func(ctx context.Context) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.rows.copy()
	effects := len(w.effects)
	if err := fn(ctx); err != nil {
		w.rows, w.effects = before, w.effects[:effects]
		return err
	}
	for _, effect := range w.effects {
		effect()
	}
	w.effects = nil
	return nil
}

// afterCommit runs fn when the transaction has committed.
func (w *world) afterCommit(fn func()) { w.effects = append(w.effects, fn) }

type leaseRows struct{ *world }

func (l leaseRows) Get(_ context.Context, id ids.Lease) (lease.Lease, error) {
	if id != l.rows.lease.ID {
		return lease.Lease{}, fault.New(fault.NotFound, "lease-not-found", "there is no such lease")
	}
	return l.rows.lease, nil
}

func (l leaseRows) GetForUpdate(ctx context.Context, id ids.Lease) (lease.Lease, error) {
	return l.Get(ctx, id)
}

func (l leaseRows) Update(_ context.Context, changed lease.Lease) error {
	l.rows.lease = changed
	return nil
}

func (l leaseRows) AppendEvent(_ context.Context, e lease.Event) (lease.Event, error) {
	e.Seq = int64(len(l.rows.events) + 1)
	l.rows.events = append(l.rows.events, e)
	return e, nil
}

func (l leaseRows) SSHKeys(context.Context, ids.Lease) ([]lease.SSHKey, error) {
	return []lease.SSHKey{{ID: ids.Make[ids.SSHKey](), Name: "laptop", PublicKey: "ssh-ed25519 AAAA"}}, nil
}

type allocationRows struct{ *world }

func (a allocationRows) Update(_ context.Context, changed lease.Allocation) error {
	for i := range a.rows.instances {
		if a.rows.instances[i].ID == changed.ID {
			a.rows.instances[i].Allocation = changed
			return nil
		}
	}
	return fault.New(fault.NotFound, "allocation-not-found", "there is no such allocation")
}

func (a allocationRows) NextEpoch(context.Context) (int64, error) {
	a.rows.epoch++
	return a.rows.epoch, nil
}

type workRows struct{ *world }

func (w workRows) Instances(context.Context, ids.Lease) ([]delivery.Instance, error) {
	var live []delivery.Instance
	for _, i := range w.rows.instances {
		if i.State != lease.Released {
			live = append(live, i)
		}
	}
	return live, nil
}

func (w workRows) Begin(context.Context, ids.Lease) (time.Time, error) {
	return w.rows.instances[0].Occupied.Start, nil
}

func (w workRows) Blockers(context.Context, ids.Lease) ([]delivery.Blocker, error) {
	if !w.rows.blocked || w.rows.instances[0].State != lease.Held {
		return nil, nil
	}
	return []delivery.Blocker{{Allocation: w.rows.instances[0].ID, NodeName: w.rows.instances[0].NodeName}}, nil
}

func (w workRows) Waiters(context.Context, lease.Allocation) ([]ids.Lease, error) { return nil, nil }

func (w workRows) Operations(_ context.Context, _ ids.Lease, step string) ([]delivery.Operation, error) {
	var found []delivery.Operation
	for _, o := range w.rows.operations {
		if w.steps[o.ID] == step {
			found = append(found, o)
		}
	}
	return found, nil
}

func (w workRows) LastRound(ctx context.Context, id ids.Lease, step string) ([]delivery.Operation, error) {
	all, err := w.Operations(ctx, id, step)
	last := 0
	for _, o := range all {
		last = max(last, o.Attempt)
	}
	return slices.DeleteFunc(all, func(o delivery.Operation) bool { return o.Attempt < last }), err
}

func (w workRows) Recorded(_ context.Context, _ ids.Lease, event lease.EventType, field string) ([]string, error) {
	var values []string
	for _, e := range w.rows.events {
		if v, ok := e.Data[field]; ok && e.Type == event {
			values = append(values, fmt.Sprint(v))
		}
	}
	return values, nil
}

func (w workRows) InsertCertificate(_ context.Context, c delivery.Certificate) error {
	w.rows.certificates = append(w.rows.certificates, c)
	return nil
}

func (w workRows) Silent(_ context.Context, nodes []ids.Node, before time.Time) (map[ids.Node]time.Time, error) {
	silent := map[ids.Node]time.Time{}
	for _, n := range nodes {
		if since, ok := w.rows.silent[n]; ok && since.Before(before) {
			silent[n] = since
		}
	}
	return silent, nil
}

func (w workRows) QuarantineNode(_ context.Context, node ids.Node, reason string) error {
	w.rows.quarantined[node] = reason
	return nil
}

func (w workRows) Announce(context.Context, ids.Lease) error { return nil }

type outboxRows struct{ *world }

func (o outboxRows) Put(_ context.Context, topic, key string, _ any, _ time.Time) error {
	o.rows.outbox = append(o.rows.outbox, topic+" "+key)
	return nil
}

type bill struct{ *world }

func (b bill) Accrue(ctx context.Context, _ ids.Lease, until time.Time) error {
	return b.WithinTx(ctx, func(context.Context) error {
		b.rows.accrued = until
		return nil
	})
}

func (b bill) Settle(context.Context, ids.Lease) (ids.Invoice, error) {
	b.rows.settled++
	return ids.Make[ids.Invoice](), nil
}

type noKey struct{}

func (noKey) Sign(_ context.Context, payloadType string, payload []byte) (protocol.Envelope, error) {
	return protocol.Envelope{PayloadType: payloadType, Payload: payload}, nil
}

type placement struct{ *world }

// Replace implements delivery.Placement while there are spares.
func (p placement) Replace(_ context.Context, failed ids.Allocation) (ids.Allocation, error) {
	if p.spares == 0 {
		return ids.Allocation{}, fault.New(fault.Unavailable, "no-replacement", "there is no spare")
	}
	p.spares--
	for _, i := range p.rows.instances {
		if i.ID == failed {
			p.isolation = delivery.NoPartition // a new member is wanted
			return p.hold(i.Ordinal), nil
		}
	}
	return ids.Allocation{}, fault.New(fault.NotFound, "allocation-not-found", "there is no such allocation")
}

func (workRows) Watched(context.Context, time.Time) ([]ids.Lease, error) { return nil, nil }

func (workRows) Troubles(context.Context, []ids.Node) ([]delivery.Trouble, error) { return nil, nil }
