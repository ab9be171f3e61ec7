package ufm

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/agent/protocol"
)

func (d *Driver) isManager(guid protocol.GUID) bool {
	return slices.Contains(d.config.ManagerPorts, guid)
}

// Topology implements fabric.Driver. While UFM cannot be asked it is the graph as it was last seen, which says nothing of tables.
func (d *Driver) Topology(ctx context.Context) (protocol.Topology, error) {
	graph, err := d.graph(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil:
		d.topology = graph
	case len(d.memory.Ports) == 0:
		return protocol.Topology{}, fmt.Errorf("read topology: %w", err)
	}
	t := d.topology
	t.Ports = slices.SortedFunc(maps.Values(d.memory.Ports), func(a, b protocol.TopologyPort) int { return cmp.Compare(a.GUID, b.GUID) })
	return t, nil
}

// graph asks UFM for switches and links, and places ports whose place the list of ports does not tell.
func (d *Driver) graph(ctx context.Context) (protocol.Topology, error) {
	var links []link
	var switches map[protocol.GUID]protocol.Switch
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		data, err := d.client.get(groupCtx, pathLinks)
		if err != nil {
			return err
		}
		links, err = decodeLinks(data)
		return err
	})
	group.Go(func() error {
		data, err := d.client.get(groupCtx, pathSwitches)
		if err != nil {
			return err
		}
		switches, err = decodeSwitches(data)
		return err
	})
	if err := group.Wait(); err != nil {
		return protocol.Topology{}, err
	}
	seen, err := d.look(ctx)
	if err != nil {
		return protocol.Topology{}, err
	}
	seen.ports = maps.Clone(seen.ports) // others may be looking at it
	placeByLinks(seen, links, switches)
	if err := d.noteSeen(seen); err != nil {
		return protocol.Topology{}, err
	}
	return protocol.Topology{Switches: level(seen, switches, links), Links: trunks(switches, links)}, nil
}

// placeByLinks fills in the switch port of ports whose list entry does not tell it. Links name an adapter by node and number.
func placeByLinks(seen snapshot, links []link, switches map[protocol.GUID]protocol.Switch) {
	facing := map[end]end{}
	for _, l := range links {
		facing[l.From], facing[l.To] = l.To, l.From
	}
	for guid, p := range seen.ports {
		if _, isSwitch := switches[p.Peer.Node]; isSwitch {
			continue
		}
		if far, found := facing[decodeEnd(p.Name)]; found {
			p.Peer = far
			seen.ports[guid] = p
		}
	}
}

// trunks lists the links between switches, each once.
func trunks(switches map[protocol.GUID]protocol.Switch, links []link) []protocol.Link {
	out := make([]protocol.Link, 0, len(links))
	listed := map[end]bool{}
	for _, l := range links {
		_, fromSwitch := switches[l.From.Node]
		_, toSwitch := switches[l.To.Node]
		if !fromSwitch || !toSwitch || listed[l.From] || listed[l.To] {
			continue
		}
		listed[l.From], listed[l.To] = true, true
		out = append(out, protocol.Link{
			FromGUID: l.From.Node, FromPort: l.From.Port, ToGUID: l.To.Node, ToPort: l.To.Port, Width: l.Width,
		})
	}
	slices.SortFunc(out, func(a, b protocol.Link) int {
		return cmp.Or(cmp.Compare(a.FromGUID, b.FromGUID), cmp.Compare(a.FromPort, b.FromPort))
	})
	return out
}

// level counts each switch's distance from the hosts: 1 has hosts, 2 is next to a 1.
func level(seen snapshot, switches map[protocol.GUID]protocol.Switch, links []link) []protocol.Switch {
	levels := map[protocol.GUID]int{}
	for _, p := range seen.ports {
		if _, known := switches[p.Peer.Node]; known {
			levels[p.Peer.Node] = 1
		}
	}
	peers := map[protocol.GUID][]protocol.GUID{}
	for _, l := range links {
		peers[l.From.Node] = append(peers[l.From.Node], l.To.Node)
		peers[l.To.Node] = append(peers[l.To.Node], l.From.Node)
	}
	for reached := slices.Sorted(maps.Keys(levels)); len(reached) > 0; {
		var further []protocol.GUID
		for _, guid := range reached {
			for _, peer := range peers[guid] {
				if _, isSwitch := switches[peer]; isSwitch && levels[peer] == 0 {
					levels[peer] = levels[guid] + 1
					further = append(further, peer)
				}
			}
		}
		reached = further
	}
	out := make([]protocol.Switch, 0, len(switches))
	for _, guid := range slices.Sorted(maps.Keys(switches)) {
		s := switches[guid]
		s.Level = levels[guid]
		out = append(out, s)
	}
	return out
}

// Controller implements fabric.Driver.
func (d *Driver) Controller(ctx context.Context) (protocol.Controller, error) {
	v, err := d.version(ctx)
	if err != nil {
		return protocol.Controller{}, err
	}
	return protocol.Controller{
		Driver: "ufm", Version: "UFM " + v.Text, SMGUID: d.config.ManagerPorts[0], MaxPKeysPerPort: MaxPKeysPerPort,
	}, nil
}
