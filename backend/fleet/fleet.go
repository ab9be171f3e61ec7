// Package fleet has the agents: who they are, how they prove it, what they report, and the work that they are asked to do.
//
// An agent stands beside one node or one fabric and reaches nothing else: every call of its is bound to the objects of its own
// identity. Work is an operation, a row that the agent pulls; a step is a set of operations that something waits for.
package fleet

import (
	"crypto/ed25519"
	"encoding/json"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
)

// Agent is one agent's identity. Exactly one of Node and Fabric is set.
type Agent struct {
	ID        ids.Agent
	Kind      protocol.AgentKind
	Site      ids.Site
	Node      ids.Node
	Fabric    ids.Fabric
	PublicKey ed25519.PublicKey
	Version   string
	CreatedAt time.Time
	RevokedAt time.Time // zero: it lives
}

// Token lets agents of one site enrol, MaxUses times until it expires. Only its SHA-256 is kept; the secret has 256 random bits, so
// a slow hash would add nothing.
type Token struct {
	ID        ids.Enrollment
	Site      ids.Site
	Hash      []byte
	MaxUses   int
	Uses      int
	ExpiresAt time.Time
	CreatedAt time.Time
}

// State is where an operation is in its life.
type State string

// The states of an operation. The last four are final.
const (
	Queued    State = "queued"  // the agent has not said that it began
	Running   State = "running" // it has
	Succeeded State = "succeeded"
	Failed    State = "failed"
	Fenced    State = "fenced"  // refused by the agent: its epoch was too old; nothing was done
	Expired   State = "expired" // a deadline passed, or there was nobody to ask
)

// States lists every state.
func States() []State { return []State{Queued, Running, Succeeded, Failed, Fenced, Expired} }

// Final reports whether the operation is over.
func (s State) Final() bool { return s != Queued && s != Running }

// Operation is one piece of work for one agent.
type Operation struct {
	ID         ids.Operation
	Agent      ids.Agent // zero: there was none to ask
	Step       ids.Step
	Lease      ids.Lease
	Allocation ids.Allocation
	Node       ids.Node
	Fabric     ids.Fabric
	Kind       protocol.OperationKind
	Epoch      int64
	Slots      protocol.Slots // of a node
	Spec       json.RawMessage
	State      State
	Percent    int
	Phase      string
	Fault      *protocol.Fault
	Evidence   json.RawMessage
	Signed     *protocol.Envelope
	PickUpBy   time.Time
	DoneBy     time.Time
	CreatedAt  time.Time
	StartedAt  time.Time
	FinishedAt time.Time
}

// Step names a set of operations; exactly one of Lease and Fabric owns it.
type Step struct {
	Lease   ids.Lease
	Fabric  ids.Fabric
	Kind    string
	Attempt int
	// Node, when set, is the one whose own process waits for the step, and not its owner's: the lease is over.
	Node ids.Node
}

// Work is one operation to be asked of the node's or the fabric's agent.
type Work struct {
	Node         ids.Node
	Fabric       ids.Fabric
	Allocation   ids.Allocation
	Kind         protocol.OperationKind
	Epoch        int64
	Slots        protocol.Slots
	Spec         any // the kind's spec type of package protocol
	PickUpWithin time.Duration
	DoneWithin   time.Duration // both counted from the issue
}

// StepStatus is how far a step is. The zero value says that there is no such step.
type StepStatus struct {
	ID         ids.Step
	Remaining  int
	Failed     int
	Operations []Operation // by creation
}
