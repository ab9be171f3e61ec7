package booking

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/money"
	"github.com/leasehold/leasehold/backend/tenant"
)

// Quote is a firm offer: in price until it expires, not in capacity.
type Quote struct {
	ID           ids.Quote
	Org          ids.Org
	Project      ids.Project
	InstanceType ids.Instance
	TypeName     string // read only
	Site         ids.Site
	SiteName     string // read only
	PriceVersion ids.Price
	Class        lease.Class
	Instances    int
	Topology     Topology
	Window       lease.Window
	Rate         money.Rate
	TaxRateBPS   int
	Subtotal     money.Amount
	Tax          money.Amount
	Total        money.Amount // the worst case; what booking holds
	Terms        lease.Terms
	TermsDigest  string
	Candidate    Candidate
	ExpiresAt    time.Time
	Lease        ids.Lease // set once it was used
	CreatedBy    string
	CreatedAt    time.Time
}

// Candidate is the placement that the search found; not a promise.
type Candidate struct {
	Fabric ids.Fabric `json:"fabric"`
	Nodes  int        `json:"nodes"`
	Leaves int        `json:"leaves"`
	Spots  []Spot     `json:"spots"`
}

// Segment is the price lock that a booking of the quote in that window makes.
func (q Quote) segment(w lease.Window, now time.Time) lease.Segment {
	return lease.Segment{
		Seq: 1, Start: w.Start, End: w.End, PriceVersion: q.PriceVersion, Rate: q.Rate, TaxRateBPS: q.TaxRateBPS, Terms: q.Terms, CreatedAt: now,
	}
}

// Quote makes an offer for the best option.
//
// Beyond Search's faults it returns a Conflict fault, code "no-capacity", when nothing is free, which says what would help, and
// a Forbidden fault, code "bookings-suspended".
func (s *Service) Quote(ctx context.Context, w Wish) (Quote, error) {
	var made Quote
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		actor, err := tenant.MustAct(ctx)
		if err != nil {
			return err
		}
		customer, err := s.Customers.Customer(ctx, actor.Org)
		if err != nil {
			return err
		}
		if customer.Suspended {
			return errSuspended()
		}
		project, err := s.projectOf(ctx, actor, w.Project)
		if err != nil {
			return err
		}
		options, err := s.search(ctx, w)
		if err != nil {
			return err
		}
		if options, err = customer.Policy.filter(options); err != nil {
			return err
		}
		if len(options) == 0 {
			return s.shortage(ctx, w)
		}
		if made, err = s.offer(actor, customer, project, w, options[0]); err != nil {
			return err
		}
		if err := customer.Policy.permit(made.InstanceType, made.Site, made.Window.Duration(), made.Total); err != nil {
			return err
		}
		if err := s.Quotes.InsertQuote(ctx, made); err != nil {
			return err
		}
		return s.Audit.Record(ctx, "quote.created", made.ID.String(), nil, map[string]any{
			"instance_type_id": made.InstanceType.String(), "instances": made.Instances, "total_minor": made.Total.Minor, "currency": made.Total.Currency,
		})
	})
	if err != nil {
		return Quote{}, fmt.Errorf("quote: %w", err)
	}
	return made, nil
}

func errSuspended() error {
	return fault.New(fault.Forbidden, "bookings-suspended", "your organization may not book at the moment; running leases go on")
}

// projectOf finds the project; a credential of one project reaches no other.
func (s *Service) projectOf(ctx context.Context, actor tenant.Actor, wanted ids.Project) (ids.Project, error) {
	if !actor.Project.IsZero() {
		if !wanted.IsZero() && wanted != actor.Project {
			return ids.Project{}, fault.New(fault.NotFound, "project-not-found", "there is no such project")
		}
		wanted = actor.Project
	}
	return s.Customers.Project(ctx, wanted)
}

func (s *Service) offer(actor tenant.Actor, customer Customer, project ids.Project, w Wish, o Option) (Quote, error) {
	now := s.Clock.Now()
	segment := segmentOf(1, o.Window, o.Type, o.Price, customer.TaxRateBPS, w.FailurePolicy, now)
	digest, err := digestOf(segment.Terms)
	if err != nil {
		return Quote{}, err
	}
	topology := w.Topology
	if topology == "" {
		topology = Anywhere
	}
	return Quote{
		ID: ids.Make[ids.Quote](), Org: actor.Org, Project: project, InstanceType: o.Type.ID, TypeName: o.Type.Name, Site: o.Placement.Site,
		SiteName: o.SiteName, PriceVersion: o.Price.ID, Class: o.Class, Instances: o.Instances, Topology: topology, Window: o.Window, Rate: o.Price.Rate,
		TaxRateBPS: customer.TaxRateBPS, Subtotal: o.Subtotal, Tax: o.Tax, Total: o.Total(), Terms: segment.Terms, TermsDigest: digest,
		Candidate: Candidate{Fabric: o.Placement.Fabric, Nodes: o.Placement.Nodes, Leaves: o.Placement.Leaves, Spots: o.Placement.Spots},
		ExpiresAt: now.Add(s.Rules.QuoteTTL), CreatedBy: actor.Name(), CreatedAt: now,
	}, nil
}

// digestOf names the terms: what the customer saw is what was booked.
func digestOf(terms lease.Terms) (string, error) {
	raw, err := json.Marshal(terms)
	if err != nil {
		return "", fmt.Errorf("encode terms: %w", err)
	}
	sum := sha256.Sum256(raw)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// Get returns a quote. It returns a NotFound fault.
func (s *Service) Get(ctx context.Context, id ids.Quote) (Quote, error) {
	var q Quote
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		q, err = s.Quotes.Quote(ctx, id)
		return err
	})
	if actor, ok := tenant.ActorFrom(ctx); err == nil && ok && !actor.Project.IsZero() && q.Project != actor.Project {
		return Quote{}, fault.New(fault.NotFound, "quote-not-found", "there is no such quote")
	}
	return q, err
}

// List lists quotes, the newest first.
func (s *Service) List(ctx context.Context, after ids.Quote, limit int) ([]Quote, error) {
	var all []Quote
	actor, _ := tenant.ActorFrom(ctx) // one that is limited to a project sees that one's only
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		all, err = s.Quotes.ListQuotes(ctx, actor.Project, after, limit)
		return err
	})
	return all, err
}
