package sim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/leasehold/leasehold/agent/protocol"
)

// tree is a rail-optimised fat tree in the making: a pod has one leaf a rail, on which the same adapter of each of its nodes
// hangs; every leaf goes up to every spine. Leaf port n is the pod's node n.
type tree struct {
	site   uint64
	fabric uint64
	hosts  uint64
	leaves map[leafKey]protocol.GUID
	order  []leafKey
	ports  []protocol.TopologyPort
}

// leafKey names a leaf: its group of nodes, pod and rail.
type leafKey struct{ group, pod, rail int }

const (
	switchPorts = 64  // of an NDR switch
	firstUplink = 33  // leaf ports below face hosts
	ndrGbps     = 400 // of a port
	uplinks     = 8   // of a leaf
	// portsPerSwitch is how many ports InfiniBand can number on one switch.
	portsPerSwitch = 254
	// portsPerHCA leaves room for an adapter's port GUIDs, which follow its node GUID.
	portsPerHCA = 16
)

// Kinds of GUID. A GUID is the vendor's 24 bits, the site's 8, the fabric's 4, the kind's 4 and a number.
const (
	kindHCA uint64 = iota
	kindLeaf
	kindSpine
)

func (t *tree) guid(kind, number uint64) protocol.GUID {
	return protocol.GUID(uint64(0x0002c9)<<40 | t.site<<32 | t.fabric<<28 | kind<<24 | number)
}

// attach gives the node one adapter a GPU and plugs them in.
func (t *tree) attach(node *protocol.NodeInventory, groupNumber int, group Group, index int) {
	podSize := cmp.Or(group.NodesPerPod, defaultPodSize)
	for rail := range group.GPUs {
		number := t.hosts
		t.hosts++
		nodeGUID := t.guid(kindHCA, number*portsPerHCA)
		leaf := t.leaf(leafKey{groupNumber, index / podSize, rail})
		device := fmt.Sprintf("mlx5_%d", rail)
		lid := len(t.ports) + 1
		gpu := node.GPUs[rail]
		node.HCAs = append(node.HCAs, protocol.HCA{
			Device: device, NodeGUID: nodeGUID, BoardID: "MT_0000000838", Firmware: "28.43.2026",
			PCIAddress: fmt.Sprintf("0000:%02x:00.0", pciBuses()[rail]-1), NUMANode: gpu.NUMANode,
			Ports: []protocol.HCAPort{{
				Number: 1, GUID: nodeGUID + 1, LinkLayer: "InfiniBand", State: "ACTIVE", PhysicalState: "LinkUp", RateGbps: ndrGbps, Width: "4X", LID: lid, SMLID: 1,
			}},
		})
		t.ports = append(t.ports, protocol.TopologyPort{
			GUID: nodeGUID + 1, NodeGUID: nodeGUID, Description: node.Hostname + " " + device, LID: lid, SwitchGUID: leaf,
			SwitchPort: index%podSize + 1, RateGbps: ndrGbps,
		})
	}
}

func (t *tree) leaf(key leafKey) protocol.GUID {
	if t.leaves == nil {
		t.leaves = map[leafKey]protocol.GUID{}
	}
	if guid, exists := t.leaves[key]; exists {
		return guid
	}
	t.leaves[key] = t.guid(kindLeaf, uint64(len(t.leaves)))
	t.order = append(t.order, key)
	return t.leaves[key]
}

// spread says over how many spines the leaves' uplinks go, and how many cables lead from a leaf to each. More leaves than a spine can have two
// cables from have one to each of more spines.
func spread(leaves int) (spines, cables int) {
	if cables = 2; leaves*cables > portsPerSwitch {
		cables = 1
	}
	return uplinks / cables, cables
}

// topology adds the spines and the cables to them. A site too large for 64-port spines gets larger ones, as directors are; one of more than
// 254 leaves gets spines that no real subnet could number.
func (t *tree) topology() protocol.Topology {
	top := protocol.Topology{Switches: []protocol.Switch{}, Links: []protocol.Link{}, Ports: t.ports}
	slices.SortFunc(t.order, func(a, b leafKey) int {
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.pod, b.pod), cmp.Compare(a.rail, b.rail))
	})
	for _, key := range t.order {
		pod := fmt.Sprintf("pod-%d", key.pod+1)
		if key.group > 0 {
			pod = fmt.Sprintf("pod-%d-%d", key.group+1, key.pod+1)
		}
		top.Switches = append(top.Switches, protocol.Switch{
			GUID: t.leaves[key], Name: fmt.Sprintf("leaf-%s-r%d", pod, key.rail+1), Ports: switchPorts, Level: 1, Pod: pod,
		})
	}
	spines, cables := spread(len(t.order))
	spinePorts := max(switchPorts, len(t.order)*cables)
	for spine := range spines {
		guid := t.guid(kindSpine, uint64(spine))
		top.Switches = append(top.Switches, protocol.Switch{GUID: guid, Name: fmt.Sprintf("spine-%d", spine+1), Ports: spinePorts, Level: 2})
		for n, key := range t.order {
			for cable := range cables {
				top.Links = append(top.Links, protocol.Link{
					FromGUID: t.leaves[key], FromPort: firstUplink + spine*cables + cable, ToGUID: guid, ToPort: n*cables + cable + 1,
					RateGbps: ndrGbps, Width: "4X",
				})
			}
		}
	}
	return top
}
