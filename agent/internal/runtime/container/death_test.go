//go:build linux

package container_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/runtime/container"
	"github.com/leasehold/leasehold/agent/protocol"
)

// errand is what a process that is to die is told to do, and at which stage to die.
type errand struct {
	Dir   string                 `json:"dir"`
	Name  string                 `json:"name"`
	Kind  protocol.OperationKind `json:"kind"`
	Slots protocol.Slots         `json:"slots"`
	Spec  json.RawMessage        `json:"spec"`
	Stage string                 `json:"stage"`
}

const errandVariable = "LEASEHOLD_TEST_ERRAND"

// deadly ends the process the moment that a stage is passed, as a kill or a power cut does.
type deadly struct {
	slog.Handler

	stage string
}

func (d deadly) Enabled(context.Context, slog.Level) bool { return true }

func (d deadly) Handle(ctx context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "stage" && a.Value.String() == d.stage {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
		return true
	})
	return nil
}

// TestErrand is no test: with an errand it is the process that dies, and without one it is nothing.
func TestErrand(t *testing.T) {
	t.Parallel()
	var e errand
	text := os.Getenv(errandVariable)
	if text == "" {
		return
	}
	require.NoError(t, json.Unmarshal([]byte(text), &e))
	h := &house{t: t, dir: e.Dir, cfg: container.Config{
		Name: e.Name, Log: slog.New(deadly{Handler: slog.DiscardHandler, stage: e.Stage}),
	}}
	h.build()
	_, err := h.do(e.Kind, e.Slots, e.Spec)
	require.NoError(t, err)
	t.Fatal("it should have died at " + e.Stage)
}

// dies has another process do an operation and die at a stage.
func (h *house) dies(stage string, kind protocol.OperationKind, slots protocol.Slots, spec any) {
	h.t.Helper()
	raw, err := json.Marshal(spec)
	require.NoError(h.t, err)
	text, err := json.Marshal(errand{
		Dir: h.dir, Name: h.cfg.Name, Kind: kind, Slots: slots, Spec: raw, Stage: stage,
	})
	require.NoError(h.t, err)
	h.close()
	cmd := exec.CommandContext(h.t.Context(), os.Args[0], "-test.run=^TestErrand$", "-test.v")
	cmd.Env = append(os.Environ(), errandVariable+"="+string(text))
	out, err := cmd.CombinedOutput()
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(h.t, ok && status.Signaled() && status.Signal() == syscall.SIGKILL, "%s: %v\n%s", stage, err, out)
	h.open()
}

func stagesOfPreparation() []string {
	return []string{"place kept", "disk made", "processes ended", "file systems mounted", "container created", "container connected", "container started"}
}

func TestAPreparationThatDiedAtAnyStageIsDoneAgainOrWiped(t *testing.T) {
	t.Parallel()
	for _, stage := range stagesOfPreparation() {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			h.dies(stage, protocol.Prepare, gpuA(), specOf("lease_a", cardA))
			_, rows := (&tenant{house: h, lease: "lease_a", slots: gpuA()}).moveOut()
			for _, row := range rows {
				require.Equal(t, protocol.Wiped, row.Status, row.Detail)
			}
			h.dies(stage, protocol.Prepare, gpuA(), specOf("lease_b", cardA))
			b := h.moveIn(gpuA(), specOf("lease_b", cardA))
			require.Equal(t, "lease-b", b.run("hostname"))
			b.moveOut()
		})
	}
}

func TestAWipeThatDiedAtAnyStageIsDoneAgain(t *testing.T) {
	t.Parallel()
	for _, stage := range []string{"processes ended", "disk erased", "place forgotten"} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			a := h.moveIn(gpuA(), specOf("lease_a", cardA))
			a.run("echo data >/scratch/file")
			_, err := h.do(protocol.Revoke, gpuA(), protocol.RevokeSpec{LeaseID: "lease_a"})
			require.NoError(t, err)
			h.dies(stage, protocol.Wipe, gpuA(), protocol.WipeSpec{LeaseID: "lease_a", Nonce: "n"})
			_, err = h.do(protocol.Prepare, gpuA(), specOf("lease_b", cardA))
			require.Error(t, err, "the wipe was not shown")
			_, err = h.do(protocol.Wipe, gpuA(), protocol.WipeSpec{LeaseID: "lease_a", Nonce: "n"})
			require.NoError(t, err)
			b := h.moveIn(gpuA(), specOf("lease_b", cardA))
			require.Empty(t, b.run("ls /scratch"))
		})
	}
}

func TestAnAgentThatDiesLeavesItsTenantsAtWork(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	a := h.moveIn(gpuA(), specOf("lease_a", cardA))
	a.begin("sleep 454545")
	a.run("echo kept >/scratch/file")
	h.dies("place kept", protocol.Prepare, gpuB(), specOf("lease_b", cardB))
	require.NoError(t, h.driver.Restore(t.Context()))
	a.logIn()
	require.Contains(t, a.run("ps"), "454545")

	// After the machine was started anew there are no processes, and the place is as it was left.
	a.endContainer()
	require.NoError(t, h.driver.Restore(t.Context()))
	require.Equal(t, "kept", a.run("cat /scratch/file"))
	require.NotContains(t, a.run("ps"), "454545")

	a.begin("sleep 464646")
	require.NoError(t, h.driver.Halt(t.Context()))
	require.NoError(t, h.driver.Restore(t.Context()))
	require.Equal(t, "kept", a.run("cat /scratch/file"))
	require.NotContains(t, a.run("ps"), "464646")
}

// endContainer ends the container's first process behind the driver's back.
func (m *tenant) endContainer() {
	m.t.Helper()
	oci := func(args ...string) string {
		out, err := exec.CommandContext(m.t.Context(), runtimeProgram(), append([]string{"--root", m.cfg.Run + "/oci"}, args...)...).CombinedOutput() //nolint:gosec // the test's own words
		require.NoError(m.t, err, string(out))
		return string(out)
	}
	oci("kill", "--all", m.cfg.Name+"-000", "KILL")
	require.Eventually(m.t, func() bool { return strings.Contains(oci("state", m.cfg.Name+"-000"), `"stopped"`) }, 10*time.Second, 10*time.Millisecond)
}
