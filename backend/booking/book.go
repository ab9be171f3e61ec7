package booking

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/metering"
	"github.com/leasehold/leasehold/backend/outbox"
	"github.com/leasehold/leasehold/backend/tenant"
)

// BookInput turns a quote into a lease.
type BookInput struct {
	Quote    ids.Quote
	Name     string // "": made from the type
	SSHKeys  []ids.SSHKey
	UserData string
	Tags     map[string]string
}

// Book takes capacity and money in one transaction, or neither. It returns, with nothing changed:
//   - NotFound: no such quote; Expired, code "quote-expired"; Conflict, code "quote-used"
//   - Conflict, code "no-capacity", with fresh options in its facts: somebody else has what was left
//   - Unavailable, code "retry": the database had to break a deadlock; a new transaction may do better
//   - Unfunded, code "insufficient-balance", with the numbers; Forbidden, code "bookings-suspended"
func (s *Service) Book(ctx context.Context, in BookInput) (lease.Lease, error) {
	var made lease.Lease
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		actor, err := tenant.MustAct(ctx)
		if err != nil {
			return err
		}
		q, keys, err := s.bookable(ctx, actor, in)
		if err != nil {
			return err
		}
		t, err := s.Catalog.TypeByID(ctx, q.InstanceType)
		if err != nil {
			return err
		}
		now := s.Clock.Now()
		window, err := s.windowOf(q, t, now)
		if err != nil {
			return err
		}
		placed, err := s.take(ctx, q, t, window, now)
		if err != nil {
			return err
		}
		made = newLease(actor, in, q, t, window, placed, now)
		return s.write(ctx, made, q, t, keys, placed, now)
	})
	if err != nil {
		return lease.Lease{}, fmt.Errorf("book: %w", err)
	}
	return made, nil
}

// bookable locks the quote and checks all that needs no capacity.
func (s *Service) bookable(ctx context.Context, actor tenant.Actor, in BookInput) (Quote, []lease.SSHKey, error) {
	q, err := s.Quotes.QuoteForUpdate(ctx, in.Quote)
	if err != nil {
		return q, nil, err
	}
	customer, err := s.Customers.Customer(ctx, actor.Org)
	if err != nil {
		return q, nil, err
	}
	switch {
	case !actor.Project.IsZero() && q.Project != actor.Project:
		return q, nil, fault.New(fault.NotFound, "quote-not-found", "there is no such quote")
	case !q.Lease.IsZero():
		return q, nil, fault.New(fault.Conflict, "quote-used", "this quote was booked already").With("lease_id", q.Lease.String())
	case !s.Clock.Now().Before(q.ExpiresAt):
		return q, nil, fault.New(fault.Expired, "quote-expired", "this quote expired at %s; ask for a new one", q.ExpiresAt.Format(time.RFC3339))
	case customer.Suspended:
		return q, nil, errSuspended()
	}
	if err := customer.Policy.permit(q.InstanceType, q.Site, q.Window.Duration(), q.Total); err != nil {
		return q, nil, err // it may have changed since the quote
	}
	keys, err := s.Customers.SSHKeys(ctx, in.SSHKeys)
	if err != nil {
		return q, nil, err
	}
	if len(keys) != len(in.SSHKeys) || len(keys) == 0 {
		return q, nil, fault.New(fault.Invalid, "ssh-key-unknown", "name at least one SSH key, each of them your organization's").At("/ssh_key_ids", "has a key that is not yours")
	}
	return q, keys, nil
}

// windowOf is the quote's window; as soon as possible means from now, so that an on-demand window moves with the time that the
// customer took to decide.
func (s *Service) windowOf(q Quote, t catalog.InstanceType, now time.Time) (lease.Window, error) {
	if q.Class == lease.OnDemand {
		start := maxTime(q.Window.Start, ceil(now.Add(t.Lead), s.Rules.Step))
		return lease.Window{Start: start, End: start.Add(q.Window.Duration())}, nil
	}
	if q.Window.Start.Before(now.Add(t.Lead)) {
		return lease.Window{}, fault.New(fault.Expired, "quote-expired", "this quote's start is too near by now; ask for a new one")
	}
	return q.Window, nil
}

const (
	// placeTries is how often a booking looks for machines when others are faster. Each race that it loses, somebody has won.
	placeTries = 32
	// queueAfter is how many races it loses before it queues: then only newcomers can be faster.
	queueAfter = 3
)

// errRaceLost says that somebody else took a machine between the look and the lock.
var errRaceLost = errors.New("somebody else took the machine")

// take finds the best placement and makes it the caller's. A race for a machine that is lost is followed by another look, which sees what
// the winner took and holds no machine meanwhile.
//
// It returns a Conflict fault, code "no-capacity", with fresh options.
func (s *Service) take(ctx context.Context, q Quote, t catalog.InstanceType, w lease.Window, now time.Time) (Placement, error) {
	demand := Demand{Type: t, Instances: q.Instances, Occupied: occupied(t, w), Topology: q.Topology}
	query := PoolQuery{Type: t, Site: q.Site, Time: around(demand.Occupied), Needed: demand.Occupied, Now: now, HeardSince: heardSince(demand.Occupied, now)}
	for try := range placeTries {
		if try == queueAfter {
			if err := s.Market.Queue(ctx, q.Site, t.Hardware); err != nil {
				return Placement{}, err
			}
		}
		demand.Seed = rand.Uint64() //nolint:gosec // spreads equals, guards nothing
		var placed Placement
		err := s.Tx.Attempt(ctx, func(ctx context.Context) (err error) {
			placed, err = s.grab(ctx, demand, query)
			return err
		})
		switch {
		case errors.Is(err, errRaceLost):
			continue
		case fault.CodeOf(err) == "no-capacity":
			return Placement{}, s.errNoCapacity(ctx, q)
		}
		return placed, err
	}
	return Placement{}, s.errNoCapacity(ctx, q)
}

// grab looks without locks, locks the machines that it found, and looks again at what they have free.
func (s *Service) grab(ctx context.Context, demand Demand, query PoolQuery) (Placement, error) {
	pools, err := s.Market.Pools(ctx, query)
	if err != nil {
		return Placement{}, err
	}
	found := Place(demand, pools)
	if len(found) == 0 {
		return Placement{}, errFull()
	}
	query.Nodes = nodesOf(found[0])
	if err := s.Market.LockNodes(ctx, query.Nodes); err != nil {
		return Placement{}, err
	}
	if pools, err = s.Market.Pools(ctx, query); err != nil {
		return Placement{}, err
	}
	for i := range pools {
		pools[i].Spares = 0 // they were kept back in the first look
	}
	if found = Place(demand, pools); len(found) == 0 {
		return Placement{}, errRaceLost
	}
	return found[0], nil
}

func nodesOf(p Placement) []ids.Node {
	seen := map[ids.Node]bool{}
	var nodes []ids.Node
	for _, spot := range p.Spots {
		if !seen[spot.Node] {
			seen[spot.Node] = true
			nodes = append(nodes, spot.Node)
		}
	}
	return nodes
}

func errFull() *fault.Fault {
	return fault.New(fault.Conflict, "no-capacity", "somebody else has booked what was free")
}

// errNoCapacity offers what else there is: the same elsewhere, or the same a little later.
func (s *Service) errNoCapacity(ctx context.Context, q Quote) error {
	refusal := errFull()
	wish := Wish{
		InstanceType: q.TypeName, Instances: q.Instances, Topology: q.Topology, Duration: q.Window.Duration(),
		Earliest: ceil(q.Window.Start, s.Rules.Step), LatestEnd: ceil(q.Window.End, s.Rules.Step).Add(7 * 24 * time.Hour),
	}
	options, err := s.search(ctx, wish)
	if err != nil {
		return refusal // the refusal counts, not that nothing can be offered instead
	}
	offers := make([]map[string]any, 0, 3)
	for _, o := range options[:min(len(options), 3)] {
		offers = append(offers, map[string]any{"site": o.SiteName, "start": o.Window.Start, "end": o.Window.End, "total_minor": o.Total().Minor})
	}
	return refusal.With("options", offers)
}

func newLease(actor tenant.Actor, in BookInput, q Quote, t catalog.InstanceType, w lease.Window, placed Placement, now time.Time) lease.Lease {
	name := in.Name
	if name == "" {
		name = t.Name
	}
	tags := in.Tags
	if tags == nil {
		tags = map[string]string{}
	}
	return lease.Lease{
		ID: ids.Make[ids.Lease](), Org: q.Org, Project: q.Project, Name: name, Quote: q.ID, InstanceType: t.ID, Site: placed.Site, Fabric: placed.Fabric,
		Class: q.Class, Instances: q.Instances, Start: w.Start, End: w.End, State: lease.Reserved, FailurePolicy: q.Terms.FailurePolicy,
		Currency: q.Rate.Currency, Image: t.Image, UserData: in.UserData, Tags: tags, Version: 1, CreatedBy: actor.Name(), CreatedAt: now,
	}
}

// write puts down everything that a booking is.
func (s *Service) write(ctx context.Context, l lease.Lease, q Quote, t catalog.InstanceType, keys []lease.SSHKey, placed Placement, now time.Time) error {
	if err := s.Leases.Insert(ctx, l); err != nil {
		return err
	}
	segment := q.segment(lease.Window{Start: l.Start, End: l.End}, now)
	if err := s.Leases.InsertSegment(ctx, l, segment); err != nil {
		return err
	}
	if err := s.Leases.InsertSSHKeys(ctx, l, keys); err != nil {
		return err
	}
	held := occupied(t, lease.Window{Start: l.Start, End: l.End})
	held.Start = maxTime(held.Start, now)
	allocations := make([]lease.Allocation, len(placed.Spots))
	for i, spot := range placed.Spots {
		allocations[i] = lease.Allocation{
			ID: ids.Make[ids.Allocation](), Node: spot.Node, Lease: l.ID, Ordinal: i, Slots: spot.Slots, Occupied: held, State: lease.Held, CreatedAt: now,
		}
	}
	if err := s.Allocations.Insert(ctx, allocations...); err != nil {
		return err
	}
	total, err := metering.Total([]lease.Segment{segment}, l.Instances)
	if err != nil {
		return err
	}
	if err := s.Money.Hold(ctx, l.ID, l.Org, total); err != nil {
		return err
	}
	if err := s.Quotes.UseQuote(ctx, q.ID, l.ID); err != nil {
		return err
	}
	data := map[string]any{"quote": q.ID.String(), "total_minor": total.Minor, "instances": l.Instances}
	if err := s.record(ctx, l, lease.EventBooked, data); err != nil {
		return err
	}
	if err := s.Audit.Record(ctx, "lease.book", l.ID.String(), nil, data); err != nil {
		return err
	}
	if held.Start.After(now) {
		return nil // until then the lease is only rows; a scan begins it
	}
	return s.nudge(ctx, l.ID)
}

func (s *Service) record(ctx context.Context, l lease.Lease, what lease.EventType, data map[string]any) error {
	actor, err := tenant.MustAct(ctx)
	if err != nil {
		return err
	}
	_, err = s.Leases.AppendEvent(ctx, lease.Event{Lease: l.ID, Org: l.Org, Type: what, At: s.Clock.Now(), Actor: actor.Name(), Data: data})
	return err
}

func (s *Service) nudge(ctx context.Context, id ids.Lease) error {
	return s.Outbox.Put(ctx, outbox.LeaseNudge, id.String(), struct{}{}, s.Clock.Now())
}
