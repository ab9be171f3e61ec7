package power

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Tenancy is an instance of a lease as far as its power is concerned.
type Tenancy struct {
	Node   ids.Node
	Epoch  int64
	Stage  Stage // "": its node has no BMC that we know, or is shared
	InUse  bool  // the lease is active, and the instance is its tenant's
	Busy   bool  // an operation on the machine is not over
	Recent []Past
}

// Past is an operation that was asked of a machine for the same tenancy.
type Past struct {
	ID         ids.Operation
	Goal       Goal
	State      string // queued, running, succeeded, failed, expired
	Seen       State  // read back at its end
	Fault      *protocol.Fault
	CreatedAt  time.Time
	FinishedAt time.Time // zero: it is not over
}

// wishWithin bounds a tenant's wish; a system that is asked to stop may take its time.
const wishWithin = 5 * time.Minute

// Tenancy shows what was done with an instance's power. The caller has made sure that the lease is one that the actor may see.
//
// It returns a NotFound fault for an instance that is not the lease's, and an Invalid fault, code "not-a-whole-machine", for one whose power
// is not its tenant's to switch.
func (s *Service) Tenancy(ctx context.Context, lease ids.Lease, allocation ids.Allocation) (Tenancy, error) {
	var t Tenancy
	err := s.within(ctx, "read power", func(ctx context.Context) error {
		var err error
		if t, err = s.Machines.Tenancy(ctx, lease, allocation); err == nil && t.Stage == "" {
			err = fault.New(fault.Invalid, "not-a-whole-machine", "the instance is a part of a machine, or its machine's power is not switched from here")
		}
		return err
	})
	return t, err
}

// Wish has a tenant's machine switched as they like, while their lease runs and one thing at a time. The caller has made sure that the lease
// is one that the actor may change.
//
// It returns the faults of Tenancy, an Invalid fault for a goal that is no wish, and Conflict faults: code "lease-not-active", and code
// "power-busy" while an earlier operation is not over.
func (s *Service) Wish(ctx context.Context, lease ids.Lease, allocation ids.Allocation, goal Goal) (ids.Operation, error) {
	if !goal.Wish() {
		return ids.Operation{}, fault.New(fault.Invalid, "power-action", "that is nothing that can be wished of a machine").At("/action", "start, stop, reboot or power_cycle")
	}
	var id ids.Operation
	err := s.within(ctx, "switch power", func(ctx context.Context) error {
		t, err := s.Tenancy(ctx, lease, allocation)
		switch {
		case err != nil:
			return err
		case !t.InUse || t.Stage != StageTenant:
			return fault.New(fault.Conflict, "lease-not-active", "the machine is its tenant's to switch only while the lease is active")
		case t.Busy:
			return fault.New(fault.Conflict, "power-busy", "an earlier operation on the machine is not over yet")
		}
		if id, err = s.Work.Ask(ctx, t.Node, allocation, t.Epoch, Order{Goal: goal}, wishWithin); err != nil {
			return err
		}
		return s.Audit.Record(ctx, "lease.power", lease.String(), nil, map[string]any{"allocation": allocation, "action": goal})
	})
	if err != nil {
		return ids.Operation{}, fmt.Errorf("wish: %w", err)
	}
	return id, nil
}
