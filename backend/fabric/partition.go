// Package fabric isolates leases on InfiniBand: each lease has a partition with a key (P_Key) of its own, whose full members are
// exactly its ports. What counts is what both ends of every link were seen to hold; what could not be seen is unknown, and unknown is
// never clean.
//
// The rows are what is wanted. All that is pending on a fabric goes to its agent in one operation, one at a time (Plan); what the agent
// saw comes back into the rows (Absorb). A lease's isolation is then proved by two witnesses, the fabric's agent and the nodes' own,
// in a signed attestation (Attest).
package fabric

import (
	"slices"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// State is where a partition is in its life.
type State string

// The states of a partition.
const (
	Desired     State = "desired"     // wanted so by the rows; no sweep has had it yet
	Programmed  State = "programmed"  // a sweep had it; some member was not seen right at both ends
	Verified    State = "verified"    // every member was seen right at both ends
	Draining    State = "draining"    // wanted no more; some former member was not seen clear
	Clear       State = "clear"       // every former member was seen clear at both ends, once
	Quarantined State = "quarantined" // twice; its key rests, and is watched
	Free        State = "free"        // its key may be used again; final
)

// States lists every state.
func States() []State {
	return []State{Desired, Programmed, Verified, Draining, Clear, Quarantined, Free}
}

// transitions is the whole truth about which state follows which. A partition never comes back once it drains: a lease that wants one
// again gets a new one.
func transitions() map[State][]State {
	return map[State][]State{
		Desired:     {Programmed, Verified, Draining},
		Programmed:  {Desired, Verified, Draining},
		Verified:    {Desired, Draining}, // desired: its members have changed
		Draining:    {Clear},
		Clear:       {Draining, Quarantined}, // draining: the second look found the key again
		Quarantined: {Free, Draining},        // draining: a former member was seen with the key again
		Free:        {},
	}
}

// Partition is a lease's key on one fabric.
type Partition struct {
	ID            ids.Partition
	Org           ids.Org
	Fabric        ids.Fabric
	Lease         ids.Lease
	PKey          protocol.PKey // without the membership bit
	State         State
	ClearSeen     int           // how often all former members were seen clear in a row
	ReusableAfter time.Time     // zero until it is quarantined
	Reason        string        // what is wrong with it, in words; "" when nothing is known to be
	Witness       ids.Operation // whose observation showed the present state; zero: none yet
	CreatedAt     time.Time
	UpdatedAt     time.Time // when it came to its state
}

// MoveTo changes the state.
//
// It returns a Conflict fault, code "partition-state", for a step that does not exist.
func (p *Partition) MoveTo(next State, at time.Time) error {
	if !slices.Contains(transitions()[p.State], next) {
		return fault.New(fault.Conflict, "partition-state", "a partition that is %s cannot become %s", p.State, next)
	}
	p.State, p.UpdatedAt, p.Reason = next, at, ""
	return nil
}

// wanted reports whether the rows want the partition on the fabric.
func (p Partition) wanted() bool {
	return p.State == Desired || p.State == Programmed || p.State == Verified
}

// Member is a port in a partition, from when it is wanted there until it was seen gone.
type Member struct {
	Partition  ids.Partition
	Port       ids.HCAPort
	GUID       protocol.GUID
	Allocation ids.Allocation
	Node       ids.Node
	NodeName   string
	Org        ids.Org
	Wanted     bool      // false: it is to leave
	JoinedAt   time.Time // zero until it was seen right at both ends
	LeftAt     time.Time // zero until it was seen gone from both ends
}

// Port is an HCA port of one of a lease's allocations.
type Port struct {
	ID         ids.HCAPort
	GUID       protocol.GUID
	Allocation ids.Allocation
	Node       ids.Node
	NodeName   string
	Epoch      int64 // the allocation's
	Slots      protocol.Slots
}

// Subnet is a fabric as isolation sees it.
type Subnet struct {
	ID              ids.Fabric
	Name            string
	Epoch           int64 // counts changes of the desired set
	Low, High       protocol.PKey
	Reserved        []protocol.PKey // keys within the range that are somebody else's
	MaxPKeysPerPort int
	Posture         []protocol.PostureCheck
	Override        string          // why its posture is let pass; "": it is not
	ObservedAt      time.Time       // when its agent last reported; zero: never
	AuditDueAt      time.Time       // zero: it was never audited
	AuditAskedBy    string          // who wants the next audit before its time; "": nobody
	Managers        []protocol.GUID // ports of its managers' hosts, standbys included
}

// bounds are the keys that are ours.
func (s Subnet) bounds() bounds { return bounds{low: s.Low, high: s.High, reserved: s.Reserved} }
