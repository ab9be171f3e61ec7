package sim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/leasehold/leasehold/agent/internal/backoff"
	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/internal/node"
	"github.com/leasehold/leasehold/agent/internal/rdma"
	"github.com/leasehold/leasehold/agent/protocol"
)

const dirMode = 0o700

// box is a virtual machine: GPUs, adapters, disks, and what tenants leave on them. It implements node.Runtime.
type box struct {
	inventory protocol.NodeInventory
	dir       string
	gpus      *gpu.Sim
	ports     *rdma.Sim
	instant   bool
	now       func() time.Time
	bootedAt  time.Time

	mu     sync.Mutex
	faults faults
}

// faults is what was injected into a machine, besides what its GPUs and adapters know themselves.
type faults struct {
	unreachable, prepareFails, wipeFails, slow bool
}

func newBox(m Machine, dir string, fabric rdma.PortReader, instant bool, now func() time.Time) (*box, error) {
	for _, sub := range []string{"scratch", "written"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), dirMode); err != nil {
			return nil, fmt.Errorf("make machine %s: %w", m.Inventory.Hostname, err)
		}
	}
	gpus, err := gpu.NewSim(gpu.SimConfig{
		GPUs: m.Inventory.GPUs, Version: m.Inventory.Driver, StateFile: filepath.Join(dir, "gpus.json"), Now: now,
	})
	if err != nil {
		return nil, fmt.Errorf("make machine %s: %w", m.Inventory.Hostname, err)
	}
	return &box{
		inventory: m.Inventory, dir: dir, gpus: gpus, ports: rdma.NewSim(m.Inventory.HCAs, fabric, now), instant: instant, now: now, bootedAt: now(),
	}, nil
}

func (b *box) host(context.Context) (protocol.NodeInventory, error) { return b.inventory, nil }

func (b *box) broken() faults {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.faults
}

// work takes the time that a machine would, or none.
func (b *box) work(ctx context.Context, d time.Duration) error {
	if b.instant {
		return ctx.Err()
	}
	if b.broken().slow {
		d *= 5
	}
	return backoff.Wait(ctx, d-d/5+rand.N(2*d/5+1), nil) //nolint:gosec // jitter needs no secrecy
}

// Prepare implements node.Runtime: two to four seconds, most of them for the image.
func (b *box) Prepare(ctx context.Context, t node.Tenancy, spec protocol.PrepareSpec, progress func(int, string)) (string, error) {
	for done, phase := range []string{"preflight", "limits", "imaging", "imaging", "imaging", "imaging", "scratch"} {
		progress(10+12*done, phase)
		if err := b.work(ctx, 420*time.Millisecond); err != nil {
			return "", err
		}
	}
	if b.broken().prepareFails {
		return "", errors.New("image is corrupt: checksum of layer 3 does not match (injected)")
	}
	if err := os.MkdirAll(b.scratch(t), dirMode); err != nil {
		return "", fmt.Errorf("make scratch: %w", err)
	}
	sum := digest("image/", spec.Image)
	return fmt.Sprintf("sha256:%x", sum), nil
}

// scratch is where the tenant's files lie.
func (b *box) scratch(t node.Tenancy) string {
	return filepath.Join(b.dir, "scratch", fmt.Sprintf("%03d-%03d", t.Slots.From, t.Slots.To))
}

// Enter implements node.Runtime: from now on everything that the tenant reaches counts as written to.
func (b *box) Enter(_ context.Context, t node.Tenancy) error {
	for _, share := range t.GPUs {
		if err := b.gpus.Occupy(share.UUID, share.Slices, t.LeaseID); err != nil {
			return fmt.Errorf("let lease %s in: %w", t.LeaseID, err)
		}
	}
	b.ports.Occupy(true, t.Ports...)
	for _, d := range b.exposed(t) {
		if err := os.WriteFile(b.mark(d), []byte(t.LeaseID), 0o600); err != nil {
			return fmt.Errorf("let lease %s in: %w", t.LeaseID, err)
		}
	}
	return nil
}

// Leave implements node.Runtime: the built-in shell leaves nothing running.
func (b *box) Leave(context.Context, node.Tenancy) (int, error) { return 0, nil }

// reoccupy keeps the adapters of those who were there before a restart busy.
func (b *box) reoccupy(tenancies []node.Tenancy) {
	for _, t := range tenancies {
		b.ports.Occupy(t.State == node.InUse, t.Ports...)
	}
}

// device is something besides GPU memory and scratch that a tenant of the bare machine can write to.
type device struct{ kind, identity, capability, method string }

// exposed lists them. On a shared host the operator keeps disks and adapters.
func (b *box) exposed(t node.Tenancy) []device {
	whole := t.Slots.From == 0 && t.Slots.To == len(b.inventory.GPUs)*gpu.SlotsPerBay
	if t.Mode == "shared" || !whole {
		return nil
	}
	var devices []device
	for _, disk := range b.inventory.Disks {
		devices = append(devices, device{"nvme", disk.Serial, "sanitize: crypto erase, block erase", "sanitize crypto erase"})
	}
	for _, hca := range b.inventory.HCAs {
		devices = append(devices, device{"hca_config", hca.NodeGUID.String(), "firmware defaults", "reset to the site's configuration"})
	}
	return devices
}

// mark is the file that stands for what was written to a device.
func (b *box) mark(d device) string { return filepath.Join(b.dir, "written", d.kind+"-"+d.identity) }

// Wipe implements node.Runtime. It removes what is there and then looks: what a fault left behind is found.
func (b *box) Wipe(ctx context.Context, t node.Tenancy, progress func(int, string)) ([]protocol.DeviceWipe, error) {
	b.ports.Occupy(false, t.Ports...)
	var rows []protocol.DeviceWipe
	progress(20, "scratch")
	if err := b.work(ctx, 700*time.Millisecond); err != nil {
		return nil, err
	}
	rows = append(rows, b.wipeScratch(t))
	progress(40, "devices")
	if err := b.work(ctx, 800*time.Millisecond); err != nil {
		return rows, err
	}
	for _, d := range b.exposed(t) {
		rows = append(rows, b.wipeDevice(d))
	}
	return rows, nil
}

// readBackSamples is how many places of a device the simulated read-back looks at.
const readBackSamples = 64

func (b *box) wipeScratch(t node.Tenancy) protocol.DeviceWipe {
	row := protocol.DeviceWipe{
		Kind: "scratch", Identity: filepath.Base(b.scratch(t)), Capability: "remove, read back", Method: "remove the file system", Status: protocol.Wiped,
		StartedAt: b.now(), ReadBackSamples: readBackSamples,
	}
	if !b.broken().wipeFails {
		if err := os.RemoveAll(b.scratch(t)); err != nil {
			row.Status, row.Detail = protocol.WipeFailed, err.Error()
		}
	}
	left, err := os.ReadDir(b.scratch(t))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		row.Status, row.Detail = protocol.WipeFailed, err.Error()
	}
	if len(left) > 0 {
		row.Status, row.ReadBackDirty, row.Detail = protocol.WipeFailed, len(left), fmt.Sprintf("%d files are still there", len(left))
	}
	row.FinishedAt = b.now()
	return row
}

func (b *box) wipeDevice(d device) protocol.DeviceWipe {
	row := protocol.DeviceWipe{
		Kind: d.kind, Identity: d.identity, Capability: d.capability, Method: d.method, Status: protocol.Wiped, StartedAt: b.now(),
		ReadBackSamples: readBackSamples,
	}
	if !b.broken().wipeFails {
		if err := os.Remove(b.mark(d)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			row.Status, row.Detail = protocol.WipeFailed, err.Error()
		}
	}
	if _, err := os.Stat(b.mark(d)); !errors.Is(err, fs.ErrNotExist) {
		row.Status, row.ReadBackDirty = protocol.WipeFailed, readBackSamples
		row.Detail = "the status log says that the command failed; the samples still hold data"
	}
	row.FinishedAt = b.now()
	return row
}
