package opensm

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

// probeName names the partition that exists only while ports are repaired. It is ours in every range.
const probeName = "leasehold-repair"

// keysPerBlock is how many entries one SMP writes.
const keysPerBlock = 32

// repair has OpenSM write the tables of those of the set's ports to repair that answer and are wrong. OpenSM trusts what it wrote last and
// writes a block only when that changes; so the ports become limited members of one more partition, which has no full member and so
// joins nobody, and leave it again: that writes their first blocks, at both ends, twice. Nothing of OpenSM's own is in further blocks (a
// port has 31 keys at most); entries there are taken out with an SMP.
func (d *Driver) repair(ctx context.Context, applied fabric.Applied, judge fabric.Judge, desired fabric.Desired) (fabric.Applied, error) {
	links, err := d.Observe(ctx, slices.Compact(slices.Sorted(slices.Values(desired.Repair))))
	if err != nil {
		return applied, err
	}
	var broken []protocol.GUID
	for _, link := range links {
		if link.HCA.Readable && link.Switch.Readable && judge.Disagreement(link) != "" {
			broken = append(broken, link.GUID)
			d.clearFurtherBlocks(ctx, link)
		}
	}
	if len(broken) == 0 {
		return applied, nil
	}
	applied.Repaired = broken
	if links, err = d.Observe(ctx, broken); err != nil {
		return applied, err
	}
	wrongStill := wrong(judge, links)
	if len(wrongStill) > 0 {
		sweeps, left, err := d.rewrite(ctx, judge, desired, wrongStill)
		applied.Sweeps += sweeps
		if err != nil {
			return applied, err
		}
		wrongStill = left
	}
	applied.Unsettled = slices.Compact(slices.Sorted(slices.Values(slices.Concat(without(applied.Unsettled, broken), wrongStill))))
	return applied, nil
}

func without(list, drop []protocol.GUID) []protocol.GUID {
	return slices.DeleteFunc(slices.Clone(list), func(g protocol.GUID) bool { return slices.Contains(drop, g) })
}

// rewrite makes OpenSM write the ports' first blocks, and returns how often it was signalled and which ports are wrong still.
func (d *Driver) rewrite(ctx context.Context, judge fabric.Judge, desired fabric.Desired, ports []protocol.GUID) (int, []protocol.GUID, error) {
	ours, err := readFile(d.config.PartitionsFile)
	if err != nil {
		return 0, ports, fmt.Errorf("repair ports: %w", err)
	}
	key, found := probeKey(ours, desired.Managed)
	if !found {
		return 0, ports, errors.New("repair ports: every key is in use")
	}
	probe := partition{Name: probeName, PKey: key}
	for _, port := range ports {
		probe.Members = append(probe.Members, member{GUID: port})
	}
	with := file{Header: ours.Header, Partitions: append(slices.Clone(ours.Partitions), probe)}
	touched := func(link protocol.LinkState) bool {
		return slices.Contains(link.HCA.Keys, key) && slices.Contains(link.Switch.Keys, key)
	}
	clean := func(link protocol.LinkState) bool {
		return judge.Disagreement(link) == "" && !slices.Contains(link.HCA.Keys, key) && !slices.Contains(link.Switch.Keys, key)
	}
	// Whatever comes of the first, the second puts the file right.
	_, failure := d.swap(ctx, with, touched, ports)
	left, err := d.swap(context.WithoutCancel(ctx), ours, clean, ports)
	return 2, left, errors.Join(failure, err)
}

// swap puts a file in place, has OpenSM read it, and waits until the ports are as they should be then.
func (d *Driver) swap(ctx context.Context, f file, right func(link protocol.LinkState) bool, ports []protocol.GUID) ([]protocol.GUID, error) {
	if err := writeFile(d.config.PartitionsFile, f); err != nil {
		return ports, err
	}
	if err := d.signal(ctx); err != nil {
		return ports, err
	}
	return fabric.Await(ctx, d.config.Patience, right, ports, d.watch)
}

// probeKey is a key that no partition of the file has: outside the managed range if there is one, so that nobody who looks meanwhile
// takes it for a tenant's.
func probeKey(f file, managed fabric.Range) (protocol.PKey, bool) {
	taken := map[protocol.PKey]bool{}
	for _, p := range f.Partitions {
		taken[p.PKey] = true
	}
	for _, key := range managed.Reserved {
		taken[key] = true
	}
	within, found := protocol.PKey(0), false
	for key := protocol.LastPartitionID; key >= protocol.FirstPartitionID; key-- {
		switch {
		case taken[key]:
		case !managed.Contains(key):
			return key, true
		case !found:
			within, found = key, true
		}
	}
	return within, found
}

// clearFurtherBlocks takes out what stands beyond the first block of either table. What does not work is seen by the reading that follows.
func (d *Driver) clearFurtherBlocks(ctx context.Context, link protocol.LinkState) {
	at := d.locate(link.GUID)
	for block := 1; block*keysPerBlock < len(link.HCA.Keys); block++ {
		_ = d.config.Client.SetPKeyBlock(ctx, at.path, 0, block, nil)
	}
	for block := 1; block*keysPerBlock < len(link.Switch.Keys); block++ {
		_ = d.config.Client.SetPKeyBlock(ctx, at.route.Path, at.place.SwitchPort, block, nil)
	}
}
