package inventory

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Tiers of switches, counted from the hosts.
const (
	leafTier  = 1
	spineTier = 2
)

// layout works out what no subnet manager says: how far each switch is from the hosts, and which leaves belong to one pod.
//
// A leaf has hosts, or hangs on the spines of one that has. Aggregation nodes are no hosts, and a switch whose hosts are fewer than its
// neighbours with more hosts is a spine that somebody plugged a server into. From the leaves upwards the levels are distances.
//
// A pod is what stays connected when the top tier is taken away, through switches or through machines with several adapters: with two
// tiers the leaves that the same machines hang on (one a rail), with three the leaves and spines below one set of cores. Nodes of one
// pod reach each other without the top tier. Pods keep the names that their leaves have already, in known; new ones are numbered.
type layout struct {
	switches   map[protocol.GUID]protocol.Switch
	neighbours map[protocol.GUID]map[protocol.GUID]bool
	hosts      map[protocol.GUID]int             // host ports by switch
	machines   map[string]map[protocol.GUID]bool // the switches that each machine hangs on
	level      map[protocol.GUID]int
}

// fewestAdapters is what a machine that only a description names must have to hold leaves together: GPU nodes have four or more on the
// fabric, or one less when a rail is down, while a storage or login server with a foot in each of two pods must not make one of them.
const fewestAdapters = 3

// Arrange gives the switches of a topology their levels and pods, unless whoever reported it knows pods, and so the plan. owners are
// the machines whose port GUIDs are known; known are the pods that switches are in already.
func Arrange(t protocol.Topology, owners map[protocol.GUID]string, known map[protocol.GUID]string) protocol.Topology {
	if hasPlan(t) {
		return t
	}
	l := newLayout(t, owners)
	l.findLevels()
	pods := l.podNames(known)
	t.Switches = slices.Clone(t.Switches)
	for i := range t.Switches {
		s := &t.Switches[i]
		s.Level, s.Pod = l.level[s.GUID], pods[s.GUID]
	}
	return t
}

// hasPlan reports whether whoever reported the topology knows pods.
func hasPlan(t protocol.Topology) bool {
	return slices.ContainsFunc(t.Switches, func(s protocol.Switch) bool { return s.Pod != "" })
}

func newLayout(t protocol.Topology, owners map[protocol.GUID]string) *layout {
	l := &layout{
		switches: map[protocol.GUID]protocol.Switch{}, neighbours: map[protocol.GUID]map[protocol.GUID]bool{}, hosts: map[protocol.GUID]int{},
		machines: map[string]map[protocol.GUID]bool{}, level: map[protocol.GUID]int{},
	}
	for _, s := range t.Switches {
		l.switches[s.GUID], l.neighbours[s.GUID] = s, map[protocol.GUID]bool{}
	}
	for _, link := range t.Links {
		if l.neighbours[link.FromGUID] != nil && l.neighbours[link.ToGUID] != nil && link.FromGUID != link.ToGUID {
			l.neighbours[link.FromGUID][link.ToGUID], l.neighbours[link.ToGUID][link.FromGUID] = true, true
		}
	}
	adapters := map[string]int{}
	for _, p := range t.Ports {
		if l.neighbours[p.SwitchGUID] == nil || IsAggregation(p.Description) {
			continue
		}
		l.hosts[p.SwitchGUID]++
		machine, owned := owners[p.GUID]
		if !owned {
			machine = hostname(p.Description)
		}
		if machine == "" {
			continue
		}
		if l.machines[machine] == nil {
			l.machines[machine] = map[protocol.GUID]bool{}
		}
		l.machines[machine][p.SwitchGUID] = true
		if adapters[machine]++; owned {
			adapters[machine] = max(adapters[machine], fewestAdapters)
		}
	}
	maps.DeleteFunc(l.machines, func(machine string, _ map[protocol.GUID]bool) bool { return adapters[machine] < fewestAdapters })
	return l
}

// IsAggregation reports whether an adapter with that description is a part of its switch, which reduces for the hosts (SHARP); it hangs on
// the fabric like an adapter, and no machine is behind it.
func IsAggregation(description string) bool { return strings.Contains(description, "Aggregation Node") }

// hostname is the machine's name in an adapter's description, e.g. "gpu-07 mlx5_3"; "" when there is none, as in the factory's.
func hostname(description string) string {
	words := strings.Fields(description)
	if len(words) < 2 || regexp.MustCompile(`^MT\d+$`).MatchString(words[0]) {
		return ""
	}
	return "host " + words[0]
}

// findLevels counts from the leaves.
func (l *layout) findLevels() {
	for guid := range l.switches {
		if l.hosts[guid] > 0 && !l.hasGuests(guid) {
			l.level[guid] = leafTier
		}
	}
	l.spread()
	for guid, level := range l.level {
		if level > spineTier && l.standsLikeALeaf(guid) {
			l.level[guid] = leafTier
		}
	}
}

// hasGuests: the few hosts on it are out of place.
func (l *layout) hasGuests(guid protocol.GUID) bool {
	larger := 0
	for peer := range l.neighbours[guid] {
		if l.hosts[peer] > l.hosts[guid] {
			larger++
		}
	}
	return larger > l.hosts[guid]
}

// spread gives every switch that has no level one more than its nearest neighbour's.
func (l *layout) spread() {
	for reached := slices.Collect(maps.Keys(l.level)); len(reached) > 0; {
		var further []protocol.GUID
		for _, guid := range reached {
			for peer := range l.neighbours[guid] {
				if l.level[peer] == 0 {
					l.level[peer] = l.level[guid] + 1
					further = append(further, peer)
				}
			}
		}
		reached = further
	}
}

// standsLikeALeaf: it hangs on nothing but what one leaf hangs on as well, so that it is a leaf whose hosts are down, and no core.
func (l *layout) standsLikeALeaf(guid protocol.GUID) bool {
	for leaf, level := range l.level {
		if level == leafTier && leaf != guid && partOf(l.neighbours[guid], l.neighbours[leaf]) {
			return true
		}
	}
	return false
}

func partOf(part, whole map[protocol.GUID]bool) bool {
	for guid := range part {
		if !whole[guid] {
			return false
		}
	}
	return true
}

// podNames finds what hangs together below the top tier, and names it.
func (l *layout) podNames(known map[protocol.GUID]string) map[protocol.GUID]string {
	pods := l.components()
	names := map[protocol.GUID]string{}
	taken := map[string]bool{}
	var nameless []component
	for _, pod := range pods {
		name := pod.wish(known)
		if name == "" || taken[name] {
			nameless = append(nameless, pod)
			continue
		}
		taken[name] = true
		pod.name(names, name)
	}
	next := 1
	for _, pod := range nameless {
		for taken[fmt.Sprintf("pod-%d", next)] {
			next++
		}
		pod.name(names, fmt.Sprintf("pod-%d", next))
		next++
	}
	return names
}

// component is the switches of a pod, the leaves first, by name.
type component []protocol.Switch

func (c component) name(names map[protocol.GUID]string, name string) {
	for _, s := range c {
		names[s.GUID] = name
	}
}

// wish is the pod that most of its switches are in already, the lower number when two have as many; "" when none is.
func (c component) wish(known map[protocol.GUID]string) string {
	votes := map[string]int{}
	for _, s := range c {
		if pod := known[s.GUID]; pod != "" {
			votes[pod]++
		}
	}
	best := ""
	shorter := func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }
	for _, pod := range slices.SortedFunc(maps.Keys(votes), shorter) {
		if votes[pod] > votes[best] {
			best = pod
		}
	}
	return best
}

// components are the pods in the order of their first leaves' names.
func (l *layout) components() []component {
	top := slices.Max(append(slices.Collect(maps.Values(l.level)), 0))
	below := func(guid protocol.GUID) bool { return l.level[guid] > 0 && (top < spineTier || l.level[guid] < top) }
	set := sets{}
	for guid, peers := range l.neighbours {
		for peer := range peers {
			if below(guid) && below(peer) {
				set.join(guid, peer)
			}
		}
	}
	for _, leaves := range l.machines {
		var first protocol.GUID
		for leaf := range leaves {
			if !below(leaf) {
				continue
			}
			if first == 0 {
				first = leaf
			}
			set.join(first, leaf)
		}
	}
	byRoot := map[protocol.GUID]component{}
	for guid, s := range l.switches {
		if below(guid) {
			root := set.root(guid)
			byRoot[root] = append(byRoot[root], s)
		}
	}
	pods := slices.Collect(maps.Values(byRoot))
	for _, pod := range pods {
		slices.SortFunc(pod, func(a, b protocol.Switch) int {
			return cmp.Or(cmp.Compare(l.level[a.GUID], l.level[b.GUID]), compareSwitches(a, b))
		})
	}
	slices.SortFunc(pods, func(a, b component) int { return compareSwitches(a[0], b[0]) })
	return pods
}

func compareSwitches(a, b protocol.Switch) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.GUID, b.GUID))
}

// sets are disjoint sets of switches.
type sets map[protocol.GUID]protocol.GUID

func (s sets) root(guid protocol.GUID) protocol.GUID {
	for {
		parent, ok := s[guid]
		if !ok || parent == guid {
			return guid
		}
		if above, ok := s[parent]; ok {
			s[guid] = above
		}
		guid = parent
	}
}

func (s sets) join(a, b protocol.GUID) {
	if x, y := s.root(a), s.root(b); x != y {
		s[x] = y
	}
}
