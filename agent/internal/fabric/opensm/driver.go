// Package opensm drives Debian's (and any upstream) OpenSM: it owns partitions.conf, sends SIGHUP, and judges by reading the
// ports, since OpenSM's own word ("SUBNET UP", the SA's records) does not prove what a port holds. What OpenSM does when it is
// mistreated, and the rules that follow, are in docs and in ../README.md.
package opensm

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/internal/smp"
	"github.com/leasehold/leasehold/agent/protocol"
)

// MaxPKeysPerPort is how many entries of one port's table are safe to use. Above, OpenSM was seen to leave stale keys behind
// when a switch port's table shrank.
const MaxPKeysPerPort = 31

// Manager is the OpenSM process.
type Manager interface {
	// PID returns the process. An error means that it does not run.
	PID(ctx context.Context) (int, error)
	// Hangup has it read its files again and sweep.
	Hangup(ctx context.Context) error
}

// Config says where OpenSM is.
type Config struct {
	// Client sends SMPs from the host that OpenSM runs on. The driver does not close it.
	Client  *smp.Client
	Manager Manager
	// PartitionsFile is what OpenSM was started with (-P). A standby manager needs the same file; it is not copied there.
	PartitionsFile string
	// OptionsFile is what OpenSM was started with (-F); "": posture is unknown.
	OptionsFile string
	// StateDir keeps what the driver remembers over a restart.
	StateDir string
	// Version is what OpenSM calls itself, e.g. "OpenSM 3.3.23".
	Version  string
	Patience fabric.Patience
}

// Driver implements fabric.Driver.
type Driver struct {
	config Config
	queue  *fabric.Queue

	mu     sync.Mutex
	memory *memory
	subnet smp.Subnet // as of the last walk
}

// New returns a driver. The subnet is walked once, so OpenSM's host must be connected.
func New(ctx context.Context, config Config) (*Driver, error) {
	memory, err := openMemory(config.StateDir)
	if err != nil {
		return nil, fmt.Errorf("open OpenSM driver: %w", err)
	}
	d := &Driver{config: config, queue: fabric.NewQueue(), memory: memory}
	if err := d.walk(ctx); err != nil {
		return nil, fmt.Errorf("open OpenSM driver: %w", err)
	}
	return d, nil
}

// Apply implements fabric.Driver.
func (d *Driver) Apply(ctx context.Context, desired fabric.Desired, epoch int64) (fabric.Applied, error) {
	// A set that is wrong must not take the place of one that waits.
	if _, _, err := d.admit(desired, epoch); err != nil {
		return fabric.Applied{}, err
	}
	var applied fabric.Applied
	err := d.queue.Do(ctx, func(ctx context.Context) error {
		before, admitted, err := d.admit(desired, epoch)
		if err != nil {
			return err
		}
		applied, err = d.apply(ctx, before, admitted, epoch)
		return err
	})
	return applied, err
}

func (d *Driver) admit(desired fabric.Desired, epoch int64) (file, fabric.Desired, error) {
	before, err := readFile(d.config.PartitionsFile)
	if err != nil {
		return file{}, fabric.Desired{}, err
	}
	current := before.state()
	if before.Header == nil {
		// Somebody else's file: what it has in our range is what we are about to take over.
		current.Desired.Partitions = before.within(desired.Managed)
	}
	foreign := map[protocol.GUID]int{}
	for _, p := range before.foreign(desired.Managed) {
		for _, m := range p.Members {
			foreign[m.GUID]++
		}
	}
	known := d.knownPorts(before)
	admitted, err := fabric.Admit(current, desired, epoch, fabric.Limits{
		Known:           func(port protocol.GUID) bool { return known[port] },
		ForeignKeys:     func(port protocol.GUID) int { return foreign[port] },
		MaxPKeysPerPort: MaxPKeysPerPort,
	})
	return before, admitted, err
}

// knownPorts are all ports that were ever seen, and those in the file.
func (d *Driver) knownPorts(f file) map[protocol.GUID]bool {
	known := map[protocol.GUID]bool{}
	for _, p := range f.Partitions {
		for _, m := range p.Members {
			known[m.GUID] = true
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for port := range d.memory.Ports {
		known[port] = true
	}
	return known
}

// apply puts the set in place, has OpenSM read it, and waits for the ports. It signals only when a port needs it: a repeat, or
// a sweep of OpenSM's own meanwhile, may have done the work.
func (d *Driver) apply(ctx context.Context, before file, desired fabric.Desired, epoch int64) (fabric.Applied, error) {
	changed, err := d.place(before, desired, epoch)
	applied := fabric.Applied{Changed: changed}
	if err != nil {
		return applied, err
	}
	judge := fabric.NewJudge(desired)
	links, err := d.Observe(ctx, changed)
	if err != nil {
		return applied, err
	}
	if applied.Unsettled = wrong(judge, links); len(applied.Unsettled) == 0 {
		return applied, nil
	}
	if err := d.signal(ctx); err != nil {
		return applied, err
	}
	applied.Sweeps = 1
	applied.Unsettled, err = fabric.Settle(ctx, d.config.Patience, judge, changed, d.watch)
	return applied, err
}

// place writes the file and what the driver has to remember of it, in an order that a crash cannot spoil: what is remembered
// counts only when the file has the same epoch.
func (d *Driver) place(before file, desired fabric.Desired, epoch int64) ([]protocol.GUID, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	state := before.state()
	if before.Header == nil {
		state.Desired.Partitions = before.within(desired.Managed)
	}
	changed := d.memory.changes(state, desired, epoch)
	d.memory.Epoch, d.memory.Changed = epoch, changed
	if err := d.memory.save(); err != nil {
		return changed, err
	}
	next := before.with(desired, epoch)
	if before.Header != nil && string(next.text()) == string(before.text()) {
		return changed, nil
	}
	return changed, writeFile(d.config.PartitionsFile, next)
}

func wrong(judge fabric.Judge, links []protocol.LinkState) []protocol.GUID {
	var ports []protocol.GUID
	for _, link := range links {
		if judge.Disagreement(link) != "" {
			ports = append(ports, link.GUID)
		}
	}
	return ports
}

// signal sends one SIGHUP. OpenSM dies of one that comes before it has its handler, so a young process is let grow up.
func (d *Driver) signal(ctx context.Context) error {
	pid, err := d.config.Manager.PID(ctx)
	if err != nil {
		return unavailable(err)
	}
	if wait := minimumAge - processAge(pid); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return fmt.Errorf("signal OpenSM: %w", ctx.Err())
		}
	}
	if err := d.config.Manager.Hangup(ctx); err != nil {
		return unavailable(err)
	}
	return nil
}

// watch reads ports while OpenSM is at them. If it is gone there is nothing to wait for; a new one reads the file by itself.
func (d *Driver) watch(ctx context.Context, ports []protocol.GUID) ([]protocol.LinkState, error) {
	if _, err := d.config.Manager.PID(ctx); err != nil {
		return nil, unavailable(err)
	}
	return d.read(ctx, ports), ctx.Err()
}

func unavailable(err error) error {
	detail := fmt.Sprintf("OpenSM did not take the set, which is in place: %v", err)
	return &operation.Refusal{Code: fabric.CodeManagerUnavailable, Detail: detail, Retryable: true}
}

func foreignConfiguration(err error) error {
	return &operation.Refusal{
		Code:   fabric.CodeForeignConfiguration,
		Detail: fmt.Sprintf("the partition file in place is not of our form and is left alone: %v", err),
	}
}

// Current implements fabric.Driver.
func (d *Driver) Current(context.Context) (fabric.State, error) {
	f, err := readFile(d.config.PartitionsFile)
	var refusal *operation.Refusal
	if errors.As(err, &refusal) {
		return fabric.State{}, nil // not ours yet: nothing of ours is in place
	}
	return f.state(), err
}
