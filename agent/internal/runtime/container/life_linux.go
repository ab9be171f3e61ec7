package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/leasehold/leasehold/agent/internal/backoff"
	"github.com/leasehold/leasehold/agent/internal/node"
	"github.com/leasehold/leasehold/agent/protocol"
)

// ensure makes the place's container run. One that runs is left as it is; what is half made is made again from the start.
func (d *Driver) ensure(ctx context.Context, p place) error {
	is, err := d.oci.state(ctx, d.id(p))
	if err != nil || is.Status == "running" {
		return err
	}
	if err := d.end(ctx, p); err != nil {
		return err
	}
	if err := os.MkdirAll(d.bundleOf(p), 0o700); err != nil {
		return fmt.Errorf("make bundle: %w", err)
	}
	pid := 0
	err = privately(func() error {
		at, err := d.mount(ctx, p, func(layer string) error { return d.seed(layer, p) })
		if err != nil {
			return err
		}
		d.passed(p, "file systems mounted")
		if err := d.writeSpec(p, at); err != nil {
			return err
		}
		pid, err = d.oci.create(ctx, d.id(p), d.bundleOf(p))
		return err
	})
	if err == nil {
		d.passed(p, "container created")
		err = d.connect(ctx, p, pid)
	}
	if err == nil {
		d.passed(p, "container connected")
		err = d.oci.start(ctx, d.id(p))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("start container: %w", err), d.end(ctx, p))
	}
	d.passed(p, "container started")
	return nil
}

// passed notes how far things are. A process that ends at any of these leaves what the next one can go on from.
func (d *Driver) passed(p place, stage string) {
	d.cfg.Log.Debug("place", "stage", stage, "id", d.id(p), "lease", p.Lease)
}

func (d *Driver) writeSpec(p place, at mounted) error {
	spec, err := d.specOf(p, at.root, at.data)
	if err != nil {
		return err
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode container: %w", err)
	}
	if err := os.WriteFile(filepath.Join(d.bundleOf(p), "config.json"), data, 0o600); err != nil {
		return fmt.Errorf("write container: %w", err)
	}
	return nil
}

// seed writes what a machine of its own has in its root file system and an image cannot know.
func (d *Driver) seed(layer string, p place) error {
	owner := int(d.uidOf(p))
	etc := filepath.Join(layer, "etc")
	if err := errors.Join(os.Mkdir(etc, 0o755), os.Chown(etc, owner, owner)); err != nil { //nolint:gosec // everybody in the container reads it
		return err
	}
	var servers strings.Builder
	for _, server := range d.cfg.Egress.Servers {
		fmt.Fprintf(&servers, "nameserver %s\n", server)
	}
	if p.UserData != "" {
		if err := seedUserData(layer, p.UserData, owner); err != nil {
			return err
		}
	}
	for name, text := range map[string]string{
		"hostname": p.Hostname + "\n", "hosts": "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 " + p.Hostname + "\n", "resolv.conf": servers.String(),
	} {
		path := filepath.Join(etc, name)
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o644), os.Chown(path, owner, owner)); err != nil { //nolint:gosec // everybody in the container reads it
			return err
		}
	}
	return nil
}

// end ends everything that runs of a place, whatever state it is in, and waits until it is gone. What was written stays.
func (d *Driver) end(ctx context.Context, p place) error {
	d.oci.remove(ctx, d.id(p))
	group := d.groupOf(p)
	err := killAll(ctx, func() ([]int, error) { return processesIn(group) })
	if err == nil {
		err = killAll(ctx, func() ([]int, error) { return processesAs(d.uidOf(p), uidsPerPlace) })
	}
	if err == nil {
		d.passed(p, "processes ended")
		err = errors.Join(d.oci.forget(d.id(p)), removeGroups(group), d.disconnect(p))
	}
	if err == nil {
		err = d.released(ctx, p)
	}
	if err == nil {
		err = d.removeMountPoints(p)
	}
	if err != nil {
		return fmt.Errorf("end container %s: %w", d.id(p), err)
	}
	return nil
}

// releasedWithin bounds how long the kernel may take to unmount what the last process had.
const releasedWithin = 10 * time.Second

// released waits until the place's disk is nobody's any more.
func (d *Driver) released(ctx context.Context, p place) error {
	ctx, cancel := context.WithTimeout(ctx, releasedWithin)
	defer cancel()
	for {
		held, err := attached(d.scratchOf(p))
		if err != nil || !held {
			return err
		}
		if err := backoff.Wait(ctx, 10*time.Millisecond, nil); err != nil {
			return fmt.Errorf("its disk is still mounted somewhere: %w", err)
		}
	}
}

// Wipe implements node.Runtime: first everything of the tenant that runs, then its disk, then a look around.
func (d *Driver) Wipe(ctx context.Context, t node.Tenancy, step func(percent int, phase string)) ([]protocol.DeviceWipe, error) {
	firsts, err := d.places()
	if err != nil {
		return nil, err
	}
	rows := []protocol.DeviceWipe{}
	for _, first := range firsts {
		p, found, err := d.known(first)
		if err != nil {
			return rows, err
		}
		if !found { // begun, and ended before it was anybody's
			p = place{Slots: protocol.Slots{From: first, To: first + 1}}
		}
		if !p.Slots.Overlaps(t.Slots) {
			continue
		}
		more, err := d.wipe(ctx, p, step)
		if rows = append(rows, more...); err != nil {
			return rows, err
		}
	}
	if len(rows) == 0 {
		rows = append(rows, d.look(ctx, place{Slots: t.Slots}))
	}
	return rows, nil
}

func (d *Driver) wipe(ctx context.Context, p place, step func(percent int, phase string)) ([]protocol.DeviceWipe, error) {
	defer d.lock(p.Slots.From)()
	if err := d.end(ctx, p); err != nil {
		return nil, err
	}
	step(20, "scratch")
	scratch, err := d.eraseScratch(ctx, d.scratchOf(p), step)
	rows := []protocol.DeviceWipe{scratch, d.look(ctx, p)}
	if err != nil {
		return rows, err
	}
	d.passed(p, "disk erased")
	for _, row := range rows {
		if row.Status != protocol.Wiped {
			return rows, nil // the record stays: it says whose this is
		}
	}
	if err := os.RemoveAll(d.dirOf(p.Slots.From)); err != nil {
		return rows, fmt.Errorf("forget place: %w", err)
	}
	d.passed(p, "place forgotten")
	return rows, nil
}

// look is a row that says whether anything of the place's container is left: processes, control groups, the runtime's state, interfaces, mounts.
func (d *Driver) look(ctx context.Context, p place) protocol.DeviceWipe {
	row := protocol.DeviceWipe{
		Kind: "container", Identity: d.id(p), Capability: "end, look", Method: "ended; processes, control groups, network, mounts and disks were looked for",
		Status: protocol.Wiped, StartedAt: d.cfg.Now(),
	}
	var left []string
	see := func(what string, found bool, err error) {
		row.ReadBackSamples++
		if found || err != nil {
			row.ReadBackDirty++
			left = append(left, what)
		}
	}
	inGroup, err := processesIn(d.groupOf(p))
	see("processes", len(inGroup) > 0, err)
	asUser, err := processesAs(d.uidOf(p), uidsPerPlace)
	see("processes of its users", len(asUser) > 0, err)
	groups, err := groupsOf(d.groupOf(p))
	see("control groups", len(groups) > 0, err)
	is, err := d.oci.state(ctx, d.id(p))
	see("container", is.Status != "", err)
	linked, err := d.linked(p)
	see("network interface", linked, err)
	held, err := attached(d.scratchOf(p))
	see("disk", held, err)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	see("mounts", containsPath(string(mounts), filepath.Join(d.cfg.Run, d.id(p))), err)
	if row.FinishedAt = d.cfg.Now(); len(left) > 0 {
		row.Status, row.Detail = protocol.WipeFailed, fmt.Sprintf("still there: %v", left)
	}
	return row
}
