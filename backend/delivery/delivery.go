// Package delivery carries a lease out and takes it back: it hands slots over from one tenant to the next, has the nodes
// prepared, isolated and opened, starts and stops the clock, and afterwards closes, clears and wipes what was given, or
// quarantines what cannot be shown to be clean.
//
// It has no memory of its own. Each method of Service is one short transaction that locks the lease's row, looks at what is
// there, does the next thing that is due and says how far things are. So a method may be called at any time and any number of
// times; package workflows/leasing decides when.
package delivery

import (
	"encoding/json"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/power"
)

// Occasion says why isolation is proved.
type Occasion string

// The occasions.
const (
	BeforeActive Occasion = "before_active"
	AfterRelease Occasion = "after_release"
	OnDemand     Occasion = "on_demand" // somebody wants to see it now, while the lease runs
)

// Standing is where a lease stands, as far as its workflow needs to know. Instants are the control plane's.
type Standing struct {
	State    lease.State `json:"state"`
	Begin    time.Time   `json:"begin"` // start − lead: when its slots are held from
	Start    time.Time   `json:"start"`
	End      time.Time   `json:"end"`       // the effective end
	ActiveAt time.Time   `json:"active_at"` // zero before
	// AttestAsked says that somebody waits for a proof of isolation.
	AttestAsked bool `json:"attest_asked,omitempty"`
}

// Progress is what a look at a step's rows found.
type Progress struct {
	// Done says that the step holds now; the next may begin.
	Done bool `json:"done,omitempty"`
	// Again says that an earlier step has something new to do, e.g. to prepare a replacement.
	Again bool `json:"again,omitempty"`
	// Ending, when set, says that the lease cannot or must not be delivered.
	Ending *Ending `json:"ending,omitempty"`
	// LookAt is when to look again though nothing happened; zero: whenever it suits.
	LookAt time.Time `json:"look_at,omitzero"`
}

// Ending says how a lease ends. The zero value says that its window is over.
type Ending struct {
	Outcome lease.Outcome `json:"outcome"`
	Reason  string        `json:"reason"` // for the customer
}

// Instance is one allocation with what its node must be told about it.
type Instance struct {
	lease.Allocation
	NodeName   string
	Mode       string   // bare_metal, shared
	GPUUUIDs   []string // in the bays that the slots cover, by bay
	MIGProfile string   // "" for whole GPUs
	Ports      []protocol.GUID
	WholeNode  bool // the slots are all of the node's
	Managed    ManagedKeys
	Metal      bool        // it has a BMC and is leased whole: an agent is there only in the service OS
	Stage      power.Stage // of a machine that is Metal
	Retested   bool        // the node is being verified: what leases left on it is its own process's affair
}

// ManagedKeys are the P_Keys that are ours on a lease's fabric: the range, less the reserved ones. The zero value: there is no fabric.
type ManagedKeys struct {
	Low, High protocol.PKey
	Reserved  []protocol.PKey
}

// OperationState is where an operation is in its life.
type OperationState string

// The states of an operation.
const (
	Queued    OperationState = "queued"
	Running   OperationState = "running"
	Succeeded OperationState = "succeeded"
	Failed    OperationState = "failed"
	Fenced    OperationState = "fenced"
	Expired   OperationState = "expired"
)

// Operation is one piece of work that was asked of a lease's node.
type Operation struct {
	ID         ids.Operation
	Attempt    int
	Allocation ids.Allocation
	Node       ids.Node
	Epoch      int64
	State      OperationState
	Fault      *protocol.Fault
	Spec       json.RawMessage
	Evidence   json.RawMessage
	Signed     *protocol.Envelope
	DoneBy     time.Time
	FinishedAt time.Time
}

func (o Operation) inFlight() bool { return o.State == Queued || o.State == Running }

// blamesNode reports whether an operation that failed for good speaks against the node: not when what was asked made no sense, when the slots
// have gone to somebody else, or when nobody was there to ask (heartbeats tell that, and when it is over), nor when an image's system does
// not phone home, which may as well be the image's fault.
func (o Operation) blamesNode() bool {
	if o.State == Fenced || o.Fault == nil {
		return false
	}
	switch o.Fault.Code {
	case protocol.FaultInvalidSpec, protocol.FaultNotPickedUp, protocol.FaultSilent, protocol.FaultPortsNotClear, power.CodeNoCall, power.CodeOverTaken:
		return false
	default:
		return true
	}
}

// trouble says in words why the operation did not succeed.
func (o Operation) trouble() string {
	switch {
	case o.Fault != nil && o.Fault.Detail != "":
		return o.Fault.Detail
	case o.Fault != nil:
		return o.Fault.Code
	case o.State == Expired:
		return "its agent did not answer in time"
	case o.State == Succeeded:
		return "its evidence does not show success"
	default:
		return "the operation " + string(o.State)
	}
}

// Blocker is what keeps slots that a lease holds from being handed over to it.
type Blocker struct {
	Allocation ids.Allocation // the one that waits
	NodeName   string
	NodeLost   bool // the node is not available; else its earlier use is not over
}

// Certificate is a wipe certificate: what was done to the devices of one allocation, with the agent's signed evidence in it.
type Certificate struct {
	ID         ids.Wipe
	Org        ids.Org
	Lease      ids.Lease
	Allocation ids.Allocation
	Node       ids.Node
	Result     protocol.WipeStatus
	Envelope   protocol.Envelope
	CreatedAt  time.Time
}
