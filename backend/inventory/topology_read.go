package inventory

import (
	"context"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
)

// TopologySummary counts what a fabric has.
type TopologySummary struct {
	Fabric       Fabric
	Switches     int
	Links        int
	Ports        int // adapters' ports that its manager sees
	UnknownPorts int // of these, those of no node
	Nodes        int // nodes that hang on it
	Pods         int
}

// TopologySwitch is a switch with what is plugged into it.
type TopologySwitch struct {
	Switch
	Links []TopologyLink // by port
	Hosts []TopologyHost // by port
}

// TopologyLink is a cable to another switch, from this one's side.
type TopologyLink struct {
	Port     int
	Peer     ids.Switch
	PeerGUID protocol.GUID
	PeerName string
	PeerPort int
	RateGbps int
}

// TopologyHost is an adapter's port on a switch.
type TopologyHost struct {
	Port        int
	GUID        protocol.GUID
	Description string
	RateGbps    int
	Node        ids.Node // zero: no node has reported it
	NodeName    string
	Device      string
	Rail        int
	// Absent: inventory has it here, and the fabric's manager does not see it.
	Absent bool
}

// Topology returns a page of a fabric's switches in the order of level, name and GUID, with what is plugged into them.
//
// It returns a NotFound fault for an unknown fabric.
func (s *Service) Topology(ctx context.Context, id ids.Fabric, after ids.Switch, limit int) (TopologySummary, []TopologySwitch, error) {
	var summary TopologySummary
	var page []TopologySwitch
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		fabric, err := s.places.Fabric(ctx, id)
		if err != nil {
			return err
		}
		if summary, err = s.topo.TopologySummary(ctx, id); err != nil {
			return err
		}
		summary.Fabric = fabric
		page, err = s.topo.TopologyPage(ctx, id, after, limit)
		return err
	})
	return summary, page, err
}
