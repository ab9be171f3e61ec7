package fleet

import (
	"context"
	"fmt"
	"math"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
)

// Bounds of an inventory, far above what there is, so that garbage is told from a large machine.
const (
	maxGPUs     = 64
	maxHCAs     = 64
	maxHCAPorts = 4
	maxDisks    = 256
	maxSwitches = 20_000
	maxLinks    = 400_000
	maxPorts    = 200_000
)

// Inventory takes an agent's full report and hands it to the inventory.
//
// It returns an Invalid fault for a report of the wrong kind or one that makes no sense.
func (s *Service) Inventory(ctx context.Context, caller Caller, report protocol.Inventory) (protocol.InventoryReply, error) {
	if err := checkInventory(caller.Kind, report); err != nil {
		return protocol.InventoryReply{}, err
	}
	if caller.Kind == protocol.FabricAgent {
		if err := s.Hardware.ReportFabric(ctx, caller.Fabric, *report.Fabric); err != nil {
			return protocol.InventoryReply{}, fmt.Errorf("take inventory: %w", err)
		}
		return protocol.InventoryReply{Changes: []string{}, State: "observed"}, nil
	}
	reply, err := s.Hardware.ReportNode(ctx, caller.Node, *report.Node)
	if err != nil {
		return protocol.InventoryReply{}, fmt.Errorf("take inventory: %w", err)
	}
	return reply, nil
}

func checkInventory(kind protocol.AgentKind, r protocol.Inventory) error {
	problem := fault.New(fault.Invalid, "inventory", "the inventory makes no sense")
	switch {
	case kind == protocol.NodeAgent && (r.Node == nil || r.Fabric != nil):
		return problem.At("/node", "a node's agent reports its node, and nothing else")
	case kind == protocol.FabricAgent && (r.Fabric == nil || r.Node != nil):
		return problem.At("/fabric", "a fabric's agent reports its fabric, and nothing else")
	case kind == protocol.NodeAgent:
		problem = checkNode(problem, *r.Node)
	default:
		problem = checkFabric(problem, *r.Fabric)
	}
	if len(problem.Fields) > 0 {
		return problem
	}
	return nil
}

func checkNode(problem *fault.Fault, n protocol.NodeInventory) *fault.Fault {
	wrong := func(at bool, pointer, detail string) {
		if at && len(problem.Fields) < 10 {
			problem = problem.At("/node/"+pointer, detail)
		}
	}
	wrong(len(n.GPUs) > maxGPUs, "gpus", fmt.Sprintf("at most %d", maxGPUs))
	wrong(len(n.HCAs) > maxHCAs, "hcas", fmt.Sprintf("at most %d", maxHCAs))
	wrong(len(n.Disks) > maxDisks, "disks", fmt.Sprintf("at most %d", maxDisks))
	wrong(!isInt32(n.CPUCores), "cpu_cores", "it is no number of cores")
	wrong(n.MemoryBytes < 0, "memory_bytes", "it is negative")
	addresses := map[string]bool{}
	for i, g := range n.GPUs {
		part := fmt.Sprintf("gpus/%d", i)
		wrong(g.UUID == "", part+"/uuid", "a GPU needs one")
		wrong(addresses[g.PCIAddress], part+"/pci_address", "two GPUs have the same")
		wrong(g.MemoryBytes < 0 || g.NUMANode < -1 || !isInt32(max(g.NUMANode, 0)), part, "a number is out of range")
		addresses[g.PCIAddress] = true
	}
	guids := map[protocol.GUID]bool{}
	for i, h := range n.HCAs {
		part := fmt.Sprintf("hcas/%d", i)
		wrong(len(h.Ports) > maxHCAPorts, part+"/ports", fmt.Sprintf("at most %d", maxHCAPorts))
		for j, p := range h.Ports {
			port := fmt.Sprintf("%s/ports/%d", part, j)
			wrong(p.GUID == 0, port+"/guid", "a port needs one")
			wrong(guids[p.GUID], port+"/guid", "two ports have the same")
			wrong(!isInt32(p.Number) || !isInt32(p.RateGbps), port, "a number is out of range")
			guids[p.GUID] = true
		}
	}
	return problem
}

func checkFabric(problem *fault.Fault, f protocol.FabricInventory) *fault.Fault {
	wrong := func(at bool, pointer, detail string) {
		if at && len(problem.Fields) < 10 {
			problem = problem.At("/fabric/"+pointer, detail)
		}
	}
	t := f.Topology
	wrong(len(t.Switches) > maxSwitches, "topology/switches", fmt.Sprintf("at most %d", maxSwitches))
	wrong(len(t.Links) > maxLinks, "topology/links", fmt.Sprintf("at most %d", maxLinks))
	wrong(len(t.Ports) > maxPorts, "topology/ports", fmt.Sprintf("at most %d", maxPorts))
	wrong(!isInt32(f.Controller.MaxPKeysPerPort), "controller/max_pkeys_per_port", "it is no number of keys")
	for i, s := range t.Switches {
		wrong(s.GUID == 0 || !isInt32(s.Ports) || !isInt32(s.Level), fmt.Sprintf("topology/switches/%d", i), "a switch needs a GUID and proper numbers")
	}
	for i, l := range t.Links {
		wrong(!isInt32(l.FromPort) || !isInt32(l.ToPort) || !isInt32(l.RateGbps), fmt.Sprintf("topology/links/%d", i), "a number is out of range")
	}
	for i, p := range t.Ports {
		wrong(p.GUID == 0 || !isInt32(p.LID) || !isInt32(p.SwitchPort) || !isInt32(p.RateGbps), fmt.Sprintf("topology/ports/%d", i),
			"a port needs a GUID and proper numbers")
	}
	return problem
}

// isInt32 reports whether the number is one that the database's integer columns hold, and not negative.
func isInt32(n int) bool { return n >= 0 && n <= math.MaxInt32 }
