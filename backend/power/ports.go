package power

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
)

// Transactor runs fn in one transaction, which ctx carries.
type Transactor interface {
	WithinTx(ctx context.Context, fn func(ctx context.Context) error) error
}

// Machines keeps machines and tickets.
type Machines interface {
	// PutMachine writes a node's machine, or changes where its BMC is and how it is reached; its stage stays.
	PutMachine(ctx context.Context, m Machine) error
	// Machine returns a NotFound fault, code "machine-not-found"; so does MachineByMAC.
	Machine(ctx context.Context, node ids.Node) (Machine, error)
	MachineByMAC(ctx context.Context, mac string) (Machine, error)
	SetStage(ctx context.Context, node ids.Node, stage Stage, at time.Time) error
	// Claim lets one worker act on the machine until the instant, and returns false when another one does. The same worker claims anew to go on.
	Claim(ctx context.Context, node ids.Node, worker string, now, until time.Time) (bool, error)
	// Unclaim gives the machine back.
	Unclaim(ctx context.Context, node ids.Node, worker string) error

	// PutTicket writes a ticket. One that exists already, by its id, keeps what it has but for its expiry.
	PutTicket(ctx context.Context, t Ticket) error
	// Ticket finds a ticket; false when there is none.
	Ticket(ctx context.Context, id ids.Operation) (Ticket, bool, error)
	// TicketByHash finds and locks the ticket of a token; false when there is none.
	TicketByHash(ctx context.Context, hash []byte) (Ticket, bool, error)
	// Armed finds and locks the node's newest service ticket that is neither used nor expired; false when there is none.
	Armed(ctx context.Context, node ids.Node, now time.Time) (Ticket, bool, error)
	// PhoneTicket finds the newest ticket with which the allocation's system of that epoch phones home; false when there is none.
	PhoneTicket(ctx context.Context, allocation ids.Allocation, epoch int64) (Ticket, bool, error)
	UpdateTicket(ctx context.Context, t Ticket) error
	// Disarm ends the node's tickets of that purpose.
	Disarm(ctx context.Context, node ids.Node, purpose Purpose, at time.Time) error

	// Occupied reports whether a lease has begun with slots of the node and is not done with them.
	Occupied(ctx context.Context, node ids.Node) (bool, error)
	// Tenancy reads an instance of a lease and locks its machine. It returns a NotFound fault for one that is not the lease's.
	Tenancy(ctx context.Context, lease ids.Lease, allocation ids.Allocation) (Tenancy, error)
	// Stands reports whether an operation's allocation is still in the hand that it was ordered for: that epoch, not released; for a tenant's
	// wish the lease must be active too. One without an allocation always stands.
	Stands(ctx context.Context, allocation ids.Allocation, epoch int64, wish bool) (bool, error)
}

// Job is an operation to be done, or under way.
type Job struct {
	ID         ids.Operation
	Node       ids.Node
	Allocation ids.Allocation
	Epoch      int64
	Order      Order
	DoneBy     time.Time
}

// Work keeps operations. Package fleet implements it.
type Work interface {
	// Jobs lists the oldest operation of each node that is not over.
	Jobs(ctx context.Context) ([]Job, error)
	// Advance notes that one was begun, and how far it is.
	Advance(ctx context.Context, id ids.Operation, percent int, phase string) error
	// Finish ends one; ending one that is over changes nothing.
	Finish(ctx context.Context, id ids.Operation, evidence Evidence, failure *protocol.Fault) error
	// Ask writes an operation that no step waits for.
	Ask(ctx context.Context, node ids.Node, allocation ids.Allocation, epoch int64, order Order, within time.Duration) (ids.Operation, error)
	// Outcome reads how an operation stands: over or not, and why it failed.
	Outcome(ctx context.Context, id ids.Operation) (over bool, failure *protocol.Fault, err error)
}

// Agents ends identities. Package fleet implements it.
type Agents interface {
	// Dismiss ends the identity of the agent that stands beside the node, if there is one: its boot is over.
	Dismiss(ctx context.Context, node ids.Node, why string) error
}

// Nodes finds nodes. Package inventory implements it.
type Nodes interface {
	// NodeID finds the site's node of that name, or makes it.
	NodeID(ctx context.Context, site ids.Site, name string) (ids.Node, error)
}

// Dialer logs in to a BMC. Its faults are a Controller's.
type Dialer interface {
	Dial(ctx context.Context, a Address, password string) (Controller, error)
}

// Vault seals passwords.
type Vault interface {
	Seal(secret []byte, about string) []byte
	Unseal(sealed []byte, about string) ([]byte, error)
}

// Audit keeps who did what.
type Audit interface {
	Record(ctx context.Context, action, target string, before, after any) error
}
