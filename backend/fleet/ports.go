package fleet

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/inventory"
)

// Transactor runs fn in one transaction, which ctx carries; a nested call joins it.
type Transactor interface {
	WithinTx(ctx context.Context, fn func(ctx context.Context) error) error
}

// Agents keeps identities and enrolment tokens.
type Agents interface {
	InsertToken(ctx context.Context, t Token) error
	// TokenForUpdate finds a token by its hash and locks it. It returns a NotFound fault.
	TokenForUpdate(ctx context.Context, hash []byte) (Token, error)
	UseToken(ctx context.Context, id ids.Enrollment) error
	// InsertAgent returns a Conflict fault, code "duplicate", when the node or fabric has a living agent.
	InsertAgent(ctx context.Context, a Agent) error
	// Living finds the agent that stands beside the node or the fabric now; false when there is none.
	Living(ctx context.Context, node ids.Node, fabric ids.Fabric) (Agent, bool, error)
	// Beside finds the agents that stand beside the nodes and fabrics now; those without one are left out.
	Beside(ctx context.Context, nodes []ids.Node, fabrics []ids.Fabric) ([]Agent, error)
	// Agents finds identities, revoked ones included; unknown ids are left out.
	Agents(ctx context.Context, all []ids.Agent) (map[ids.Agent]Agent, error)
	// List lists a site's agents, of all sites when it is zero.
	List(ctx context.Context, site ids.Site) ([]Agent, error)
	// Revoke ends an identity. It returns a NotFound fault for one that is unknown.
	Revoke(ctx context.Context, id ids.Agent, at time.Time) error
	// UseOnce notes that the agent's token was used, and returns false when it was used before.
	UseOnce(ctx context.Context, id ids.Agent, token string, expires time.Time) (bool, error)
	// ForgetUsed drops the notes about tokens that have expired.
	ForgetUsed(ctx context.Context, before time.Time) error
}

// Beat is a heartbeat's narrow part, the one that is written every time.
type Beat struct {
	Agent    ids.Agent
	Node     ids.Node
	BootID   string
	Sequence int64
	At       time.Time
}

// Pulse is what a beat found.
type Pulse struct {
	Fresh      bool // its sequence was not seen before
	Rebooted   bool // another boot than the last one, or the first
	Leased     bool // somebody rents slots of the node now
	Conditions bool // the node has conditions that are not cleared
	Reported   bool // its inventory is known
	Pending    int  // operations that it could pick up
}

// Beats keeps signs of life, conditions and meters.
type Beats interface {
	// Beat writes the beats of different nodes in one go, and answers in their order.
	Beat(ctx context.Context, beats []Beat) ([]Pulse, error)
	// BeatFabric notes that a fabric's agent lives.
	BeatFabric(ctx context.Context, b Beat) (Pulse, error)
	// SetConditions makes the node's live conditions the reported ones: new ones are written, changed ones updated, others cleared.
	// It returns those that are new.
	SetConditions(ctx context.Context, node ids.Node, reported []protocol.Condition, at time.Time) ([]protocol.Condition, error)
	// AppendSamples adds compressed samples to the node's chunk of the minute.
	AppendSamples(ctx context.Context, node ids.Node, minute time.Time, compressed []byte) error
	// Chunks reads the node's chunks of the minutes in [from, to), in order.
	Chunks(ctx context.Context, node ids.Node, from, to time.Time) ([][]byte, error)
	// ForgetSamples drops chunks from before the instant.
	ForgetSamples(ctx context.Context, before time.Time) error
	// Tenants lists the leases that use slots of the node.
	Tenants(ctx context.Context, node ids.Node) ([]ids.Lease, error)
}

// Ended is how an operation ends.
type Ended struct {
	State    State
	Fault    *protocol.Fault
	Evidence []byte // JSON
	Signed   *protocol.Envelope
	At       time.Time
}

// Operations keeps steps and operations.
type Operations interface {
	// OpenStep writes the step unless it exists, locks it, and returns its id.
	OpenStep(ctx context.Context, step Step, at time.Time) (ids.Step, error)
	// AddOperations writes each operation unless one with its key exists, and returns which it wrote. The agents of those are told when the
	// transaction commits.
	AddOperations(ctx context.Context, operations []Operation, keys []string) (map[ids.Operation]bool, error)
	// CountDown takes done operations from what remains of the step, of which some failed (both may be negative: work was added), and
	// returns how many remain, and the step's node.
	CountDown(ctx context.Context, id ids.Step, done, failed int, at time.Time) (int, ids.Node, error)
	// Waiting tells which of the agents have an operation that they could pick up.
	Waiting(ctx context.Context, agents []ids.Agent, now time.Time) (map[ids.Agent]bool, error)
	// OfAgent lists operations in those states that the agent may still pick up or finish, oldest first.
	OfAgent(ctx context.Context, agent ids.Agent, states []State, now time.Time, limit int) ([]Operation, error)
	// ForUpdate finds an operation of the agent and locks it. It returns a NotFound fault, also for another agent's. The zero agent has
	// those that are ours.
	ForUpdate(ctx context.Context, agent ids.Agent, id ids.Operation) (Operation, error)
	// Advance notes progress of an operation that is not final.
	Advance(ctx context.Context, agent ids.Agent, id ids.Operation, p protocol.Progress, at time.Time) error
	// Finish ends an operation, and returns false when it was over already.
	Finish(ctx context.Context, id ids.Operation, e Ended) (bool, error)
	// Ours finds operations of a kind that no agent does: the oldest of each node that is not over.
	Ours(ctx context.Context, kind protocol.OperationKind) ([]Operation, error)
	// Late finds operations past their deadline and locks them; those that somebody else has locked are left out.
	Late(ctx context.Context, now time.Time, limit int) ([]Operation, error)
	// StepOf reads a step with its operations; the zero value when there is none.
	StepOf(ctx context.Context, step Step) (StepStatus, error)
}

// Inventory takes what agents find. Package inventory implements it.
type Inventory interface {
	AddNode(ctx context.Context, site ids.Site, name, serial string) (inventory.Node, error)
	AddFabric(ctx context.Context, site ids.Site, name string) (inventory.Fabric, error)
	// SiteOf returns a NotFound fault.
	SiteOf(ctx context.Context, node ids.Node) (ids.Site, error)
	ReportNode(ctx context.Context, id ids.Node, report protocol.NodeInventory) (protocol.InventoryReply, error)
	ReportFabric(ctx context.Context, id ids.Fabric, report protocol.FabricInventory) error
}

// Claims is what a request's token says. It was signed by the agent's key.
type Claims struct {
	Agent     ids.Agent
	ID        string // of the token
	Method    string
	URI       string // path and query
	BodyHash  string
	IssuedAt  time.Time
	ExpiresAt time.Time
}

// Tokens verifies requests' tokens.
type Tokens interface {
	// Verify returns the claims of a token that the key, which keyOf finds for its issuer, has signed and whose time has come and not
	// passed. It returns an Unauthenticated fault for any other, and keyOf's faults as they are.
	Verify(token string, keyOf func(agent ids.Agent) (ed25519.PublicKey, error)) (Claims, error)
}

// Waker tells when something was announced for a key.
type Waker interface {
	// Subscribe returns a channel that holds a value after each announcement since, and what ends the subscription. A lost
	// announcement is possible; whoever waits looks again on its own.
	Subscribe(channel, key string) (wake <-chan struct{}, cancel func())
}

// Outbox delivers what others wait for after the commit.
type Outbox interface {
	Put(ctx context.Context, topic, key string, payload any, at time.Time) error
}

// Audit keeps who did what.
type Audit interface {
	Record(ctx context.Context, action, target string, before, after any) error
}

// Deps are what a Service works with; all are needed but Waker and Log.
type Deps struct {
	Tx         Transactor
	Agents     Agents
	Beats      Beats
	Operations Operations
	Hardware   Inventory
	Outbox     Outbox
	Audit      Audit
	Tokens     Tokens
	Waker      Waker // nil: polls find new work by looking only
	Clock      clock.Clock
	Log        *slog.Logger
	// Recheck is how often a poll looks by itself; 0: every 5 s.
	Recheck time.Duration
}

// Channel is where the database announces new operations; the payload is the agent's id.
const Channel = "operation"

// Service is what agents call, and what has work done by them.
type Service struct {
	Deps
	identities *gather[ids.Agent, Agent]
	pulses     *gather[Beat, Pulse]
	polls      *gather[ids.Agent, bool]
	boots      Boots // nil: nobody boots machines
}

// New returns the fleet.
func New(deps Deps) *Service {
	if deps.Recheck == 0 {
		deps.Recheck = 5 * time.Second
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{Deps: deps}
	s.identities = newGather(s.lookUp, func(id ids.Agent) any { return id })
	s.pulses = newGather(s.Beats.Beat, func(b Beat) any { return b.Node })
	s.polls = newGather(s.waiting, func(id ids.Agent) any { return id })
	return s
}
