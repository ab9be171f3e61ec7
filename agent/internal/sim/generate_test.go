package sim_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/agent/internal/sim"
	"github.com/leasehold/leasehold/agent/protocol"
)

func TestTheDefaultSiteIsWhatItSays(t *testing.T) {
	t.Parallel()
	h, err := sim.Generate(sim.DefaultSite())
	require.NoError(t, err)
	require.Len(t, h.Nodes, 24)
	first := h.Nodes[0].Inventory
	require.Equal(t, "gpu-h100-01", first.Hostname)
	require.Len(t, first.GPUs, 8)
	require.Len(t, first.HCAs, 8)
	require.Equal(t, 400, first.HCAs[0].Ports[0].RateGbps)
	require.True(t, h.Nodes[16].Inventory.GPUs[0].MIGEnabled)
	require.Empty(t, h.Nodes[16].Inventory.HCAs)
	require.Len(t, h.Nodes[20].Inventory.GPUs, 4)
	require.Equal(t, "amd", h.Nodes[22].Inventory.GPUs[0].Vendor)

	require.Len(t, h.Fabrics, 1)
	top := h.Fabrics[0].Topology
	require.Equal(t, "ib-1", h.Fabrics[0].Name)
	require.Len(t, top.Switches, 16+4)
	require.Len(t, top.Ports, 16*8)
	require.Len(t, top.Links, 16*4*2)
}

func TestTheSamePlanGivesTheSameHardware(t *testing.T) {
	t.Parallel()
	first, err := sim.Generate(sim.DefaultSite())
	require.NoError(t, err)
	second, err := sim.Generate(sim.DefaultSite())
	require.NoError(t, err)
	require.Equal(t, first, second)
	// These are in databases of people who try the product: they must not move.
	require.Equal(t, "GPU-6247401a-ea0b-c4b5-c64f-d4edd00e2093", first.Nodes[0].Inventory.GPUs[0].UUID)
	require.Equal(t, "0x0002c98400000001", first.Nodes[0].Inventory.HCAs[0].Ports[0].GUID.String())
}

func TestGeneratedHardwareIsConsistent(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		site := sim.Site{Name: "s"}
		for _, name := range []string{"a", "b", "c"}[:rapid.IntRange(1, 3).Draw(t, "groups")] {
			site.Groups = append(site.Groups, sim.Group{
				Name: name, Count: rapid.IntRange(1, 90).Draw(t, "count"), GPU: "h100-sxm-80gb", GPUs: rapid.IntRange(1, 16).Draw(t, "gpus"),
				Fabric: rapid.SampledFrom([]string{"", "ib-1", "ib-2"}).Draw(t, "fabric"), NodesPerPod: rapid.IntRange(0, 32).Draw(t, "pod"),
			})
		}
		h, err := sim.Generate(site)
		require.NoError(t, err)
		seen := map[any]bool{}
		once := func(id any) {
			require.False(t, seen[id], "%v twice", id)
			seen[id] = true
		}
		attached := 0
		for _, m := range h.Nodes {
			once(m.Inventory.Hostname)
			once(m.Inventory.Serial)
			for _, g := range m.Inventory.GPUs {
				once(g.UUID)
			}
			for _, hca := range m.Inventory.HCAs {
				once(hca.NodeGUID)
				once(hca.Ports[0].GUID)
				attached++
			}
		}
		for _, f := range h.Fabrics {
			attached -= len(f.Topology.Ports)
			checkTopology(t, f.Topology)
		}
		require.Zero(t, attached, "every adapter is on exactly one fabric")
	})
}

// checkTopology wants every cable to end in a port of its own that the switch has.
func checkTopology(t *rapid.T, top protocol.Topology) {
	type socket struct {
		guid protocol.GUID
		port int
	}
	ports, used := map[protocol.GUID]int{}, map[socket]bool{}
	for _, s := range top.Switches {
		require.Zero(t, ports[s.GUID], "switch %v twice", s.GUID)
		ports[s.GUID] = s.Ports
	}
	plug := func(guid protocol.GUID, port int) {
		require.Positive(t, port)
		require.LessOrEqual(t, port, ports[guid], "port of %v", guid)
		require.False(t, used[socket{guid, port}], "port %d of %v twice", port, guid)
		used[socket{guid, port}] = true
	}
	for _, l := range top.Links {
		plug(l.FromGUID, l.FromPort)
		plug(l.ToGUID, l.ToPort)
	}
	for _, p := range top.Ports {
		plug(p.SwitchGUID, p.SwitchPort)
		require.Equal(t, p.NodeGUID+1, p.GUID)
	}
}

func TestAPlanIsReadAndItsMistakesAreNamed(t *testing.T) {
	t.Parallel()
	site, err := sim.ReadSite(strings.NewReader("name: big\ngroups:\n- {name: h100, count: 1000, gpu: h100-sxm-80gb, gpus: 8, fabric: ib-1, nodes_per_pod: 32}\n"))
	require.NoError(t, err)
	require.Equal(t, 1000, site.Groups[0].Count)
	h, err := sim.Generate(site)
	require.NoError(t, err)
	require.Equal(t, "gpu-h100-0001", h.Nodes[0].Inventory.Hostname)

	for plan, complaint := range map[string]string{
		"":                      "EOF",
		"name: x\nrooms: 3\n":   "rooms",
		"name: x\ngroups: []\n": "1 to 100000 nodes",
		"name: x\ngroups: [{name: a, count: 1, gpu: h900, gpus: 8}]\n":                        "unknown gpu",
		"name: x\ngroups: [{name: a, count: 0, gpu: h100-sxm-80gb, gpus: 8}]\n":               "count",
		"name: x\ngroups: [{name: a, count: 1, gpu: rtx4090-24gb, gpus: 4, mig: true}]\n":     "no MIG",
		"name: ../x\ngroups: [{name: a, count: 1, gpu: rtx4090-24gb, gpus: 4}]\n":             "site name",
		"name: x\ngroups: [{name: A/.., count: 1, gpu: rtx4090-24gb, gpus: 4}]\n":             "group name",
		"name: x\ngroups: [{name: a, count: 1, gpu: rtx4090-24gb, gpus: 4, fabric: '../'}]\n": "fabric name",
	} {
		_, err := sim.ReadSite(strings.NewReader(plan))
		require.ErrorContains(t, err, complaint, plan)
	}
}
