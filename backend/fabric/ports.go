package fabric

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// Transactor runs fn in one transaction, which ctx carries; a nested call joins it.
type Transactor interface {
	WithinTx(ctx context.Context, fn func(ctx context.Context) error) error
}

// Leases are the rows of leases. Get returns NotFound faults.
type Leases interface {
	Get(ctx context.Context, id ids.Lease) (lease.Lease, error)
}

// Partitions are the rows of isolation. Whoever changes any of a fabric's holds the fabric's lock.
type Partitions interface {
	// Subnet returns a NotFound fault, code "fabric-not-found"; so does SubnetForUpdate, which locks the row.
	Subnet(ctx context.Context, id ids.Fabric) (Subnet, error)
	SubnetForUpdate(ctx context.Context, id ids.Fabric) (Subnet, error)
	// RaiseEpoch counts a change of the desired set and returns the new number.
	RaiseEpoch(ctx context.Context, id ids.Fabric) (int64, error)
	// Override lets a fabric's posture pass for that reason; "" does no longer.
	Override(ctx context.Context, id ids.Fabric, reason string) error

	// OfLease finds the lease's latest partition; false when it never had one.
	OfLease(ctx context.Context, id ids.Lease) (Partition, bool, error)
	// Live lists the fabric's partitions that are not free, by key.
	Live(ctx context.Context, id ids.Fabric) ([]Partition, error)
	Insert(ctx context.Context, p Partition) error
	Update(ctx context.Context, p Partition) error

	// Ports lists the ports that come with the lease's allocations in those states: of the bays that their slots cover, and the rest
	// with whole nodes.
	Ports(ctx context.Context, id ids.Lease, states []lease.AllocationState) ([]Port, error)
	// Members lists the members of those partitions, by GUID.
	Members(ctx context.Context, of []ids.Partition) ([]Member, error)
	// Elsewhere names those of the ports that have not left another partition, with its lease's id left out: that is not the asker's
	// business.
	Elsewhere(ctx context.Context, ports []ids.HCAPort, but ids.Partition) ([]protocol.GUID, error)
	// PutMembers writes members, new or known.
	PutMembers(ctx context.Context, members []Member) error

	// Sweeps lists the fabric's latest operations of its own steps of that kind, latest first, without what they saw.
	Sweeps(ctx context.Context, id ids.Fabric, step string, limit int) ([]Sweep, error)
	// LastPlaced finds the fabric's latest apply_partitions that reached the manager, without what it saw; false: there is none.
	LastPlaced(ctx context.Context, id ids.Fabric) (Sweep, bool, error)
	// Unabsorbed lists the fabric's finished operations whose observation was not taken yet, oldest first.
	Unabsorbed(ctx context.Context, id ids.Fabric) ([]Sweep, error)
	// Absorbed notes that an operation's observation was taken.
	Absorbed(ctx context.Context, id ids.Operation, at time.Time) error
	// Operation reads any operation. It returns a NotFound fault.
	Operation(ctx context.Context, id ids.Operation) (fleet.Operation, error)
	// LastRound lists the operations of the lease's latest step of that kind.
	LastRound(ctx context.Context, id ids.Lease, step string) ([]Sweep, error)

	Watch

	InsertAttestation(ctx context.Context, a Attestation) error
	// Attestation reads an attestation's envelope. It returns a NotFound fault.
	Attestation(ctx context.Context, id ids.Attestation) (protocol.Envelope, error)
}

// Watch is what is known of a fabric as a whole.
type Watch interface {
	// OpenDrift lists the fabric's drift that lasts, oldest first.
	OpenDrift(ctx context.Context, id ids.Fabric) ([]Drift, error)
	// PutDrift writes drift, new or known.
	PutDrift(ctx context.Context, all []Drift) error
	// KnownPorts lists the ports of our machines on the fabric.
	KnownPorts(ctx context.Context, id ids.Fabric) ([]protocol.GUID, error)
	// PutForeign replaces what is known of the foreign keys on those ports.
	PutForeign(ctx context.Context, id ids.Fabric, keys map[protocol.GUID][]protocol.PKey, at time.Time) error
	// Full names those of the ports whose tables have no room for another key beside the default one and foreign ones.
	Full(ctx context.Context, ports []ids.HCAPort) ([]protocol.GUID, error)
	// NotePosture keeps what the fabric's posture was seen to be.
	NotePosture(ctx context.Context, id ids.Fabric, posture []protocol.PostureCheck) error
	// Reserve replaces the fabric's reserved keys.
	Reserve(ctx context.Context, id ids.Fabric, keys []protocol.PKey) error
	// Suspected is when a machine on the fabric last found its ports not clear; zero: never.
	Suspected(ctx context.Context, id ids.Fabric) (time.Time, error)
	// Range sets the first and the last key that are ours.
	Range(ctx context.Context, id ids.Fabric, low, high protocol.PKey) error
	// Manage replaces the ports of the fabric's managers.
	Manage(ctx context.Context, id ids.Fabric, ports []protocol.GUID) error
	// DueAudit says when the next audit is due, and who has asked for it; "": nobody.
	DueAudit(ctx context.Context, id ids.Fabric, at time.Time, askedBy string) error
	InsertAudit(ctx context.Context, a Audit) error
	// Audits lists the fabric's audits, latest first.
	Audits(ctx context.Context, id ids.Fabric, limit int) ([]Audit, error)
	// ForgetAudits drops all that audits have read, but for the latest ones and what proofs rest on. Their summaries stay.
	ForgetAudits(ctx context.Context, id ids.Fabric, keep int) error
}

// Sweep is an operation with its step's attempt.
type Sweep struct {
	fleet.Operation
	Attempt int
}

// Work has work done by agents. Package fleet implements it.
type Work interface {
	Issue(ctx context.Context, step fleet.Step, work []fleet.Work) (ids.Step, error)
}

// Keys finds the public keys of agents, by id. Package fleet's store implements it.
type Keys interface {
	Agents(ctx context.Context, all []ids.Agent) (map[ids.Agent]fleet.Agent, error)
}

// Outbox delivers what others wait for after the commit.
type Outbox interface {
	Put(ctx context.Context, topic, key string, payload any, at time.Time) error
}

// Recorder keeps who did what.
type Recorder interface {
	Record(ctx context.Context, action, target string, before, after any) error
}

// Signer signs with the platform's attestation key, plain Ed25519.
type Signer interface {
	KeyID() (string, error)
	Sign(ctx context.Context, data []byte) ([]byte, error)
}

// Policy bounds how long things may take.
type Policy struct {
	PickUpWithin time.Duration // a fabric's agent that does not pick up by then is offline
	SweepWithin  time.Duration // applying and reading back
	WitnessIn    time.Duration // a node's reading of its own tables
	// Retry is the pause after a sweep that failed; it doubles, up to RetryCap. New changes do not wait for it.
	Retry, RetryCap time.Duration
	SecondLook      time.Duration // between the two times that former members must be seen clear
	Rest            time.Duration // how long a key is not used after that
	FreshFor        time.Duration // how old the first witness's word may be in an attestation
	AuditEvery      time.Duration // how often every port is read
	Repairs         int           // how often drift is repaired before a person must
	StrangerAfter   time.Duration // how long a port of no machine that we know must last to be an alarm: machines come before their reports
}

// DefaultPolicy is for real fabrics.
func DefaultPolicy() Policy {
	return Policy{
		PickUpWithin: 30 * time.Second, SweepWithin: 2 * time.Minute, WitnessIn: time.Minute, Retry: time.Second, RetryCap: 30 * time.Second,
		SecondLook: 2 * time.Second, Rest: 10 * time.Minute, FreshFor: 10 * time.Minute,
		AuditEvery: 5 * time.Minute, Repairs: 3, StrangerAfter: 30 * time.Second,
	}
}

// Deps are what a Service works with; all are needed.
type Deps struct {
	Tx         Transactor
	Leases     Leases
	Partitions Partitions
	Work       Work
	Keys       Keys
	Outbox     Outbox
	Audit      Recorder
	Signer     Signer
	Clock      clock.Clock
	Policy     Policy // DefaultPolicy when zero
}

// Service isolates leases.
type Service struct{ Deps }

// New returns the fabrics' service.
func New(deps Deps) *Service {
	if deps.Policy == (Policy{}) {
		deps.Policy = DefaultPolicy()
	}
	return &Service{deps}
}
