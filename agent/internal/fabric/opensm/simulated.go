package opensm

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/ibsim"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Simulated is a driver with a real OpenSM of its own, on a simulated subnet.
type Simulated struct {
	*Driver

	Subnet *ibsim.Subnet
}

// Simulate runs OpenSM on a simulation of the topology, with its files in stateDir, and returns a driver for it. A second
// start in the same directory has the same partitions. ibsim.ErrNoTools: OpenSM or the simulator is not installed. prefixes
// are directories into which Debian's packages may have been unpacked.
func Simulate(ctx context.Context, topology protocol.Topology, stateDir string, prefixes ...string) (*Simulated, error) {
	tools, err := ibsim.FindTools(prefixes...)
	if err != nil {
		return nil, fmt.Errorf("simulate fabric: %w", err)
	}
	version, err := tools.Version(ctx)
	if err != nil {
		return nil, fmt.Errorf("simulate fabric: %w", err)
	}
	subnet, err := ibsim.Start(ctx, ibsim.Config{Topology: topology, Dir: stateDir, Tools: tools})
	if err != nil {
		return nil, fmt.Errorf("simulate fabric: %w", err)
	}
	driver, err := driveSimulated(ctx, subnet, version)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("simulate fabric: %w", err), subnet.Close())
	}
	return &Simulated{Driver: driver, Subnet: subnet}, nil
}

func driveSimulated(ctx context.Context, subnet *ibsim.Subnet, version string) (*Driver, error) {
	partitions := filepath.Join(subnet.Dir(), ibsim.PartitionsFile)
	if err := Prepare(partitions); err != nil {
		return nil, err
	}
	if err := subnet.StartManager(ctx); err != nil {
		return nil, err
	}
	return New(ctx, Config{
		Client: subnet.Client(), Manager: simulatedManager{subnet}, PartitionsFile: partitions,
		OptionsFile: filepath.Join(subnet.Dir(), ibsim.OptionsFile), StateDir: subnet.Dir(), Version: version,
		Patience: fabric.DefaultPatience(),
	})
}

// Close stops OpenSM and the simulator.
func (s *Simulated) Close() error { return s.Subnet.Close() }

// simulatedManager is the OpenSM of a simulated subnet.
type simulatedManager struct{ subnet *ibsim.Subnet }

// PID implements Manager.
func (m simulatedManager) PID(ctx context.Context) (int, error) { return m.subnet.ManagerPID(ctx) }

// Hangup implements Manager.
func (m simulatedManager) Hangup(ctx context.Context) error { return m.subnet.Hangup(ctx) }
