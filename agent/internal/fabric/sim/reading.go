package sim

import (
	"context"
	"fmt"
	"slices"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Observe implements fabric.Driver.
func (d *Driver) Observe(_ context.Context, ports []protocol.GUID) ([]protocol.LinkState, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.places()
	links := make([]protocol.LinkState, len(ports))
	for i, port := range ports {
		links[i] = d.link(port, at[port])
	}
	return links, nil
}

func (d *Driver) places() map[protocol.GUID]protocol.TopologyPort {
	at := make(map[protocol.GUID]protocol.TopologyPort, len(d.topology.Ports))
	for _, port := range d.topology.Ports {
		at[port.GUID] = port
	}
	return at
}

func (d *Driver) link(port protocol.GUID, at protocol.TopologyPort) protocol.LinkState {
	held, known := d.read(port)
	link := protocol.LinkState{
		GUID: port, SwitchGUID: at.SwitchGUID, SwitchPort: at.SwitchPort,
		HCA:    protocol.PortTable{GUID: port, Readable: known, Keys: slices.Clone(held.HCA), Source: source},
		Switch: protocol.PortTable{GUID: at.SwitchGUID, Readable: known, Keys: slices.Clone(held.Switch), Source: source},
	}
	if !known {
		link.HCA.Detail, link.Switch.Detail = "never seen", "never seen"
	}
	if d.faults.Unreachable[port] {
		link.HCA = protocol.PortTable{GUID: port, Source: source, Detail: "no answer"}
	}
	return link
}

// read returns the tables as the manager's side shows them: the old ones while it is stale.
func (d *Driver) read(port protocol.GUID) (tables, bool) {
	if old, frozen := d.stale[port]; frozen && d.faults.Stale {
		return old, true
	}
	held, known := d.saved.Tables[port]
	return held, known
}

// ReadPort implements fabric.Driver. A host reads its own adapter, so a stale manager does not mislead it.
func (d *Driver) ReadPort(_ context.Context, port protocol.GUID) (protocol.PortTable, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	held, known := d.saved.Tables[port]
	if !known {
		return protocol.PortTable{}, fmt.Errorf("read port %v: not on this fabric", port)
	}
	return protocol.PortTable{GUID: port, Readable: true, Keys: slices.Clone(held.HCA), Source: source}, nil
}

// HasPath implements fabric.Driver: two ports reach each other when their tables share a partition in which one is full.
func (d *Driver) HasPath(_ context.Context, from, to protocol.GUID) protocol.Verdict {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.faults.Down {
		return protocol.Unknown
	}
	for _, a := range d.keysOf(from) {
		for _, b := range d.keysOf(to) {
			if a != 0 && a.Base() == b.Base() && (a.Full() || b.Full()) {
				return protocol.True
			}
		}
	}
	return protocol.False
}

func (d *Driver) keysOf(port protocol.GUID) []protocol.PKey {
	if port == ManagerPort {
		return []protocol.PKey{protocol.DefaultFull}
	}
	held, _ := d.read(port)
	return held.HCA
}

// Topology implements fabric.Driver.
func (d *Driver) Topology(context.Context) (protocol.Topology, error) { return d.topology, nil }

// Controller implements fabric.Driver.
func (d *Driver) Controller(context.Context) (protocol.Controller, error) {
	return protocol.Controller{Driver: "sim", Version: "sim 1", SMGUID: ManagerPort, MaxPKeysPerPort: maxPKeysPerPort}, nil
}

// Posture implements fabric.Driver. A simulated fabric is hardened unless the faults say otherwise.
func (d *Driver) Posture(context.Context) ([]protocol.PostureCheck, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	checks := make([]protocol.PostureCheck, 0, len(fabric.PostureItems()))
	for _, item := range fabric.PostureItems() {
		check := protocol.PostureCheck{Item: item, Verdict: protocol.True, Detail: "simulated"}
		if verdict, set := d.faults.Posture[item]; set {
			check.Verdict = verdict
		}
		if item == fabric.PostureDefaultLimited && d.someoneIsFull() {
			check.Verdict, check.Detail = protocol.False, "a host port is a full member of the default partition"
		}
		checks = append(checks, check)
	}
	return checks, nil
}

func (d *Driver) someoneIsFull() bool {
	for _, held := range d.saved.Tables {
		if slices.Contains(held.HCA, protocol.DefaultFull) {
			return true
		}
	}
	return false
}
