package booking

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/metering"
	"github.com/leasehold/leasehold/backend/money"
	"github.com/leasehold/leasehold/backend/tenant"
)

// Extension is what moving a lease's end costs.
type Extension struct {
	Lease    lease.Lease
	Segment  lease.Segment
	Subtotal money.Amount
	Tax      money.Amount
}

// Total is the worst case of the added time, with tax.
func (e Extension) Total() money.Amount { return e.Subtotal.Add(e.Tax) }

// lockOwn locks a lease of the actor's and checks the version that they have seen.
func (s *Service) lockOwn(ctx context.Context, id ids.Lease, version int64) (lease.Lease, error) {
	actor, err := tenant.MustAct(ctx)
	if err != nil {
		return lease.Lease{}, err
	}
	l, err := s.Leases.GetForUpdate(ctx, id)
	if err != nil {
		return l, err
	}
	if !actor.Project.IsZero() && l.Project != actor.Project {
		return l, fault.New(fault.NotFound, "lease-not-found", "there is no such lease")
	}
	if l.Version != version {
		return l, fault.New(fault.Stale, "stale-version", "the lease has changed since you read it")
	}
	return l, nil
}

// Extend moves a lease's end: the same capacity for longer, as a segment with its own price lock, and its worst case held, in one
// transaction.
//
// It returns Stale for another version, Conflict, code "extension-taken", when the capacity is somebody else's by then, code
// "lease-ending" when it is no longer running towards its end, Invalid for an end that is not later, and Unfunded.
func (s *Service) Extend(ctx context.Context, id ids.Lease, version int64, end time.Time) (Extension, error) {
	var made Extension
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		l, err := s.lockOwn(ctx, id, version)
		if err != nil {
			return err
		}
		if made, err = s.planExtension(ctx, l, end.UTC()); err != nil {
			return err
		}
		return s.extend(ctx, &made)
	})
	if err != nil {
		return Extension{}, fmt.Errorf("extend: %w", err)
	}
	return made, nil
}

func (s *Service) planExtension(ctx context.Context, l lease.Lease, end time.Time) (Extension, error) {
	now := s.Clock.Now()
	running := l.State == lease.Reserved || l.State == lease.Provisioning || l.State == lease.Active
	if !running || !l.WantedEnd.IsZero() || !now.Before(l.End) {
		return Extension{}, fault.New(fault.Conflict, "lease-ending", "the lease has ended or is about to, and cannot be extended")
	}
	customer, err := s.Customers.Customer(ctx, l.Org)
	if err != nil {
		return Extension{}, err
	}
	if customer.Suspended {
		return Extension{}, errSuspended()
	}
	if !end.After(l.End) || end.Truncate(s.Rules.Step) != end {
		return Extension{}, fault.New(fault.Invalid, "invalid-end", "the new end must be later than %s, at a whole multiple of %s", l.End.Format(time.RFC3339), s.Rules.Step).
			At("/end", "must be later than the present end")
	}
	t, err := s.Catalog.TypeByID(ctx, l.InstanceType)
	if err != nil {
		return Extension{}, err
	}
	prices, err := s.pricesBySite(ctx, t, l.Site, l.Currency, now)
	if err != nil {
		return Extension{}, err
	}
	price, sold := prices[l.Site]
	if !sold {
		return Extension{}, fault.New(fault.Conflict, "not-sold", "this type is not sold at that site any more")
	}
	if end.Sub(l.Start) > price.MaxDuration {
		return Extension{}, fault.New(fault.Invalid, "invalid-end", "a lease of this type lasts at most %s", price.MaxDuration).At("/end", "is too late")
	}
	segments, err := s.Leases.Segments(ctx, l.ID)
	if err != nil {
		return Extension{}, err
	}
	segment := segmentOf(len(segments)+1, lease.Window{Start: l.End, End: end}, t, price, customer.TaxRateBPS, l.FailurePolicy, now)
	net, tax, err := metering.Worth(append(slices.Clip(segments), segment), l.Instances)
	if err != nil {
		return Extension{}, err
	}
	if err := customer.Policy.permit(l.InstanceType, l.Site, end.Sub(l.Start), net.Add(tax)); err != nil {
		return Extension{}, err
	}
	return priceExtension(l, segments, segment)
}

// priceExtension is what the segment adds to the lease's worth: not its own, whose rounding could be nothing.
func priceExtension(l lease.Lease, segments []lease.Segment, more lease.Segment) (Extension, error) {
	net, tax, err := metering.Worth(segments, l.Instances)
	if err != nil {
		return Extension{}, err
	}
	longerNet, longerTax, err := metering.Worth(append(slices.Clip(segments), more), l.Instances)
	if err != nil {
		return Extension{}, err
	}
	return Extension{Lease: l, Segment: more, Subtotal: longerNet.Sub(net), Tax: longerTax.Sub(tax)}, nil
}

func (s *Service) extend(ctx context.Context, e *Extension) error {
	allocations, err := s.Allocations.ByLeaseForUpdate(ctx, e.Lease.ID)
	if err != nil {
		return err
	}
	allocations = slices.DeleteFunc(allocations, func(a lease.Allocation) bool { return !a.Serves() })
	added := e.Segment.End.Sub(e.Segment.Start)
	var nodes []ids.Node
	for _, a := range allocations {
		nodes = append(nodes, a.Node)
	}
	if err := s.Market.LockNodes(ctx, nodes); err != nil {
		return err
	}
	if err := s.checkFree(ctx, e.Lease, added); err != nil {
		return err
	}
	for _, a := range allocations {
		a.Occupied.End = a.Occupied.End.Add(added)
		if err := s.Allocations.Update(ctx, a); err != nil {
			return err
		}
	}
	e.Lease.End = e.Segment.End
	e.Lease.Version++
	if err := s.Leases.Update(ctx, e.Lease); err != nil {
		return err
	}
	if err := s.Leases.InsertSegment(ctx, e.Lease, e.Segment); err != nil {
		return err
	}
	if err := s.Money.Raise(ctx, e.Lease.ID, e.Total()); err != nil {
		return err
	}
	data := map[string]any{"segment": e.Segment.Seq, "end": e.Segment.End.Format(time.RFC3339Nano), "total_minor": e.Total().Minor}
	if err := s.record(ctx, e.Lease, lease.EventExtended, data); err != nil {
		return err
	}
	if err := s.Audit.Record(ctx, "lease.extend", e.Lease.ID.String(), nil, data); err != nil {
		return err
	}
	return s.nudge(ctx, e.Lease.ID)
}

// checkFree looks, under the machines' locks, whether anything is in the way in the added time. The constraint is the backstop.
func (s *Service) checkFree(ctx context.Context, l lease.Lease, added time.Duration) error {
	t, err := s.Catalog.TypeByID(ctx, l.InstanceType)
	if err != nil {
		return err
	}
	obstacle, err := s.Market.Obstacle(ctx, l.ID, added)
	if err != nil || obstacle == nil {
		return err
	}
	return errTaken(*obstacle, t.Turnaround)
}

// errTaken says until when the lease could be extended; with a machine that is off the market there is no such instant.
func errTaken(o Obstacle, turnaround time.Duration) error {
	if o.Machine {
		return fault.New(fault.Conflict, "extension-taken", "a machine of this lease has trouble, or is to be serviced, and cannot be had for longer")
	}
	return fault.New(fault.Conflict, "extension-taken", "part of this capacity is taken from %s on", o.From.Format(time.RFC3339)).
		With("free_until", o.From.Add(-turnaround))
}

// Cancellation is what ending a lease early gives back and costs.
type Cancellation struct {
	Lease       lease.Lease
	Terminates  bool // it has begun: an early end, not a cancellation
	EffectiveAt time.Time
	Refund      money.Amount
	Fee         money.Amount
}

// Cancel ends a lease before its time. Before anything was touched it is cancelled at once, by the refund schedule; later it is ended as
// of now, and what was used, with the fee for the rest, is the bill's to say.
//
// It returns Stale for another version, and Conflict, code "lease-ending", when it has ended or is about to.
func (s *Service) Cancel(ctx context.Context, id ids.Lease, version int64) (Cancellation, error) {
	var made Cancellation
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		l, err := s.lockOwn(ctx, id, version)
		if err != nil {
			return err
		}
		segments, err := s.Leases.Segments(ctx, l.ID)
		if err != nil {
			return err
		}
		switch {
		case l.State == lease.Reserved:
			made, err = s.cancel(ctx, l, segments)
		case (l.State == lease.Provisioning || l.State == lease.Active) && l.WantedEnd.IsZero() && s.Clock.Now().Before(l.End):
			made, err = s.terminate(ctx, l, segments)
		default:
			return fault.New(fault.Conflict, "lease-ending", "the lease has ended or is about to")
		}
		return err
	})
	if err != nil {
		return Cancellation{}, fmt.Errorf("cancel: %w", err)
	}
	return made, nil
}

// cancel gives everything back at once.
func (s *Service) cancel(ctx context.Context, l lease.Lease, segments []lease.Segment) (Cancellation, error) {
	now := s.Clock.Now()
	ending, err := byNotice(l, segments, now)
	if err != nil {
		return Cancellation{}, err
	}
	if err := l.MoveTo(lease.Cancelled, now); err != nil {
		return Cancellation{}, err
	}
	l.Outcome, l.Version = lease.CancelledOutcome, l.Version+1
	allocations, err := s.Allocations.ByLeaseForUpdate(ctx, l.ID)
	if err != nil {
		return Cancellation{}, err
	}
	for _, a := range allocations {
		if err := a.MoveTo(lease.Released, now); err != nil {
			return Cancellation{}, err
		}
		if err := s.Allocations.Update(ctx, a); err != nil {
			return Cancellation{}, err
		}
	}
	if err := s.Leases.Update(ctx, l); err != nil {
		return Cancellation{}, err
	}
	data := ending.told()
	if err := s.record(ctx, l, lease.EventCancelAsked, data); err != nil {
		return Cancellation{}, err
	}
	if err := s.record(ctx, l, lease.EventCancelled, nil); err != nil {
		return Cancellation{}, err
	}
	if err := s.Money.Cancel(ctx, l.ID, ending.Fee); err != nil {
		return Cancellation{}, err
	}
	if err := s.Audit.Record(ctx, "lease.cancel", l.ID.String(), nil, data); err != nil {
		return Cancellation{}, err
	}
	return Cancellation{Lease: l, EffectiveAt: now, Refund: ending.Refund, Fee: ending.Fee}, s.nudge(ctx, l.ID)
}

// Ending is what an early end costs, with tax: Fee is what is not given back of the unused time, Refund what comes back of what was held.
type Ending struct{ Fee, Refund money.Amount }

// byNotice is what a lease that was not delivered costs by its refund schedule, and gives back.
func byNotice(l lease.Lease, segments []lease.Segment, now time.Time) (Ending, error) {
	total, err := metering.Total(segments, l.Instances)
	if err != nil {
		return Ending{}, err
	}
	refund := total
	if len(segments) > 0 {
		refund = total.Share(metering.RefundBPS(segments[0].Terms, l.Start.Sub(now)))
	}
	return Ending{Refund: refund, Fee: total.Sub(refund)}, nil
}

// told is what the customer was told, as the log keeps it: the bill follows it.
func (e Ending) told() map[string]any {
	return map[string]any{"refund_minor": e.Refund.Minor, "fee_minor": e.Fee.Minor}
}

// terminate ends a lease on which work has begun, as of now. While it is not delivered that is a cancellation, which costs what it would
// have cost before anything was touched.
func (s *Service) terminate(ctx context.Context, l lease.Lease, segments []lease.Segment) (Cancellation, error) {
	now := s.Clock.Now()
	var ending Ending
	var err error
	asked, data := lease.EventTerminateAsked, map[string]any{"end": now.Format(time.RFC3339Nano)}
	if l.State == lease.Active {
		ending.Fee, ending.Refund, err = s.Money.Ending(ctx, l.ID, now)
	} else {
		ending, err = byNotice(l, segments, now)
		asked, data = lease.EventCancelAsked, ending.told()
	}
	if err != nil {
		return Cancellation{}, err
	}
	l.WantedEnd, l.Version = now, l.Version+1
	if err := s.Leases.Update(ctx, l); err != nil {
		return Cancellation{}, err
	}
	if err := s.record(ctx, l, asked, data); err != nil {
		return Cancellation{}, err
	}
	if err := s.Audit.Record(ctx, "lease.terminate", l.ID.String(), nil, data); err != nil {
		return Cancellation{}, err
	}
	return Cancellation{Lease: l, Terminates: true, EffectiveAt: now, Refund: ending.Refund, Fee: ending.Fee}, s.nudge(ctx, l.ID)
}

// Description is what a lease is called; nil fields stay as they are.
type Description struct {
	Name *string
	Tags *map[string]string
}

// Describe renames and tags a lease. It returns Stale for another version.
func (s *Service) Describe(ctx context.Context, id ids.Lease, version int64, d Description) error {
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		l, err := s.lockOwn(ctx, id, version)
		if err != nil {
			return err
		}
		if d.Name != nil {
			l.Name = *d.Name
		}
		if d.Tags != nil {
			l.Tags = *d.Tags
		}
		l.Version++
		if err := s.Leases.Update(ctx, l); err != nil {
			return err
		}
		return s.Audit.Record(ctx, "lease.describe", l.ID.String(), nil, map[string]any{"name": l.Name, "tags": l.Tags})
	})
	if err != nil {
		return fmt.Errorf("describe lease: %w", err)
	}
	return nil
}
