package httpapi

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/inventory"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/money"
)

// Market is what is for rent, when, and for how much.
type Market struct {
	Catalog *catalog.Service
	Sites   *inventory.Service
	Sales   *booking.Service
	Clock   interface{ Now() time.Time }
}

// ListSites lists where there is capacity.
func (m Market) ListSites(ctx context.Context, _ api.ListSitesRequestObject) (api.ListSitesResponseObject, error) {
	sites, err := m.Sites.Sites(ctx)
	if err != nil {
		return nil, err
	}
	return api.ListSites200JSONResponse{Items: each(sites, func(s inventory.Site) api.Site {
		return api.Site{ID: s.ID.String(), Name: s.Name, Region: s.Region, Country: s.Country}
	})}, nil
}

// ListInstanceTypes lists what is sold, with today's prices and what is free now.
func (m Market) ListInstanceTypes(ctx context.Context, _ api.ListInstanceTypesRequestObject) (api.ListInstanceTypesResponseObject, error) {
	types, err := m.Catalog.Types(ctx)
	if err != nil {
		return nil, err
	}
	names, err := m.siteNames(ctx)
	if err != nil {
		return nil, err
	}
	views := make([]api.InstanceType, len(types))
	for i, t := range types {
		if views[i], err = m.typeView(ctx, t, names); err != nil {
			return nil, err
		}
	}
	return api.ListInstanceTypes200JSONResponse{Items: views}, nil
}

func (m Market) siteNames(ctx context.Context) (map[ids.Site]string, error) {
	sites, err := m.Sites.Sites(ctx)
	if err != nil {
		return nil, err
	}
	names := make(map[ids.Site]string, len(sites))
	for _, s := range sites {
		names[s.ID] = s.Name
	}
	return names, nil
}

func (m Market) typeView(ctx context.Context, t catalog.InstanceType, names map[ids.Site]string) (api.InstanceType, error) {
	view := api.InstanceType{
		Name: t.Name, Title: t.Title, Mode: api.InstanceTypeMode(t.Mode), GPUModel: t.GPUModel, GPUCount: t.GPUs, GPUMemoryBytes: t.GPUMemoryBytes,
		MIGProfile: t.MIGProfile, Infiniband: t.WithHCA, Offers: []api.Offer{},
	}
	prices, err := m.Catalog.Prices(ctx, t.Name, ids.Site{})
	if err != nil {
		return view, err
	}
	counts, err := m.Sales.FreeNow(ctx, t.Name)
	if err != nil {
		return view, err
	}
	now := m.Clock.Now()
	for _, p := range prices {
		if p.ValidFrom.After(now) || !p.ValidTo.IsZero() && !now.Before(p.ValidTo) {
			continue
		}
		site := names[p.Site]
		view.Offers = append(view.Offers, api.Offer{
			Site: site, Rate: newRateView(p.Rate, string(t.RatedPer)), MinDurationSeconds: int64(p.MinDuration / time.Second),
			MaxDurationSeconds: int64(p.MaxDuration / time.Second), NoticeSeconds: int64(p.Notice / time.Second),
			TotalInstances: counts[site].Total, FreeNow: counts[site].Free,
		})
	}
	return view, nil
}

func newRateView(r money.Rate, per string) api.Rate {
	return api.Rate{Micros: r.Micros, Currency: string(r.Currency), Per: api.RatePer(per)}
}

// ListPrices lists price versions, past ones included.
func (m Market) ListPrices(ctx context.Context, r api.ListPricesRequestObject) (api.ListPricesResponseObject, error) {
	types, err := m.Catalog.Types(ctx)
	if err != nil {
		return nil, err
	}
	byID := make(map[ids.Instance]catalog.InstanceType, len(types))
	for _, t := range types {
		byID[t.ID] = t
	}
	names, err := m.siteNames(ctx)
	if err != nil {
		return nil, err
	}
	var site ids.Site
	if r.Params.Site != nil {
		found, err := m.Sites.SiteByName(ctx, *r.Params.Site)
		if err != nil {
			return nil, err
		}
		site = found.ID
	}
	prices, err := m.Catalog.Prices(ctx, orZero(r.Params.InstanceType), site)
	if err != nil {
		return nil, err
	}
	return api.ListPrices200JSONResponse{Items: each(prices, func(p catalog.PriceVersion) api.PriceVersion {
		t := byID[p.InstanceType]
		return api.PriceVersion{
			ID: p.ID.String(), InstanceType: t.Name, Site: names[p.Site], Rate: newRateView(p.Rate, string(t.RatedPer)), ValidFrom: p.ValidFrom,
			ValidTo: instantOrNil(p.ValidTo),
		}
	})}, nil
}

const defaultCalendarStep = time.Hour

// GetAvailability is the calendar.
func (m Market) GetAvailability(ctx context.Context, r api.GetAvailabilityRequestObject) (api.GetAvailabilityResponseObject, error) {
	step := defaultCalendarStep
	if r.Params.StepSeconds != nil {
		step = time.Duration(*r.Params.StepSeconds) * time.Second
	}
	rows, err := m.Sales.Calendar(ctx, booking.CalendarQuery{
		InstanceType: r.Params.InstanceType, Site: orZero(r.Params.Site), From: r.Params.From.UTC(), To: r.Params.To.UTC(), Step: step,
	})
	if err != nil {
		return nil, err
	}
	return api.GetAvailability200JSONResponse{
		InstanceType: r.Params.InstanceType, StepSeconds: int(step / time.Second), From: instantOrNil(r.Params.From), To: instantOrNil(r.Params.To),
		Sites: each(rows, func(s booking.SiteCalendar) api.CalendarSite {
			return api.CalendarSite{Site: s.Site, Total: s.Total, Free: each(s.Free, func(n int) int { return n })}
		}),
	}, nil
}

// SearchAvailability ranks options.
func (m Market) SearchAvailability(ctx context.Context, r api.SearchAvailabilityRequestObject) (api.SearchAvailabilityResponseObject, error) {
	wish := booking.Wish{
		InstanceType: r.Body.InstanceType, Instances: r.Body.Instances, Site: orZero(r.Body.Site),
		Topology: booking.Topology(orElse(r.Body.Topology, api.TopologyAny)), Window: windowFrom(r.Body.Window),
		Duration: time.Duration(orZero(r.Body.DurationSeconds)) * time.Second, Earliest: orZero(r.Body.Earliest), LatestEnd: orZero(r.Body.LatestEnd),
	}
	options, err := m.Sales.Search(ctx, wish)
	if err != nil {
		return nil, err
	}
	return api.SearchAvailability200JSONResponse{Items: each(options, newOptionView)}, nil
}

func windowFrom(w *api.Window) lease.Window {
	if w == nil {
		return lease.Window{}
	}
	return lease.Window{Start: w.Start.UTC(), End: w.End.UTC()}
}

func newOptionView(o booking.Option) api.Option {
	return api.Option{
		Site: o.SiteName, Fabric: orNil(o.Fabric), Window: newWindowView(o.Window.Start, o.Window.End), Instances: o.Instances, Nodes: o.Placement.Nodes,
		LeavesSpanned: o.Placement.Leaves, Rate: newRateView(o.Price.Rate, string(o.Type.RatedPer)), Subtotal: newMoneyView(o.Subtotal),
		Tax: newMoneyView(o.Tax), Total: newMoneyView(o.Total()),
	}
}
