package lease

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/money"
	"github.com/leasehold/leasehold/backend/tenant"
)

// Details is a lease with what people want to see beside it.
type Details struct {
	Lease
	TypeName   string
	SiteName   string
	FabricName string // "" without one
	LastEvent  int64
	Progress   Progress
	Held       money.Amount // what is left of its hold
	Charged    money.Amount // captured from it so far, tax included
	Invoice    ids.Invoice  // zero: none yet
}

// Progress is how far the step is that a lease is at. The zero value: nothing is going on.
type Progress struct {
	Step    string // prepare, isolate, attest, grant, revoke, wipe
	Percent int
	Done    int // instances that are through
	Total   int
}

// NodeDetails is one of a lease's instances as its tenant sees it, replaced and released ones included.
type NodeDetails struct {
	Allocation
	NodeName string
	Leaf     string // the leaf switch's name; "" when it is not known
	GPUs     []GPU
	// Work is the latest thing that was asked of the node; its zero value: nothing.
	Work Work
}

// GPU is one of an instance's GPUs. A slice of one shows the GPU that it is of.
type GPU struct {
	Bay   int    `json:"bay"`
	Model string `json:"model"`
	UUID  string `json:"uuid"`
}

// Work is an operation on an instance's node.
type Work struct {
	Step    string
	State   string // queued, running, succeeded, failed, fenced, expired
	Percent int
	Phase   string
}

// Isolation is a lease's partition. Without a fabric only Applies (false) is set.
type Isolation struct {
	Applies      bool
	PKey         int    // without the membership bit; 0 while it has none
	State        string // of the partition
	Ports        []IsolationPort
	Attestations []Attestation
}

// IsolationPort is a member port. Joined says that both ends of its link were seen to have the key.
type IsolationPort struct {
	GUID   string
	Node   string
	Joined bool
}

// Attestation is one signed statement about a lease's isolation.
type Attestation struct {
	ID        ids.Attestation
	Occasion  string
	Verdict   string
	Envelope  protocol.Envelope
	CreatedAt time.Time
}

// WipeCertificate is one signed statement about what was erased.
type WipeCertificate struct {
	ID        ids.Wipe
	Node      string
	Result    string
	Envelope  protocol.Envelope
	CreatedAt time.Time
}

// Transactor runs fn in one transaction, which ctx carries.
type Transactor interface {
	WithinTx(ctx context.Context, fn func(ctx context.Context) error) error
}

// Reads is what the database says about leases. Each method shows an organization's actor its own leases only; others' are not found.
type Reads interface {
	// Details reads the leases that the filter leaves, latest first.
	Details(ctx context.Context, filter Filter) ([]Details, error)
	Nodes(ctx context.Context, id ids.Lease) ([]NodeDetails, error)
	// Topology reads one unreleased instance; none when the lease has it not.
	Topology(ctx context.Context, id ids.Lease, allocation ids.Allocation) ([]NodeTopology, error)
	Events(ctx context.Context, id ids.Lease, after int64, limit int) ([]Event, error)
	Isolation(ctx context.Context, id ids.Lease) (Isolation, error)
	WipeCertificates(ctx context.Context, id ids.Lease) ([]WipeCertificate, error)
}

// Waker tells when something was announced for a key.
type Waker interface {
	// Subscribe returns a channel that holds a value after each announcement since, and what ends the subscription. An announcement
	// may be lost: whoever waits looks again on its own.
	Subscribe(channel, key string) (wake <-chan struct{}, cancel func())
}

// Channel is where the database announces leases that have changed; the payload is the lease's id.
const Channel = "lease"

// lookEvery is how often a wait looks at the rows though nothing was announced.
const lookEvery = 2 * time.Second

// Service answers questions about leases.
type Service struct {
	tx    Transactor
	reads Reads
	waker Waker
}

// NewService returns a Service. Without a waker (nil) waits find changes by looking only.
func NewService(tx Transactor, reads Reads, waker Waker) *Service {
	return &Service{tx: tx, reads: reads, waker: waker}
}

// List reads the leases that the filter leaves, latest first.
func (s *Service) List(ctx context.Context, filter Filter) ([]Details, error) {
	if actor, ok := tenant.ActorFrom(ctx); ok && !actor.Project.IsZero() {
		if !filter.Project.IsZero() && filter.Project != actor.Project {
			return []Details{}, nil
		}
		filter.Project = actor.Project
	}
	return read(ctx, s, "list leases", func(ctx context.Context) ([]Details, error) { return s.reads.Details(ctx, filter) })
}

// Get reads one lease. It returns a NotFound fault, also for another organization's, and for one outside the actor's project.
func (s *Service) Get(ctx context.Context, id ids.Lease) (Details, error) {
	found, err := s.List(ctx, Filter{ID: id, Limit: 1})
	if err != nil {
		return Details{}, err
	}
	if len(found) == 0 {
		return Details{}, fault.New(fault.NotFound, "lease-not-found", "there is no such lease")
	}
	return found[0], nil
}

// Await reads a lease as soon as its last event is behind after, or when the wait is over, whichever comes first.
func (s *Service) Await(ctx context.Context, id ids.Lease, after int64, wait time.Duration) (Details, error) {
	var found Details
	err := s.await(ctx, id, wait, func() (bool, error) {
		var err error
		found, err = s.Get(ctx, id)
		return found.LastEvent > after, err
	})
	return found, err
}

// Nodes reads a lease's instances by ordinal. It returns a NotFound fault.
func (s *Service) Nodes(ctx context.Context, id ids.Lease) ([]NodeDetails, error) {
	return readOf(ctx, s, id, "read nodes", s.reads.Nodes)
}

// Events reads at most limit (0: all) events behind the one numbered after. It returns a NotFound fault.
func (s *Service) Events(ctx context.Context, id ids.Lease, after int64, limit int) ([]Event, error) {
	return readOf(ctx, s, id, "read events", func(ctx context.Context, id ids.Lease) ([]Event, error) {
		return s.reads.Events(ctx, id, after, limit)
	})
}

// AwaitEvents reads the events behind the one numbered after as soon as there are any, or none when ctx ends first. Over says that
// the last of them is the lease's last for ever.
func (s *Service) AwaitEvents(ctx context.Context, id ids.Lease, after int64) (events []Event, over bool, err error) {
	err = s.await(ctx, id, 0, func() (bool, error) {
		details, err := s.Get(ctx, id)
		if err != nil {
			return false, err
		}
		if over = details.Final(); details.LastEvent <= after {
			return over, nil
		}
		events, err = s.Events(ctx, id, after, 0)
		return true, err
	})
	if err != nil && ctx.Err() != nil {
		return nil, false, nil //nolint:nilerr // the wait is over, which is no failure
	}
	return events, over, err
}

// Isolation reads a lease's partition and proofs. It returns a NotFound fault.
func (s *Service) Isolation(ctx context.Context, id ids.Lease) (Isolation, error) {
	return readOf(ctx, s, id, "read isolation", s.reads.Isolation)
}

// WipeCertificates reads what was proved to be erased. It returns a NotFound fault.
func (s *Service) WipeCertificates(ctx context.Context, id ids.Lease) ([]WipeCertificate, error) {
	return readOf(ctx, s, id, "read wipe certificates", s.reads.WipeCertificates)
}

// await calls look until it is satisfied, fails, or the wait (0: ctx alone) is over. It holds no transaction while it waits.
func (s *Service) await(ctx context.Context, id ids.Lease, wait time.Duration, look func() (bool, error)) error {
	var wake <-chan struct{}
	if s.waker != nil { // before the first look, so that nothing falls between
		subscribed, cancel := s.waker.Subscribe(Channel, id.String())
		defer cancel()
		wake = subscribed
	}
	var deadline <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		deadline = timer.C
	}
	again := time.NewTicker(lookEvery)
	defer again.Stop()
	for {
		if satisfied, err := look(); satisfied || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return nil
		case <-wake:
		case <-again.C:
		}
	}
}

func read[T any](ctx context.Context, s *Service, verb string, from func(ctx context.Context) (T, error)) (T, error) {
	var found T
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		found, err = from(ctx)
		return err
	})
	if err != nil {
		return found, fmt.Errorf("%s: %w", verb, err)
	}
	return found, nil
}

// readOf reads something of a lease that the actor may see.
func readOf[T any](ctx context.Context, s *Service, id ids.Lease, verb string, from func(ctx context.Context, id ids.Lease) (T, error)) (T, error) {
	if _, err := s.Get(ctx, id); err != nil {
		var none T
		return none, err
	}
	return read(ctx, s, verb, func(ctx context.Context) (T, error) { return from(ctx, id) })
}

// StepName is what people call a step: its kind's first word, and "attest" for the witnesses' part in that.
func StepName(kind string) string {
	name, _, _ := strings.Cut(strings.ReplaceAll(kind, "-", "_"), "_")
	switch name {
	case "witness", "observe":
		return "attest"
	default:
		return name
	}
}
