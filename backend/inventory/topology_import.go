package inventory

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/inventory/netdiscover"
)

// TopologyImport is what a file says about a fabric, against what inventory knows.
type TopologyImport struct {
	Fabric  Fabric
	Format  netdiscover.Format
	Seen    SeenInFile
	Diff    TopologyDiff
	Digest  string // of the file and the difference; applying it again needs the same one
	Applied bool
	// Warnings are what a person should look at before they apply it.
	Warnings []string
}

// SeenInFile counts what the file describes.
type SeenInFile struct {
	Switches         int
	HCAs             int // aggregation nodes included
	AggregationNodes int
	Routers          int
	Links            int // between switches
	HostPorts        int // adapters' cabled ports, without those of aggregation nodes
	KnownPorts       int // of these, those of nodes of the site
}

// PreviewTopology says what ImportTopology would do with the file, and changes nothing.
//
// It returns a NotFound fault for an unknown fabric, and an Invalid fault, code "topology-file", with a field for each defect of the
// file.
func (s *Service) PreviewTopology(ctx context.Context, id ids.Fabric, file []byte) (TopologyImport, error) {
	graph, err := readTopology(file)
	if err != nil {
		return TopologyImport{}, err
	}
	var out TopologyImport
	err = s.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		out, _, err = s.compare(ctx, id, graph, file)
		return err
	})
	return out, err
}

// ImportTopology makes the file's graph the fabric's topology, all of it or nothing: switches, links and places of ports, and with them
// the leaf and pod of nodes. digest is that of the preview that was decided on. A port of a leased node that hangs elsewhere stays where
// it is and becomes a change for an admin to review; a switch that is gone stays while ports of inventory hang on it.
//
// It returns the faults of PreviewTopology, and a Stale fault when the file or inventory are not what the preview showed.
func (s *Service) ImportTopology(ctx context.Context, id ids.Fabric, file []byte, digest string) (TopologyImport, error) {
	graph, err := readTopology(file)
	if err != nil {
		return TopologyImport{}, err
	}
	var out TopologyImport
	err = s.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		if err := s.topo.MeetReports(ctx, true); err != nil {
			return err
		}
		var topology protocol.Topology
		if out, topology, err = s.compare(ctx, id, graph, file); err != nil {
			return err
		}
		if out.Digest != digest {
			return fault.New(fault.Stale, "stale", "the file or the inventory is not what the preview showed; look at the new one").With("digest", out.Digest)
		}
		return s.apply(ctx, out, topology)
	})
	if err != nil {
		return TopologyImport{}, fmt.Errorf("import topology: %w", err)
	}
	out.Applied = true
	return out, nil
}

// readTopology is Parse with a fault for an error.
func readTopology(file []byte) (netdiscover.Graph, error) {
	graph, err := netdiscover.Parse(file)
	var defects netdiscover.Defects
	if errors.As(err, &defects) {
		refused := fault.New(fault.Invalid, "topology-file", "the file is no topology that can be used: %s", defects[0])
		for _, d := range defects {
			refused = refused.At("/source", d.String())
		}
		return netdiscover.Graph{}, refused
	}
	if err != nil {
		return netdiscover.Graph{}, fmt.Errorf("read topology: %w", err)
	}
	return graph, nil
}

// compare reads what inventory knows and holds the graph against it.
func (s *Service) compare(ctx context.Context, id ids.Fabric, graph netdiscover.Graph, file []byte) (TopologyImport, protocol.Topology, error) {
	out := TopologyImport{Format: graph.Format}
	c := comparison{fabric: id}
	var err error
	if out.Fabric, err = s.places.Fabric(ctx, id); err != nil {
		return out, protocol.Topology{}, err
	}
	if c.switches, err = s.topo.Switches(ctx, id); err != nil {
		return out, protocol.Topology{}, err
	}
	if c.links, err = s.topo.Links(ctx, id); err != nil {
		return out, protocol.Topology{}, err
	}
	if c.ports, err = s.topo.KnownPorts(ctx, out.Fabric.Site); err != nil {
		return out, protocol.Topology{}, err
	}
	seen, err := s.topo.SeenPorts(ctx, id)
	if err != nil {
		return out, protocol.Topology{}, err
	}
	topology := Arrange(keepKnown(graph.Topology(), c.links, seen), owners(c.ports), podsOf(c.switches))
	out.Diff = c.diff(topology)
	out.Seen = countSeen(graph, topology, out.Diff)
	out.Warnings = warn(c, topology, out.Diff)
	out.Digest = digestOf(id, file, out.Diff)
	return out, topology, nil
}

// keepKnown keeps what is known of speeds and LIDs where the file does not say it, as netlists do not.
func keepKnown(t protocol.Topology, links []Link, seen []protocol.TopologyPort) protocol.Topology {
	ports := make(map[protocol.GUID]protocol.TopologyPort, len(seen))
	for _, p := range seen {
		ports[p.GUID] = p
	}
	for i := range t.Ports {
		p := &t.Ports[i]
		p.RateGbps, p.LID = cmp.Or(p.RateGbps, ports[p.GUID].RateGbps), cmp.Or(p.LID, ports[p.GUID].LID)
	}
	known := map[linkKey]int{}
	for _, l := range links {
		known[newLinkKey(l.FromGUID, l.FromPort, l.ToGUID, l.ToPort)] = l.RateGbps
	}
	for i, l := range t.Links {
		if l.RateGbps == 0 {
			t.Links[i].RateGbps = known[newLinkKey(l.FromGUID, l.FromPort, l.ToGUID, l.ToPort)]
		}
	}
	return t
}

// owners are the nodes of ports, by GUID.
func owners(ports []KnownPort) map[protocol.GUID]string {
	out := make(map[protocol.GUID]string, len(ports))
	for _, p := range ports {
		out[p.GUID] = p.Node.String()
	}
	return out
}

func podsOf(switches []Switch) map[protocol.GUID]string {
	out := make(map[protocol.GUID]string, len(switches))
	for _, s := range switches {
		out[s.GUID] = s.Pod
	}
	return out
}

func countSeen(graph netdiscover.Graph, t protocol.Topology, d TopologyDiff) SeenInFile {
	seen := SeenInFile{
		Switches: graph.Count(netdiscover.Switch), HCAs: graph.Count(netdiscover.HCA), Routers: graph.Count(netdiscover.Router), Links: len(t.Links),
	}
	for _, device := range graph.Devices {
		if device.Aggregation {
			seen.AggregationNodes++
		}
	}
	seen.KnownPorts = len(t.Ports) - len(d.Strangers)
	seen.HostPorts = len(t.Ports)
	for _, stranger := range d.Strangers {
		if stranger.Aggregation {
			seen.HostPorts--
		}
	}
	return seen
}

// warn looks for signs that the file is not what its reader believes.
func warn(c comparison, t protocol.Topology, d TopologyDiff) []string {
	gone, review, elsewhere := 0, 0, 0
	for _, s := range d.Switches {
		if s.Kind == Removed {
			gone++
		}
	}
	for _, p := range d.Ports {
		if p.Review {
			review++
		}
		if p.Elsewhere {
			elsewhere++
		}
	}
	var out []string
	if gone > 0 && gone == len(c.switches) {
		out = append(out, fmt.Sprintf("none of the fabric's %d switches is in the file: it may be another fabric's", gone))
	}
	if elsewhere > 0 {
		out = append(out, fmt.Sprintf("%d ports are on another fabric by inventory", elsewhere))
	}
	if len(d.Missing) > 0 {
		out = append(out, fmt.Sprintf("%d ports that are on the fabric by inventory are not in the file: they keep their places", len(d.Missing)))
	}
	if review > 0 {
		out = append(out, fmt.Sprintf("%d ports of leased nodes hang elsewhere: they keep their places until an admin accepts the nodes' changes", review))
	}
	levels := map[int]int{}
	for _, s := range t.Switches {
		levels[s.Level]++
	}
	if levels[0] > 0 {
		out = append(out, fmt.Sprintf("%d switches have no way to any host: their level is unknown", levels[0]))
	}
	return out
}

// digestOf binds an import to the file and to what it would change. A difference has no maps and no pointers, so that it prints in one
// way only.
func digestOf(id ids.Fabric, file []byte, d TopologyDiff) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%v %x %+v", id, sha256.Sum256(file), d))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// apply writes the topology and what follows from it.
func (s *Service) apply(ctx context.Context, in TopologyImport, t protocol.Topology) error {
	in.Fabric.PlannedPods = false
	if err := s.topo.SaveReport(ctx, in.Fabric, t); err != nil {
		return err
	}
	if err := s.topo.LocateFabric(ctx, in.Fabric.ID, s.clock.Now()); err != nil {
		return err
	}
	var gone []protocol.GUID
	for _, w := range in.Diff.Switches {
		if w.Kind == Removed && w.Ports == 0 {
			gone = append(gone, w.GUID)
		}
	}
	if err := s.topo.RemoveSwitches(ctx, in.Fabric.ID, gone); err != nil {
		return err
	}
	return s.verifyFabric(ctx, in.Fabric.ID)
}
