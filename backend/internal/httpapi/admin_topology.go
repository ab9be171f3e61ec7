package httpapi

import (
	"context"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/inventory"
)

// AdminGetTopology reads a page of a fabric's switches with what is plugged into them.
func (a Admin) AdminGetTopology(ctx context.Context, r api.AdminGetTopologyRequestObject) (api.AdminGetTopologyResponseObject, error) {
	id, err := idFromPath[ids.Fabric](r.FabricID)
	if err != nil {
		return nil, err
	}
	page, err := pageAfter[ids.Switch](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	summary, found, err := a.Inventory.Topology(ctx, id, page.after, page.limit+1)
	if err != nil {
		return nil, err
	}
	names, err := a.siteNames(ctx)
	if err != nil {
		return nil, err
	}
	if names[summary.Fabric.Site] == "" {
		return nil, fault.New(fault.NotFound, "fabric-not-found", "there is no such fabric")
	}
	items, link, err := cutPageByID(ctx, found, page, func(s inventory.TopologySwitch) ids.Switch { return s.ID })
	if err != nil {
		return nil, err
	}
	return api.AdminGetTopology200JSONResponse{
		Body: api.FabricTopology{
			FabricID: id.String(), Fabric: summary.Fabric.Name, Site: names[summary.Fabric.Site], Summary: newTopologySummaryView(summary),
			Items: each(items, newTopologySwitchView),
		},
		Headers: api.AdminGetTopology200ResponseHeaders{Link: link},
	}, nil
}

// AdminImportTopology compares a file with inventory, or applies it as it was compared.
func (a Admin) AdminImportTopology(ctx context.Context, r api.AdminImportTopologyRequestObject) (api.AdminImportTopologyResponseObject, error) {
	id, err := idFromPath[ids.Fabric](r.FabricID)
	if err != nil {
		return nil, err
	}
	file := []byte(r.Body.Source)
	if orZero(r.Params.DryRun) {
		preview, err := a.Inventory.PreviewTopology(ctx, id, file)
		if err != nil {
			return nil, err
		}
		return api.AdminImportTopology200JSONResponse(newTopologyImportView(preview)), nil
	}
	if r.Body.Digest == nil {
		return nil, fault.New(fault.Stale, codePreconditionRequired, "send the digest of the dry run that you decided on")
	}
	applied, err := a.Inventory.ImportTopology(ctx, id, file, *r.Body.Digest)
	if err != nil {
		return nil, err
	}
	view := newTopologyImportView(applied)
	after := map[string]any{"digest": view.Digest, "format": view.Format, "seen": view.Seen, "counts": view.Counts, "warnings": view.Warnings}
	if err := a.Audit.Record(ctx, "fabric.topology_imported", id.String(), nil, after); err != nil {
		return nil, err
	}
	return api.AdminImportTopology200JSONResponse(view), nil
}

// AdminSettleChanges decides a node's pending differences.
func (a Admin) AdminSettleChanges(ctx context.Context, r api.AdminSettleChangesRequestObject) (api.AdminSettleChangesResponseObject, error) {
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
	settled, err := a.Inventory.SettleChanges(ctx, id, version, inventory.ChangeState(r.Body.Decision))
	if err != nil {
		return nil, err
	}
	var changes []string
	for _, c := range before.Changes {
		if c.State == inventory.Pending {
			changes = append(changes, c.Words())
		}
	}
	if err := a.Audit.Record(ctx, "node.changes_settled", id.String(), nil, map[string]any{"decision": r.Body.Decision, "changes": changes}); err != nil {
		return nil, err
	}
	view, err := a.newNodeDetailView(ctx, settled)
	if err != nil {
		return nil, err
	}
	return api.AdminSettleChanges200JSONResponse{Body: view, Headers: api.AdminSettleChanges200ResponseHeaders{ETag: etag(settled.Node.Version)}}, nil
}

func newTopologySummaryView(s inventory.TopologySummary) api.TopologySummary {
	return api.TopologySummary{Switches: s.Switches, Links: s.Links, Ports: s.Ports, UnknownPorts: s.UnknownPorts, Nodes: s.Nodes, Pods: s.Pods}
}

func newTopologySwitchView(s inventory.TopologySwitch) api.TopologySwitch {
	return api.TopologySwitch{
		ID: s.ID.String(), GUID: s.GUID.String(), Name: s.Name, Level: s.Level, Pod: s.Pod, Ports: s.Ports,
		Links: each(s.Links, func(l inventory.TopologyLink) api.TopologyLink {
			return api.TopologyLink{Port: l.Port, PeerID: l.Peer.String(), Peer: l.PeerName, PeerPort: l.PeerPort, RateGbps: l.RateGbps}
		}),
		Hosts: each(s.Hosts, newTopologyHostView),
	}
}

func newTopologyHostView(h inventory.TopologyHost) api.TopologyHost {
	view := api.TopologyHost{
		Port: h.Port, GUID: h.GUID.String(), Description: h.Description, RateGbps: h.RateGbps, Aggregation: inventory.IsAggregation(h.Description), Absent: h.Absent,
	}
	if !h.Node.IsZero() {
		view.NodeID, view.Node, view.Device, view.Rail = orNil(h.Node.String()), &h.NodeName, &h.Device, &h.Rail
	}
	return view
}

// maxDifferences bounds each list of an answer; counts has how many there are.
const maxDifferences = 1000

func newTopologyImportView(i inventory.TopologyImport) api.TopologyImport {
	d, reviews := i.Diff, 0
	for _, p := range d.Ports {
		if p.Review {
			reviews++
		}
	}
	return api.TopologyImport{
		FabricID: i.Fabric.ID.String(), Fabric: i.Fabric.Name, Format: api.TopologyImportFormat(i.Format), Applied: i.Applied, Digest: i.Digest,
		Seen: api.TopologySeen{
			Switches: i.Seen.Switches, Hcas: i.Seen.HCAs, AggregationNodes: i.Seen.AggregationNodes, Routers: i.Seen.Routers, Links: i.Seen.Links,
			HostPorts: i.Seen.HostPorts, KnownPorts: i.Seen.KnownPorts,
		},
		Counts: api.TopologyCounts{
			Switches: len(d.Switches), Links: len(d.Links), Ports: len(d.Ports), Reviews: reviews, Nodes: len(d.Nodes), Strangers: len(d.Strangers),
			Missing: len(d.Missing),
		},
		Warnings: each(i.Warnings, func(w string) string { return w }),
		Switches: firstOf(d.Switches, newSwitchDifferenceView), Links: firstOf(d.Links, newLinkDifferenceView),
		Ports: firstOf(d.Ports, newPortDifferenceView), Nodes: firstOf(d.Nodes, newNodeDifferenceView),
		Strangers: firstOf(d.Strangers, newUnknownPortView), Missing: firstOf(d.Missing, newMissingPortView),
	}
}

// firstOf is each of the first maxDifferences.
func firstOf[T, V any](all []T, view func(T) V) []V {
	return each(all[:min(len(all), maxDifferences)], view)
}

func newSwitchPortView(p inventory.Place) api.SwitchPort {
	name := p.SwitchName
	if name == "" {
		name = p.Switch.String()
	}
	return api.SwitchPort{Switch: name, Port: p.Port}
}

// placeOrNil is nil for nowhere.
func placeOrNil(p inventory.Place) *api.SwitchPort {
	if p.Switch == 0 {
		return nil
	}
	view := newSwitchPortView(p)
	return &view
}

func newSwitchDifferenceView(d inventory.SwitchDiff) api.SwitchDifference {
	return api.SwitchDifference{
		Kind: api.SwitchDifferenceKind(d.Kind), GUID: d.GUID.String(), Name: d.Name, What: each(d.What, func(w string) string { return w }), PortsLeft: d.Ports,
	}
}

func newLinkDifferenceView(d inventory.LinkDiff) api.LinkDifference {
	return api.LinkDifference{
		Kind: api.LinkDifferenceKind(d.Kind), From: newSwitchPortView(d.From), To: newSwitchPortView(d.To), RateBeforeGbps: d.Before, RateAfterGbps: d.After,
	}
}

func newPortDifferenceView(d inventory.PortDiff) api.PortDifference {
	p := d.Port
	view := api.PortDifference{
		GUID: p.GUID.String(), NodeID: p.Node.String(), Node: p.NodeName, Device: p.Device, Rail: p.Rail, Before: placeOrNil(p.Place),
		After: newSwitchPortView(d.After), Review: d.Review,
	}
	if d.Elsewhere {
		view.FabricBefore = &p.FabricName
	}
	return view
}

func newNodeDifferenceView(d inventory.NodeDiff) api.NodeDifference {
	return api.NodeDifference{
		NodeID: d.Node.String(), Node: d.Name, LeafBefore: d.LeafBefore, LeafAfter: d.LeafAfter, PodBefore: d.PodBefore, PodAfter: d.PodAfter,
	}
}

func newUnknownPortView(s inventory.Stranger) api.UnknownPort {
	return api.UnknownPort{
		GUID: s.GUID.String(), NodeGUID: s.NodeGUID.String(), Description: s.Description, At: placeOrNil(s.Place), Aggregation: s.Aggregation,
	}
}

func newMissingPortView(p inventory.KnownPort) api.MissingPort {
	return api.MissingPort{
		GUID: p.GUID.String(), NodeID: p.Node.String(), Node: p.NodeName, Device: p.Device, Rail: p.Rail, At: placeOrNil(p.Place),
	}
}
