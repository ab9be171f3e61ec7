package ufm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/leasehold/leasehold/agent/internal/durable"
	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

// memory is what the driver keeps: UFM keeps neither the epoch nor what a set changed.
type memory struct {
	path string
	kept
}

// kept survives a restart.
type kept struct {
	State fabric.State `json:"state"`
	// Placed: there was a set before. Until then what UFM has in the managed range is what the first one takes over.
	Placed bool `json:"placed"`
	// Changed lists the ports that the last set changed, so that a repeat of the operation answers for the same ports.
	Changed []protocol.GUID `json:"changed"`
	// Closed lists partitions that were to lose all their members, until UFM has agreed to the set without them.
	Closed []protocol.PKey `json:"closed,omitempty"`
	// Probe is the partition that a repair made and has not yet seen gone; 0: none.
	Probe protocol.PKey `json:"probe,omitempty"`
	// Ports are all adapters' ports that UFM ever listed, with their last place, but those of its own hosts.
	Ports map[protocol.GUID]protocol.TopologyPort `json:"ports"`
}

func openMemory(dir string) (*memory, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	m := &memory{path: filepath.Join(dir, "ufm-driver.json")}
	if _, err := durable.ReadJSON(m.path, &m.kept); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	if m.Ports == nil {
		m.Ports = map[protocol.GUID]protocol.TopologyPort{}
	}
	return m, nil
}

func (m *memory) save() error {
	if err := durable.WriteJSON(m.path, m.kept, 0o600); err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	return nil
}

// place makes the set the current one, before UFM hears of it: a crash in between is made good by the same operation.
func (d *Driver) place(seen *snapshot, desired fabric.Desired, epoch int64) ([]protocol.GUID, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.memory.State.Desired
	if !d.memory.Placed && seen != nil {
		before.Partitions = seen.within(desired.Managed)
	}
	changed := fabric.Changes(before, desired)
	if d.memory.Placed && epoch == d.memory.State.Epoch {
		changed = slices.Compact(slices.Sorted(slices.Values(slices.Concat(changed, d.memory.Changed))))
	}
	// What lasts is the set, not what the request said of it besides.
	lasting := fabric.Desired{Partitions: desired.Partitions, Managed: desired.Managed}
	d.memory.State, d.memory.Changed, d.memory.Placed = fabric.State{Desired: lasting, Epoch: epoch}, changed, true
	d.memory.Closed = closed(before, desired, d.memory.Closed)
	return changed, d.memory.save()
}

// closed lists the partitions of before, and of those that were closed already, which the set does not have.
func closed(before, desired fabric.Desired, already []protocol.PKey) []protocol.PKey {
	keys := slices.Clone(already)
	for _, p := range before.Partitions {
		keys = append(keys, p.PKey)
	}
	keys = slices.DeleteFunc(keys, func(key protocol.PKey) bool {
		return slices.ContainsFunc(desired.Partitions, func(p protocol.Partition) bool { return p.PKey == key })
	})
	slices.Sort(keys)
	return slices.Compact(keys)
}

// settled forgets what was closed, once UFM has agreed to the set.
func (d *Driver) settled(desired fabric.Desired) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.memory.Closed) == 0 || len(fabric.Changes(desired, d.memory.State.Desired)) > 0 {
		return nil
	}
	d.memory.Closed = nil
	return d.memory.save()
}

// noteSeen remembers ports. One whose place UFM does not tell now keeps its last.
func (d *Driver) noteSeen(s snapshot) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	news := false
	for guid, seen := range s.ports {
		if slices.Contains(d.config.ManagerPorts, guid) {
			continue
		}
		before, known := d.memory.Ports[guid]
		at := seen.topologyPort()
		if at.SwitchGUID == 0 {
			at.SwitchGUID, at.SwitchPort = before.SwitchGUID, before.SwitchPort
		}
		if at.NodeGUID == 0 {
			at.NodeGUID = before.NodeGUID
		}
		if at.RateGbps == 0 {
			at.RateGbps = before.RateGbps
		}
		if !known || at != before {
			d.memory.Ports[guid], news = at, true
		}
	}
	if !news {
		return nil
	}
	return d.memory.save()
}

// topologyPort is the port with its place.
func (p port) topologyPort() protocol.TopologyPort {
	return protocol.TopologyPort{
		GUID: p.GUID, NodeGUID: p.node(), Description: p.Description, LID: p.LID, RateGbps: p.RateGbps,
		SwitchGUID: p.Peer.Node, SwitchPort: p.Peer.Port,
	}
}

// node is the adapter's GUID: that of the port's name, else the system's.
func (p port) node() protocol.GUID {
	if named := decodeEnd(p.Name); named.Node != 0 {
		return named.Node
	}
	return p.System
}
