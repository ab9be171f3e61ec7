// Package opensm drives Debian's (and any upstream) OpenSM: it owns partitions.conf, sends SIGHUP, and judges by reading the
// ports, since OpenSM's own word ("SUBNET UP", the SA's records) does not prove what a port holds. It fails open on a file that
// it cannot read, may read the file at any instant, does not repair tables that were changed behind its back, and starves when
// it is signalled faster than it can sweep; what is done here follows from that.
package opensm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	// PartitionsFile is what OpenSM was started with (-P).
	PartitionsFile string
	// Standbys are given every file that is put in place.
	Standbys []Standby
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

	handing sync.Mutex // held while a set is handed to standbys; taken before mu
	mu      sync.Mutex
	memory  *memory
	subnet  smp.Subnet            // as of the last walk
	given   map[string]handedOver // by standby
}

// New returns a driver. The subnet is walked once, so OpenSM's host must be connected.
func New(ctx context.Context, config Config) (*Driver, error) {
	memory, err := openMemory(config.StateDir)
	if err != nil {
		return nil, fmt.Errorf("open OpenSM driver: %w", err)
	}
	d := &Driver{config: config, queue: fabric.NewQueue(), memory: memory, given: map[string]handedOver{}}
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

func (d *Driver) admit(desired fabric.Desired, epoch int64) (base, fabric.Desired, error) {
	before, err := d.inPlace(desired.Managed)
	if err != nil {
		return base{}, fabric.Desired{}, err
	}
	foreign := map[protocol.GUID]int{}
	for _, p := range before.foreign(desired.Managed) {
		for _, m := range p.Members {
			foreign[m.GUID]++
		}
	}
	known := d.knownPorts(before.file)
	admitted, err := fabric.Admit(before.state, desired, epoch, fabric.Limits{
		Known:           func(port protocol.GUID) bool { return known[port] },
		ForeignKeys:     func(port protocol.GUID) int { return foreign[port] },
		MaxPKeysPerPort: MaxPKeysPerPort,
	})
	return before, admitted, err
}

// base is the file that the next one is made from.
type base struct {
	file

	state fabric.State
	// damaged: the file in place is not the one that we left there, and OpenSM may have opened the fabric on it.
	damaged bool
}

// inPlace reads the file in place. Where it is gone or cannot be read, what we left there counts; where that is unknown too,
// a file that cannot be read is somebody else's, and is left alone.
func (d *Driver) inPlace(managed fabric.Range) (base, error) {
	d.mu.Lock()
	ours, known := d.memory.file()
	fence := d.memory.Epoch
	d.mu.Unlock()
	b, err := d.asRead(managed, ours, known)
	if known { // a file from a backup does not lower the fence
		b.state.Epoch = max(b.state.Epoch, fence)
	}
	return b, err
}

// asRead is what stands in the file, against ours, the file that we left there, if that is known.
func (d *Driver) asRead(managed fabric.Range, ours file, known bool) (base, error) {
	f, err := readFile(d.config.PartitionsFile)
	var malformed *parseError
	switch {
	case err == nil && f.Header == nil && known:
		f.Header = ours.Header // replaced by somebody who did not know our header: the fence stays
		return base{file: f, state: f.state(), damaged: true}, nil
	case err == nil && f.Header == nil:
		// Somebody else's file: what it has in our range is what we are about to take over.
		return base{file: f, state: fabric.State{Desired: fabric.Desired{Partitions: f.within(managed)}}}, nil
	case err == nil:
		return base{file: f, state: f.state()}, nil
	case !errors.As(err, &malformed) && !errors.Is(err, errNoFile):
		return base{}, err
	case known:
		return base{file: ours, state: ours.state(), damaged: true}, nil
	case malformed != nil:
		return base{}, foreignConfiguration(err)
	default:
		return base{}, nil // a first start
	}
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
func (d *Driver) apply(ctx context.Context, before base, desired fabric.Desired, epoch int64) (fabric.Applied, error) {
	changed, written, err := d.place(before, desired, epoch)
	applied := fabric.Applied{Changed: changed}
	if err != nil {
		return applied, err
	}
	standbys := d.giveStandbys(ctx)
	judge, watched := fabric.NewJudge(desired), changed
	switch {
	case before.damaged:
		watched = d.allPorts() // OpenSM may have opened every one
	case !written:
		watched = without(changed, desired.Repair) // another signal alone has OpenSM do nothing about those
	}
	links, err := d.Observe(ctx, watched)
	if err != nil {
		return applied, err
	}
	if applied.Unsettled = wrong(judge, links); len(applied.Unsettled) > 0 || before.damaged {
		if err := d.tell(ctx, standbys); err != nil {
			return applied, err
		}
		applied.Sweeps = 1
		if applied.Unsettled, err = fabric.Settle(ctx, d.config.Patience, judge, watched, d.watching(standbys)); err != nil {
			return applied, err
		}
	}
	return d.repair(ctx, applied, judge, desired)
}

// place writes the file and what the driver has to remember of it, in an order that a crash cannot spoil: what is remembered
// counts only when the file has the same epoch.
func (d *Driver) place(before base, desired fabric.Desired, epoch int64) (changed []protocol.GUID, written bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	changed = d.memory.changes(before.state, desired, epoch)
	if before.damaged {
		changed = members(before.state.Desired, desired)
	}
	next := before.with(desired, epoch)
	text := string(next.text())
	if !before.damaged && before.Header != nil && string(before.text()) == text && d.memory.Text == text {
		return changed, false, nil
	}
	d.memory.Epoch, d.memory.Changed, d.memory.Text = epoch, changed, text
	if err := d.memory.save(); err != nil {
		return changed, false, err
	}
	return changed, true, writeFile(d.config.PartitionsFile, next)
}

func (d *Driver) allPorts() []protocol.GUID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.memory.Ports))
}

// members lists the members of both sets, sorted.
func members(sets ...fabric.Desired) []protocol.GUID {
	var ports []protocol.GUID
	for _, set := range sets {
		for _, p := range set.Partitions {
			ports = append(ports, p.Members...)
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
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

// Current implements fabric.Driver. A file that is not ours has nothing of ours.
func (d *Driver) Current(context.Context) (fabric.State, error) {
	before, err := d.inPlace(fabric.Range{})
	var refusal *operation.Refusal
	if errors.As(err, &refusal) {
		return fabric.State{}, nil
	}
	return before.state, err
}
