package opensm_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric/conformance"
	"github.com/leasehold/leasehold/agent/internal/fabric/opensm"
	"github.com/leasehold/leasehold/agent/internal/ibsim"
)

// faultsOf are ways in which a real OpenSM fails.
func faultsOf(s *opensm.Simulated, gate *gate) []conformance.Fault {
	signal := func(t *testing.T, what syscall.Signal) {
		t.Helper()
		pid, err := s.Subnet.ManagerPID(t.Context())
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, what))
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // one that is stopped cannot end
	}
	return []conformance.Fault{
		{
			Name:  "OpenSM is dead",
			Begin: func(t *testing.T) { t.Helper(); require.NoError(t, s.Subnet.KillManager(t.Context())) },
			End:   func(t *testing.T) { t.Helper(); require.NoError(t, s.Subnet.StartManager(t.Context())) },
		},
		{
			Name:  "OpenSM hangs",
			Begin: func(t *testing.T) { t.Helper(); signal(t, syscall.SIGSTOP) },
			End:   func(t *testing.T) { t.Helper(); signal(t, syscall.SIGCONT) },
		},
		{
			Name:  "signals are lost",
			Begin: func(*testing.T) { gate.setDeaf(true) },
			End:   func(*testing.T) { gate.setDeaf(false) },
		},
		{
			Name:    "OpenSM is slow",
			Begin:   func(*testing.T) { time.AfterFunc(300*time.Millisecond, gate.shut()) },
			End:     func(*testing.T) {},
			Passing: true,
		},
		{
			// OpenSM opens the whole fabric on it; the next set puts it right.
			Name: "the partition file is replaced by garbage and read",
			Begin: func(t *testing.T) {
				t.Helper()
				require.NoError(t, os.WriteFile(filepath.Join(s.Subnet.Dir(), ibsim.PartitionsFile), []byte("no such thing"), 0o600))
				require.NoError(t, s.Subnet.Hangup(t.Context()))
			},
			End:     func(*testing.T) {},
			Passing: true,
		},
	}
}
