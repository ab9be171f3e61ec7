package main

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/uplink/uplinktest"
	"github.com/leasehold/leasehold/agent/protocol"
)

// asProgram makes this test binary behave as the program itself.
const asProgram = "LEASEHOLD_AGENT_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// process is the program as a process of its own.
type process struct {
	*exec.Cmd
	stdin io.Closer
}

func startProcess(t *testing.T, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &process{Cmd: cmd, stdin: stdin}
}

func oneNode(t *testing.T, plane *uplinktest.Server, state string) []string {
	t.Helper()
	plan := filepath.Join(t.TempDir(), "site.yaml")
	require.NoError(t, os.WriteFile(plan, []byte("name: s\ngroups: [{name: x, count: 1, gpu: rtx4090-24gb, gpus: 4}]\n"), 0o600))
	return []string{
		"sim", "--server", plane.URL, "--token-file", tokenFile(t), "--state-dir", state, "--site", plan, "--heartbeat", "50ms", "--exit-with-parent",
	}
}

// The real thing: SIGKILL in the middle of an operation, a new process, and the operation ends once with one result.
func TestAKilledAgentResumesItsOperation(t *testing.T) {
	t.Parallel()
	plane := uplinktest.New(t)
	args := oneNode(t, plane, t.TempDir())
	first := startProcess(t, args...)
	uuids := []string{}
	for _, g := range plane.AwaitInventory(t, "gpu-x-01").Node.GPUs {
		uuids = append(uuids, g.UUID)
	}
	spec, err := json.Marshal(protocol.PrepareSpec{LeaseID: "lease_1", Mode: "shared", GPUUUIDs: uuids, PortGUIDs: []protocol.GUID{}})
	require.NoError(t, err)
	plane.Queue(t, "gpu-x-01", protocol.Operation{ID: "op1", Kind: protocol.Prepare, Epoch: 1, Slots: protocol.Slots{To: 32}, Spec: spec})
	require.Eventually(t, func() bool {
		p := plane.Progress("op1")
		return len(p) > 0 && p[len(p)-1].Percent >= 20
	}, 20*time.Second, 5*time.Millisecond)
	require.NoError(t, first.Process.Kill())
	require.Error(t, first.Wait())
	require.Zero(t, plane.Results("op1"))

	startProcess(t, args...)
	require.Equal(t, protocol.Succeeded, plane.AwaitResult(t, "op1").State)
	beat := plane.AwaitHeartbeat(t, "gpu-x-01", func(b protocol.Heartbeat) bool { return len(b.Running) == 0 && b.Spooled == 0 })
	require.NotEmpty(t, beat.BootID)
	require.Equal(t, 1, plane.Results("op1"))
}

func TestAnAgentEndsWithItsParentAndOnASignal(t *testing.T) {
	t.Parallel()
	plane := uplinktest.New(t)
	args := oneNode(t, plane, t.TempDir())
	orphan := startProcess(t, args...)
	plane.AwaitInventory(t, "gpu-x-01")
	require.NoError(t, orphan.stdin.Close())
	require.NoError(t, orphan.Wait(), "it ends well")

	signalled := startProcess(t, args...)
	before := len(plane.Agent(t, "gpu-x-01").Heartbeats)
	require.Eventually(t, func() bool { return len(plane.Agent(t, "gpu-x-01").Heartbeats) > before }, 20*time.Second, 5*time.Millisecond)
	require.NoError(t, signalled.Process.Signal(syscall.SIGTERM))
	require.NoError(t, signalled.Wait(), "it ends well")
}
