// Package netdiscover reads InfiniBand topologies as operators have them in files: what ibnetdiscover prints, and the netlists of the
// ibsim simulator. It reads strictly: whatever it does not understand is a defect with its line, and there is no half of a graph.
//
// Both dialects describe devices in blocks: attributes, a line that heads the block, and a line for each cabled port.
//
//	sysimgguid=0x2c90000000100
//	switchguid=0x2c90000000100(2c90000000100)
//	Switch  40 "S-0002c90000000100"         # "MF0;leaf-1:MQM8700/U1" enhanced port 0 lid 3 lmc 0
//	[1]     "H-0002c90000010000"[1](2c90000010001)          # "node-1 mlx5_0" lid 7 4xHDR
//
// ibnetdiscover names devices by their GUIDs and has every cable at both of its ends; netlists have names of their own, and one end
// is enough.
package netdiscover

import "github.com/leasehold/leasehold/agent/protocol"

// Format is the dialect of a file.
type Format string

// The dialects.
const (
	Ibnetdiscover Format = "ibnetdiscover"
	Netlist       Format = "netlist"
)

// Graph is a subnet as a file has it. Devices are in the order of their GUIDs, cables in that of their first ends; every cable is
// there once.
type Graph struct {
	Format  Format
	Devices []Device
	Cables  []Cable
}

// Kind is what a device is.
type Kind string

// The kinds of devices.
const (
	Switch Kind = "switch"
	HCA    Kind = "hca"
	Router Kind = "router"
)

// Device is a switch, an adapter or a router.
type Device struct {
	Kind       Kind
	GUID       protocol.GUID // the node's
	SystemGUID protocol.GUID // of the box that it is in; 0: not said
	// Name is the node description where the file has one, else the file's own name for it. A switch's is without the make-up of its
	// operating system: "MF0;leaf-1:MQM8700/U1" is leaf-1.
	Name  string
	Ports int // how many it has, cabled or not
	// PortGUIDs are those of an adapter's or router's cabled ports, by number.
	PortGUIDs map[int]protocol.GUID
	LIDs      map[int]int // by port number; of ports whose line says it
	// Aggregation: an adapter that is a part of its switch and reduces for it (SHARP); no machine is behind it.
	Aggregation bool
	Line        int // where its block is headed, from 1
}

// End is a port of a device.
type End struct {
	GUID protocol.GUID // the device's
	Port int
}

// Cable joins two ports. A is the end with the smaller GUID.
type Cable struct {
	A, B     End
	Width    string // e.g. "4X"; "" when the file does not say
	RateGbps int    // of all lanes together; 0: the file does not say
	Line     int    // where it was first seen
}

// Count returns how many devices of a kind there are.
func (g Graph) Count(kind Kind) int {
	n := 0
	for _, d := range g.Devices {
		if d.Kind == kind {
			n++
		}
	}
	return n
}

// Topology is the graph in the words that fabric agents use: switches, the links between them, and the adapters' ports with the switch
// port that they hang on. Switches have no level and no pod. Routers' ports and those of adapters without a cable are left out; those
// of aggregation nodes are in, as any manager reports them.
func (g Graph) Topology() protocol.Topology {
	t := protocol.Topology{Switches: []protocol.Switch{}, Links: []protocol.Link{}, Ports: []protocol.TopologyPort{}}
	devices := make(map[protocol.GUID]Device, len(g.Devices))
	for _, d := range g.Devices {
		devices[d.GUID] = d
		if d.Kind == Switch {
			t.Switches = append(t.Switches, protocol.Switch{GUID: d.GUID, Name: d.Name, Ports: d.Ports})
		}
	}
	for _, c := range g.Cables {
		a, b := devices[c.A.GUID], devices[c.B.GUID]
		if a.Kind == Switch && b.Kind == Switch {
			t.Links = append(t.Links, protocol.Link{
				FromGUID: a.GUID, FromPort: c.A.Port, ToGUID: b.GUID, ToPort: c.B.Port, RateGbps: c.RateGbps, Width: c.Width,
			})
			continue
		}
		t.Ports = append(t.Ports, hostPorts(c, a, b)...)
	}
	return t
}

// hostPorts are the adapters' ports of a cable that does not join two switches: one, or two of adapters back to back.
func hostPorts(c Cable, a, b Device) []protocol.TopologyPort {
	var out []protocol.TopologyPort
	add := func(at End, d, peer Device, far End) {
		if d.Kind != HCA {
			return
		}
		port := protocol.TopologyPort{GUID: d.PortGUIDs[at.Port], NodeGUID: d.GUID, Description: d.Name, LID: d.LIDs[at.Port], RateGbps: c.RateGbps}
		if peer.Kind == Switch {
			port.SwitchGUID, port.SwitchPort = peer.GUID, far.Port
		}
		out = append(out, port)
	}
	add(c.A, a, b, c.B)
	add(c.B, b, a, c.A)
	return out
}
