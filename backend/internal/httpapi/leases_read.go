package httpapi

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/lease"
)

// maxWait is the longest long poll; limitTime leaves a request more than that.
const maxWait = 60 * time.Second

// waitFor reads how long the client wants to wait: 0 without the parameter.
func waitFor(wait *string) (time.Duration, error) {
	if wait == nil {
		return 0, nil
	}
	d, err := time.ParseDuration(*wait)
	if err != nil || d < 0 || d > maxWait {
		return 0, fault.New(fault.Invalid, "invalid-request", "the request has defects").At("/wait", "is at most 60s")
	}
	return d, nil
}

// GetLease reads a lease; with wait, as soon as it has news.
func (a Leases) GetLease(ctx context.Context, r api.GetLeaseRequestObject) (api.GetLeaseResponseObject, error) {
	id, err := idFromPath[ids.Lease](r.LeaseID)
	if err != nil {
		return nil, err
	}
	wait, err := waitFor(r.Params.Wait)
	if err != nil {
		return nil, err
	}
	details, err := a.await(ctx, id, orZero(r.Params.AfterEvent), wait)
	if err != nil {
		return nil, err
	}
	return api.GetLease200JSONResponse{Body: newLeaseView(details), Headers: api.GetLease200ResponseHeaders{ETag: etag(details.Version)}}, nil
}

func (a Leases) await(ctx context.Context, id ids.Lease, after int64, wait time.Duration) (lease.Details, error) {
	if wait == 0 {
		return a.Leases.Get(ctx, id)
	}
	return a.Leases.Await(ctx, id, after, wait)
}

// ListLeaseNodes reads a lease's instances.
func (a Leases) ListLeaseNodes(ctx context.Context, r api.ListLeaseNodesRequestObject) (api.ListLeaseNodesResponseObject, error) {
	id, err := idFromPath[ids.Lease](r.LeaseID)
	if err != nil {
		return nil, err
	}
	nodes, err := a.Leases.Nodes(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.ListLeaseNodes200JSONResponse{Items: each(nodes, newLeaseNodeView)}, nil
}

// ListLeaseEvents reads a lease's log, or streams it as it grows.
func (a Leases) ListLeaseEvents(ctx context.Context, r api.ListLeaseEventsRequestObject) (api.ListLeaseEventsResponseObject, error) {
	id, err := idFromPath[ids.Lease](r.LeaseID)
	if err != nil {
		return nil, err
	}
	after := orZero(r.Params.After)
	if wantsEventStream(ctx) {
		if _, err := a.Leases.Get(ctx, id); err != nil {
			return nil, err // while it can still be said with a status
		}
		return eventStream{ctx: ctx, after: orElse(r.Params.LastEventID, after), next: a.followEvents(id)}, nil
	}
	events, err := a.Leases.Events(ctx, id, after, pageLimit(r.Params.Limit))
	if err != nil {
		return nil, err
	}
	return api.ListLeaseEvents200JSONResponse{Items: each(events, newLeaseEventView)}, nil
}

func (a Leases) followEvents(id ids.Lease) func(ctx context.Context, after int64) ([]serverEvent, bool, error) {
	return func(ctx context.Context, after int64) ([]serverEvent, bool, error) {
		events, over, err := a.Leases.AwaitEvents(ctx, id, after)
		return each(events, func(e lease.Event) serverEvent {
			return serverEvent{ID: e.Seq, Name: string(e.Type), Data: newLeaseEventView(e)}
		}), over, err
	}
}

// GetLeaseUsage reads a lease's usage timeline with its charges.
func (a Leases) GetLeaseUsage(ctx context.Context, r api.GetLeaseUsageRequestObject) (api.GetLeaseUsageResponseObject, error) {
	id, err := idFromPath[ids.Lease](r.LeaseID)
	if err != nil {
		return nil, err
	}
	if _, err := a.Leases.Get(ctx, id); err != nil { // knows the actor's project, too
		return nil, err
	}
	usage, err := a.Usage.Usage(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.GetLeaseUsage200JSONResponse{
		Intervals: each(usage.Intervals, newUsageIntervalView), Lines: each(usage.Lines, newChargeLineView),
		Charged: newMoneyView(usage.Charged), Forecast: newMoneyView(usage.Forecast),
	}, nil
}

// GetLeaseIsolation reads a lease's partition and its proofs.
func (a Leases) GetLeaseIsolation(ctx context.Context, r api.GetLeaseIsolationRequestObject) (api.GetLeaseIsolationResponseObject, error) {
	id, err := idFromPath[ids.Lease](r.LeaseID)
	if err != nil {
		return nil, err
	}
	is, err := a.Leases.Isolation(ctx, id)
	if err != nil {
		return nil, err
	}
	view := api.GetLeaseIsolation200JSONResponse{
		Applies: is.Applies, State: orNil(is.State), Attestations: each(is.Attestations, newAttestationView),
		Ports: each(is.Ports, func(p lease.IsolationPort) api.IsolationPort {
			return api.IsolationPort{GUID: p.GUID, Node: p.Node, Joined: p.Joined}
		}),
	}
	if is.PKey != 0 {
		view.Pkey = orNil(fmt.Sprintf("0x%04x", is.PKey))
	}
	return view, nil
}

// ListWipeCertificates reads what was proved to be erased.
func (a Leases) ListWipeCertificates(ctx context.Context, r api.ListWipeCertificatesRequestObject) (api.ListWipeCertificatesResponseObject, error) {
	id, err := idFromPath[ids.Lease](r.LeaseID)
	if err != nil {
		return nil, err
	}
	certificates, err := a.Leases.WipeCertificates(ctx, id)
	if err != nil {
		return nil, err
	}
	return api.ListWipeCertificates200JSONResponse{Items: each(certificates, newWipeCertificateView)}, nil
}
