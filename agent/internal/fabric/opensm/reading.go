package opensm

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/agent/internal/smp"
	"github.com/leasehold/leasehold/agent/protocol"
)

// source names where tables come from: SMPs, answered by the ports themselves.
const source = "smp"

// readers bounds how many ports are read at once.
const readers = 8

// walk explores the subnet anew and remembers the ports.
func (d *Driver) walk(ctx context.Context) error {
	subnet, err := d.config.Client.Walk(ctx)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.subnet = subnet
	if d.memory.noteSeen(subnet.Topology().Ports) {
		return d.memory.save()
	}
	return nil
}

// Observe implements fabric.Driver. Ports that are not where they were are looked for once.
func (d *Driver) Observe(ctx context.Context, ports []protocol.GUID) ([]protocol.LinkState, error) {
	links := d.read(ctx, ports)
	if slices.ContainsFunc(links, func(l protocol.LinkState) bool { return !l.HCA.Readable || !l.Switch.Readable }) {
		if err := d.walk(ctx); err != nil {
			return nil, fmt.Errorf("observe ports: %w", err)
		}
		links = d.read(ctx, ports)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("observe ports: %w", err)
	}
	return links, nil
}

// read reads both ends of the ports' links, where they were last seen.
func (d *Driver) read(ctx context.Context, ports []protocol.GUID) []protocol.LinkState {
	links := make([]protocol.LinkState, len(ports))
	var group errgroup.Group
	group.SetLimit(readers)
	for i, port := range ports {
		group.Go(func() error {
			links[i] = d.readLink(ctx, port)
			return nil
		})
	}
	_ = group.Wait() // the readers do not fail: what cannot be read is unknown
	return links
}

// location is where a port was last seen and how to get there.
type location struct {
	place   protocol.TopologyPort
	route   smp.Route // to its switch
	path    smp.Path  // to the port
	known   bool      // it was seen at some time
	reached bool      // its switch is on the map
}

func (d *Driver) locate(port protocol.GUID) location {
	d.mu.Lock()
	defer d.mu.Unlock()
	if port == d.subnet.Local {
		return d.locateLocal()
	}
	place, known := d.memory.Ports[port]
	route, reached := d.subnet.Routes[place.SwitchGUID]
	l := location{place: place, route: route, known: known, reached: reached}
	if reached {
		l.path = route.Path.Then(byte(place.SwitchPort)) //nolint:gosec // a port number is 1…254
	}
	return l
}

// locateLocal finds the manager's own port, which is not in the topology.
func (d *Driver) locateLocal() location {
	place := d.subnet.Places[d.subnet.Local]
	route, reached := d.subnet.Routes[place.SwitchGUID]
	return location{place: place.TopologyPort, route: route, known: true, reached: reached}
}

func (d *Driver) readLink(ctx context.Context, port protocol.GUID) protocol.LinkState {
	at := d.locate(port)
	link := protocol.LinkState{
		GUID: port, SwitchGUID: at.place.SwitchGUID, SwitchPort: at.place.SwitchPort,
		HCA:    protocol.PortTable{GUID: port, Source: source},
		Switch: protocol.PortTable{GUID: at.place.SwitchGUID, Source: source},
	}
	switch {
	case !at.known:
		link.HCA.Detail, link.Switch.Detail = "never seen", "never seen"
	case !at.reached:
		link.HCA.Detail, link.Switch.Detail = "its switch does not answer", "no answer"
	default:
		d.fill(&link.HCA, func() ([]protocol.PKey, error) { return d.readHCA(ctx, at) })
		d.fill(&link.Switch, func() ([]protocol.PKey, error) { return d.readSwitch(ctx, at) })
	}
	return link
}

func (d *Driver) fill(table *protocol.PortTable, read func() ([]protocol.PKey, error)) {
	keys, err := read()
	if err != nil {
		table.Detail = err.Error()
		return
	}
	table.Keys, table.Readable = keys, true
}

// readHCA reads the adapter's end. Who answers is asked first: after recabling, another port may.
func (d *Driver) readHCA(ctx context.Context, at location) ([]protocol.PKey, error) {
	info, err := d.config.Client.NodeInfo(ctx, at.path)
	if err != nil {
		return nil, err
	}
	if info.PortGUID != at.place.GUID {
		return nil, fmt.Errorf("port %v answers in its place", info.PortGUID)
	}
	return d.config.Client.PKeyTable(ctx, at.path, 0, info.PKeyCap)
}

// readSwitch reads the end that faces the adapter.
func (d *Driver) readSwitch(ctx context.Context, at location) ([]protocol.PKey, error) {
	info, err := d.config.Client.NodeInfo(ctx, at.route.Path)
	if err != nil {
		return nil, err
	}
	if info.GUID != at.place.SwitchGUID {
		return nil, fmt.Errorf("%v answers in the switch's place", info.GUID)
	}
	if at.route.PKeyCap == 0 {
		return nil, fmt.Errorf("the switch has no partition tables")
	}
	return d.config.Client.PKeyTable(ctx, at.route.Path, at.place.SwitchPort, at.route.PKeyCap)
}

// ReadPort implements fabric.Driver. Unlike a host's own reading it comes over the fabric, so it is for simulated nodes.
func (d *Driver) ReadPort(ctx context.Context, port protocol.GUID) (protocol.PortTable, error) {
	at := d.locate(port)
	if !at.known {
		return protocol.PortTable{}, fmt.Errorf("read port %v: not on this fabric", port)
	}
	table := protocol.PortTable{GUID: port, Source: source}
	if !at.reached {
		table.Detail = "its switch does not answer"
		return table, nil
	}
	d.fill(&table, func() ([]protocol.PKey, error) { return d.readHCA(ctx, at) })
	return table, nil
}

// HasPath implements fabric.Driver: the word of OpenSM's subnet administrator.
func (d *Driver) HasPath(ctx context.Context, from, to protocol.GUID) protocol.Verdict {
	lid, err := d.managerLID(ctx)
	if err != nil {
		return protocol.Unknown
	}
	found, err := d.config.Client.HasPath(ctx, lid, from, to)
	switch {
	case err != nil:
		return protocol.Unknown
	case found:
		return protocol.True
	default:
		return protocol.False
	}
}

// MayAskPaths implements fabric.PathAsker: while the local port is a full member of the default partition, as the ruling manager's is.
func (d *Driver) MayAskPaths(ctx context.Context) bool {
	d.mu.Lock()
	local := d.subnet.Local
	d.mu.Unlock()
	return slices.Contains(d.readLink(ctx, local).HCA.Keys, protocol.DefaultFull)
}

// managerLID asks the local port where the manager is: it moves when a standby takes over.
func (d *Driver) managerLID(ctx context.Context) (int, error) {
	info, err := d.config.Client.PortInfo(ctx, nil, 0)
	if err != nil {
		return 0, err
	}
	if info.SMLID == 0 {
		return 0, fmt.Errorf("find subnet manager: the local port knows none")
	}
	return info.SMLID, nil
}

// Topology implements fabric.Driver. Ports that were seen before and are not there now are listed at their last place.
func (d *Driver) Topology(ctx context.Context) (protocol.Topology, error) {
	if err := d.walk(ctx); err != nil {
		return protocol.Topology{}, fmt.Errorf("read topology: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.subnet.Topology()
	for guid, port := range d.memory.Ports {
		if _, there := d.subnet.Places[guid]; !there {
			t.Ports = append(t.Ports, port)
		}
	}
	slices.SortFunc(t.Ports, func(a, b protocol.TopologyPort) int { return cmp.Compare(a.GUID, b.GUID) })
	return t, nil
}

// Controller implements fabric.Driver. The manager that rules may be a standby on another host by now; where it cannot be told, it is taken
// to be the one beside us.
func (d *Driver) Controller(ctx context.Context) (protocol.Controller, error) {
	lid, err := d.managerLID(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	c := protocol.Controller{Driver: "opensm", Version: d.config.Version, SMGUID: d.subnet.Local, MaxPKeysPerPort: MaxPKeysPerPort}
	for guid, place := range d.subnet.Places {
		if err == nil && place.LID == lid {
			c.SMGUID = guid
		}
	}
	return c, nil
}
