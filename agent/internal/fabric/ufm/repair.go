package ufm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

// repair has UFM write the tables of those of the set's ports to repair that answer and are wrong. There is no call for that, and a
// subnet manager of OpenSM's kind writes a table only when it means it to change; so the ports become limited members of one more
// partition, which has no full member and so joins nobody, and leave it again. That it is written at both ends is seen in the ports,
// so it takes a reader. What stands beyond the part of a table that the manager writes is not repaired, and stays reported.
func (d *Driver) repair(ctx context.Context, applied fabric.Applied, desired fabric.Desired, ports []protocol.GUID) (fabric.Applied, error) {
	if d.config.Ports == nil || len(ports) == 0 {
		return applied, nil
	}
	judge := fabric.NewJudge(desired)
	links, err := d.Observe(ctx, slices.Compact(slices.Sorted(slices.Values(ports))))
	if err != nil {
		return applied, err
	}
	var silent []protocol.GUID
	for _, link := range links {
		switch {
		case judge.Disagreement(link) == "":
		case link.HCA.Readable && link.Switch.Readable:
			applied.Repaired = append(applied.Repaired, link.GUID)
		case slices.Contains(applied.Changed, link.GUID):
			silent = append(silent, link.GUID)
		}
	}
	var left []protocol.GUID
	if len(applied.Repaired) > 0 {
		applied.Sweeps += 2
		left, err = d.rewrite(ctx, judge, desired.Managed, applied.Repaired)
	}
	unsettled := slices.Concat(except(applied.Unsettled, applied.Repaired), silent, left)
	applied.Unsettled = slices.Compact(slices.Sorted(slices.Values(unsettled)))
	return applied, err
}

// rewrite makes UFM write the ports' tables, and returns which are wrong still.
func (d *Driver) rewrite(ctx context.Context, judge fabric.Judge, managed fabric.Range, ports []protocol.GUID) ([]protocol.GUID, error) {
	seen, err := d.look(ctx)
	if err != nil {
		return ports, unavailable(err)
	}
	key, found := probeKey(seen, managed)
	if !found {
		return ports, errors.New("repair ports: every key is in use")
	}
	if err := d.rememberProbe(key); err != nil { // one that a crash leaves behind is found by it
		return ports, err
	}
	probe := newMembers(key, ports)
	probe.Membership, probe.Index0, probe.IPOverIB = limited, false, false
	var failure error
	if err := d.client.post(ctx, pathSet, probe); err != nil {
		failure = unavailable(fmt.Errorf("repair ports: %w", err))
	} else {
		touched := func(l protocol.LinkState) bool {
			return slices.Contains(l.HCA.Keys, key) && slices.Contains(l.Switch.Keys, key)
		}
		_, failure = fabric.Await(ctx, d.config.Patience, touched, ports, d.config.Ports.Read)
	}
	// Whatever came of it, the partition goes.
	after := context.WithoutCancel(ctx)
	if err := d.dropProbe(after); err != nil {
		return ports, unavailable(errors.Join(failure, err))
	}
	clean := func(l protocol.LinkState) bool {
		return judge.Disagreement(l) == "" && !slices.Contains(l.HCA.Keys, key) && !slices.Contains(l.Switch.Keys, key)
	}
	left, err := fabric.Await(after, d.config.Patience, clean, ports, d.config.Ports.Read)
	return left, errors.Join(failure, err)
}

// probeKey is a key that nobody uses: outside the managed range if there is one, so that nobody takes it for a lease's.
func probeKey(seen snapshot, managed fabric.Range) (protocol.PKey, bool) {
	within, found := protocol.PKey(0), false
	for key := protocol.LastPartitionID; key >= protocol.FirstPartitionID; key-- {
		_, taken := seen.partitions[key]
		switch {
		case taken || slices.Contains(managed.Reserved, key):
		case !managed.Contains(key):
			return key, true
		case !found:
			within, found = key, true
		}
	}
	return within, found
}

func (d *Driver) rememberProbe(key protocol.PKey) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.memory.Probe = key
	return d.memory.save()
}

// dropProbe takes everybody out of the partition that a repair made, if there is one, and forgets it once UFM has.
func (d *Driver) dropProbe(ctx context.Context) error {
	d.mu.Lock()
	key := d.memory.Probe
	d.mu.Unlock()
	if key == 0 {
		return nil
	}
	newer, err := d.sets(ctx)
	if err != nil {
		return err
	}
	seen, err := d.look(ctx)
	if err != nil {
		return err
	}
	if members := without(seen.partitions[key].Members, nil); len(members) > 0 {
		if err := d.write(ctx, []step{{key: key, remove: members}}, newer); err != nil {
			return fmt.Errorf("end repair: %w", err)
		}
	}
	if err := d.isGone(ctx, key); err != nil {
		return fmt.Errorf("end repair: %w", err)
	}
	return d.rememberProbe(0)
}
