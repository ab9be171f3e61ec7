package inventory_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/inventory"
	"github.com/leasehold/leasehold/backend/inventory/netdiscover"
)

// plant builds topologies by name.
type plant struct {
	topology protocol.Topology
	guids    map[string]protocol.GUID
	next     map[string]int
}

func (p *plant) of(name string) protocol.GUID {
	if p.guids == nil {
		p.guids, p.next = map[string]protocol.GUID{}, map[string]int{}
	}
	if p.guids[name] == 0 {
		p.guids[name] = protocol.GUID(0x1000 + len(p.guids))
		p.topology.Switches = append(p.topology.Switches, protocol.Switch{GUID: p.guids[name], Name: name, Ports: 64})
	}
	return p.guids[name]
}

func (p *plant) plug(name string) int { p.next[name]++; return p.next[name] }

func (p *plant) link(a, b string) {
	from, to := p.of(a), p.of(b)
	p.topology.Links = append(p.topology.Links, protocol.Link{FromGUID: from, FromPort: p.plug(a), ToGUID: to, ToPort: p.plug(b)})
}

func (p *plant) host(description string, on ...string) {
	for i, name := range on {
		guid := protocol.GUID(0x100000 + len(p.topology.Ports))
		p.topology.Ports = append(p.topology.Ports, protocol.TopologyPort{
			GUID: guid, NodeGUID: guid, Description: fmt.Sprintf("%s mlx5_%d", description, i), SwitchGUID: p.of(name), SwitchPort: p.plug(name),
		})
	}
}

// levels and pods by the switches' names.
func arranged(p *plant, owners map[protocol.GUID]string, known map[protocol.GUID]string) (map[string]int, map[string]string) {
	levels, pods := map[string]int{}, map[string]string{}
	for _, s := range inventory.Arrange(p.topology, owners, known).Switches {
		levels[s.Name], pods[s.Name] = s.Level, s.Pod
	}
	return levels, pods
}

// rails is two groups of nodes, each with a leaf for every one of its four rails, below two spines.
func rails() *plant {
	p := &plant{}
	for group := 1; group <= 2; group++ {
		for rail := 1; rail <= 4; rail++ {
			for spine := 1; spine <= 2; spine++ {
				p.link(fmt.Sprintf("leaf-%d-%d", group, rail), fmt.Sprintf("spine-%d", spine))
			}
		}
		for node := range 3 {
			leaf := fmt.Sprintf("leaf-%d-", group)
			p.host(fmt.Sprintf("n%d%d", group, node), leaf+"1", leaf+"2", leaf+"3", leaf+"4")
		}
	}
	return p
}

func TestLeavesThatTheSameMachinesHangOnAreAPod(t *testing.T) {
	t.Parallel()
	levels, pods := arranged(rails(), nil, nil)
	require.Equal(t, []int{1, 2}, []int{levels["leaf-2-3"], levels["spine-1"]})
	for rail := 1; rail <= 4; rail++ {
		require.Equal(t, "pod-1", pods[fmt.Sprintf("leaf-1-%d", rail)])
		require.Equal(t, "pod-2", pods[fmt.Sprintf("leaf-2-%d", rail)])
	}
	require.Empty(t, pods["spine-1"], "the top tier belongs to no pod")
}

func TestAServerWithAFootInTwoPodsDoesNotMakeThemOne(t *testing.T) {
	t.Parallel()
	p := rails()
	p.host("storage-1", "leaf-1-1", "leaf-2-1")
	_, pods := arranged(p, nil, nil)
	require.NotEqual(t, pods["leaf-1-1"], pods["leaf-2-1"])

	owners := map[protocol.GUID]string{}
	for _, port := range p.topology.Ports[len(p.topology.Ports)-2:] {
		owners[port.GUID] = "node_1"
	}
	_, pods = arranged(p, owners, nil)
	require.Equal(t, pods["leaf-1-1"], pods["leaf-2-1"], "a node of ours does, since a lease of it spans both")
}

func TestWithThreeTiersAPodIsWhatOneSetOfCoresJoins(t *testing.T) {
	t.Parallel()
	p := &plant{}
	for pod := 1; pod <= 2; pod++ {
		for leaf := 1; leaf <= 3; leaf++ {
			name := fmt.Sprintf("leaf-%d-%d", pod, leaf)
			for spine := 1; spine <= 2; spine++ {
				p.link(name, fmt.Sprintf("spine-%d-%d", pod, spine))
			}
			p.host("n"+name, name)
		}
		for spine := 1; spine <= 2; spine++ {
			p.link(fmt.Sprintf("spine-%d-%d", pod, spine), "core-1")
			p.link(fmt.Sprintf("spine-%d-%d", pod, spine), "core-2")
		}
	}
	levels, pods := arranged(p, nil, nil)
	require.Equal(t, []int{1, 2, 3}, []int{levels["leaf-1-1"], levels["spine-2-2"], levels["core-2"]})
	require.Equal(t, "pod-1", pods["leaf-1-3"])
	require.Equal(t, "pod-1", pods["spine-1-2"])
	require.Equal(t, "pod-2", pods["leaf-2-1"])
	require.Empty(t, pods["core-1"])
}

func TestAggregationNodesAndGuestsMakeNoLeaves(t *testing.T) {
	t.Parallel()
	p := rails()
	for _, s := range slices.Clone(p.topology.Switches) {
		guid := s.GUID + 0x10
		p.topology.Ports = append(p.topology.Ports, protocol.TopologyPort{
			GUID: guid, NodeGUID: guid, Description: "Mellanox Technologies Aggregation Node", SwitchGUID: s.GUID, SwitchPort: 64,
		})
	}
	p.host("manager", "spine-1") // a server on a spine
	levels, pods := arranged(p, nil, nil)
	require.Equal(t, []int{1, 2, 2}, []int{levels["leaf-1-1"], levels["spine-1"], levels["spine-2"]})
	require.NotEqual(t, pods["leaf-1-1"], pods["leaf-2-1"])
}

func TestALeafWhoseHostsAreDownIsNoCore(t *testing.T) {
	t.Parallel()
	p := rails()
	p.link("leaf-3-1", "spine-1")
	levels, pods := arranged(p, nil, nil)
	require.Equal(t, []int{1, 2}, []int{levels["leaf-3-1"], levels["spine-1"]})
	require.NotEqual(t, pods["leaf-1-1"], pods["leaf-2-1"])
	require.NotEmpty(t, pods["leaf-3-1"])
	p.of("lost")
	levels, pods = arranged(p, nil, nil)
	require.Zero(t, levels["lost"])
	require.Empty(t, pods["lost"])
}

func TestPodsKeepTheirNamesAndPlansOverrideTheGraph(t *testing.T) {
	t.Parallel()
	p := rails()
	known := map[protocol.GUID]string{p.of("leaf-1-2"): "east", p.of("leaf-1-3"): "east", p.of("leaf-1-4"): "odd", p.of("leaf-2-1"): "pod-1"}
	_, pods := arranged(p, nil, known)
	require.Equal(t, "east", pods["leaf-1-1"])
	require.Equal(t, "pod-1", pods["leaf-2-4"])
	_, pods = arranged(p, nil, map[protocol.GUID]string{p.of("leaf-1-1"): "pod-10", p.of("leaf-1-2"): "pod-9"})
	require.Equal(t, "pod-9", pods["leaf-1-3"])
	_, pods = arranged(p, nil, map[protocol.GUID]string{p.of("leaf-2-1"): "pod-1"})
	require.Equal(t, []string{"pod-2", "pod-1"}, []string{pods["leaf-1-1"], pods["leaf-2-1"]}, "a new pod does not take another's name")

	p.topology.Switches[0].Pod, p.topology.Switches[0].Level = "plan", 7
	levels, pods := arranged(p, nil, nil)
	require.Equal(t, 7, levels[p.topology.Switches[0].Name])
	require.Empty(t, pods["leaf-2-1"], "whoever knows pods knows the plan")
}

// However the pieces are listed, the arrangement is the same, and stays so when it is done again with what it gave.
func TestTheArrangementDependsOnTheGraphAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		p := &plant{}
		for range rapid.IntRange(1, 15).Draw(r, "links") {
			a, b := rapid.IntRange(0, 7).Draw(r, "a"), rapid.IntRange(0, 7).Draw(r, "b")
			if a != b {
				p.link(fmt.Sprintf("s%d", a), fmt.Sprintf("s%d", b))
			}
		}
		for i := range rapid.IntRange(0, 10).Draw(r, "hosts") {
			p.host(fmt.Sprintf("h%d", i), fmt.Sprintf("s%d", rapid.IntRange(0, 7).Draw(r, "on")), fmt.Sprintf("s%d", rapid.IntRange(0, 7).Draw(r, "on")))
		}
		levels, pods := arranged(p, nil, nil)
		known := map[protocol.GUID]string{}
		for name, guid := range p.guids {
			known[guid] = pods[name]
		}
		p.topology.Switches = rapid.Permutation(p.topology.Switches).Draw(r, "switches")
		p.topology.Links = rapid.Permutation(p.topology.Links).Draw(r, "cables")
		p.topology.Ports = rapid.Permutation(p.topology.Ports).Draw(r, "ports")
		again, againPods := arranged(p, nil, known)
		require.True(r, maps.Equal(levels, again))
		require.True(r, maps.Equal(pods, againPods))
		for name, level := range levels {
			if level == 0 {
				require.Empty(r, pods[name])
			}
		}
	})
}

// A real cluster's switches are named by their tiers and places, so that the arrangement can be held against the names.
func TestARealClustersTiersAreFound(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("..", "..", "..", "shared", "data", "ibnetdiscover", "ndr-dgx.out"))
	if err != nil {
		t.Skip("no real cluster's ibnetdiscover file at hand (../shared/data/ibnetdiscover)")
	}
	graph, err := netdiscover.Parse(raw)
	require.NoError(t, err)
	tiers := map[int]int{}
	pods := map[string]int{}
	for _, s := range inventory.Arrange(graph.Topology(), nil, nil).Switches {
		tiers[s.Level]++
		pods[s.Pod]++
	}
	require.Equal(t, map[int]int{1: 31, 2: 9}, tiers)
	delete(pods, "")
	require.Len(t, pods, 8, "eight groups of rails")
}
