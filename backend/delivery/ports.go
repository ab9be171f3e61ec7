package delivery

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// Transactor runs fn in one transaction, which ctx carries. It returns Unavailable faults for what a retry may heal.
type Transactor interface {
	WithinTx(ctx context.Context, fn func(ctx context.Context) error) error
}

// Leases are the rows of leases. Get and GetForUpdate return NotFound faults.
type Leases interface {
	Get(ctx context.Context, id ids.Lease) (lease.Lease, error)
	GetForUpdate(ctx context.Context, id ids.Lease) (lease.Lease, error)
	Update(ctx context.Context, l lease.Lease) error
	AppendEvent(ctx context.Context, e lease.Event) (lease.Event, error)
	SSHKeys(ctx context.Context, id ids.Lease) ([]lease.SSHKey, error)
}

// Allocations are the rows of allocations.
type Allocations interface {
	Update(ctx context.Context, a lease.Allocation) error
	NextEpoch(ctx context.Context) (int64, error)
}

// Work is what is known about the work on a lease's nodes.
type Work interface {
	// Instances reads and locks the lease's allocations that are not released, by ordinal; replaced ones that are not clean yet
	// are among them.
	Instances(ctx context.Context, id ids.Lease) ([]Instance, error)
	// Begin is when the lease's slots are held from; the zero instant when it has none.
	Begin(ctx context.Context, id ids.Lease) (time.Time, error)
	// Blockers lists the earlier allocations, or ones already handed over, that share slots with the lease's held ones.
	Blockers(ctx context.Context, id ids.Lease) ([]Blocker, error)
	// Waiters lists provisioning leases that hold slots which overlap the allocation's.
	Waiters(ctx context.Context, a lease.Allocation) ([]ids.Lease, error)
	// Operations reads what was asked of the lease's nodes in steps of that name, by attempt.
	Operations(ctx context.Context, id ids.Lease, step string) ([]Operation, error)
	// LastRound reads what was asked of the lease's nodes in the latest attempt of steps of that name: for steps that may be repeated without end.
	LastRound(ctx context.Context, id ids.Lease, step string) ([]Operation, error)
	// Recorded reads the values of one field of the data of the lease's events of that type, as text.
	Recorded(ctx context.Context, id ids.Lease, event lease.EventType, field string) ([]string, error)
	// InsertCertificate writes a wipe certificate.
	InsertCertificate(ctx context.Context, c Certificate) error
	// Silent says since when nodes have sent no heartbeat: those of the given ones that were last heard before the instant, while at least
	// half of their site's nodes were heard after it. When a whole site is silent, it is rather we who cannot hear it.
	Silent(ctx context.Context, nodes []ids.Node, before time.Time) (map[ids.Node]time.Time, error)
	// Watched lists the active leases of which something must be looked at: a node of theirs was last heard before the instant, or reports a
	// condition that prevents allocation, or the lease says that something of it is out.
	Watched(ctx context.Context, heardBefore time.Time) ([]ids.Lease, error)
	// Troubles reads the conditions of the nodes that prevent allocation now.
	Troubles(ctx context.Context, nodes []ids.Node) ([]Trouble, error)
	// QuarantineNode takes a node off the market until an admin's exit, with the reason.
	QuarantineNode(ctx context.Context, node ids.Node, reason string) error
	// Announce wakes whoever waits for the lease to change, once the transaction commits.
	Announce(ctx context.Context, id ids.Lease) error
}

// Order is one operation to be asked of a node.
type Order struct {
	Allocation ids.Allocation
	Node       ids.Node
	Kind       protocol.OperationKind
	Epoch      int64
	Slots      lease.Slots
	Spec       any
}

// Step names a set of operations of a lease; asking for the same step again changes nothing.
type Step struct {
	Lease   ids.Lease
	Kind    string
	Attempt int
	// Node, when set, is the one whose own process waits for the step; else it is the lease's.
	Node ids.Node
}

// Limits are an operation's two deadlines, counted from its issue.
type Limits struct{ PickUpWithin, DoneWithin time.Duration }

// Agents are who the work is asked of.
type Agents interface {
	// Issue writes the step's operations for the agents to pull.
	Issue(ctx context.Context, step Step, orders []Order, limits Limits) error
}

// Isolation is how far a lease's partition is.
type Isolation string

// How far a partition may be.
const (
	NoPartition Isolation = "none"
	Pending     Isolation = "pending"
	Verified    Isolation = "verified"
	Draining    Isolation = "draining"
	Clear       Isolation = "clear"
	Broken      Isolation = "failed"
)

// Verdict is what the two witnesses say together. Unknown never counts as isolated.
type Verdict string

// The verdicts.
const (
	Isolated    Verdict = "isolated"
	NotIsolated Verdict = "not_isolated"
	Unsure      Verdict = "unknown"
)

// Fabric isolates leases. All of it may be asked twice.
type Fabric interface {
	// Join wants the lease's ports in a partition of their own, as its allocations stand now.
	Join(ctx context.Context, id ids.Lease) error
	// Leave wants them out of it.
	Leave(ctx context.Context, id ids.Lease) error
	// Status says how far that is, with words where it is not well.
	Status(ctx context.Context, id ids.Lease) (Isolation, string, error)
	// Witness asks the lease's nodes to read their own tables; attempt counts how often that was wanted for the occasion.
	Witness(ctx context.Context, id ids.Lease, occasion Occasion, attempt int) error
	// WitnessStep names the step of Witness, whose operations say how far it is.
	WitnessStep(occasion Occasion) string
	// Attest compares both witnesses' latest word and signs the result.
	Attest(ctx context.Context, id ids.Lease, occasion Occasion) (ids.Attestation, Verdict, error)
	// Unproved lists the ports of which the attestation does not prove what it is about.
	Unproved(ctx context.Context, id ids.Attestation) ([]protocol.GUID, error)
	// Uncleared lists the ports that were not seen clear of the lease's partition yet.
	Uncleared(ctx context.Context, id ids.Lease) ([]protocol.GUID, error)
}

// Billing makes the bill from the lease's events. Both may be asked twice.
type Billing interface {
	Accrue(ctx context.Context, id ids.Lease, until time.Time) error
	Settle(ctx context.Context, id ids.Lease) (ids.Invoice, error)
}

// Placement finds a node for one that failed.
type Placement interface {
	// Replace holds other slots for the allocation's lease and returns the new allocation. It returns an Unavailable fault, code
	// "no-replacement", when there are none now.
	Replace(ctx context.Context, allocation ids.Allocation) (ids.Allocation, error)
}

// Machines are machines that are leased whole; for the caller's transaction.
type Machines interface {
	// PhoneHome makes the address at which the allocation's own system tells that it runs. An earlier one is worth nothing any more.
	PhoneHome(ctx context.Context, node ids.Node, allocation ids.Allocation, epoch int64) (string, error)
}

// Images is the register of disk images.
type Images interface {
	// Source says where the image of that name is. It returns an Invalid fault, code "image-not-found".
	Source(ctx context.Context, name string) (*protocol.Image, error)
}

// Outbox delivers what others wait for after the commit.
type Outbox interface {
	Put(ctx context.Context, topic, key string, payload any, at time.Time) error
}

// Signer signs with the platform's attestation key.
type Signer interface {
	Sign(ctx context.Context, payloadType string, payload []byte) (protocol.Envelope, error)
}
