// Package metering turns a lease's own log into usage intervals and those into charge lines. All of it is pure; the README has the rules.
package metering

import (
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// Facts is everything that a lease's bill follows from.
type Facts struct {
	Lease       lease.Lease // the contract
	Product     string      // what it is of, in words for the bill, e.g. "h100-sxm.8x.ndr"
	Segments    []lease.Segment
	Allocations []lease.Allocation // replaced ones included
	Events      []lease.Event      // the whole log, in order
}

// story is what the log says of interest to the bill.
type story struct {
	start, end  time.Time // the contract; end is the one that applies
	active      time.Time // zero: not delivered yet
	stop        time.Time // zero: not over yet
	cancelAsked *lease.Event
	replacedAt  map[ids.Allocation]lease.Event // by the one that left
	replaces    map[ids.Allocation]lease.Event // by the one that came
	outages     map[ids.Allocation][]window    // the zero allocation: of all
}

// read tells the story. It returns an error for a log that contradicts the rows: a bill is never guessed.
func (f Facts) read() (story, error) {
	s := story{
		start: instant(f.Lease.Start), end: instant(f.Lease.EffectiveEnd()),
		replacedAt: map[ids.Allocation]lease.Event{}, replaces: map[ids.Allocation]lease.Event{}, outages: map[ids.Allocation][]window{},
	}
	for _, e := range f.Events {
		if err := s.hear(f.Lease.ID, e); err != nil {
			return story{}, fmt.Errorf("read event %d of %s: %w", e.Seq, f.Lease.ID, err)
		}
	}
	for _, a := range f.Allocations {
		if _, told := s.replacedAt[a.ID]; !told && !a.ReplacedBy.IsZero() {
			return story{}, fmt.Errorf("allocation %s was replaced and the log does not say when", a.ID)
		}
	}
	return s, nil
}

func (s *story) hear(id ids.Lease, e lease.Event) error {
	at := instant(e.At)
	switch e.Type {
	case lease.EventActive:
		if s.active.IsZero() {
			s.active = at
		}
	case lease.EventReleasing, lease.EventCancelled:
		if s.stop.IsZero() {
			s.stop = at
		}
	case lease.EventCancelAsked:
		s.cancelAsked = &e
	case lease.EventOutageBegan, lease.EventOutageEnded:
		return s.hearOutage(id, e, at)
	case lease.EventNodeReplaced:
		return s.hearReplacement(id, e, at)
	case lease.EventBooked, lease.EventExtended, lease.EventTerminateAsked, lease.EventProvisioning, lease.EventNodePrepared,
		lease.EventNodeFailed, lease.EventIsolated, lease.EventIsolationFailed, lease.EventNotice, lease.EventRevoked,
		lease.EventPartitionClear, lease.EventAttestAsked, lease.EventAttested, lease.EventNodeWrittenOff, lease.EventNodeWiped, lease.EventNodeQuarantined, lease.EventCharged, lease.EventClosed:
	default: // a type that came later than this rule costs nothing and excludes nothing
	}
	return nil
}

func (s *story) hearOutage(id ids.Lease, e lease.Event, at time.Time) error {
	whose, err := allocationIn(e, "allocation")
	if err != nil {
		return err
	}
	track := s.outages[whose]
	open := len(track) > 0 && track[len(track)-1].to.IsZero()
	switch {
	case e.Type == lease.EventOutageBegan && !open && e.Data["cause"] != "tenant":
		s.outages[whose] = append(track, window{from: at, evidence: []string{reference(id, e)}})
	case e.Type == lease.EventOutageEnded && open:
		last := &track[len(track)-1]
		last.to, last.evidence = at, append(last.evidence, reference(id, e))
	}
	return nil
}

func (s *story) hearReplacement(id ids.Lease, e lease.Event, at time.Time) error {
	left, err := allocationIn(e, "allocation")
	if err != nil {
		return err
	}
	came, err := allocationIn(e, "by")
	if err != nil {
		return err
	}
	if left.IsZero() || came.IsZero() {
		return fmt.Errorf("a replacement names the allocation that left and the one that came")
	}
	s.replacedAt[left], s.replaces[came] = e, e
	if !s.active.IsZero() {
		s.outages[came] = append(s.outages[came], window{from: at, evidence: []string{reference(id, e)}})
	}
	return nil
}

// allocationIn reads an allocation's id from an event's data; zero when there is none.
func allocationIn(e lease.Event, name string) (ids.Allocation, error) {
	switch v := e.Data[name].(type) {
	case nil:
		return ids.Allocation{}, nil
	case ids.Allocation:
		return v, nil
	case string:
		id, err := ids.Read[ids.Allocation](v)
		if err != nil {
			return ids.Allocation{}, fmt.Errorf("read %s: %w", name, err)
		}
		return id, nil
	default:
		return ids.Allocation{}, fmt.Errorf("%s is a %T", name, v)
	}
}

// reference names an event as evidence.
func reference(id ids.Lease, e lease.Event) string { return fmt.Sprintf("%s#%d", id, e.Seq) }

// instant cuts to the millisecond, the grain of quantities.
func instant(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC().Truncate(time.Millisecond)
}
