package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
)

// Place is a port of a switch; the zero Place is nowhere.
type Place struct {
	Switch     protocol.GUID
	SwitchName string
	Port       int
}

// Words renders the place for people.
func (p Place) Words() string {
	if p.Switch == 0 {
		return "nowhere"
	}
	return fmt.Sprintf("%s port %d", cmp.Or(p.SwitchName, p.Switch.String()), p.Port)
}

func (p Place) same(o Place) bool { return p.Switch == o.Switch && p.Port == o.Port }

// KnownPort is an adapter's port that a node reported, with where it hangs.
type KnownPort struct {
	ID         ids.HCAPort
	GUID       protocol.GUID
	Node       ids.Node
	NodeName   string
	Device     string
	Rail       int
	Fabric     ids.Fabric // zero: no fabric's manager has seen it
	FabricName string
	Place      Place
	// Leased: a tenant's lease holds the node, now or later, so that nobody moves its ports without an admin's word.
	Leased bool
	// NodeLeaf and NodePod are what placement knows of its node.
	NodeLeaf     protocol.GUID
	NodeLeafName string
	NodePod      string
}

// DiffKind is what happens to a thing.
type DiffKind string

// The kinds of differences.
const (
	Added   DiffKind = "added"
	Removed DiffKind = "removed"
	Changed DiffKind = "changed"
)

// SwitchDiff is a switch that comes, goes or changes.
type SwitchDiff struct {
	Kind DiffKind
	GUID protocol.GUID
	Name string
	What []string // of one that changes, e.g. "pod: \"\" becomes \"pod-1\""
	// Ports are how many ports of inventory hang on a switch that is gone from the file; it stays then.
	Ports int
}

// LinkDiff is a cable between switches that comes, goes or changes its speed.
type LinkDiff struct {
	Kind     DiffKind
	From, To Place
	Before   int // Gbit/s
	After    int
}

// PortDiff is a port of a node that is found, or found elsewhere.
type PortDiff struct {
	Port   KnownPort // Place and Fabric are those before
	After  Place
	Review bool // its node is leased: the move waits for an admin, and nothing changes before
	// Elsewhere: inventory has it on another fabric.
	Elsewhere bool
}

// NodeDiff is what changes for placement.
type NodeDiff struct {
	Node                  ids.Node
	Name                  string
	LeafBefore, LeafAfter string // names; "" for none
	PodBefore, PodAfter   string
}

// Stranger is an adapter's port that no node of the fabric's site has reported.
type Stranger struct {
	GUID, NodeGUID protocol.GUID
	Description    string
	Place          Place
	Aggregation    bool // it is a part of the switch
}

// TopologyDiff is how a topology differs from inventory. Every list has an order of its own that depends on nothing else.
type TopologyDiff struct {
	Switches  []SwitchDiff
	Links     []LinkDiff
	Ports     []PortDiff
	Nodes     []NodeDiff
	Strangers []Stranger
	Missing   []KnownPort // on the fabric by inventory, and not in the topology
}

// Empty reports whether there is nothing to change. Strangers and what is missing change nothing.
func (d TopologyDiff) Empty() bool {
	return len(d.Switches) == 0 && len(d.Links) == 0 && len(d.Ports) == 0 && len(d.Nodes) == 0
}

// comparison has what inventory knows.
type comparison struct {
	fabric   ids.Fabric
	switches []Switch
	links    []Link
	ports    []KnownPort // of all nodes of the site
}

// diff compares inventory with a topology that has levels and pods.
func (c comparison) diff(t protocol.Topology) TopologyDiff {
	names := map[protocol.GUID]string{}
	for _, s := range c.switches {
		names[s.GUID] = s.Name
	}
	for _, s := range t.Switches {
		names[s.GUID] = s.Name
	}
	var d TopologyDiff
	d.Ports, d.Strangers = c.diffPorts(t, names)
	d.Missing = c.missing(t)
	d.Switches = c.diffSwitches(t, d)
	d.Links = c.diffLinks(t, names)
	d.Nodes = c.diffNodes(t, d, names)
	return d
}

func (c comparison) diffPorts(t protocol.Topology, names map[protocol.GUID]string) ([]PortDiff, []Stranger) {
	known := map[protocol.GUID]KnownPort{}
	for _, p := range c.ports {
		known[p.GUID] = p
	}
	var diffs []PortDiff
	var strangers []Stranger
	for _, seen := range t.Ports {
		place := Place{Switch: seen.SwitchGUID, SwitchName: names[seen.SwitchGUID], Port: seen.SwitchPort}
		port, ok := known[seen.GUID]
		switch {
		case !ok:
			strangers = append(strangers, Stranger{
				GUID: seen.GUID, NodeGUID: seen.NodeGUID, Description: seen.Description, Place: place, Aggregation: IsAggregation(seen.Description),
			})
		case port.Fabric != c.fabric || !port.Place.same(place):
			diffs = append(diffs, PortDiff{Port: port, After: place, Review: port.Leased && port.Place.Switch != 0, Elsewhere: !port.Fabric.IsZero() && port.Fabric != c.fabric})
		}
	}
	slices.SortFunc(diffs, func(a, b PortDiff) int { return compareKnown(a.Port, b.Port) })
	slices.SortFunc(strangers, func(a, b Stranger) int { return cmp.Compare(a.GUID, b.GUID) })
	return diffs, strangers
}

func compareKnown(a, b KnownPort) int {
	return cmp.Or(cmp.Compare(a.NodeName, b.NodeName), cmp.Compare(a.Rail, b.Rail), cmp.Compare(a.GUID, b.GUID))
}

func (c comparison) missing(t protocol.Topology) []KnownPort {
	seen := map[protocol.GUID]bool{}
	for _, p := range t.Ports {
		seen[p.GUID] = true
	}
	missing := slices.Clone(c.ports)
	missing = slices.DeleteFunc(missing, func(p KnownPort) bool { return p.Fabric != c.fabric || seen[p.GUID] })
	slices.SortFunc(missing, compareKnown)
	return missing
}

func (c comparison) diffSwitches(t protocol.Topology, d TopologyDiff) []SwitchDiff {
	before := map[protocol.GUID]Switch{}
	for _, s := range c.switches {
		before[s.GUID] = s
	}
	var diffs []SwitchDiff
	seen := map[protocol.GUID]bool{}
	for _, s := range t.Switches {
		seen[s.GUID] = true
		was, ok := before[s.GUID]
		if !ok {
			diffs = append(diffs, SwitchDiff{Kind: Added, GUID: s.GUID, Name: s.Name})
		} else if what := switchWords(was, s); len(what) > 0 {
			diffs = append(diffs, SwitchDiff{Kind: Changed, GUID: s.GUID, Name: s.Name, What: what})
		}
	}
	left := c.leftOn(d)
	for _, s := range c.switches {
		if !seen[s.GUID] {
			diffs = append(diffs, SwitchDiff{Kind: Removed, GUID: s.GUID, Name: s.Name, Ports: left[s.GUID]})
		}
	}
	slices.SortFunc(diffs, func(a, b SwitchDiff) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.GUID, b.GUID))
	})
	return diffs
}

func switchWords(was Switch, is protocol.Switch) []string {
	var what []string
	note := func(name string, before, after any) {
		if before != after {
			what = append(what, fmt.Sprintf("%s: %#v becomes %#v", name, before, after))
		}
	}
	note("name", was.Name, is.Name)
	note("level", was.Level, is.Level)
	note("ports", was.Ports, is.Ports)
	note("pod", was.Pod, is.Pod)
	return what
}

// leftOn counts the ports of inventory that stay on each switch: those that are missing, and those whose move waits.
func (c comparison) leftOn(d TopologyDiff) map[protocol.GUID]int {
	left := map[protocol.GUID]int{}
	for _, p := range d.Missing {
		left[p.Place.Switch]++
	}
	for _, p := range d.Ports {
		if p.Review {
			left[p.Port.Place.Switch]++
		}
	}
	return left
}

// linkKey is a link from the end with the smaller GUID.
type linkKey struct {
	from, to         protocol.GUID
	fromPort, toPort int
}

func (c comparison) diffLinks(t protocol.Topology, names map[protocol.GUID]string) []LinkDiff {
	before, after := map[linkKey]int{}, map[linkKey]int{}
	for _, l := range c.links {
		before[newLinkKey(l.FromGUID, l.FromPort, l.ToGUID, l.ToPort)] = l.RateGbps
	}
	for _, l := range t.Links {
		after[newLinkKey(l.FromGUID, l.FromPort, l.ToGUID, l.ToPort)] = l.RateGbps
	}
	var diffs []LinkDiff
	note := func(kind DiffKind, k linkKey) {
		diffs = append(diffs, LinkDiff{
			Kind: kind, From: Place{k.from, names[k.from], k.fromPort}, To: Place{k.to, names[k.to], k.toPort}, Before: before[k], After: after[k],
		})
	}
	for k, rate := range after {
		if was, ok := before[k]; !ok {
			note(Added, k)
		} else if was != rate {
			note(Changed, k)
		}
	}
	for k := range before {
		if _, ok := after[k]; !ok {
			note(Removed, k)
		}
	}
	slices.SortFunc(diffs, func(a, b LinkDiff) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), strings.Compare(a.From.SwitchName, b.From.SwitchName), cmp.Compare(a.From.Switch, b.From.Switch),
			cmp.Compare(a.From.Port, b.From.Port), cmp.Compare(a.To.Switch, b.To.Switch), cmp.Compare(a.To.Port, b.To.Port))
	})
	return diffs
}

func newLinkKey(a protocol.GUID, aPort int, b protocol.GUID, bPort int) linkKey {
	if cmp.Or(cmp.Compare(a, b), cmp.Compare(aPort, bPort)) > 0 {
		a, aPort, b, bPort = b, bPort, a, aPort
	}
	return linkKey{from: a, fromPort: aPort, to: b, toPort: bPort}
}

// diffNodes says what leaf and pod nodes will have: those of their first rail, as locating them does it.
func (c comparison) diffNodes(t protocol.Topology, d TopologyDiff, names map[protocol.GUID]string) []NodeDiff {
	pods := map[protocol.GUID]string{}
	for _, s := range c.switches {
		pods[s.GUID] = s.Pod
	}
	for _, s := range t.Switches {
		pods[s.GUID] = s.Pod
	}
	after := map[protocol.GUID]Place{}
	for _, p := range d.Ports {
		if !p.Review {
			after[p.Port.GUID] = p.After
		}
	}
	seen := map[protocol.GUID]bool{}
	for _, p := range t.Ports {
		seen[p.GUID] = true
	}
	touched, first := map[ids.Node]bool{}, map[ids.Node]KnownPort{}
	for _, p := range c.ports {
		touched[p.Node] = touched[p.Node] || seen[p.GUID]
		place, moved := after[p.GUID]
		if !moved {
			place = p.Place
		}
		if place.Switch == 0 {
			continue
		}
		if have, ok := first[p.Node]; !ok || cmp.Or(cmp.Compare(p.Rail, have.Rail), cmp.Compare(p.GUID, have.GUID)) < 0 {
			p.Place = place
			first[p.Node] = p
		}
	}
	var diffs []NodeDiff
	for node, p := range first {
		pod, ours := pods[p.Place.Switch]
		if !ours || !touched[node] || (p.NodeLeaf == p.Place.Switch && p.NodePod == pod) {
			continue
		}
		diffs = append(diffs, NodeDiff{
			Node: node, Name: p.NodeName, LeafBefore: p.NodeLeafName, LeafAfter: names[p.Place.Switch], PodBefore: p.NodePod, PodAfter: pod,
		})
	}
	slices.SortFunc(diffs, func(a, b NodeDiff) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Node.String(), b.Node.String()))
	})
	return diffs
}
