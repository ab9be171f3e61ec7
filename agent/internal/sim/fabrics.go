package sim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/fabric/opensm"
	fabricsim "github.com/leasehold/leasehold/agent/internal/fabric/sim"
)

// InMemory makes simulated subnet managers, whose tables a restart keeps.
func InMemory(_ context.Context, subnet Subnet, dir string) (fabric.Driver, func() error, error) {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, nil, fmt.Errorf("make subnet directory: %w", err)
	}
	driver, err := fabricsim.New(fabricsim.Config{
		Topology: subnet.Topology, StateFile: filepath.Join(dir, "tables.json"), Patience: fabric.DefaultPatience(),
	})
	return driver, func() error { return nil }, err
}

// OpenSM makes subnets on which a real OpenSM manages a simulation of the topology. prefixes are directories into which the Debian
// packages opensm and ibsim-utils may have been unpacked.
func OpenSM(prefixes ...string) FabricMaker {
	return func(ctx context.Context, subnet Subnet, dir string) (fabric.Driver, func() error, error) {
		if err := os.MkdirAll(dir, dirMode); err != nil {
			return nil, nil, fmt.Errorf("make subnet directory: %w", err)
		}
		simulated, err := opensm.Simulate(ctx, subnet.Topology, dir, prefixes...)
		if err != nil {
			return nil, nil, err
		}
		return simulated, simulated.Close, nil
	}
}
