package httpapi

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/lease"
)

// Quotes are firm offers.
type Quotes struct{ Sales *booking.Service }

// CreateQuote makes a firm offer.
func (q Quotes) CreateQuote(ctx context.Context, r api.CreateQuoteRequestObject) (api.CreateQuoteResponseObject, error) {
	wish := booking.Wish{
		InstanceType: r.Body.InstanceType, Instances: r.Body.Instances, Site: orZero(r.Body.Site),
		Topology: booking.Topology(orElse(r.Body.Topology, api.TopologyAny)), Window: windowFrom(r.Body.Window),
		Duration:      time.Duration(orZero(r.Body.DurationSeconds)) * time.Second,
		FailurePolicy: lease.FailurePolicy(orElse(r.Body.FailurePolicy, api.FailurePolicy(lease.Replace))),
	}
	if r.Body.ProjectID != nil {
		project, err := idFromBody[ids.Project](*r.Body.ProjectID, "/project_id")
		if err != nil {
			return nil, err
		}
		wish.Project = project
	}
	made, err := q.Sales.Quote(ctx, wish)
	if err != nil {
		return nil, err
	}
	return api.CreateQuote201JSONResponse(newQuoteView(made)), nil
}

// GetQuote shows a quote.
func (q Quotes) GetQuote(ctx context.Context, r api.GetQuoteRequestObject) (api.GetQuoteResponseObject, error) {
	id, err := idFromPath[ids.Quote](r.QuoteID)
	if err != nil {
		return nil, err
	}
	found, err := q.Sales.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.GetQuote200JSONResponse(newQuoteView(found)), nil
}

// ListQuotes lists quotes, the newest first.
func (q Quotes) ListQuotes(ctx context.Context, r api.ListQuotesRequestObject) (api.ListQuotesResponseObject, error) {
	page, err := pageAfter[ids.Quote](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	ahead := page.ahead()
	found, err := q.Sales.List(ctx, ahead.After, ahead.Limit)
	if err != nil {
		return nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(q booking.Quote) ids.Quote { return q.ID })
	if err != nil {
		return nil, err
	}
	return api.ListQuotes200JSONResponse{
		Body: api.QuoteList{Items: each(items, newQuoteView)}, Headers: api.ListQuotes200ResponseHeaders{Link: link},
	}, nil
}

func newQuoteView(q booking.Quote) api.Quote {
	return api.Quote{
		ID: q.ID.String(), ProjectID: q.Project.String(), InstanceType: q.TypeName, Site: q.SiteName, Class: api.LeaseClass(q.Class), Instances: q.Instances,
		Topology: api.Topology(q.Topology), Window: newWindowView(q.Window.Start, q.Window.End), Rate: newRateView(q.Rate, q.Terms.RatedPer),
		UnitsPerInstance: q.Terms.UnitsPerInstance, Subtotal: newMoneyView(q.Subtotal), Tax: newMoneyView(q.Tax), TaxRateBps: q.TaxRateBPS,
		Total: newMoneyView(q.Total), EarlyRefundBps: q.Terms.EarlyRefundBPS, FailurePolicy: api.FailurePolicy(q.Terms.FailurePolicy),
		RefundSchedule: each(q.Terms.RefundSchedule, func(s lease.RefundStep) api.RefundStep {
			return api.RefundStep{NoticeSeconds: s.NoticeSeconds, RefundBps: s.RefundBPS}
		}),
		TermsDigest: q.TermsDigest, LeavesSpanned: q.Candidate.Leaves, LeaseID: orNil(q.Lease.String()), ExpiresAt: q.ExpiresAt, CreatedAt: q.CreatedAt,
	}
}
