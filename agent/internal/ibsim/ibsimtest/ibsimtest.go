// Package ibsimtest helps tests to run a real OpenSM on a simulated subnet.
package ibsimtest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/ibsim"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Tools finds OpenSM and the simulator, installed or unpacked under $LEASEHOLD_CACHE. Without them the test is skipped, or
// fails when LEASEHOLD_REQUIRE_OPENSM is 1.
func Tools(t *testing.T) ibsim.Tools {
	t.Helper()
	tools, err := ibsim.FindTools(Prefixes()...)
	if err != nil && os.Getenv("LEASEHOLD_REQUIRE_OPENSM") == "1" {
		require.NoError(t, err, "LEASEHOLD_REQUIRE_OPENSM=1")
	}
	if err != nil {
		t.Skipf("no OpenSM to test with (%v); on Debian: apt-get install --no-install-recommends opensm ibsim-utils infiniband-diags", err)
	}
	return tools
}

// Prefixes are where packages may have been unpacked instead of installed.
func Prefixes() []string {
	cache := os.Getenv("LEASEHOLD_CACHE")
	if cache == "" {
		return nil
	}
	return []string{cache, filepath.Join(cache, "opensm"), filepath.Join(cache, "debian")}
}

// FatTree is a rail-optimised two-level fat tree: HCA k of every node hangs on leaf k, and one spine joins the leaves. HCA k of
// node n (from 1) is "n0001-h0" with node GUID 0x0002c900nnnnkk00; its port's GUID is one more. Ports are sorted by GUID.
func FatTree(nodes, rails int) protocol.Topology {
	const spine = protocol.GUID(0x0002c90200000100)
	var t protocol.Topology
	for rail := range rails {
		leaf := protocol.GUID(0x0002c90100000000 + uint64(rail+1)<<8)
		t.Switches = append(t.Switches, protocol.Switch{GUID: leaf, Name: fmt.Sprintf("leaf-%d", rail), Ports: nodes + 2, Level: 1})
		t.Links = append(t.Links, protocol.Link{FromGUID: leaf, FromPort: nodes + 1, ToGUID: spine, ToPort: rail + 1, RateGbps: 10, Width: "4X"})
	}
	t.Switches = append(t.Switches, protocol.Switch{GUID: spine, Name: "spine-0", Ports: max(rails, 2), Level: 2})
	for node := 1; node <= nodes; node++ {
		for rail := range rails {
			guid := protocol.GUID(0x0002c90000000000 | uint64(node)<<16 | uint64(rail)<<8)
			t.Ports = append(t.Ports, protocol.TopologyPort{
				GUID: guid + 1, NodeGUID: guid, Description: fmt.Sprintf("n%04d-h%d", node, rail),
				SwitchGUID: t.Switches[rail].GUID, SwitchPort: node, RateGbps: 10,
			})
		}
	}
	return t
}

// Cluster is a fat tree of leaves with perLeaf nodes each: HCA k of a group's nodes hangs on the group's leaf k, and every leaf has a
// link to each of four spines. GUIDs and names of HCAs are FatTree's.
func Cluster(nodes, rails, perLeaf int) protocol.Topology {
	const spines = 4
	var t protocol.Topology
	leaf := func(group, rail int) protocol.GUID {
		return protocol.GUID(0x0002c90100000000 + uint64(group)<<16 + uint64(rail+1)<<8) //nolint:gosec // small numbers
	}
	spine := func(n int) protocol.GUID { return protocol.GUID(0x0002c90200000100 + uint64(n)<<8) } //nolint:gosec // likewise
	groups := (nodes + perLeaf - 1) / perLeaf
	for group := range groups {
		for rail := range rails {
			t.Switches = append(t.Switches, protocol.Switch{
				GUID: leaf(group, rail), Name: fmt.Sprintf("leaf-%d-%d", group, rail), Ports: perLeaf + spines + 1, Level: 1, Pod: fmt.Sprintf("pod-%d", group),
			})
			for n := range spines {
				t.Links = append(t.Links, protocol.Link{
					FromGUID: leaf(group, rail), FromPort: perLeaf + 1 + n, ToGUID: spine(n), ToPort: group*rails + rail + 1, RateGbps: 10, Width: "4X",
				})
			}
		}
	}
	for n := range spines {
		t.Switches = append(t.Switches, protocol.Switch{GUID: spine(n), Name: fmt.Sprintf("spine-%d", n), Ports: max(groups*rails, 2), Level: 2})
	}
	for node := range nodes {
		for rail := range rails {
			guid := protocol.GUID(0x0002c90000000000 | uint64(node+1)<<16 | uint64(rail)<<8)
			t.Ports = append(t.Ports, protocol.TopologyPort{
				GUID: guid + 1, NodeGUID: guid, Description: fmt.Sprintf("n%04d-h%d", node+1, rail),
				SwitchGUID: leaf(node/perLeaf, rail), SwitchPort: node%perLeaf + 1, RateGbps: 10,
			})
		}
	}
	return t
}
