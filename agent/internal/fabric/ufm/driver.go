// Package ufm drives NVIDIA's Unified Fabric Manager over its REST interface. UFM takes members of partitions and writes the
// ports' tables itself, and what it answers is what it means them to hold: hearsay, for which there is a place (Config.Ports) to
// put a reader of the ports themselves.
//
// Everything here is written to UFM's public documentation and to what open clients of it do, and was not tried on a real UFM.
package ufm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/leasehold/leasehold/agent/internal/backoff"
	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

// MaxPKeysPerPort is how many entries of one port's table are used at most: what was found safe on OpenSM, from which UFM's subnet
// manager descends.
const MaxPKeysPerPort = 31

// PortReader reads what ports hold from the ports themselves.
type PortReader interface {
	// Read reads both ends of the ports' links, in the order asked for. What cannot be read is Readable false. An error is of the
	// reader itself.
	Read(ctx context.Context, ports []protocol.GUID) ([]protocol.LinkState, error)
	// MayAskPaths reports whether the subnet's administrator tells this host of other ports' paths. It tells nobody of paths between
	// ports that he cannot reach himself, and what it does not tell looks like isolation.
	MayAskPaths(ctx context.Context) bool
	// HasPath asks it whether the ports can reach each other; unknown when it does not say. It is called when it may be asked.
	HasPath(ctx context.Context, from, to protocol.GUID) protocol.Verdict
}

// Config says where UFM is and how far to believe it.
type Config struct {
	Server Server
	// ManagerPorts are the port GUIDs of UFM's own hosts, two when there is a standby. They tell this fabric from others, and are
	// never a tenant's.
	ManagerPorts []protocol.GUID
	// Ports reads the ports; nil: nothing does.
	Ports PortReader
	// AcceptManagersWord has UFM's word stand for the tables when nothing reads the ports. They say so (Source "ufm"). Without it a
	// reader is needed.
	AcceptManagersWord bool
	// StateDir keeps what the driver remembers over a restart. UFM has no place for it.
	StateDir string
	Patience fabric.Patience
	// Now tells how old an answer is.
	Now func() time.Time
}

// DefaultPatience suits a manager that is asked over HTTP.
func DefaultPatience() fabric.Patience {
	return fabric.Patience{Deadline: time.Minute, Silence: 3 * time.Second, FirstPoll: 250 * time.Millisecond, LastPoll: 2 * time.Second}
}

// Driver implements fabric.Driver.
type Driver struct {
	config Config
	client *client
	queue  *fabric.Queue

	mu       sync.Mutex
	memory   *memory
	release  version
	topology protocol.Topology // as last seen
	last     answer            // UFM's, for cross-checks in the same breath
}

// New returns a driver. UFM need not be there yet.
func New(config Config) (*Driver, error) {
	if len(config.ManagerPorts) == 0 || slices.Contains(config.ManagerPorts, 0) {
		return nil, errors.New("open UFM driver: the port GUID of UFM's own host must be given")
	}
	if config.Ports == nil && !config.AcceptManagersWord {
		return nil, errors.New("open UFM driver: nothing reads the ports; give a reader, or have UFM's word accepted for them")
	}
	client, err := newClient(config.Server)
	if err != nil {
		return nil, fmt.Errorf("open UFM driver: %w", err)
	}
	memory, err := openMemory(config.StateDir)
	if err != nil {
		return nil, fmt.Errorf("open UFM driver: %w", err)
	}
	return &Driver{config: config, client: client, queue: fabric.NewQueue(), memory: memory}, nil
}

// Current implements fabric.Driver.
func (d *Driver) Current(context.Context) (fabric.State, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.memory.State, nil
}

// Apply implements fabric.Driver.
func (d *Driver) Apply(ctx context.Context, desired fabric.Desired, epoch int64) (fabric.Applied, error) {
	// A set that is wrong must not take the place of one that waits. What only UFM knows is checked in turn.
	if _, err := d.admit(nil, desired, epoch); err != nil {
		return fabric.Applied{}, err
	}
	var applied fabric.Applied
	err := d.queue.Do(ctx, func(ctx context.Context) error {
		var err error
		applied, err = d.apply(ctx, desired, epoch)
		return err
	})
	return applied, err
}

// admit checks the set against what is in place and against UFM's ports; nil: against those that were ever seen.
func (d *Driver) admit(seen *snapshot, desired fabric.Desired, epoch int64) (fabric.Desired, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	limits := fabric.Limits{
		Known: func(guid protocol.GUID) bool {
			_, known := d.memory.Ports[guid]
			// Before UFM has been asked once nothing is known of ports, which must not make them unknown for good.
			return (known || len(d.memory.Ports) == 0) && guid != 0 && !slices.Contains(d.config.ManagerPorts, guid)
		},
		MaxPKeysPerPort: MaxPKeysPerPort,
	}
	before := d.memory.State
	if seen != nil {
		limits.ForeignKeys = func(guid protocol.GUID) int { return seen.foreign(desired.Managed, guid) }
		if !d.memory.Placed {
			before.Desired.Partitions = seen.within(desired.Managed) // what we are about to take over
		}
	}
	return fabric.Admit(before, desired, epoch, limits)
}

func (d *Driver) apply(ctx context.Context, desired fabric.Desired, epoch int64) (fabric.Applied, error) {
	seen, err := d.look(ctx)
	switch {
	case isOther(err):
		return fabric.Applied{}, &operation.Refusal{Code: fabric.CodeForeignConfiguration, Detail: fmt.Sprintf("nothing was written: %v", err)}
	case err != nil:
		return d.postpone(ctx, desired, epoch, err)
	}
	admitted, err := d.admit(&seen, desired, epoch)
	if err != nil {
		return fabric.Applied{}, err
	}
	changed, err := d.place(&seen, admitted, epoch)
	applied := fabric.Applied{Changed: changed}
	if err != nil {
		return applied, err
	}
	if err := d.dropProbe(ctx); err != nil { // of a repair that did not end
		applied.Unsettled = changed
		return applied, unavailable(err)
	}
	done, err := d.converge(ctx, seen, admitted)
	if done.wrote {
		applied.Sweeps = 1
	}
	if err != nil || !done.agreed {
		applied.Unsettled = changed
		return applied, err
	}
	watched := changed
	if !done.wrote && d.config.Ports != nil { // then a port that is to be repaired and is wrong stays so, however long one waits
		watched = except(changed, desired.Repair)
	}
	if applied.Unsettled, err = fabric.Settle(ctx, d.config.Patience, fabric.NewJudge(admitted), watched, d.Observe); err != nil {
		return applied, err
	}
	return d.repair(ctx, applied, admitted, desired.Repair)
}

// except lists what is in list and not in drop.
func except(list, drop []protocol.GUID) []protocol.GUID {
	return slices.DeleteFunc(slices.Clone(list), func(g protocol.GUID) bool { return slices.Contains(drop, g) })
}

// postpone puts the set in place for when UFM can be asked again: the same operation, done again, will see to it then.
func (d *Driver) postpone(ctx context.Context, desired fabric.Desired, epoch int64, cause error) (fabric.Applied, error) {
	if err := ctx.Err(); err != nil {
		return fabric.Applied{}, fmt.Errorf("ask UFM: %w", err)
	}
	d.mu.Lock()
	blind := len(d.memory.Ports) == 0 || !d.memory.Placed
	d.mu.Unlock()
	if blind { // neither the ports nor what would be taken over are known, so that nothing can be checked
		return fabric.Applied{}, fmt.Errorf("ask UFM: %w", cause)
	}
	admitted, err := d.admit(nil, desired, epoch)
	if err != nil {
		return fabric.Applied{}, err
	}
	changed, err := d.place(nil, admitted, epoch)
	if err != nil {
		return fabric.Applied{}, err
	}
	return fabric.Applied{Changed: changed, Unsettled: changed}, unavailable(cause)
}

func unavailable(cause error) error {
	detail := fmt.Sprintf("UFM did not take the set, which is in place: %v", cause)
	return &operation.Refusal{Code: fabric.CodeManagerUnavailable, Detail: detail, Retryable: true}
}

// rewrites is how often the same writes are made when nothing is seen of them.
const rewrites = 3

// outcome is what came of writing.
type outcome struct {
	wrote  bool
	agreed bool // UFM says what the set says
}

// converge writes, and reads back until UFM says what the set says. It fails with CodeManagerUnavailable when UFM refuses or cannot
// be asked. A UFM that takes everything and goes on saying something else does not agree.
func (d *Driver) converge(ctx context.Context, seen snapshot, desired fabric.Desired) (outcome, error) {
	var done outcome
	sets, err := d.sets(ctx)
	if err != nil {
		return done, unavailable(err)
	}
	limit, cancel := context.WithTimeout(ctx, d.config.Patience.Deadline)
	defer cancel()
	for tries := 1; ; tries++ {
		steps := seen.plan(desired, sets)
		if len(steps) == 0 {
			done.agreed = true
			return done, d.settled(desired)
		}
		if tries > rewrites {
			return done, nil
		}
		done.wrote = true
		failure := d.write(limit, steps, sets)
		again, err := d.readBack(limit, steps, desired, sets, failure)
		switch {
		case ctx.Err() != nil:
			return done, fmt.Errorf("write to UFM: %w", ctx.Err())
		case err != nil:
			return done, unavailable(errors.Join(failure, err))
		case !sameSteps(steps, again.plan(desired, sets)):
			tries = 0 // something came of it
		case failure != nil && (refused(failure) || tries == rewrites):
			return done, unavailable(failure)
		}
		seen = again
	}
}

// readBack asks UFM until something came of the steps, for a share of the deadline; once, when writing failed.
func (d *Driver) readBack(ctx context.Context, steps []step, desired fabric.Desired, sets bool, failure error) (snapshot, error) {
	if failure != nil {
		return d.look(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, d.config.Patience.Deadline/(rewrites+1))
	defer cancel()
	last, trouble := snapshot{}, errors.New("UFM was not asked")
	for every := d.config.Patience.FirstPoll; ; every = min(every*3/2, d.config.Patience.LastPoll) {
		seen, err := d.look(ctx)
		switch {
		case isOther(err):
			return snapshot{}, err
		case err == nil && !sameSteps(steps, seen.plan(desired, sets)):
			return seen, nil
		case err == nil:
			last, trouble = seen, nil
		case ctx.Err() == nil:
			trouble = err // what was seen before it is not the last word
		}
		if backoff.Wait(ctx, every, nil) != nil {
			return last, trouble
		}
	}
}
