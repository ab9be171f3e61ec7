package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

// prepare checks that the hardware is what was promised and clean, and makes the tenant's place ready.
func (n *Node) prepare(ctx context.Context, op protocol.Operation, progress step) (operation.Outcome, error) {
	var spec protocol.PrepareSpec
	if err := firstError(decode(op, &spec), needSlots(op)); err != nil {
		return operation.Outcome{}, err
	}
	if n.cfg.Runtime == nil {
		return operation.Outcome{}, refuse(CodeUnsupported, "this host has no runtime driver that could hold a tenant")
	}
	t, err := tenancyOf(op, spec)
	if err != nil {
		return operation.Outcome{}, err
	}
	progress(5, "preflight")
	checks, err := n.preflight(ctx, t, spec)
	evidence := protocol.PrepareEvidence{Checks: checks}
	if err != nil {
		return operation.Outcome{Evidence: evidence}, err
	}
	if err := n.claim(t); err != nil {
		return operation.Outcome{Evidence: evidence}, err
	}
	// The layout comes first: what the runtime gives the tenant is an instance that must be there.
	if t, err = n.layOut(ctx, t); err != nil {
		return operation.Outcome{Evidence: evidence}, err
	}
	if evidence.ImageDigest, err = n.cfg.Prepare(ctx, t, spec, progress); err != nil {
		return operation.Outcome{Evidence: evidence}, fmt.Errorf("prepare for lease %s: %w", spec.LeaseID, err)
	}
	return operation.Outcome{Evidence: evidence}, n.moveTo(t, Prepared)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// tenancyOf reads a tenancy out of the order. GPUUUIDs are the expected GPUs of the bays that the slots cover, in bay order.
func tenancyOf(op protocol.Operation, spec protocol.PrepareSpec) (Tenancy, error) {
	t := Tenancy{
		LeaseID: spec.LeaseID, Slots: op.Slots, State: Preparing, Hostname: spec.Hostname, Mode: spec.Mode, MIGProfile: spec.MIGProfile,
		GPUs: []Share{}, Ports: spec.PortGUIDs,
	}
	first, last := op.Slots.From/gpu.SlotsPerBay, (op.Slots.To-1)/gpu.SlotsPerBay
	if spec.LeaseID == "" || len(spec.GPUUUIDs) != last-first+1 {
		return t, refuse(CodeInvalidSpec, "prepare names lease %q and %d GPUs for the %d bays of slots [%d, %d)",
			spec.LeaseID, len(spec.GPUUUIDs), last-first+1, op.Slots.From, op.Slots.To)
	}
	for i, uuid := range spec.GPUUUIDs {
		start := (first + i) * gpu.SlotsPerBay
		t.GPUs = append(t.GPUs, Share{UUID: uuid, Slices: protocol.Slots{
			From: max(op.Slots.From-start, 0), To: min(op.Slots.To-start, gpu.SlotsPerBay),
		}})
	}
	return t, nil
}

// preflight checks everything and then fails if anything is not true: the whole list tells more than its first line.
func (n *Node) preflight(ctx context.Context, t Tenancy, spec protocol.PrepareSpec) ([]protocol.Check, error) {
	devices, err := n.cfg.GPU.Devices(ctx)
	if err != nil {
		return []protocol.Check{}, fmt.Errorf("list GPUs: %w", err)
	}
	conditions, err := n.conditions(ctx)
	if err != nil {
		return []protocol.Check{}, err
	}
	hcas, err := n.cfg.RDMA.Inventory(ctx)
	if err != nil {
		return []protocol.Check{}, fmt.Errorf("list adapters: %w", err)
	}
	checks := []protocol.Check{
		gpusPresent(t, devices), healthy(t, hcas, conditions), portsActive(t, hcas), n.keysClear(ctx, t, spec), n.memoryFree(ctx, t),
	}
	var bad []string
	code := protocol.FaultPortsNotClear
	for _, c := range checks {
		if c.Verdict == protocol.True {
			continue
		}
		bad = append(bad, c.Name+": "+c.Detail)
		if c.Name != checkKeysClear {
			code = CodePreflightFailed
		}
	}
	if len(bad) > 0 {
		return checks, postpone(code, "%s", strings.Join(bad, "; "))
	}
	return checks, nil
}

// checkKeysClear is the one check in which a machine that is in order may fail: its ports' tables are written by the fabric's manager.
const checkKeysClear = "pkeys_clear"

// verdict is a check that is true when nothing is wrong.
func verdict(name string, wrong []string, right string) protocol.Check {
	if len(wrong) > 0 {
		return protocol.Check{Name: name, Verdict: protocol.False, Detail: strings.Join(wrong, ", ")}
	}
	return protocol.Check{Name: name, Verdict: protocol.True, Detail: right}
}

func gpusPresent(t Tenancy, devices []protocol.GPU) protocol.Check {
	var missing []string
	for _, share := range t.GPUs {
		if !slices.ContainsFunc(devices, func(g protocol.GPU) bool { return g.UUID == share.UUID }) {
			missing = append(missing, share.UUID+" is not there")
		}
	}
	return verdict("gpus_present", missing, fmt.Sprintf("%d of %d", len(t.GPUs), len(t.GPUs)))
}

// healthy looks for conditions on the tenancy's own devices and on the machine as a whole.
func healthy(t Tenancy, hcas []protocol.HCA, conditions []protocol.Condition) protocol.Check {
	mine := map[string]bool{"": true}
	for _, share := range t.GPUs {
		mine[share.UUID] = true
	}
	for _, hca := range hcas {
		mine[hca.Device] = slices.ContainsFunc(hca.Ports, func(p protocol.HCAPort) bool { return slices.Contains(t.Ports, p.GUID) })
	}
	var bad []string
	for _, c := range conditions {
		if c.Class == protocol.PreventsAllocation && mine[c.Device] {
			bad = append(bad, strings.TrimSpace(c.Name+" "+c.Device))
		}
	}
	return verdict("health", bad, "no condition that prevents allocation")
}

func portsActive(t Tenancy, hcas []protocol.HCA) protocol.Check {
	states := map[protocol.GUID]string{}
	for _, hca := range hcas {
		for _, p := range hca.Ports {
			states[p.GUID] = p.State
		}
	}
	var bad []string
	for _, guid := range t.Ports {
		if state := states[guid]; state != "ACTIVE" {
			bad = append(bad, fmt.Sprintf("%v is %q", guid, state))
		}
	}
	return verdict("ports_active", bad, fmt.Sprintf("%d of %d", len(t.Ports), len(t.Ports)))
}

// keysClear wants nothing of ours in the ports' tables but limited membership of the default partition: an earlier tenant's key, or full
// membership, would join two tenants. A table that cannot be read is unknown, and unknown is not clear.
func (n *Node) keysClear(ctx context.Context, t Tenancy, spec protocol.PrepareSpec) protocol.Check {
	check := protocol.Check{Name: checkKeysClear, Verdict: protocol.True, Detail: fmt.Sprintf("%d tables", len(t.Ports))}
	var bad, unknown []string
	for _, guid := range t.Ports {
		table, err := n.cfg.RDMA.PKeys(ctx, guid)
		if err != nil || !table.Readable {
			unknown = append(unknown, fmt.Sprintf("%v cannot be read", guid))
			continue
		}
		for _, key := range table.Keys {
			if key != 0 && key != protocol.DefaultLimited && !foreign(key, spec) {
				bad = append(bad, fmt.Sprintf("%v holds %v", guid, key))
			}
		}
	}
	switch {
	case len(bad) > 0:
		check.Verdict, check.Detail = protocol.False, strings.Join(bad, ", ")
	case len(unknown) > 0:
		check.Verdict, check.Detail = protocol.Unknown, strings.Join(unknown, ", ")
	}
	return check
}

// foreign reports whether a key is somebody else's than ours, e.g. of a storage partition that the site's owner made.
func foreign(key protocol.PKey, spec protocol.PrepareSpec) bool {
	switch base := key.Base(); {
	case key == protocol.DefaultFull, spec.ManagedHi == 0:
		return false
	case slices.Contains(spec.Reserved, base):
		return true
	default:
		return base < spec.ManagedLow || base > spec.ManagedHi
	}
}

// memoryFree wants no MIG instance of somebody else in the memory slices.
func (n *Node) memoryFree(ctx context.Context, t Tenancy) protocol.Check {
	var bad []string
	for _, share := range t.GPUs {
		there, err := n.cfg.GPU.Instances(ctx, share.UUID)
		if err != nil {
			continue // gpus_present says so
		}
		for _, i := range there {
			taken := protocol.Slots{From: i.Start, To: i.Start + i.Width}
			if taken.Overlaps(share.Slices) && (t.MIGProfile != i.Profile || i.Start != share.Slices.From) {
				bad = append(bad, fmt.Sprintf("%s has %s at %d", share.UUID, i.Profile, i.Start))
			}
		}
	}
	return verdict("mig_slices_free", bad, "no instance in the way")
}

// layOut makes the tenancy's MIG instance, and returns the tenancy with it.
func (n *Node) layOut(ctx context.Context, t Tenancy) (Tenancy, error) {
	if t.MIGProfile == "" {
		return t, nil
	}
	if len(t.GPUs) != 1 {
		return t, refuse(CodeInvalidSpec, "MIG profile %s over %d GPUs", t.MIGProfile, len(t.GPUs))
	}
	share := t.GPUs[0]
	made, err := n.cfg.GPU.CreateInstance(ctx, share.UUID, t.MIGProfile, share.Slices.From)
	if err != nil {
		return t, fmt.Errorf("lay out GPU %s: %w", share.UUID, err)
	}
	if made.Width != share.Slices.To-share.Slices.From {
		return t, refuse(CodeInvalidSpec, "%s takes %d memory slices and the slots are %d", t.MIGProfile, made.Width, share.Slices.To-share.Slices.From)
	}
	share.Instance = made.UUID
	t.GPUs = []Share{share}
	return t, nil
}
