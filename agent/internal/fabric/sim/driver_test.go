package sim_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/fabric/conformance"
	"github.com/leasehold/leasehold/agent/internal/fabric/sim"
	"github.com/leasehold/leasehold/agent/internal/ibsim/ibsimtest"
	"github.com/leasehold/leasehold/agent/protocol"
)

func TestTheSimulatedFabricConforms(t *testing.T) {
	t.Parallel()
	conformance.Run(t, newRig)
}

func newRig(t *testing.T) conformance.Rig {
	t.Helper()
	config := sim.Config{Topology: ibsimtest.FatTree(4, 2), StateFile: filepath.Join(t.TempDir(), "fabric.json")}
	driver, err := sim.New(config)
	require.NoError(t, err)
	cut := map[protocol.GUID]bool{}
	rig := conformance.Rig{
		Driver: driver,
		Cut: func(_ *testing.T, port protocol.GUID) {
			cut[port] = true
			driver.Inject(sim.Faults{Unreachable: cut})
		},
		Join: func(_ *testing.T, port protocol.GUID) {
			delete(cut, port)
			driver.Inject(sim.Faults{Unreachable: cut})
		},
		OverwriteHCA:    func(_ *testing.T, port protocol.GUID, keys ...protocol.PKey) { driver.OverwriteHCA(port, keys...) },
		OverwriteSwitch: func(_ *testing.T, port protocol.GUID, keys ...protocol.PKey) { driver.OverwriteSwitch(port, keys...) },
		Busy: func(*testing.T) func() {
			driver.Inject(sim.Faults{Delay: 20 * time.Millisecond})
			return func() { driver.Inject(sim.Faults{}) }
		},
		Reopen: func(t *testing.T) fabric.Driver {
			t.Helper()
			again, err := sim.New(config)
			require.NoError(t, err)
			again.Inject(sim.Faults{Unreachable: cut})
			return again
		},
		Truth: func(_ *testing.T, driver fabric.Driver, port protocol.GUID) protocol.LinkState {
			return driver.(*sim.Driver).Held(port)
		},
		Faults: faultsOf(driver),
	}
	for _, port := range config.Topology.Ports {
		rig.Ports = append(rig.Ports, port.GUID)
	}
	return rig
}

// faultsOf are the ways in which a real manager was seen to fail.
func faultsOf(driver *sim.Driver) []conformance.Fault {
	inject := func(name string, faults sim.Faults) conformance.Fault {
		return conformance.Fault{
			Name:    name,
			Begin:   func(*testing.T) { driver.Inject(faults) },
			End:     func(*testing.T) { driver.Inject(sim.Faults{}) },
			Passing: faults.Delay > 0,
		}
	}
	return []conformance.Fault{
		inject("fails open", sim.Faults{FailOpen: true}),
		inject("applies half", sim.Faults{HalfApply: true}),
		inject("forgets the switches", sim.Faults{HCAOnly: true}),
		inject("answers stale", sim.Faults{Stale: true}),
		inject("is slow", sim.Faults{Delay: 20 * time.Millisecond}),
		inject("is down", sim.Faults{Down: true}),
	}
}
