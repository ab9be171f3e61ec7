package httpapi

import (
	"context"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/inventory"
	"github.com/leasehold/leasehold/backend/overview"
)

// AdminListNodes lists nodes by name.
func (a Admin) AdminListNodes(ctx context.Context, r api.AdminListNodesRequestObject) (api.AdminListNodesResponseObject, error) {
	page, err := pageAfter[ids.Node](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	filter := inventory.Filter{After: page.after, Limit: page.limit + 1, Provider: providerOf(ctx), State: inventory.State(orZero(r.Params.State))}
	if name := orZero(r.Params.Site); name != "" {
		site, err := a.Inventory.SiteByName(ctx, name)
		if fault.Is(err, fault.NotFound) {
			return api.AdminListNodes200JSONResponse{Body: api.NodeList{Items: []api.Node{}}}, nil
		}
		if err != nil {
			return nil, err
		}
		filter.Site = site.ID
	}
	found, err := a.Inventory.Nodes(ctx, filter)
	if err != nil {
		return nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(n inventory.Overview) ids.Node { return n.Node.ID })
	if err != nil {
		return nil, err
	}
	views := each(items, newNodeView)
	if !providerOf(ctx).IsZero() {
		for i := range views {
			hideTenantsOfNode(&views[i])
		}
	}
	return api.AdminListNodes200JSONResponse{
		Body: api.NodeList{Items: views}, Headers: api.AdminListNodes200ResponseHeaders{Link: link},
	}, nil
}

// AdminGetNode shows everything about a node.
func (a Admin) AdminGetNode(ctx context.Context, r api.AdminGetNodeRequestObject) (api.AdminGetNodeResponseObject, error) {
	id, err := idFromPath[ids.Node](r.NodeID)
	if err != nil {
		return nil, err
	}
	detail, err := a.node(ctx, id)
	if err != nil {
		return nil, err
	}
	view, err := a.newNodeDetailView(ctx, detail)
	if err != nil {
		return nil, err
	}
	return api.AdminGetNode200JSONResponse{Body: view, Headers: api.AdminGetNode200ResponseHeaders{ETag: etag(detail.Node.Version)}}, nil
}

// AdminSetNodeState moves a node.
func (a Admin) AdminSetNodeState(ctx context.Context, r api.AdminSetNodeStateRequestObject) (api.AdminSetNodeStateResponseObject, error) {
	id, err := idFromPath[ids.Node](r.NodeID)
	if err != nil {
		return nil, err
	}
	version, err := ifMatch(r.Params.IfMatch)
	if err != nil {
		return nil, err
	}
	before, err := a.node(ctx, id)
	if err != nil {
		return nil, err
	}
	move := inventory.Move{
		To: inventory.State(r.Body.State), Reason: orZero(r.Body.Reason), Exit: inventory.Exit(orZero(r.Body.Exit)), ByProvider: !providerOf(ctx).IsZero(),
	}
	after, err := a.Inventory.SetState(ctx, id, version, move)
	if err != nil {
		return nil, err
	}
	err = a.Audit.Record(ctx, "node.state_set", id.String(), map[string]any{"state": before.Node.State},
		map[string]any{"state": after.Node.State, "asked": move.To, "reason": move.Reason, "exit": move.Exit})
	if err != nil {
		return nil, err
	}
	view, err := a.newNodeDetailView(ctx, after)
	if err != nil {
		return nil, err
	}
	return api.AdminSetNodeState200JSONResponse{Body: view, Headers: api.AdminSetNodeState200ResponseHeaders{ETag: etag(after.Node.Version)}}, nil
}

func newNodeView(o inventory.Overview) api.Node {
	n := o.Node
	return api.Node{
		ID: n.ID.String(), Name: n.Name, Site: o.SiteName, Fabric: orNil(o.FabricName), Hardware: n.Hardware, Mode: api.NodeMode(n.Mode),
		State: api.NodeState(n.State), StateReason: n.StateReason, StateExit: string(n.StateExit), Pod: n.Pod, Leaf: orNil(o.LeafName),
		GPUCount: n.Slots / slotsPerGPU, LeasedSlots: o.LeasedSlots, TotalSlots: n.Slots, LastSeenAt: orNil(o.LastSeen),
		Conditions: each(o.Conditions, newConditionView),
	}
}

// slotsPerGPU is the slot line's width of one GPU.
const slotsPerGPU = 8

func newConditionView(c inventory.Condition) api.Condition {
	return api.Condition{Name: c.Name, Device: c.Device, Class: api.ConditionClass(c.Class), Onset: c.Onset, Evidence: c.Evidence, Exit: c.Exit}
}

func (a Admin) newNodeDetailView(ctx context.Context, d inventory.Detail) (api.NodeDetail, error) {
	operations, err := a.Overview.Operations(ctx, d.Node.ID)
	if err != nil {
		return api.NodeDetail{}, err
	}
	view := api.NodeDetail{
		Node: newNodeView(d.Overview), Gpus: each(d.GPUs, newNodeGPUView), Ports: each(d.Ports, newNodePortView),
		Allocations: each(d.Held, newNodeAllocationView), Operations: each(operations, newOperationView), Changes: each(d.Changes, newInventoryChangeView),
	}
	if !providerOf(ctx).IsZero() {
		hideTenants(&view)
	}
	return view, nil
}

func newNodeGPUView(g inventory.GPU) api.NodeGPU {
	return api.NodeGPU{Bay: g.Bay, UUID: g.UUID, Model: g.Model, MemoryBytes: g.MemoryBytes, PCIAddress: g.PCIAddress}
}

func newNodePortView(p inventory.Port) api.NodePort {
	view := api.NodePort{GUID: p.GUID.String(), Device: p.Device, Rail: p.Rail, RateGbps: p.RateGbps, Switch: orNil(p.SwitchName)}
	if p.Bay != inventory.NoBay {
		view.Bay = &p.Bay
	}
	if !p.Switch.IsZero() {
		view.SwitchPort = &p.SwitchPort
	}
	return view
}

func newNodeAllocationView(h inventory.Held) api.NodeAllocation {
	return api.NodeAllocation{
		ID: h.ID.String(), Purpose: h.Purpose, LeaseID: orNil(h.Lease.String()), State: string(h.State), Reason: h.Reason,
		Slots: api.SlotRange{From: h.Slots.From, To: h.Slots.To}, Occupied: newWindowView(h.Occupied.Start, h.Occupied.End),
	}
}

func newInventoryChangeView(c inventory.Change) api.InventoryChange {
	return api.InventoryChange{What: c.What, Before: c.Before, After: c.After, State: string(c.State), ObservedAt: c.ObservedAt}
}

func newOperationView(o overview.Operation) api.Operation {
	view := api.Operation{
		ID: o.ID.String(), Kind: o.Kind, LeaseID: orNil(o.Lease.String()), State: api.OperationState(o.State), Percent: o.Percent, Phase: o.Phase,
		Epoch: o.Epoch, CreatedAt: o.CreatedAt, FinishedAt: orNil(o.FinishedAt),
	}
	if o.Fault != nil {
		view.Fault = orNil(o.Fault.Code + ": " + o.Fault.Detail)
	}
	return view
}
