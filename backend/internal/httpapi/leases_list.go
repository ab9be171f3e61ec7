package httpapi

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/tenant"
)

// ListLeases lists the organization's leases, the newest first.
func (a Leases) ListLeases(ctx context.Context, r api.ListLeasesRequestObject) (api.ListLeasesResponseObject, error) {
	page, err := pageAfter[ids.Lease](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	filter := lease.Filter{After: page.ahead().After, Limit: page.ahead().Limit}
	if r.Params.ProjectID != nil {
		if filter.Project, err = idFromPath[ids.Project](*r.Params.ProjectID); err != nil {
			return nil, err
		}
	}
	for _, s := range orZero(r.Params.State) {
		filter.States = append(filter.States, lease.State(s))
	}
	items, link, err := a.list(ctx, filter, page)
	if err != nil {
		return nil, err
	}
	return api.ListLeases200JSONResponse{Body: api.LeaseList{Items: each(items, newLeaseView)}, Headers: api.ListLeases200ResponseHeaders{Link: link}}, nil
}

func (a Leases) list(ctx context.Context, filter lease.Filter, page idPage[ids.Lease]) ([]lease.Details, *string, error) {
	found, err := a.Leases.List(ctx, filter)
	if err != nil {
		return nil, nil, err
	}
	return cutPageByID(ctx, found, page, func(d lease.Details) ids.Lease { return d.ID })
}

// AdminListLeases lists everybody's leases that are under way or ahead, the newest first. The table of permissions lets only the
// operator's people come here; they act for the platform.
func (a Leases) AdminListLeases(ctx context.Context, r api.AdminListLeasesRequestObject) (api.AdminListLeasesResponseObject, error) {
	page, err := pageAfter[ids.Lease](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	items, link, err := a.list(tenant.AsPlatform(ctx), lease.Filter{
		After: page.ahead().After, Limit: page.ahead().Limit, States: []lease.State{lease.Reserved, lease.Provisioning, lease.Active, lease.Releasing},
	}, page)
	if err != nil {
		return nil, err
	}
	views := each(items, func(d lease.Details) api.Lease {
		view := newLeaseView(d)
		view.OrganizationID = orNil(d.Org.String())
		return view
	})
	return api.AdminListLeases200JSONResponse{Body: api.LeaseList{Items: views}, Headers: api.AdminListLeases200ResponseHeaders{Link: link}}, nil
}

// Metrics reads what agents have measured on a node. Package fleet implements it.
type Metrics interface {
	Samples(ctx context.Context, node ids.Node, from, to time.Time) ([]Sample, error)
}

const (
	defaultMetrics = 10 * time.Minute
	maxMetrics     = 24 * time.Hour
)

// GetLeaseMetrics shows the meters of the lease's own devices, while they were the lease's: never the tenant before or beside.
func (a Leases) GetLeaseMetrics(ctx context.Context, r api.GetLeaseMetricsRequestObject) (api.GetLeaseMetricsResponseObject, error) {
	id, err := idFromPath[ids.Lease](r.LeaseID)
	if err != nil {
		return nil, err
	}
	if from, to := r.Params.From, r.Params.To; from != nil && to != nil && !from.Before(*to) {
		return nil, fault.New(fault.Invalid, "invalid-period", "the period ends before it begins").At("/to", "must be later than from")
	}
	d, err := a.Leases.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	answer := api.GetLeaseMetrics200JSONResponse{Series: []api.MetricSeries{}}
	from, to, some := metricSpan(d, r.Params.From, r.Params.To, a.Clock.Now())
	if !some {
		return answer, nil
	}
	nodes, err := a.Leases.Nodes(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		samples, err := a.Metrics.Samples(tenant.AsPlatform(ctx), n.Node, from, to)
		if err != nil {
			return nil, err
		}
		answer.Series = append(answer.Series, seriesOf(n, samples, from, to)...)
	}
	return answer, nil
}

// metricSpan cuts the wanted span to the lease's active time.
func metricSpan(d lease.Details, wantedFrom, wantedTo *time.Time, now time.Time) (from, to time.Time, some bool) {
	if d.ActiveAt.IsZero() {
		return from, to, false
	}
	to = orElse(wantedTo, now)
	if !d.ReleasedAt.IsZero() && d.ReleasedAt.Before(to) {
		to = d.ReleasedAt
	}
	from = orElse(wantedFrom, to.Add(-defaultMetrics))
	if from.Before(d.ActiveAt) {
		from = d.ActiveAt
	}
	if to.Sub(from) > maxMetrics {
		from = to.Add(-maxMetrics)
	}
	return from, to, from.Before(to)
}
