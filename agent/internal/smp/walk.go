package smp

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Place is where an HCA port hangs, and how to get there.
type Place struct {
	protocol.TopologyPort

	Path          Path // to the HCA's port; its parent is the path to the switch
	PKeyCap       int  // entries of the HCA port's table
	SwitchPKeyCap int  // entries of the switch port's table; 0: the switch cannot enforce
}

// Subnet is what a walk found.
type Subnet struct {
	Switches []protocol.Switch
	Links    []protocol.Link
	Places   map[protocol.GUID]Place // by port GUID, the local port's included
	Routes   map[protocol.GUID]Route // by switch GUID
	Local    protocol.GUID           // the port that the walk began at
	SMLID    int
}

// Route is how to get to a switch.
type Route struct {
	Path    Path
	PKeyCap int // entries of an external port's table
}

// walkWorkers bounds how many nodes are asked at once.
const walkWorkers = 8

// Walk explores the subnet along directed routes from the local port. It needs no LIDs and no working routing, and learns from
// the ports themselves what is cabled to what. Nodes that do not answer are left out.
func (c *Client) Walk(ctx context.Context) (Subnet, error) {
	w := &walk{client: c, switches: map[protocol.GUID]*switchNode{}, places: map[protocol.GUID]Place{}}
	local, err := c.NodeInfo(ctx, nil)
	if err != nil {
		return Subnet{}, fmt.Errorf("walk subnet: %w", err)
	}
	port, err := c.PortInfo(ctx, nil, local.LocalPort)
	if err != nil {
		return Subnet{}, fmt.Errorf("walk subnet: %w", err)
	}
	frontier := []hop{{path: Path{byte(local.LocalPort)}}} //nolint:gosec // port numbers are 0…254
	for len(frontier) > 0 {
		if frontier, err = w.step(ctx, frontier); err != nil {
			return Subnet{}, fmt.Errorf("walk subnet: %w", err)
		}
	}
	if err := w.addLocal(ctx, local, port); err != nil {
		return Subnet{}, fmt.Errorf("walk subnet: %w", err)
	}
	return Subnet{
		Switches: w.levelled(local.PortGUID), Links: w.sortedLinks(), Places: w.places, Routes: w.routes(),
		Local: local.PortGUID, SMLID: port.SMLID,
	}, nil
}

// hop is a way out of a known switch (or of the local port, when from is nil).
type hop struct {
	path     Path
	from     *switchNode
	fromPort int
	info     PortInfo
}

type switchNode struct {
	protocol.Switch

	path    Path
	pkeyCap int
	peers   []protocol.GUID // other switches
}

type walk struct {
	client *Client

	mu       sync.Mutex
	switches map[protocol.GUID]*switchNode
	places   map[protocol.GUID]Place
	links    []protocol.Link
	linked   map[[2]end]bool
	next     []hop
}

type end struct {
	guid protocol.GUID
	port int
}

// step follows every hop of the frontier and returns the hops that lead on.
func (w *walk) step(ctx context.Context, frontier []hop) ([]hop, error) {
	w.next = nil
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(walkWorkers)
	for _, h := range frontier {
		group.Go(func() error { return w.follow(ctx, h) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	slices.SortFunc(w.next, func(a, b hop) int { return slices.Compare(a.path, b.path) })
	return w.next, nil
}

// follow asks what stands at the end of one hop. A node that does not answer is not an error: it is not there.
func (w *walk) follow(ctx context.Context, h hop) error {
	info, err := w.client.NodeInfo(ctx, h.path)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return nil //nolint:nilerr // silent nodes are left out of the map
	case info.Type == NodeSwitch:
		return w.enterSwitch(ctx, h, info)
	default:
		return w.enterHCA(ctx, h, info)
	}
}

func (w *walk) enterHCA(ctx context.Context, h hop, info NodeInfo) error {
	description, err := w.client.Description(ctx, h.path)
	if err != nil {
		return ctx.Err()
	}
	port, err := w.client.PortInfo(ctx, h.path, info.LocalPort)
	if err != nil {
		return ctx.Err()
	}
	place := Place{
		TopologyPort: protocol.TopologyPort{
			GUID: info.PortGUID, NodeGUID: info.GUID, Description: description, LID: port.LID, RateGbps: port.RateGbps,
		},
		Path: h.path, PKeyCap: info.PKeyCap,
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if h.from != nil {
		place.SwitchGUID, place.SwitchPort, place.SwitchPKeyCap = h.from.GUID, h.fromPort, h.from.pkeyCap
	}
	w.places[info.PortGUID] = place
	return nil
}

func (w *walk) enterSwitch(ctx context.Context, h hop, info NodeInfo) error {
	node, isNew := w.visit(h, info)
	if !isNew {
		return nil
	}
	own, err := w.client.SwitchInfo(ctx, h.path)
	if err != nil {
		return ctx.Err()
	}
	name, err := w.client.Description(ctx, h.path)
	if err != nil {
		return ctx.Err()
	}
	w.mu.Lock()
	node.Name, node.pkeyCap = name, own.PKeyCap
	w.mu.Unlock()
	for number := 1; number <= info.Ports; number++ {
		port, err := w.client.PortInfo(ctx, h.path, number)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil || port.State < StateInit {
			continue
		}
		w.mu.Lock()
		w.next = append(w.next, hop{path: h.path.Then(byte(number)), from: node, fromPort: number, info: port}) //nolint:gosec // 1…254
		w.mu.Unlock()
	}
	return nil
}

// visit notes the switch and the link that led to it.
func (w *walk) visit(h hop, info NodeInfo) (*switchNode, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	node, known := w.switches[info.GUID]
	if !known {
		node = &switchNode{Switch: protocol.Switch{GUID: info.GUID, Ports: info.Ports}, path: h.path}
		w.switches[info.GUID] = node
	}
	if h.from != nil {
		w.link(h, end{info.GUID, info.LocalPort})
		h.from.peers = append(h.from.peers, info.GUID)
		node.peers = append(node.peers, h.from.GUID)
	}
	return node, !known
}

// link adds a link between switches once, whichever end it is found from.
func (w *walk) link(h hop, to end) {
	from := end{h.from.GUID, h.fromPort}
	if compareEnds(to, from) < 0 {
		from, to = to, from
	}
	if w.linked == nil {
		w.linked = map[[2]end]bool{}
	}
	if w.linked[[2]end{from, to}] {
		return
	}
	w.linked[[2]end{from, to}] = true
	w.links = append(w.links, protocol.Link{
		FromGUID: from.guid, FromPort: from.port, ToGUID: to.guid, ToPort: to.port, RateGbps: h.info.RateGbps, Width: h.info.Width,
	})
}

// addLocal adds the port where the walk began. Seen from its switch, it is a host like any other, and the walk has found it
// there; without a switch it is alone.
func (w *walk) addLocal(ctx context.Context, local NodeInfo, port PortInfo) error {
	place, found := w.places[local.PortGUID]
	if found {
		place.Path = nil
		w.places[local.PortGUID] = place
		return nil
	}
	description, err := w.client.Description(ctx, nil)
	if err != nil {
		return err
	}
	w.places[local.PortGUID] = Place{
		TopologyPort: protocol.TopologyPort{
			GUID: local.PortGUID, NodeGUID: local.GUID, Description: description, LID: port.LID, RateGbps: port.RateGbps,
		},
		PKeyCap: local.PKeyCap,
	}
	return nil
}

func (w *walk) routes() map[protocol.GUID]Route {
	routes := make(map[protocol.GUID]Route, len(w.switches))
	for guid, node := range w.switches {
		routes[guid] = Route{Path: node.path, PKeyCap: node.pkeyCap}
	}
	return routes
}

// levelled returns the switches with their distance from the hosts: 1 has hosts other than the local port, 2 is next to a 1.
func (w *walk) levelled(local protocol.GUID) []protocol.Switch {
	level := map[protocol.GUID]int{}
	for guid, place := range w.places {
		if guid != local && place.SwitchGUID != 0 {
			level[place.SwitchGUID] = 1
		}
	}
	for reached := slices.Collect(maps.Keys(level)); len(reached) > 0; {
		var further []protocol.GUID
		for _, guid := range reached {
			for _, peer := range w.switches[guid].peers {
				if level[peer] == 0 {
					level[peer] = level[guid] + 1
					further = append(further, peer)
				}
			}
		}
		reached = further
	}
	switches := make([]protocol.Switch, 0, len(w.switches))
	for guid, node := range w.switches {
		node.Level = level[guid]
		switches = append(switches, node.Switch)
	}
	slices.SortFunc(switches, func(a, b protocol.Switch) int { return cmp.Compare(a.GUID, b.GUID) })
	return switches
}

func (w *walk) sortedLinks() []protocol.Link {
	slices.SortFunc(w.links, func(a, b protocol.Link) int {
		return compareEnds(end{a.FromGUID, a.FromPort}, end{b.FromGUID, b.FromPort})
	})
	return w.links
}

func compareEnds(a, b end) int {
	return cmp.Or(cmp.Compare(a.guid, b.guid), cmp.Compare(a.port, b.port))
}

// Topology returns the subnet's graph. The local port is left out: it is the manager's (or the reader's), not a host's.
func (s Subnet) Topology() protocol.Topology {
	t := protocol.Topology{Switches: s.Switches, Links: s.Links, Ports: make([]protocol.TopologyPort, 0, len(s.Places))}
	for guid, place := range s.Places {
		if guid != s.Local {
			t.Ports = append(t.Ports, place.TopologyPort)
		}
	}
	slices.SortFunc(t.Ports, func(a, b protocol.TopologyPort) int { return cmp.Compare(a.GUID, b.GUID) })
	return t
}
