// Package sim is a subnet in memory, for simulated sites and fault tests. It has both ends' tables of every HCA port, applies
// a set at once, and misbehaves on demand in the ways that a real subnet manager was seen to.
package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasehold/leasehold/agent/internal/durable"
	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

// ManagerPort is the simulated subnet manager's own port.
const ManagerPort = protocol.GUID(0x02ffff0000000001)

// maxPKeysPerPort is what OpenSM's tables safely hold.
const maxPKeysPerPort = 31

// source names this driver in tables.
const source = "sim"

// Config says what to simulate.
type Config struct {
	Topology protocol.Topology
	// StateFile keeps the tables over a restart; "" keeps them in memory only.
	StateFile string
	// Patience is how long Apply waits for ports that a fault keeps from having what they should; zero: no wait.
	Patience fabric.Patience
}

// Driver implements fabric.Driver.
type Driver struct {
	topology protocol.Topology
	file     string
	patience fabric.Patience
	queue    *fabric.Queue

	mu     sync.Mutex
	saved  saved
	faults Faults
	stale  map[protocol.GUID]tables // what a stale manager goes on answering
	sweeps int
}

// saved is what a restart keeps.
type saved struct {
	State   fabric.State             `json:"state"`
	Changed []protocol.GUID          `json:"changed"`
	Tables  map[protocol.GUID]tables `json:"tables"`
	// Believed is which partition the manager has put each port in, as far as it knows.
	Believed map[protocol.GUID]protocol.PKey `json:"believed"`
}

// tables are both ends of one link.
type tables struct {
	HCA    []protocol.PKey `json:"hca"`
	Switch []protocol.PKey `json:"switch"`
}

// New returns a driver for the topology. On a first start all ports are limited members of the default partition.
func New(config Config) (*Driver, error) {
	d := &Driver{topology: config.Topology, file: config.StateFile, patience: config.Patience, queue: fabric.NewQueue()}
	if d.file != "" {
		if _, err := durable.ReadJSON(d.file, &d.saved); err != nil {
			return nil, fmt.Errorf("open simulated fabric: %w", err)
		}
	}
	if d.saved.Tables == nil {
		d.saved.Tables = map[protocol.GUID]tables{}
	}
	if d.saved.Believed == nil {
		d.saved.Believed = map[protocol.GUID]protocol.PKey{}
	}
	for _, port := range config.Topology.Ports {
		if _, known := d.saved.Tables[port.GUID]; !known {
			d.saved.Tables[port.GUID], d.saved.Believed[port.GUID] = idle(), 0
		}
	}
	return d, nil
}

func idle() tables {
	return tables{HCA: []protocol.PKey{protocol.DefaultLimited}, Switch: []protocol.PKey{protocol.DefaultLimited}}
}

func member(key protocol.PKey) tables {
	keys := []protocol.PKey{key | protocol.FullMember, protocol.DefaultLimited}
	return tables{HCA: keys, Switch: slices.Clone(keys)}
}

// Apply implements fabric.Driver.
func (d *Driver) Apply(ctx context.Context, desired fabric.Desired, epoch int64) (fabric.Applied, error) {
	if _, err := d.admit(desired, epoch); err != nil {
		return fabric.Applied{}, err
	}
	var applied fabric.Applied
	err := d.queue.Do(ctx, func(ctx context.Context) error {
		admitted, err := d.admit(desired, epoch)
		if err != nil {
			return err
		}
		applied, err = d.apply(ctx, admitted, epoch)
		return err
	})
	return applied, err
}

func (d *Driver) admit(desired fabric.Desired, epoch int64) (fabric.Desired, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fabric.Admit(d.saved.State, desired, epoch, fabric.Limits{
		Known:           func(port protocol.GUID) bool { _, known := d.saved.Tables[port]; return known },
		MaxPKeysPerPort: maxPKeysPerPort,
	})
}

func (d *Driver) apply(ctx context.Context, desired fabric.Desired, epoch int64) (fabric.Applied, error) {
	applied, err := d.place(desired, epoch)
	if err != nil {
		return applied, err
	}
	if delay := d.currentFaults().Delay; delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return applied, fmt.Errorf("apply partitions: %w", ctx.Err())
		}
	}
	if d.currentFaults().Down {
		return applied, &operation.Refusal{Code: fabric.CodeManagerUnavailable, Detail: "the simulated manager is down", Retryable: true}
	}
	applied.Repaired = d.distrust(desired)
	applied.Sweeps = d.sweep(desired)
	if d.patience.Deadline == 0 {
		links, err := d.Observe(ctx, applied.Changed)
		if err != nil {
			return applied, err
		}
		judge := fabric.NewJudge(desired)
		for _, link := range links {
			if judge.Disagreement(link) != "" {
				applied.Unsettled = append(applied.Unsettled, link.GUID)
			}
		}
		return applied, nil
	}
	applied.Unsettled, err = fabric.Settle(ctx, d.patience, fabric.NewJudge(desired), applied.Changed, d.Observe)
	return applied, err
}

// place makes the set the current one.
func (d *Driver) place(desired fabric.Desired, epoch int64) (fabric.Applied, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed := fabric.Changes(d.saved.State.Desired, desired)
	if epoch == d.saved.State.Epoch && len(changed) == 0 {
		changed = d.saved.Changed // a repeat answers for the same ports
	}
	d.saved.State, d.saved.Changed = fabric.State{Desired: desired, Epoch: epoch}, changed
	return fabric.Applied{Changed: changed}, d.save()
}

// distrust makes the manager forget what it wrote to those of the set's ports to repair that answer and are wrong, and returns them.
func (d *Driver) distrust(desired fabric.Desired) []protocol.GUID {
	d.mu.Lock()
	defer d.mu.Unlock()
	judge, at := fabric.NewJudge(desired), d.places()
	var wrong []protocol.GUID
	for _, port := range slices.Compact(slices.Sorted(slices.Values(desired.Repair))) {
		link := d.link(port, at[port])
		if link.HCA.Readable && link.Switch.Readable && judge.Disagreement(link) != "" {
			delete(d.saved.Believed, port)
			wrong = append(wrong, port)
		}
	}
	return wrong
}

// sweep writes the tables that, as the manager believes, are not as they should be, as far as the faults let it, and returns
// how often it swept. Like the real one it trusts what it wrote before and does not look: drift stays.
func (d *Driver) sweep(desired fabric.Desired) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sweepLocked(desired)
}

func (d *Driver) sweepLocked(desired fabric.Desired) int {
	if d.faults.FailOpen {
		d.sweeps++
		d.openAll()
		return 1
	}
	due := d.due(desired.KeyOf())
	if len(due) == 0 {
		return 0
	}
	d.sweeps++
	keyOf := desired.KeyOf()
	for i, port := range due {
		if d.faults.HalfApply && i%2 == 1 {
			continue
		}
		d.write(port, keyOf[port])
	}
	_ = d.save() // place has just saved the set; tables that are lost here are due again after a restart
	return 1
}

// due lists the ports that the manager believes to hold something else.
func (d *Driver) due(keyOf map[protocol.GUID]protocol.PKey) []protocol.GUID {
	var due []protocol.GUID
	for port := range d.saved.Tables {
		if believed, written := d.saved.Believed[port]; !written || believed != keyOf[port] {
			due = append(due, port)
		}
	}
	slices.Sort(due)
	return due
}

// write sets a port's tables. A port that is cut off keeps its HCA's end, and stays due.
func (d *Driver) write(port protocol.GUID, key protocol.PKey) {
	want := idle()
	if key != 0 {
		want = member(key)
	}
	held := d.saved.Tables[port]
	d.saved.Believed[port] = key
	if d.faults.Unreachable[port] {
		want.HCA = held.HCA
		delete(d.saved.Believed, port)
	}
	if d.faults.HCAOnly {
		want.Switch = held.Switch
		delete(d.saved.Believed, port)
	}
	d.saved.Tables[port] = want
}

// openAll is what a file that cannot be read does.
func (d *Driver) openAll() {
	for port := range d.saved.Tables {
		d.saved.Tables[port] = tables{HCA: []protocol.PKey{protocol.DefaultFull}, Switch: []protocol.PKey{protocol.DefaultFull}}
	}
	clear(d.saved.Believed)
	_ = d.save()
}

func (d *Driver) save() error {
	if d.file == "" {
		return nil
	}
	if err := durable.WriteJSON(d.file, d.saved, 0o600); err != nil {
		return fmt.Errorf("save simulated fabric: %w", err)
	}
	return nil
}

// Current implements fabric.Driver.
func (d *Driver) Current(context.Context) (fabric.State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.saved.State, nil
}
