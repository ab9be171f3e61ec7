package booking

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/metering"
	"github.com/leasehold/leasehold/backend/money"
	"github.com/leasehold/leasehold/backend/tenant"
)

// MaxInstances bounds one lease.
const MaxInstances = 10_000

// Wish is what somebody wants to rent. Give Window for a reserved lease; Duration alone for one that starts as soon as it can; or
// Duration with Earliest and LatestEnd for the best window between them.
type Wish struct {
	InstanceType  string
	Instances     int
	Site          string // "": any
	Topology      Topology
	Window        lease.Window
	Duration      time.Duration
	Earliest      time.Time
	LatestEnd     time.Time
	FailurePolicy lease.FailurePolicy
	Project       ids.Project // zero: the default one
}

// Option is one way to have a wish fulfilled, with its price.
type Option struct {
	Placement Placement
	SiteName  string
	Fabric    string
	Class     lease.Class
	Window    lease.Window
	Instances int
	Type      catalog.InstanceType
	Price     catalog.PriceVersion
	Subtotal  money.Amount
	Tax       money.Amount
}

// Total is the worst case: all of it used, with tax.
func (o Option) Total() money.Amount { return o.Subtotal.Add(o.Tax) }

// validate checks what needs no look at capacity.
func (w Wish) validate(rules Rules) error {
	bad := fault.New(fault.Invalid, "invalid-wish", "the request cannot be fulfilled as it is written")
	if w.Instances < 1 || w.Instances > MaxInstances {
		bad = bad.At("/instances", fmt.Sprintf("must be between 1 and %d", MaxInstances))
	}
	if !slices.Contains([]Topology{Anywhere, SameLeaf, SamePod}, w.Topology) {
		bad = bad.At("/topology", "must be any, same_leaf or same_pod")
	}
	exact := !w.Window.Start.IsZero() || !w.Window.End.IsZero()
	switch {
	case exact && w.Duration != 0:
		bad = bad.At("/duration_seconds", "give either a window or a duration")
	case exact && !w.Window.Start.Before(w.Window.End):
		bad = bad.At("/window/end", "must be after the start")
	case exact && (w.Window.Start.Truncate(rules.Step) != w.Window.Start || w.Window.End.Truncate(rules.Step) != w.Window.End):
		bad = bad.At("/window", fmt.Sprintf("start and end must be whole multiples of %s", rules.Step))
	case !exact && w.Duration <= 0:
		bad = bad.At("/duration_seconds", "give a window or a duration")
	case !exact && w.Duration.Truncate(rules.Step) != w.Duration:
		bad = bad.At("/duration_seconds", fmt.Sprintf("must be a whole multiple of %s", rules.Step))
	case w.Earliest.IsZero() != w.LatestEnd.IsZero():
		bad = bad.At("/latest_end", "earliest and latest_end go together")
	case !w.Earliest.IsZero() && w.LatestEnd.Sub(w.Earliest) < w.Duration:
		bad = bad.At("/latest_end", "the duration does not fit between earliest and latest_end")
	}
	if len(bad.Fields) > 0 {
		return bad
	}
	return nil
}

// maxFlexibleStarts bounds how many starts a flexible search tries.
const maxFlexibleStarts = 96

// windows lists the windows to try, with their class: one for an exact wish or for as soon as possible, several for a flexible one.
func (s *Service) windows(w Wish, t catalog.InstanceType, now time.Time) ([]lease.Window, lease.Class) {
	if !w.Window.Start.IsZero() {
		return []lease.Window{{Start: w.Window.Start.UTC(), End: w.Window.End.UTC()}}, lease.ReservedClass
	}
	if w.Earliest.IsZero() {
		start := ceil(now.Add(t.Lead), s.Rules.Step)
		return []lease.Window{{Start: start, End: start.Add(w.Duration)}}, lease.OnDemand
	}
	first, last := ceil(maxTime(w.Earliest, now.Add(t.Lead)), s.Rules.Step), w.LatestEnd.Add(-w.Duration)
	step := max((last.Sub(first) / maxFlexibleStarts).Truncate(s.Rules.Step), s.Rules.Step)
	var all []lease.Window
	for start := first; !start.After(last); start = start.Add(step) {
		all = append(all, lease.Window{Start: start, End: start.Add(w.Duration)})
	}
	return all, lease.ReservedClass
}

func ceil(t time.Time, step time.Duration) time.Time {
	if floor := t.Truncate(step); floor.Before(t) {
		return floor.Add(step)
	}
	return t
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// occupied is how long a lease of the type takes capacity.
func occupied(t catalog.InstanceType, w lease.Window) lease.Window {
	return lease.Window{Start: w.Start.Add(-t.Lead), End: w.End.Add(t.Turnaround)}
}

// checkWindow refuses a window that the price's rules do not allow.
func (s *Service) checkWindow(w lease.Window, class lease.Class, t catalog.InstanceType, p catalog.PriceVersion, now time.Time) error {
	bad := fault.New(fault.Invalid, "invalid-window", "the window is not for sale")
	switch {
	case w.Start.Before(now):
		bad = bad.At("/window/start", "is in the past")
	case class == lease.ReservedClass && w.Start.Before(now.Add(max(p.Notice, t.Lead))):
		bad = bad.At("/window/start", fmt.Sprintf("must be at least %s ahead, or leave the window out to start as soon as possible", max(p.Notice, t.Lead)))
	case w.Start.After(now.Add(s.Rules.Horizon)):
		bad = bad.At("/window/start", fmt.Sprintf("must be within %s", s.Rules.Horizon))
	case w.Duration() < p.MinDuration:
		bad = bad.At("/window", fmt.Sprintf("must last at least %s", p.MinDuration))
	case w.Duration() > p.MaxDuration:
		bad = bad.At("/window", fmt.Sprintf("must last at most %s", p.MaxDuration))
	default:
		return nil
	}
	return bad
}

// Search finds the best options, best first; none is an empty list. It locks and holds nothing.
//
// It returns Invalid faults for wishes that make no sense, and a NotFound fault for an unknown type or site.
func (s *Service) Search(ctx context.Context, w Wish) ([]Option, error) {
	var options []Option
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		options, err = s.search(ctx, w)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	return options, nil
}

func (s *Service) search(ctx context.Context, w Wish) ([]Option, error) {
	if w.Topology == "" {
		w.Topology = Anywhere
	}
	if err := w.validate(s.Rules); err != nil {
		return nil, err
	}
	actor, err := tenant.MustAct(ctx)
	if err != nil {
		return nil, err
	}
	customer, err := s.Customers.Customer(ctx, actor.Org)
	if err != nil {
		return nil, err
	}
	t, err := s.Catalog.TypeByName(ctx, w.InstanceType)
	if err != nil {
		return nil, err
	}
	names, err := s.Market.SiteNames(ctx)
	if err != nil {
		return nil, err
	}
	site, err := siteNamed(names, w.Site)
	if err != nil {
		return nil, err
	}
	now := s.Clock.Now()
	prices, err := s.pricesBySite(ctx, t, site, customer.Currency, now)
	if err != nil {
		return nil, err
	}
	windows, class := s.windows(w, t, now)
	return s.options(ctx, searching{w, t, site, names, prices, customer, class, now}, windows)
}

// searching is a wish with everything that it is judged by.
type searching struct {
	wish     Wish
	typ      catalog.InstanceType
	site     ids.Site
	names    map[ids.Site]string
	prices   map[ids.Site]catalog.PriceVersion
	customer Customer
	class    lease.Class
	now      time.Time
}

const maxOptions = 20

func (s *Service) options(ctx context.Context, in searching, windows []lease.Window) ([]Option, error) {
	options, refused := []Option{}, error(nil)
	if len(windows) == 0 {
		return options, nil
	}
	span := occupied(in.typ, lease.Window{Start: windows[0].Start, End: windows[len(windows)-1].End})
	query := PoolQuery{Type: in.typ, Site: in.site, Time: around(span), Now: in.now, HeardSince: heardSince(span, in.now)}
	if len(windows) == 1 {
		query.Needed = span
	}
	pools, err := s.Market.Pools(ctx, query)
	if err != nil {
		return nil, err
	}
	for _, window := range windows {
		demand := Demand{Type: in.typ, Instances: in.wish.Instances, Occupied: occupied(in.typ, window), Topology: in.wish.Topology, Seed: rand.Uint64()} //nolint:gosec // spreads equals, guards nothing
		for _, placed := range Place(demand, pools) {
			price, sold := in.prices[placed.Site]
			if !sold {
				continue
			}
			if err := s.checkWindow(window, in.class, in.typ, price, in.now); err != nil {
				refused = err
				continue
			}
			option, err := priced(in, placed, price, window, fabricName(pools, placed))
			if err != nil {
				return nil, err
			}
			options = append(options, option)
		}
	}
	if len(options) == 0 && refused != nil {
		return nil, refused
	}
	if len(windows) > 1 {
		slices.SortStableFunc(options, func(a, b Option) int {
			if a.Placement.Leaves != b.Placement.Leaves {
				return a.Placement.Leaves - b.Placement.Leaves
			}
			return a.Window.Start.Compare(b.Window.Start)
		})
	}
	return options[:min(len(options), maxOptions)], nil
}

const (
	// silentAfter is how long an agent may be silent before its machine counts as unreachable: six heartbeats.
	silentAfter = time.Minute
	// soon is how near a start must be for that to matter.
	soon = 15 * time.Minute
)

// heardSince is the instant since which a machine must have been heard, to be given to what occupies that time.
func heardSince(occupied lease.Window, now time.Time) time.Time {
	if occupied.Start.After(now.Add(soon)) {
		return time.Time{}
	}
	return now.Add(-silentAfter)
}

// around widens a time by what placement looks at beside it.
func around(w lease.Window) lease.Window {
	return lease.Window{Start: w.Start.Add(-slackMargin), End: w.End.Add(slackMargin)}
}

func fabricName(pools []Pool, p Placement) string {
	for _, pool := range pools {
		if pool.Site == p.Site && pool.Fabric == p.Fabric {
			return pool.FabricName
		}
	}
	return ""
}

func priced(in searching, placed Placement, price catalog.PriceVersion, window lease.Window, fabric string) (Option, error) {
	segment := segmentOf(1, window, in.typ, price, in.customer.TaxRateBPS, in.wish.FailurePolicy, in.now)
	subtotal, tax, err := metering.Worth([]lease.Segment{segment}, in.wish.Instances)
	if err != nil {
		return Option{}, err
	}
	return Option{
		Placement: placed, SiteName: in.names[placed.Site], Fabric: fabric, Class: in.class, Window: window, Instances: in.wish.Instances, Type: in.typ,
		Price: price, Subtotal: subtotal, Tax: tax,
	}, nil
}

// segmentOf freezes a price version's rules for a window.
func segmentOf(seq int, w lease.Window, t catalog.InstanceType, p catalog.PriceVersion, tax int, policy lease.FailurePolicy, now time.Time) lease.Segment {
	if policy == "" {
		policy = lease.Replace
	}
	units := int64(1)
	if t.RatedPer == catalog.PerGPU {
		units = int64(t.GPUs)
	}
	return lease.Segment{
		Seq: seq, Start: w.Start, End: w.End, PriceVersion: p.ID, Rate: p.Rate, TaxRateBPS: tax, CreatedAt: now,
		Terms: lease.Terms{
			RatedPer: string(t.RatedPer), UnitsPerInstance: units, MinDurationSeconds: int64(p.MinDuration / time.Second),
			MaxDurationSeconds: int64(p.MaxDuration / time.Second), NoticeSeconds: int64(p.Notice / time.Second), RefundSchedule: p.Refunds,
			EarlyRefundBPS: p.EarlyRefundBPS, FailurePolicy: policy,
		},
	}
}

func siteNamed(names map[ids.Site]string, name string) (ids.Site, error) {
	if name == "" {
		return ids.Site{}, nil
	}
	for id, known := range names {
		if known == name {
			return id, nil
		}
	}
	return ids.Site{}, fault.New(fault.NotFound, "site-not-found", "there is no such site")
}

// pricesBySite reads today's prices in the customer's currency.
func (s *Service) pricesBySite(ctx context.Context, t catalog.InstanceType, site ids.Site, currency money.Currency, now time.Time) (map[ids.Site]catalog.PriceVersion, error) {
	prices, err := s.Catalog.Prices(ctx, t.ID, site, now)
	if err != nil {
		return nil, err
	}
	bySite := map[ids.Site]catalog.PriceVersion{}
	for _, p := range prices {
		if p.Rate.Currency == currency {
			bySite[p.Site] = p
		}
	}
	return bySite, nil
}
