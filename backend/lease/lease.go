// Package lease has the lease: a booked [start, end) for N instances of one type, all or nothing; the allocations that hold its
// capacity; and the event log that its bill is made from.
package lease

import (
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/money"
)

// State is where a lease is in its life.
type State string

// The states of a lease.
const (
	Reserved     State = "reserved"     // only rows
	Provisioning State = "provisioning" // its workflow runs, nodes are being prepared and isolated
	Active       State = "active"       // access granted, the clock runs
	Releasing    State = "releasing"    // access ends, partition and disks are cleared, with proof
	Closed       State = "closed"       // settled; final
	Cancelled    State = "cancelled"    // before anything was touched; final
)

// Outcome says how a lease that left active life came to do so.
type Outcome string

// The outcomes. A lease that is not yet releasing has none.
const (
	NoOutcome        Outcome = ""
	Completed        Outcome = "completed"  // reached its end
	Terminated       Outcome = "terminated" // ended early by the customer
	CancelledOutcome Outcome = "cancelled"  // cancelled while provisioning
	FailedOutcome    Outcome = "failed"     // could not be delivered or kept
)

// FailurePolicy is what the customer agreed to have done when a node fails in the lease.
type FailurePolicy string

// The failure policies.
const (
	Replace FailurePolicy = "replace"
	Ask     FailurePolicy = "ask"
	Keep    FailurePolicy = "keep"
)

// Class is the scheduling class.
type Class string

// The classes. This release sells reserved and on-demand.
const (
	ReservedClass Class = "reserved"
	OnDemand      Class = "on_demand"
	Flexible      Class = "flexible"
	Spot          Class = "spot"
)

// Lease is the contract and its progress. Start and End are the contract, [Start, End); ActiveAt may be later than Start, and
// then the difference is not billed.
type Lease struct {
	ID             ids.Lease
	Org            ids.Org
	Project        ids.Project
	Name           string
	Quote          ids.Quote
	InstanceType   ids.Instance
	Site           ids.Site
	Fabric         ids.Fabric // zero: no InfiniBand comes with it
	Class          Class
	Priority       int
	Instances      int
	Start, End     time.Time
	State          State
	Outcome        Outcome
	Reason         string // why it waits or failed, for the customer
	FailurePolicy  FailurePolicy
	Currency       money.Currency
	Image          string
	UserData       string
	Tags           map[string]string
	WantedEnd      time.Time // zero, or when an early termination takes effect
	ProvisioningAt time.Time
	ActiveAt       time.Time
	ReleasedAt     time.Time
	ClosedAt       time.Time
	Version        int64 // of the contract; the ETag
	CreatedBy      string
	CreatedAt      time.Time
}

// EffectiveEnd is when the lease ends as things stand: its end, or earlier when that was asked for.
func (l Lease) EffectiveEnd() time.Time {
	if !l.WantedEnd.IsZero() && l.WantedEnd.Before(l.End) {
		return l.WantedEnd
	}
	return l.End
}

// Final reports whether nothing will happen to the lease any more.
func (l Lease) Final() bool { return l.State == Closed || l.State == Cancelled }

// transitions is the whole truth about which state follows which. Reserved → Releasing does not exist: nothing was touched yet,
// so it is cancelled; provisioning never goes straight to a final state, since what was touched is always released and wiped.
func transitions() map[State][]State {
	return map[State][]State{
		Reserved:     {Provisioning, Cancelled},
		Provisioning: {Active, Releasing},
		Active:       {Releasing},
		Releasing:    {Closed},
		Closed:       {},
		Cancelled:    {},
	}
}

// CanMoveTo reports whether next may follow the lease's state.
func (l Lease) CanMoveTo(next State) bool {
	return slices.Contains(transitions()[l.State], next)
}

// MoveTo changes the state and stamps the instant that belongs to it.
//
// It returns a Conflict fault, code "lease-state", for a step that does not exist.
func (l *Lease) MoveTo(next State, at time.Time) error {
	if !l.CanMoveTo(next) {
		return fault.New(fault.Conflict, "lease-state", "a lease that is %s cannot become %s", l.State, next)
	}
	l.State = next
	switch next {
	case Provisioning:
		l.ProvisioningAt = at
	case Active:
		l.ActiveAt = at
	case Closed, Cancelled:
		l.ClosedAt = at
	case Reserved, Releasing:
	}
	return nil
}

// Segment is a stretch of the contract with its own price lock: the booking is segment 1, each extension one more. Segments
// follow each other without gaps.
type Segment struct {
	Seq          int
	Start, End   time.Time
	PriceVersion ids.Price
	Rate         money.Rate
	TaxRateBPS   int
	Terms        Terms
	CreatedAt    time.Time
}

// Terms is every rule of the price version that the customer agreed to, frozen in quote and segment. Its JSON is what the
// terms digest is over.
type Terms struct {
	RatedPer           string        `json:"rated_per"`          // gpu, instance
	UnitsPerInstance   int64         `json:"units_per_instance"` // GPUs an instance for rated_per gpu, else 1
	MinDurationSeconds int64         `json:"min_duration_seconds"`
	MaxDurationSeconds int64         `json:"max_duration_seconds"`
	NoticeSeconds      int64         `json:"notice_seconds"`
	RefundSchedule     []RefundStep  `json:"refund_schedule"`
	EarlyRefundBPS     int64         `json:"early_refund_bps"`
	FailurePolicy      FailurePolicy `json:"failure_policy"`
}

// RefundStep says what is given back of the price when a lease is cancelled at least NoticeSeconds before its start. Steps are
// in order of falling notice; below the last step nothing is given back.
type RefundStep struct {
	NoticeSeconds int64 `json:"notice_seconds"`
	RefundBPS     int64 `json:"refund_bps"`
}

// SSHKey is a customer's key as it was when the lease was booked.
type SSHKey struct {
	ID        ids.SSHKey
	Name      string
	PublicKey string // authorized_keys form
}
