package httpapi

import (
	"context"
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/power"
)

// GetLeaseNodePower shows what was done with an instance's power.
func (a Leases) GetLeaseNodePower(ctx context.Context, r api.GetLeaseNodePowerRequestObject) (api.GetLeaseNodePowerResponseObject, error) {
	view, err := a.nodePower(ctx, r.LeaseID, r.AllocationID)
	if err != nil {
		return nil, err
	}
	return api.GetLeaseNodePower200JSONResponse(view), nil
}

// SetLeaseNodePower has an instance's machine switched.
func (a Leases) SetLeaseNodePower(ctx context.Context, r api.SetLeaseNodePowerRequestObject) (api.SetLeaseNodePowerResponseObject, error) {
	id, allocation, err := a.instance(ctx, r.LeaseID, r.AllocationID)
	if err != nil {
		return nil, err
	}
	if _, err := a.Power.Wish(ctx, id, allocation, power.Goal(r.Body.Action)); err != nil {
		return nil, err
	}
	view, err := a.nodePower(ctx, r.LeaseID, r.AllocationID)
	if err != nil {
		return nil, err
	}
	return api.SetLeaseNodePower202JSONResponse(view), nil
}

// instance reads the two ids. The lease must be one that the actor may see: machines are nobody's rows.
func (a Leases) instance(ctx context.Context, leaseID, allocationID string) (ids.Lease, ids.Allocation, error) {
	id, err := idFromPath[ids.Lease](leaseID)
	if err != nil {
		return ids.Lease{}, ids.Allocation{}, err
	}
	allocation, err := idFromPath[ids.Allocation](allocationID)
	if err != nil {
		return ids.Lease{}, ids.Allocation{}, err
	}
	_, err = a.Leases.Get(ctx, id)
	return id, allocation, err
}

func (a Leases) nodePower(ctx context.Context, leaseID, allocationID string) (api.LeaseNodePower, error) {
	id, allocation, err := a.instance(ctx, leaseID, allocationID)
	if err != nil {
		return api.LeaseNodePower{}, err
	}
	t, err := a.Power.Tenancy(ctx, id, allocation)
	if err != nil {
		return api.LeaseNodePower{}, err
	}
	return newPowerView(allocation, t), nil
}

func newPowerView(allocation ids.Allocation, t power.Tenancy) api.LeaseNodePower {
	view := api.LeaseNodePower{AllocationID: allocation.String(), Power: api.LeaseNodePowerPower(power.Unknown), Operations: []api.PowerOperation{}}
	for _, past := range slices.Backward(t.Recent) {
		if past.Seen != "" {
			view.Power = api.LeaseNodePowerPower(past.Seen) // the latest is the last
		}
	}
	for _, past := range t.Recent {
		o := api.PowerOperation{ID: past.ID.String(), Action: string(past.Goal), State: api.PowerOperationState(past.State), AskedAt: past.CreatedAt}
		if past.Fault != nil {
			o.Detail = orNil(past.Fault.Detail)
		}
		if past.FinishedAt != (time.Time{}) {
			o.EndedAt = new(past.FinishedAt)
		}
		view.Operations = append(view.Operations, o)
	}
	return view
}
