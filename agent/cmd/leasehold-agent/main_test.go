package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/uplink/uplinktest"
	"github.com/leasehold/leasehold/agent/protocol"
)

// start runs the program in this process and returns what ends it and then tells what it returned.
func start(t *testing.T, args ...string) func() error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := root()
	cmd.SetOut(&bytes.Buffer{})
	cmd.SetErr(&bytes.Buffer{})
	cmd.SetArgs(args)
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	ended := false
	stop := func() error {
		if ended {
			return nil
		}
		ended = true
		cancel()
		return <-done
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

func tokenFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(uplinktest.Token+"\n"), 0o600))
	return file
}

func TestANodeAgentReportsThisMachineAndRefusesWhatItCannotDo(t *testing.T) {
	t.Parallel()
	plane := uplinktest.New(t)
	stop := start(t, "node", "--server", plane.URL, "--token-file", tokenFile(t), "--state-dir", t.TempDir(), "--name", "n1", "--root", t.TempDir())
	report := plane.AwaitInventory(t, "n1").Node
	require.NotEmpty(t, report.Kernel)
	require.NotNil(t, report.GPUs)
	plane.AwaitHeartbeat(t, "n1", func(b protocol.Heartbeat) bool { return b.BootID != "" && b.Sequence > 0 })
	result := plane.Do(t, "n1", protocol.Operation{ID: "op1", Kind: protocol.Wipe, Epoch: 1, Slots: protocol.Slots{To: 8}, Spec: protocol.Raw(`{}`)})
	require.Equal(t, "unsupported-on-this-host", result.Fault.Code)
	observed := plane.Do(t, "n1", protocol.Operation{ID: "op2", Kind: protocol.ObservePKeys, Epoch: 1, Spec: protocol.Raw(`{"nonce":"n","port_guids":["0x1"]}`)})
	require.Equal(t, protocol.Succeeded, observed.State)
	plane.Verify(t, "n1", observed)
	require.NoError(t, stop())
}

func TestASimulatedSiteIsStartedAndInjectedIntoFromTheCommandLine(t *testing.T) {
	t.Parallel()
	plane := uplinktest.New(t)
	plan := filepath.Join(t.TempDir(), "site.yaml")
	require.NoError(t, os.WriteFile(plan, []byte("name: s\ngroups: [{name: x, count: 1, gpu: h100-sxm-80gb, gpus: 8, fabric: ib-1}]\n"), 0o600))
	dir := t.TempDir()
	stop := start(t, "sim", "--server", plane.URL, "--token-file", tokenFile(t), "--state-dir", dir, "--site", plan, "--speed", "instant", "--heartbeat", "20ms")
	plane.AwaitInventory(t, "gpu-x-01")
	require.NotNil(t, plane.AwaitInventory(t, "ib-1").Fabric)
	inject := root()
	inject.SetArgs([]string{"sim", "inject", "--state-dir", dir, "gpu-x-01", "xid79", "--device", "2"})
	require.NoError(t, inject.ExecuteContext(t.Context()))
	plane.AwaitHeartbeat(t, "gpu-x-01", func(b protocol.Heartbeat) bool { return len(b.Conditions) == 1 })
	require.NoError(t, stop())
}

func TestWrongFlagsAreNamed(t *testing.T) {
	t.Parallel()
	for complaint, args := range map[string][]string{
		"required flag":  {"sim", "--state-dir", t.TempDir()},
		"--speed is":     {"sim", "--server", "http://127.0.0.1:1", "--state-dir", t.TempDir(), "--speed", "warp"},
		"--fabric is":    {"sim", "--server", "http://127.0.0.1:1", "--state-dir", t.TempDir(), "--fabric", "ether"},
		"open site plan": {"sim", "--server", "http://127.0.0.1:1", "--state-dir", t.TempDir(), "--site", "/does/not/exist"},
		"not https":      {"sim", "--server", "http://192.0.2.1", "--state-dir", t.TempDir(), "--token-file", "/does/not/exist"},
		"umad":           {"fabric", "--server", "http://127.0.0.1:1", "--state-dir", t.TempDir(), "--name", "ib-1", "--partitions-file", "/x", "--device", "/dev/no-umad"},
	} {
		cmd := root()
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(&bytes.Buffer{})
		cmd.SetArgs(args)
		require.ErrorContains(t, cmd.ExecuteContext(t.Context()), complaint)
	}
}

func TestSequencesGrowAlsoWhenTheUptimeStandsStill(t *testing.T) {
	t.Parallel()
	next := rising(func() int64 { return 5 })
	require.EqualValues(t, 5, next())
	require.EqualValues(t, 6, next())
}
