package delivery

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/outbox"
)

// Deps are what a Service works with. All are needed except Placement, without which no failed node is replaced, and what
// says that it may be nil.
type Deps struct {
	DB          Transactor
	Leases      Leases
	Allocations Allocations
	Work        Work
	Agents      Agents
	Fabric      Fabric
	Billing     Billing
	Placement   Placement
	Machines    Machines // nil: none is leased whole through a BMC
	Images      Images   // nil: likewise
	Outbox      Outbox
	Signer      Signer
	Clock       clock.Clock
	Policy      Policy // DefaultPolicy when zero
}

// Service delivers leases and takes them back.
type Service struct{ Deps }

// New returns a Service.
func New(deps Deps) *Service {
	if deps.Policy == (Policy{}) {
		deps.Policy = DefaultPolicy()
	}
	return &Service{deps}
}

// Load reads where the lease stands. It returns a NotFound fault.
func (s *Service) Load(ctx context.Context, id ids.Lease) (Standing, error) {
	var standing Standing
	err := s.DB.WithinTx(ctx, func(ctx context.Context) error {
		l, err := s.Leases.Get(ctx, id)
		if err != nil {
			return err
		}
		begin := l.Start
		if l.State == lease.Reserved {
			if held, err := s.Work.Begin(ctx, id); err != nil {
				return err
			} else if !held.IsZero() {
				begin = held
			}
		}
		standing = Standing{
			State: l.State, Begin: begin, Start: l.Start, End: l.EffectiveEnd(), ActiveAt: l.ActiveAt,
		}
		if l.State == lease.Active {
			request, err := s.openRequest(ctx, id)
			standing.AttestAsked = request > 0
			return err
		}
		return nil
	})
	if err != nil {
		return Standing{}, fmt.Errorf("load lease: %w", err)
	}
	return standing, nil
}

// turn is one transaction's look at a lease, whose row it has locked.
type turn struct {
	*Service
	lease     lease.Lease
	instances []Instance
	now       time.Time
	changed   bool // there is news about the lease
	// reclaims is the node whose slots are taken out of quarantine, long after the lease; zero on a lease's own way.
	reclaims ids.Node
}

// within locks the lease and its allocations and runs fn on them, in one transaction. The lease must be in one of the states:
// else somebody has moved it on, and the caller gets a Conflict fault, code "lease-state", and looks again.
func (s *Service) within(ctx context.Context, id ids.Lease, states []lease.State, fn func(ctx context.Context, t *turn) error) error {
	return s.DB.WithinTx(ctx, func(ctx context.Context) error {
		l, err := s.Leases.GetForUpdate(ctx, id)
		if err != nil {
			return err
		}
		if !slices.Contains(states, l.State) {
			return fault.New(fault.Conflict, movedOn, "the lease is %s by now", l.State)
		}
		instances, err := s.Work.Instances(ctx, id)
		if err != nil {
			return err
		}
		t := &turn{Service: s, lease: l, instances: instances, now: s.Clock.Now()}
		if err := fn(ctx, t); err != nil || !t.changed {
			return err
		}
		return s.Work.Announce(ctx, id) // whoever waits for the lease to change
	})
}

// step is within for a step that reports progress. When somebody has moved the lease on, what is asked is to look again.
func (s *Service) step(
	ctx context.Context, id ids.Lease, name string, states []lease.State, fn func(ctx context.Context, t *turn) (Progress, error),
) (Progress, error) {
	var progress Progress
	err := s.within(ctx, id, states, func(ctx context.Context, t *turn) error {
		var err error
		progress, err = fn(ctx, t)
		return err
	})
	if fault.CodeOf(err) == movedOn {
		return Progress{Again: true}, nil
	}
	if err != nil {
		return Progress{}, fmt.Errorf("%s: %w", name, err)
	}
	return progress, nil
}

// movedOn is the code of the refusal to work on a lease in a state that the step is not for.
const movedOn = "lease-state"

// in returns the turn's instances in that state.
func (t *turn) in(state lease.AllocationState) []Instance {
	var found []Instance
	for _, i := range t.instances {
		if i.State == state {
			found = append(found, i)
		}
	}
	return found
}

// move changes an instance's state, in the row and in the turn.
func (t *turn) move(ctx context.Context, id ids.Allocation, next lease.AllocationState, change func(a *lease.Allocation)) error {
	for n := range t.instances {
		i := &t.instances[n]
		if i.ID != id {
			continue
		}
		if err := i.MoveTo(next, t.now); err != nil {
			return err
		}
		if change != nil {
			change(&i.Allocation)
		}
		return t.Allocations.Update(ctx, i.Allocation)
	}
	return fault.New(fault.Internal, "no-instance", "the allocation is not one of the lease's")
}

// record appends to the lease's log.
func (t *turn) record(ctx context.Context, event lease.EventType, data map[string]any) error {
	return t.recordAt(ctx, event, t.now, data)
}

func (t *turn) recordAt(ctx context.Context, event lease.EventType, at time.Time, data map[string]any) error {
	t.changed = true
	_, err := t.Leases.AppendEvent(ctx, lease.Event{Lease: t.lease.ID, Type: event, At: at, Data: data})
	return err
}

// recordOnce appends an event unless the log has one of that type with the same field already.
func (t *turn) recordOnce(ctx context.Context, event lease.EventType, field, value string, data map[string]any) error {
	known, err := t.Work.Recorded(ctx, t.lease.ID, event, field)
	if err != nil {
		return err
	}
	if slices.Contains(known, value) {
		return nil
	}
	return t.record(ctx, event, data)
}

// save writes the lease.
func (t *turn) save(ctx context.Context) error {
	t.changed = true
	return t.Leases.Update(ctx, t.lease)
}

// explain says on the lease why it waits; "" when it does not.
func (t *turn) explain(ctx context.Context, reason string) error {
	if t.lease.Reason == reason {
		return nil
	}
	t.lease.Reason = reason
	return t.save(ctx)
}

// tell leaves a message for the organization's people.
func (t *turn) tell(ctx context.Context, event lease.EventType, data map[string]any) error {
	payload := map[string]any{"lease": t.lease.ID, "event": event, "at": t.now, "data": data}
	return t.Outbox.Put(ctx, outbox.Notify, t.lease.Org.String(), payload, t.now)
}
