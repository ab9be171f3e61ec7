package booking

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/money"
)

// Transactor runs fn in one transaction, which ctx carries; a nested call joins it.
type Transactor interface {
	WithinTx(ctx context.Context, fn func(ctx context.Context) error) error
	// Attempt runs fn within the transaction that ctx carries, and undoes what it did, the locks that it took included, when it returns an
	// error. The transaction goes on.
	Attempt(ctx context.Context, fn func(ctx context.Context) error) error
}

// Catalog is what is sold. Package catalog's repository implements it.
type Catalog interface {
	// TypeByName and TypeByID return a NotFound fault, code "instance-type-not-found".
	TypeByName(ctx context.Context, name string) (catalog.InstanceType, error)
	TypeByID(ctx context.Context, id ids.Instance) (catalog.InstanceType, error)
	// Prices reads price versions valid at the instant; zero ids do not narrow.
	Prices(ctx context.Context, instanceType ids.Instance, site ids.Site, at time.Time) ([]catalog.PriceVersion, error)
}

// PoolQuery says which capacity is looked at.
type PoolQuery struct {
	Type  catalog.InstanceType
	Site  ids.Site     // zero: every site
	Time  lease.Window // whose allocations count as busy
	Nodes []ids.Node   // only these; nil: all
	// Needed: machines that cannot have an instance of the type in it, since all of them is taken at some time of it, may be left out with
	// what is busy on them, for placements in that time only. Zero: none are.
	Needed lease.Window
	Now    time.Time // for overruns: unreleased allocations whose time is over
	// HeardSince leaves out machines whose agent was last heard before it; zero: none. What starts soon must not land on a silent machine;
	// for what is far ahead there is time to bring it back.
	HeardSince time.Time
}

// Obstacle keeps a lease from staying on its machines for longer.
type Obstacle struct {
	From    time.Time // when somebody else has a part of its slots; zero: nobody has
	Machine bool      // one of its machines is off the market: in trouble, or to be serviced
}

// Market reads capacity: market tables, which no tenant sees.
type Market interface {
	// Pools reads the machines that the type places on, with what is busy in the time. A slot that is quarantined, or whose unreleased
	// allocation is past its time, is busy for ever; a machine with a condition that prevents allocation is left out.
	Pools(ctx context.Context, q PoolQuery) ([]Pool, error)
	// Queue waits until no other transaction that has called it for the site and hardware is under way. It is for whoever keeps losing
	// races there, and holds no machine.
	Queue(ctx context.Context, site ids.Site, hardware string) error
	// Obstacle reads what keeps a lease from staying where it is for longer; nil: nothing does.
	Obstacle(ctx context.Context, id ids.Lease, longer time.Duration) (*Obstacle, error)
	// LockNodes locks the machines' rows in the order of their ids, so that bookings wait for each other and never in a circle.
	LockNodes(ctx context.Context, nodes []ids.Node) error
	// SiteNames reads all sites' names.
	SiteNames(ctx context.Context) (map[ids.Site]string, error)
}

// Customer is what booking needs to know of an organization.
type Customer struct {
	Currency   money.Currency
	TaxRateBPS int
	Suspended  bool // it may not book
	Policy     Policy
}

// Customers knows organizations, their projects and keys; all within the acting organization.
type Customers interface {
	Customer(ctx context.Context, org ids.Org) (Customer, error)
	// Project returns the project, the oldest for the zero id; a NotFound fault, code "project-not-found".
	Project(ctx context.Context, id ids.Project) (ids.Project, error)
	// SSHKeys reads keys; those that are not the organization's are left out.
	SSHKeys(ctx context.Context, all []ids.SSHKey) ([]lease.SSHKey, error)
}

// Quotes keeps quotes; an organization's actor reaches its own.
type Quotes interface {
	InsertQuote(ctx context.Context, q Quote) error
	// Quote and QuoteForUpdate return a NotFound fault, code "quote-not-found".
	Quote(ctx context.Context, id ids.Quote) (Quote, error)
	QuoteForUpdate(ctx context.Context, id ids.Quote) (Quote, error)
	// ListQuotes lists the newest first, after the given one; of one project, unless that is zero.
	ListQuotes(ctx context.Context, project ids.Project, after ids.Quote, limit int) ([]Quote, error)
	UseQuote(ctx context.Context, id ids.Quote, by ids.Lease) error
}

// Leases keeps leases and their parts.
type Leases interface {
	Insert(ctx context.Context, l lease.Lease) error
	GetForUpdate(ctx context.Context, id ids.Lease) (lease.Lease, error)
	Update(ctx context.Context, l lease.Lease) error
	InsertSegment(ctx context.Context, l lease.Lease, segment lease.Segment) error
	Segments(ctx context.Context, id ids.Lease) ([]lease.Segment, error)
	InsertSSHKeys(ctx context.Context, l lease.Lease, keys []lease.SSHKey) error
	AppendEvent(ctx context.Context, e lease.Event) (lease.Event, error)
	// Recorded reads the values of one field of the data of the lease's events of that type, in order.
	Recorded(ctx context.Context, id ids.Lease, event lease.EventType, field string) ([]string, error)
}

// Allocations keeps held capacity.
type Allocations interface {
	// Insert returns a Conflict fault, code "overlap", when somebody has a part of it.
	Insert(ctx context.Context, allocations ...lease.Allocation) error
	// Get returns a NotFound fault, code "allocation-not-found".
	Get(ctx context.Context, id ids.Allocation) (lease.Allocation, error)
	ByLeaseForUpdate(ctx context.Context, id ids.Lease) ([]lease.Allocation, error)
	Update(ctx context.Context, a lease.Allocation) error
}

// Money holds what a lease may cost at worst. Package billing implements it.
type Money interface {
	// Hold and Raise return an Unfunded fault, code "insufficient-balance", with the numbers.
	Hold(ctx context.Context, id ids.Lease, org ids.Org, amount money.Amount) error
	Raise(ctx context.Context, id ids.Lease, extra money.Amount) error
	// Ending says what ending a lease that was delivered costs for the unused time, if it ends at the instant, and what then comes back of
	// what is held, both with tax; it is what will be billed.
	Ending(ctx context.Context, id ids.Lease, at time.Time) (fee, refund money.Amount, err error)
	// Cancel keeps a fee of the hold and gives back the rest.
	Cancel(ctx context.Context, id ids.Lease, keep money.Amount) error
}

// Outbox delivers what others wait for after the commit.
type Outbox interface {
	Put(ctx context.Context, topic, key string, payload any, at time.Time) error
}

// Audit keeps who did what.
type Audit interface {
	Record(ctx context.Context, action, target string, before, after any) error
}

// Deps are what a Service works with; all are needed.
type Deps struct {
	Tx          Transactor
	Catalog     Catalog
	Market      Market
	Customers   Customers
	Quotes      Quotes
	Leases      Leases
	Allocations Allocations
	Money       Money
	Outbox      Outbox
	Audit       Audit
	Clock       clock.Clock
	Rules       Rules
}

// Rules are an installation's.
type Rules struct {
	Step     time.Duration // the smallest step of a window; 0: 60 s
	QuoteTTL time.Duration // 0: 10 min
	Horizon  time.Duration // how far ahead a lease may start; 0: 2 years
}

// Service sells capacity.
type Service struct{ Deps }

// New returns a Service.
func New(deps Deps) *Service {
	if deps.Rules.Step == 0 {
		deps.Rules.Step = time.Minute
	}
	if deps.Rules.QuoteTTL == 0 {
		deps.Rules.QuoteTTL = 10 * time.Minute
	}
	if deps.Rules.Horizon == 0 {
		deps.Rules.Horizon = 2 * 365 * 24 * time.Hour
	}
	return &Service{deps}
}
