package ufm

import (
	"context"
	"fmt"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Source names tables that are UFM's word and were read from no port.
const Source = "ufm"

const (
	saidOfHCA    = "the manager's word, not read from the port"
	saidOfSwitch = "the manager says it of the HCA port only; not read from the port"
)

// Observe implements fabric.Driver. Where something reads the ports, their tables are what the ports hold; a table that looks right
// there while UFM says something else is unknown: one of the two is about to change.
func (d *Driver) Observe(ctx context.Context, ports []protocol.GUID) ([]protocol.LinkState, error) {
	said := d.hear(ctx, ports)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("observe ports: %w", err)
	}
	if d.config.Ports == nil {
		return said, nil
	}
	read, err := d.config.Ports.Read(ctx, ports)
	if err != nil {
		return nil, fmt.Errorf("observe ports: %w", err)
	}
	if len(read) != len(ports) {
		return nil, fmt.Errorf("observe ports: %d of %d were read", len(read), len(ports))
	}
	d.mu.Lock()
	judge := fabric.NewJudge(d.memory.State.Desired)
	d.mu.Unlock()
	for i := range read {
		compare(judge, &read[i], said[i])
	}
	return read, nil
}

// compare makes unknown what looks right in the port and is not what UFM says.
func compare(judge fabric.Judge, read *protocol.LinkState, said protocol.LinkState) {
	if read.SwitchGUID == 0 { // where it was is still known
		read.SwitchGUID, read.SwitchPort, read.Switch.GUID = said.SwitchGUID, said.SwitchPort, said.SwitchGUID
	}
	if !said.HCA.Readable || judge.Disagreement(*read) != "" {
		return
	}
	if fault := judge.Disagreement(said); fault != "" {
		read.HCA.Readable = false
		read.HCA.Detail = fmt.Sprintf("UFM says something else than the port: %s", fault)
	}
}

// hear asks UFM what it says of the ports. What it does not say, or cannot be asked, is unknown.
func (d *Driver) hear(ctx context.Context, ports []protocol.GUID) []protocol.LinkState {
	links := make([]protocol.LinkState, len(ports))
	seen, err := d.look(ctx)
	for i, guid := range ports {
		d.mu.Lock()
		at := d.memory.Ports[guid]
		d.mu.Unlock()
		links[i] = protocol.LinkState{
			GUID: guid, SwitchGUID: at.SwitchGUID, SwitchPort: at.SwitchPort,
			HCA:    protocol.PortTable{GUID: guid, Source: Source},
			Switch: protocol.PortTable{GUID: at.SwitchGUID, Source: Source},
		}
		keys, fault := d.believe(seen, err, guid)
		if fault != "" {
			links[i].HCA.Detail, links[i].Switch.Detail = fault, fault
			continue
		}
		links[i].HCA.Keys, links[i].HCA.Readable, links[i].HCA.Detail = keys, true, saidOfHCA
		links[i].Switch.Keys, links[i].Switch.Readable, links[i].Switch.Detail = keys, true, saidOfSwitch
	}
	return links
}

// believe returns what UFM says of a port, or why that is not known.
func (d *Driver) believe(seen snapshot, err error, guid protocol.GUID) (keys []protocol.PKey, fault string) {
	if err != nil {
		return nil, fmt.Sprintf("UFM did not say: %v", err)
	}
	listed, there := seen.ports[guid]
	switch {
	case !there:
		return nil, "UFM does not list the port"
	case !listed.Active:
		return nil, fmt.Sprintf("UFM says that the port is not active (%s)", listed.State)
	}
	keys, known := seen.word(guid)
	if !known {
		return nil, "UFM does not say enough of the port's partitions"
	}
	return keys, ""
}

// ReadPort implements fabric.Driver: by the reader, or UFM's word.
func (d *Driver) ReadPort(ctx context.Context, guid protocol.GUID) (protocol.PortTable, error) {
	links, err := d.Observe(ctx, []protocol.GUID{guid})
	if err != nil {
		return protocol.PortTable{}, err
	}
	d.mu.Lock()
	_, known := d.memory.Ports[guid]
	d.mu.Unlock()
	if !known {
		return protocol.PortTable{}, fmt.Errorf("read port %v: not on this fabric", guid)
	}
	return links[0].HCA, nil
}

// MayAskPaths implements fabric.PathAsker. Where the administrator does not tell us, and UFM does not say what is in the default
// partition, nobody can be asked. A UFM that cannot be reached is asked none the less: that nothing is known is said so.
func (d *Driver) MayAskPaths(ctx context.Context) bool {
	if d.config.Ports != nil && d.config.Ports.MayAskPaths(ctx) {
		return true
	}
	seen, err := d.recent(ctx)
	return err != nil || seen.partitions[protocol.DefaultLimited].Default != ""
}

// HasPath implements fabric.Driver: the administrator's word where it may be asked; else what UFM's partitions mean.
func (d *Driver) HasPath(ctx context.Context, from, to protocol.GUID) protocol.Verdict {
	if d.config.Ports != nil && d.config.Ports.MayAskPaths(ctx) {
		return d.config.Ports.HasPath(ctx, from, to)
	}
	seen, err := d.recent(ctx)
	if err != nil {
		return protocol.Unknown
	}
	a, okA := d.wordOf(seen, from)
	b, okB := d.wordOf(seen, to)
	if !okA || !okB {
		return protocol.Unknown
	}
	for _, x := range a {
		for _, y := range b {
			if x.Base() == y.Base() && (x.Full() || y.Full()) {
				return protocol.True
			}
		}
	}
	return protocol.False
}

// wordOf is UFM's word on a port. Its own host is a full member of the default partition, or nobody could reach the manager.
func (d *Driver) wordOf(seen snapshot, guid protocol.GUID) ([]protocol.PKey, bool) {
	if _, listed := seen.ports[guid]; !listed {
		return nil, false
	}
	keys, known := seen.word(guid)
	if known && d.isManager(guid) {
		keys = append(keys, protocol.DefaultFull)
	}
	return keys, known
}
