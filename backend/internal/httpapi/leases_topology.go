package httpapi

import (
	"context"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/lease"
)

// GetLeaseNodeTopology reads the switches above one of a lease's instances.
func (a Leases) GetLeaseNodeTopology(ctx context.Context, r api.GetLeaseNodeTopologyRequestObject) (api.GetLeaseNodeTopologyResponseObject, error) {
	id, err := idFromPath[ids.Lease](r.LeaseID)
	if err != nil {
		return nil, err
	}
	allocation, err := idFromPath[ids.Allocation](r.AllocationID)
	if err != nil {
		return nil, err
	}
	t, err := a.Leases.Topology(ctx, id, allocation)
	if err != nil {
		return nil, err
	}
	return api.GetLeaseNodeTopology200JSONResponse{
		AllocationID: t.Allocation.String(), Node: t.NodeName, Fabric: orNil(t.FabricName), Pod: orNil(t.Pod), NvlinkDomain: orNil(t.NVLinkDomain),
		Switches: each(t.Switches, func(s lease.TopologySwitch) api.ChainSwitch {
			return api.ChainSwitch{ID: s.ID.String(), Name: s.Name, Level: s.Level}
		}),
		Ports: each(t.Ports, newChainPortView),
	}, nil
}

func newChainPortView(p lease.TopologyPort) api.ChainPort {
	return api.ChainPort{
		GUID: p.GUID.String(), Device: p.Device, Rail: p.Rail, LeafID: orNil(p.Leaf.String()),
		Chain: each(p.Chain, func(s ids.Switch) string { return s.String() }),
	}
}
