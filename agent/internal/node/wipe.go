package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

// wipe erases what a tenant of the slots could have written. Only when every device is shown clean are the slots forgotten; the
// evidence says how each came out either way. Without anybody's tenancy the slots are wiped all the same.
func (n *Node) wipe(ctx context.Context, op protocol.Operation, progress step) (operation.Outcome, error) {
	var spec protocol.WipeSpec
	if err := firstError(decode(op, &spec), needSlots(op)); err != nil {
		return operation.Outcome{}, err
	}
	if n.cfg.Runtime == nil {
		return operation.Outcome{}, refuse(CodeUnsupported, "this host has no runtime driver that could wipe")
	}
	places, err := n.places(ctx, op, spec.LeaseID)
	if err != nil {
		return operation.Outcome{}, err
	}
	evidence := protocol.WipeEvidence{LeaseID: spec.LeaseID, NodeID: n.cfg.NodeID(), Nonce: spec.Nonce, Slots: op.Slots, Devices: []protocol.DeviceWipe{}}
	for _, t := range places {
		rows, err := n.wipePlace(ctx, t, progress)
		evidence.Devices = append(evidence.Devices, rows...)
		if err != nil {
			return signed(evidence), fmt.Errorf("wipe slots [%d, %d): %w", op.Slots.From, op.Slots.To, err)
		}
	}
	if unclean := uncleanOf(evidence.Devices); unclean != "" {
		return signed(evidence), postpone(CodeWipeFailed, "%s", unclean)
	}
	return signed(evidence), n.forget(op.Slots)
}

func signed(evidence protocol.WipeEvidence) operation.Outcome {
	return operation.Outcome{Evidence: evidence, PayloadType: protocol.PayloadWipeEvidence}
}

// places returns what is to be wiped: the tenancies on the slots, and the slots themselves where nobody was recorded. It refuses
// while anybody of them can log in, and slots that cut a tenancy in two.
func (n *Node) places(ctx context.Context, op protocol.Operation, lease string) ([]Tenancy, error) {
	there := n.on(op.Slots)
	for _, t := range there {
		if n.cfg.Access != nil && n.cfg.Access.Granted(t.Place()) {
			return nil, postpone(CodeStillOpen, "lease %s can still log in", t.LeaseID)
		}
		if t.Slots.From < op.Slots.From || t.Slots.To > op.Slots.To {
			return nil, refuse(CodeInvalidSpec, "slots [%d, %d) are a part of lease %s's [%d, %d)", op.Slots.From, op.Slots.To, t.LeaseID, t.Slots.From, t.Slots.To)
		}
	}
	if len(there) > 0 {
		return there, nil
	}
	unknown, err := n.unrecorded(ctx, op.Slots)
	unknown.LeaseID = lease
	return []Tenancy{unknown}, err
}

// unrecorded stands for slots on which no tenancy is recorded. A GPU that is not there any more gets a share all the same, so that
// the evidence names it as not wiped.
func (n *Node) unrecorded(ctx context.Context, slots protocol.Slots) (Tenancy, error) {
	t := Tenancy{Slots: slots, State: Prepared, GPUs: []Share{}}
	devices, err := n.cfg.GPU.Devices(ctx)
	if err != nil {
		return t, fmt.Errorf("list GPUs: %w", err)
	}
	for len(devices)*gpu.SlotsPerBay < slots.To {
		devices = append(devices, protocol.GPU{UUID: fmt.Sprintf("missing GPU of %d", len(devices)+1), PCIAddress: "~"})
	}
	bays, err := gpu.Bays(devices, slots)
	if err != nil {
		return t, fmt.Errorf("find GPUs: %w", err)
	}
	for _, b := range bays {
		t.GPUs = append(t.GPUs, Share{UUID: b.GPU.UUID, Slices: b.Slices})
	}
	return t, nil
}

func (n *Node) wipePlace(ctx context.Context, t Tenancy, progress step) ([]protocol.DeviceWipe, error) {
	progress(10, "storage")
	rows, err := n.cfg.Wipe(ctx, t, progress)
	if err != nil {
		return rows, err
	}
	progress(60, "gpu memory")
	for _, share := range t.GPUs {
		rows = append(rows, n.wipeGPU(ctx, share)...)
	}
	return rows, nil
}

// wipeGPU clears the memory, and takes MIG instances away if there are any.
func (n *Node) wipeGPU(ctx context.Context, share Share) []protocol.DeviceWipe {
	started := n.cfg.Now()
	memory, err := n.cfg.GPU.WipeMemory(ctx, share.UUID, share.Slices)
	if err != nil {
		memory = protocol.DeviceWipe{Kind: "gpu_memory", Identity: share.UUID, StartedAt: started, FinishedAt: n.cfg.Now()}
		memory.Status, memory.Detail = statusOf(err), err.Error()
	}
	rows := []protocol.DeviceWipe{memory}
	there, err := n.cfg.GPU.Instances(ctx, share.UUID)
	if err != nil {
		return rows // the GPU's row says that it is not there
	}
	for _, i := range there {
		if (protocol.Slots{From: i.Start, To: i.Start + i.Width}).Overlaps(share.Slices) {
			rows = append(rows, n.dropInstance(ctx, share.UUID, i))
		}
	}
	return rows
}

func (n *Node) dropInstance(ctx context.Context, uuid string, i gpu.Instance) protocol.DeviceWipe {
	row := protocol.DeviceWipe{
		Kind: "mig_layout", Identity: i.UUID, Capability: "create, destroy", Method: "destroy " + i.Profile, Status: protocol.Wiped, StartedAt: n.cfg.Now(),
		ReadBackSamples: 1,
	}
	if err := n.cfg.GPU.DestroyInstance(ctx, uuid, i.Start); err != nil {
		row.Status, row.Detail = statusOf(err), err.Error()
	}
	left, err := n.cfg.GPU.Instances(ctx, uuid)
	if err != nil || slices.ContainsFunc(left, func(other gpu.Instance) bool { return other.Start == i.Start }) {
		row.Status, row.ReadBackDirty = protocol.WipeFailed, 1
	}
	row.FinishedAt = n.cfg.Now()
	return row
}

func statusOf(err error) protocol.WipeStatus {
	if errors.Is(err, gpu.ErrUnsupported) || errors.Is(err, gpu.ErrNoDriver) {
		return protocol.WipeUnsupported
	}
	return protocol.WipeFailed
}

// uncleanOf says which device is not shown clean, "" when all are.
func uncleanOf(devices []protocol.DeviceWipe) string {
	if len(devices) == 0 {
		return "no device was wiped"
	}
	for _, d := range devices {
		if d.Status != protocol.Wiped || d.ReadBackDirty > 0 || d.ReadBackSamples == 0 {
			return fmt.Sprintf("%s %s: %s: %s", d.Kind, d.Identity, d.Status, d.Detail)
		}
	}
	return ""
}
