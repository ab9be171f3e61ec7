package lease

import (
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// SlotsPerBay is how many slots a GPU bay has on a node's slot line, in MIG memory-slice order: bay i owns [8i, 8i+8).
const SlotsPerBay = 8

// Slots is a half-open range [From, To) of a node's slot line.
type Slots struct{ From, To int }

// Width returns how many slots the range has.
func (s Slots) Width() int { return s.To - s.From }

// Overlaps reports whether the two ranges share a slot.
func (s Slots) Overlaps(o Slots) bool { return s.From < o.To && o.From < s.To }

// Bays returns the first bay and the one after the last that the range touches.
func (s Slots) Bays() (int, int) { return s.From / SlotsPerBay, (s.To + SlotsPerBay - 1) / SlotsPerBay }

// Window is a half-open stretch of time [Start, End), in UTC.
type Window struct{ Start, End time.Time }

// Overlaps reports whether the two windows share an instant.
func (w Window) Overlaps(o Window) bool { return w.Start.Before(o.End) && o.Start.Before(w.End) }

// Duration returns the window's length.
func (w Window) Duration() time.Duration { return w.End.Sub(w.Start) }

// AllocationState is where one instance's capacity is in its life; eight slices of one node each have their own.
type AllocationState string

// The states of an allocation.
const (
	Held        AllocationState = "held"
	Preparing   AllocationState = "preparing"
	InUse       AllocationState = "in_use"
	Cleaning    AllocationState = "cleaning"
	Released    AllocationState = "released"    // wiped, verified, slots given back; final
	Quarantined AllocationState = "quarantined" // not clean, or not known to be: slots stay held until an admin's exit
)

// Allocation is node × slots × time held for a lease. A lease only ever gives its slots back by ReleasedAt, after the wipe is
// verified; until then the exclusion constraint keeps everybody else off them.
type Allocation struct {
	ID         ids.Allocation
	Node       ids.Node
	Lease      ids.Lease
	Ordinal    int // which instance of the lease, from 0
	Slots      Slots
	Occupied   Window // [start − lead, end + turnaround)
	State      AllocationState
	Reason     string
	Epoch      int64 // drawn at hand-over; 0 before
	Access     *Access
	ReplacedBy ids.Allocation
	CreatedAt  time.Time
	ReleasedAt time.Time
}

// Serves reports whether the allocation is one of its lease's instances: it has neither been given back nor replaced.
func (a Allocation) Serves() bool { return a.ReleasedAt.IsZero() && a.ReplacedBy.IsZero() }

// Access is where the tenant logs in.
type Access struct {
	Host     string   `json:"host"`
	Port     int      `json:"port"`
	User     string   `json:"user"`
	HostKeys []string `json:"host_keys"` // authorized_keys form
}

func allocationTransitions() map[AllocationState][]AllocationState {
	return map[AllocationState][]AllocationState{
		Held:        {Preparing, Released}, // released: cancelled before anything was touched
		Preparing:   {InUse, Cleaning},
		InUse:       {Cleaning},
		Cleaning:    {Released, Quarantined},
		Quarantined: {Cleaning, Released}, // an admin's exits: wipe again, or release with a recorded reason
		Released:    {},
	}
}

// MoveTo changes the state and stamps ReleasedAt.
//
// It returns a Conflict fault, code "allocation-state", for a step that does not exist.
func (a *Allocation) MoveTo(next AllocationState, at time.Time) error {
	if !slices.Contains(allocationTransitions()[a.State], next) {
		return fault.New(fault.Conflict, "allocation-state", "an allocation that is %s cannot become %s", a.State, next)
	}
	a.State = next
	if next == Released {
		a.ReleasedAt = at
	}
	return nil
}
