package ibsim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
)

// small is two nodes on one leaf.
func small() protocol.Topology {
	return protocol.Topology{
		Switches: []protocol.Switch{{GUID: 0x100, Name: "leaf", Ports: 4, Level: 1}, {GUID: 0x200, Name: "spine", Ports: 2, Level: 2}},
		Links:    []protocol.Link{{FromGUID: 0x100, FromPort: 3, ToGUID: 0x200, ToPort: 1}},
		Ports: []protocol.TopologyPort{
			{GUID: 0x11, NodeGUID: 0x10, Description: "n1-h0", SwitchGUID: 0x100, SwitchPort: 1},
			{GUID: 0x22, NodeGUID: 0x20, Description: "n2 mlx5_0", SwitchGUID: 0x100, SwitchPort: 2},
		},
	}
}

func TestTheNetlistSaysWhatIsCabledToWhat(t *testing.T) {
	t.Parallel()
	list, err := newNetlist(small())
	require.NoError(t, err)
	require.Equal(t, `caguid=0x2ffff0000000000
Hca 1 "sm"
[1]	"leaf"[4]

switchguid=0x100
Switch 4 "leaf"
[1]	"n1-h0"[1]
[2]	"0000000000000020"[2]
[3]	"spine"[1]
[4]	"sm"[1]

switchguid=0x200
Switch 2 "spine"
[1]	"leaf"[3]

caguid=0x10
Hca 1 "n1-h0"
[1]	"leaf"[1]

caguid=0x20
Hca 2 "0000000000000020"
[2]	"leaf"[2]

`, list.text)
	require.Equal(t, map[protocol.GUID]plug{0x11: {"n1-h0", 1}, 0x22: {"0000000000000020", 2}}, list.hosts)
}

func TestTheManagerGetsAPortOfItsOwnOnAFullFabric(t *testing.T) {
	t.Parallel()
	full := small()
	full.Switches[0].Ports, full.Switches[1].Ports = 3, 1
	list, err := newNetlist(full)
	require.NoError(t, err)
	require.Contains(t, list.text, "Switch 4 \"leaf\"\n")
	require.Contains(t, list.text, "[4]\t\"sm\"[1]\n")
}

func TestNamesThatTheSimulatorCannotTakeAreReplaced(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "sm", `a"b`, "n1-h0", "x#y", "a name that is longer than thirty-one bytes"} {
		topology := small()
		topology.Ports[1].Description = name
		list, err := newNetlist(topology)
		require.NoError(t, err)
		require.Contains(t, list.text, `Hca 2 "0000000000000020"`, name)
	}
}

func TestATopologyThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	for want, spoil := range map[string]func(*protocol.Topology){
		"has no switch":                func(c *protocol.Topology) { c.Switches = nil },
		"is listed twice":              func(c *protocol.Topology) { c.Switches[1].GUID = 0x100 },
		"unknown switch":               func(c *protocol.Topology) { c.Links[0].ToGUID = 0x300 },
		"has no port 0":                func(c *protocol.Topology) { c.Links[0].ToPort = 0 },
		"is cabled to":                 func(c *protocol.Topology) { c.Ports[1].SwitchPort = 1 },
		"hangs on unknown switch":      func(c *protocol.Topology) { c.Ports[1].SwitchGUID = 0x300 },
		"hangs on port 255":            func(c *protocol.Topology) { c.Ports[1].SwitchPort = 255 },
		"GUID plus the port's number":  func(c *protocol.Topology) { c.Ports[1].NodeGUID = 0x22 },
		"adapter 0x0000000000000001":   func(c *protocol.Topology) { c.Ports[1].NodeGUID = 1 },
		"port 0x0000000000000011 is l": func(c *protocol.Topology) { c.Ports[1] = c.Ports[0] },
	} {
		topology := small()
		spoil(&topology)
		_, err := newNetlist(topology)
		require.ErrorContains(t, err, want)
	}
}
