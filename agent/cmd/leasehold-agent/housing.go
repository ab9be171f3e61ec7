package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/internal/runtime/container"
	"github.com/leasehold/leasehold/agent/internal/sim"
)

// simulatedShare is the part of this machine's memory that each virtual machine may give away, and simulatedScratch the disk of each slot: a site has
// several machines, and somebody works on this one.
const (
	simulatedShare   = 8
	simulatedScratch = 64 << 20
)

// containers makes real containers for a simulated site. Of its machines only the GPUs are not there; cores, memory and disk are this machine's.
func (o simOptions) containers(log *slog.Logger) sim.ContainerMaker {
	return func(ctx context.Context, m sim.Machine, gpus gpu.Driver, dir string) (sim.Containers, error) {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return nil, fmt.Errorf("find directory: %w", err)
		}
		if err := describe(m, filepath.Join(dir, "cdi")); err != nil {
			return nil, err
		}
		bays := make([]int, len(m.Inventory.GPUs))
		for bay, g := range m.Inventory.GPUs {
			bays[bay] = g.NUMANode
		}
		slots := len(bays) * gpu.SlotsPerBay
		return container.New(ctx, container.Config{
			Name: containersOf(dir), Dir: dir, Images: o.images, Unpacked: filepath.Join(o.stateDir, "images"), Runtime: "runc", Init: "catatonit",
			GPU: gpus, CDIDirs: []string{filepath.Join(dir, "cdi")}, Slots: slots, Now: now, Log: log.With("node", m.Inventory.Hostname),
			Machine: func(context.Context) (container.Machine, error) {
				ours, err := container.ReadMachine("/", dir, bays)
				for i := range ours.Nodes {
					ours.Nodes[i].MemoryBytes /= simulatedShare
				}
				ours.ScratchBytes = simulatedScratch * int64(slots)
				return ours, err
			},
		})
	}
}

// containersOf names the containers that keep their files in dir: several agents may have some on one machine.
func containersOf(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return "l" + hex.EncodeToString(sum[:])[:5]
}

// describe writes what a vendor's tool would of the machine's GPUs. There is no device node behind them: a container is told which it has.
func describe(m sim.Machine, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("describe simulated GPUs: %w", err)
	}
	devices := []map[string]any{}
	add := func(bay int, name string) {
		env := fmt.Sprintf("LEASEHOLD_SIMULATED_GPU_%d=%s", bay, name)
		devices = append(devices, map[string]any{"name": name, "containerEdits": map[string]any{"env": []string{env}}})
	}
	for bay, g := range m.Inventory.GPUs {
		add(bay, g.UUID)
		for start := range gpu.SlotsPerBay {
			add(bay, gpu.SimInstanceUUID(g.UUID, start))
		}
	}
	data, err := json.Marshal(map[string]any{"cdiVersion": "0.6.0", "kind": m.Inventory.GPUs[0].Vendor + ".com/gpu", "devices": devices})
	if err != nil {
		return fmt.Errorf("describe simulated GPUs: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "simulated.json"), data, 0o600); err != nil {
		return fmt.Errorf("describe simulated GPUs: %w", err)
	}
	return nil
}
