package metering

import (
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// Class says what an allocation was to the customer during an interval.
type Class string

// The classes. Only Billable is billed.
const (
	Billable     Class = "billable"
	Provisioning Class = "provisioning"
	Outage       Class = "outage"
	Degraded     Class = "degraded"    // not told apart from Billable yet
	Maintenance  Class = "maintenance" // not told apart from Outage yet
	Grace        Class = "grace"
)

// Interval is a stretch [From, To) of one allocation's time for a lease, to the millisecond.
type Interval struct {
	Allocation ids.Allocation `json:"allocation"`
	Class      Class          `json:"class"`
	From       time.Time      `json:"from"`
	To         time.Time      `json:"to"`
	Evidence   []string       `json:"evidence,omitempty"` // events, as <lease>#<seq>
}

// Intervals says what every allocation was from the contract's start until the instant. An allocation's intervals follow each
// other without gap or overlap.
func Intervals(f Facts, until time.Time) ([]Interval, error) {
	s, err := f.read()
	if err != nil {
		return nil, err
	}
	var out []Interval
	for _, a := range f.Allocations {
		out = append(out, s.intervals(a, instant(until))...)
	}
	return out, nil
}

// intervals cuts one allocation's life into before delivery, contract, and past the end.
func (s story) intervals(a lease.Allocation, until time.Time) []Interval {
	from, to := s.start, earliest(until, s.stop)
	if came, ok := s.replaces[a.ID]; ok {
		from = latest(from, instant(came.At))
	}
	if left, ok := s.replacedAt[a.ID]; ok {
		to = earliest(to, instant(left.At))
	}
	delivered := latest(from, s.active)
	if s.active.IsZero() {
		delivered = to
	}
	life := func(class Class, from, to time.Time, evidence ...string) []Interval {
		if !from.Before(to) {
			return nil
		}
		return []Interval{{Allocation: a.ID, Class: class, From: from, To: to, Evidence: evidence}}
	}
	out := life(Provisioning, from, earliest(delivered, to))
	contract := window{from: delivered, to: earliest(to, s.end)}
	at := contract.from
	for _, o := range union(append(slices.Clone(s.outages[ids.Allocation{}]), s.outages[a.ID]...), contract) {
		out = append(out, life(Billable, at, o.from)...)
		out = append(out, life(Outage, o.from, o.to, o.evidence...)...)
		at = o.to
	}
	out = append(out, life(Billable, at, contract.to)...)
	return append(out, life(Grace, latest(delivered, s.end), to)...)
}

// window is a stretch of time; a zero to is open.
type window struct {
	from, to time.Time
	evidence []string
}

// union merges windows that touch, clipped to within, in order.
func union(windows []window, within window) []window {
	clipped := make([]window, 0, len(windows))
	for _, w := range windows {
		w.from, w.to = latest(w.from, within.from), earliest(within.to, w.to)
		if w.from.Before(w.to) {
			clipped = append(clipped, w)
		}
	}
	slices.SortStableFunc(clipped, func(a, b window) int { return a.from.Compare(b.from) })
	var out []window
	for _, w := range clipped {
		if n := len(out); n > 0 && !w.from.After(out[n-1].to) {
			out[n-1].to = latest(out[n-1].to, w.to)
			out[n-1].evidence = append(slices.Clone(out[n-1].evidence), w.evidence...)
			continue
		}
		out = append(out, w)
	}
	return out
}

// earliest returns the earlier one; a zero b is none.
func earliest(a, b time.Time) time.Time {
	if !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
