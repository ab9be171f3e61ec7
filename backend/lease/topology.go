package lease

import (
	"context"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// NodeTopology is where an instance of a lease stands on its fabric, as schedulers of the tenant's need it: instances whose switches
// are the same further down are nearer to each other.
type NodeTopology struct {
	Allocation   ids.Allocation
	NodeName     string
	FabricName   string // "" without InfiniBand
	Pod          string
	NVLinkDomain string
	// Switches are those that the instance's ports reach upwards, from the leaves to the top, each once.
	Switches []TopologySwitch
	Ports    []TopologyPort // by rail
}

// TopologySwitch is a switch above an instance. Level 1 is a leaf, 2 a spine, 3 a core.
type TopologySwitch struct {
	ID    ids.Switch
	Name  string
	Level int
}

// TopologyPort is a port of the instance with its way up.
type TopologyPort struct {
	GUID   protocol.GUID
	Device string
	Rail   int
	Leaf   ids.Switch   // zero: no fabric's manager has seen it
	Chain  []ids.Switch // from its leaf to the top
}

// Topology reads where one of a lease's instances stands. It returns a NotFound fault, for an instance that is released as well: what
// its node's ports do now is somebody else's.
func (s *Service) Topology(ctx context.Context, id ids.Lease, allocation ids.Allocation) (NodeTopology, error) {
	found, err := readOf(ctx, s, id, "read topology", func(ctx context.Context, id ids.Lease) ([]NodeTopology, error) {
		return s.reads.Topology(ctx, id, allocation)
	})
	if err != nil {
		return NodeTopology{}, err
	}
	if len(found) == 0 {
		return NodeTopology{}, fault.New(fault.NotFound, "allocation-not-found", "the lease has no such instance")
	}
	return found[0], nil
}
