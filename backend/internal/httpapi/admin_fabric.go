package httpapi

import (
	"context"
	"fmt"
	"slices"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/inventory"
	"github.com/leasehold/leasehold/backend/overview"
)

// AdminListFabrics lists all fabrics, or those of a provider's sites.
func (a Admin) AdminListFabrics(ctx context.Context, _ api.AdminListFabricsRequestObject) (api.AdminListFabricsResponseObject, error) {
	fabrics, err := a.Inventory.Fabrics(ctx)
	if err != nil {
		return nil, err
	}
	names, err := a.siteNames(ctx)
	if err != nil {
		return nil, err
	}
	counts, err := a.Overview.PartitionCounts(ctx)
	if err != nil {
		return nil, err
	}
	fabrics = slices.DeleteFunc(fabrics, func(f inventory.Fabric) bool { return names[f.Site] == "" })
	view := func(f inventory.Fabric) api.Fabric { return newFabricView(f, names[f.Site], counts[f.ID]) }
	return api.AdminListFabrics200JSONResponse{Items: each(fabrics, view)}, nil
}

// AdminGetFabric shows everything about a fabric.
func (a Admin) AdminGetFabric(ctx context.Context, r api.AdminGetFabricRequestObject) (api.AdminGetFabricResponseObject, error) {
	id, err := idFromPath[ids.Fabric](r.FabricID)
	if err != nil {
		return nil, err
	}
	fabric, switches, links, err := a.Inventory.Fabric(ctx, id)
	if err != nil {
		return nil, err
	}
	names, err := a.siteNames(ctx)
	if err != nil {
		return nil, err
	}
	if names[fabric.Site] == "" {
		return nil, fault.New(fault.NotFound, "fabric-not-found", "there is no such fabric")
	}
	partitions, err := a.Overview.Partitions(ctx, id)
	if err != nil {
		return nil, err
	}
	drift, err := a.Overview.Drift(ctx, id)
	if err != nil {
		return nil, err
	}
	outlook, err := a.Fabrics.Outlook(ctx, id)
	if err != nil {
		return nil, err
	}
	view := newFabricPartitionView
	if !providerOf(ctx).IsZero() {
		view = newForeignPartitionView
	}
	return api.AdminGetFabric200JSONResponse{
		Fabric: newFabricView(fabric, names[fabric.Site], len(partitions)), Isolation: newFabricIsolationView(outlook), Switches: each(switches, newFabricSwitchView),
		Links: each(links, newFabricLinkView), Partitions: each(partitions, view), Drift: each(drift, newFabricDriftView),
	}, nil
}

func newFabricView(f inventory.Fabric, site string, partitions int) api.Fabric {
	return api.Fabric{
		ID: f.ID.String(), Name: f.Name, Site: site, Driver: f.Driver, ControllerVersion: f.ControllerVersion, Epoch: f.Epoch, Partitions: partitions,
		Posture: each(f.Posture, newPostureCheckView), ObservedAt: orNil(f.ObservedAt),
	}
}

func newPostureCheckView(c protocol.PostureCheck) api.PostureCheck {
	return api.PostureCheck{Item: c.Item, Verdict: api.PostureCheckVerdict(c.Verdict), Detail: orNil(c.Detail)}
}

func newFabricSwitchView(s inventory.Switch) api.FabricSwitch {
	return api.FabricSwitch{GUID: s.GUID.String(), Name: s.Name, Level: s.Level, Pod: s.Pod}
}

func newFabricLinkView(l inventory.Link) api.FabricLink {
	return api.FabricLink{From: l.FromName, FromPort: l.FromPort, To: l.ToName, ToPort: l.ToPort}
}

func newFabricPartitionView(p overview.Partition) api.FabricPartition {
	return api.FabricPartition{ID: p.ID.String(), Pkey: newPKeyView(p.PKey), State: p.State, LeaseID: orNil(p.Lease.String()), Members: p.Members}
}

// newPKeyView writes a partition key as people in the field do, without the membership bit.
func newPKeyView(pkey uint16) string { return fmt.Sprintf("0x%04x", pkey) }

func newFabricDriftView(d overview.Drift) api.FabricDrift {
	return api.FabricDrift{
		PortGUID: d.PortGUID, Kind: api.FabricDriftKind(d.Kind), What: d.What, Onset: d.Onset, Repair: orNil(d.Repair), Attempts: d.Attempts,
		GaveUpAt: orNil(d.GaveUpAt), EndedAt: orNil(d.EndedAt),
	}
}
