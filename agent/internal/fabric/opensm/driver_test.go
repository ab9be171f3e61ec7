package opensm_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/fabric/conformance"
	"github.com/leasehold/leasehold/agent/internal/fabric/opensm"
	"github.com/leasehold/leasehold/agent/internal/ibsim/ibsimtest"
	"github.com/leasehold/leasehold/agent/protocol"
)

func TestOpenSMConforms(t *testing.T) {
	t.Parallel()
	ibsimtest.Tools(t)
	conformance.Run(t, func(t *testing.T) conformance.Rig {
		t.Helper()
		return newRig(t, simulate(t, ibsimtest.FatTree(4, 2)))
	})
}

func simulate(t *testing.T, topology protocol.Topology) *opensm.Simulated {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := opensm.Simulate(ctx, topology, t.TempDir(), ibsimtest.Prefixes()...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func newRig(t *testing.T, s *opensm.Simulated) conformance.Rig {
	t.Helper()
	topology, err := s.Topology(t.Context())
	require.NoError(t, err)
	gate := &gate{}
	rig := conformance.Rig{
		Driver: s.ReopenWith(t.Context(), t, func(c *opensm.Config) {
			gate.Manager = c.Manager
			c.Manager = gate
			c.Patience.Deadline = 8 * time.Second // some faults are waited for in vain
		}),
		Cut: func(t *testing.T, port protocol.GUID) {
			t.Helper()
			require.NoError(t, s.Subnet.Cut(t.Context(), port))
		},
		Join: func(t *testing.T, port protocol.GUID) {
			t.Helper()
			require.NoError(t, s.Subnet.Join(t.Context(), port))
		},
		OverwriteHCA: func(t *testing.T, port protocol.GUID, keys ...protocol.PKey) {
			t.Helper()
			overwrite(t, s, port, 0, keys)
		},
		OverwriteSwitch: func(t *testing.T, port protocol.GUID, keys ...protocol.PKey) {
			t.Helper()
			overwrite(t, s, port, 1, keys)
		},
		Busy: func(*testing.T) func() { return gate.shut() },
		Reopen: func(t *testing.T) fabric.Driver {
			t.Helper()
			return s.Reopen(t.Context(), t)
		},
		Faults: faultsOf(s, gate),
	}
	for _, port := range topology.Ports {
		rig.Ports = append(rig.Ports, port.GUID)
	}
	return rig
}

// gate is a manager whose signals wait while it is shut.
type gate struct {
	opensm.Manager

	mu     sync.Mutex
	closed chan struct{}
	deaf   bool // signals are lost
}

func (g *gate) setDeaf(deaf bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deaf = deaf
}

// shut makes signals wait and returns how to let them go.
func (g *gate) shut() func() {
	g.mu.Lock()
	defer g.mu.Unlock()
	closed := make(chan struct{})
	g.closed = closed
	return func() { close(closed) }
}

// Hangup implements opensm.Manager.
func (g *gate) Hangup(ctx context.Context) error {
	g.mu.Lock()
	closed, deaf := g.closed, g.deaf
	g.mu.Unlock()
	if closed != nil {
		<-closed
	}
	if deaf {
		return nil
	}
	return g.Manager.Hangup(ctx)
}

func overwrite(t *testing.T, s *opensm.Simulated, port protocol.GUID, up int, keys []protocol.PKey) {
	t.Helper()
	overwriteBlock(t, s, port, up, 0, keys)
}

func overwriteBlock(t *testing.T, s *opensm.Simulated, port protocol.GUID, up, block int, keys []protocol.PKey) {
	t.Helper()
	subnet, err := s.Subnet.Client().Walk(t.Context())
	require.NoError(t, err)
	place := subnet.Places[port]
	path, number := place.Path, 0
	if up == 1 {
		path, number = place.Path.Parent(), place.SwitchPort
	}
	require.NoError(t, s.Subnet.Client().SetPKeyBlock(t.Context(), path, number, block, keys))
}
