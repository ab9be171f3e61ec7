package sim_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	gossh "golang.org/x/crypto/ssh"

	"github.com/leasehold/leasehold/agent/internal/backoff"
	"github.com/leasehold/leasehold/agent/internal/durable"
	"github.com/leasehold/leasehold/agent/internal/sim"
	"github.com/leasehold/leasehold/agent/internal/uplink/uplinktest"
	"github.com/leasehold/leasehold/agent/protocol"
)

// smallSite is two H100 nodes on a fabric, one A100 node in MIG mode and one with AMD cards.
func smallSite() sim.Site {
	return sim.Site{Name: "test", Groups: []sim.Group{
		{Name: "h100", Count: 2, GPU: "h100-sxm-80gb", GPUs: 8, Fabric: "ib-1"},
		{Name: "a100", Count: 1, GPU: "a100-sxm-80gb", GPUs: 8, MIG: true},
		{Name: "mi250x", Count: 1, GPU: "mi250x-128gb", GPUs: 8},
	}}
}

// world is a simulated site against the tests' control plane.
type world struct {
	*uplinktest.Server
	t        *testing.T
	dir      string
	token    string
	hardware sim.Hardware
	me       gossh.Signer
	n        int

	containers sim.ContainerMaker // nil: none
}

func newWorld(t *testing.T) *world {
	t.Helper()
	hardware, err := sim.Generate(smallSite())
	require.NoError(t, err)
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := gossh.NewSignerFromKey(private)
	require.NoError(t, err)
	return &world{Server: uplinktest.New(t), t: t, dir: t.TempDir(), token: uplinktest.Token, hardware: hardware, me: signer}
}

// run starts the site and returns what ends it.
func (w *world) run() func() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- sim.Run(ctx, sim.Options{
			Server: w.URL, HTTP: &http.Client{Transport: &http.Transport{}}, Token: w.token, StateDir: w.dir, Site: smallSite(), Instant: true,
			Fabric: sim.InMemory, SSHListen: "127.0.0.1", Heartbeat: 20 * time.Millisecond, BootID: rand.Text(),
			Retry: backoff.Policy{Min: 2 * time.Millisecond, Max: 20 * time.Millisecond}, Now: func() time.Time { return time.Now().UTC() },
			Log: slog.New(slog.DiscardHandler), Ready: func(int, int) { close(ready) }, Containers: w.containers,
		})
	}()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			require.NoError(w.t, <-done)
		})
	}
	w.t.Cleanup(stop)
	select {
	case <-ready:
	case err := <-done:
		require.FailNow(w.t, "the site ended", err)
	}
	return stop
}

func (w *world) machine(name string) protocol.NodeInventory {
	w.t.Helper()
	for _, m := range w.hardware.Nodes {
		if m.Inventory.Hostname == name {
			return m.Inventory
		}
	}
	require.FailNow(w.t, "no such machine", name)
	return protocol.NodeInventory{}
}

// order sends an operation and returns its result.
func (w *world) order(agent string, kind protocol.OperationKind, epoch int64, slots protocol.Slots, spec any) protocol.Result {
	w.t.Helper()
	raw, err := json.Marshal(spec)
	require.NoError(w.t, err)
	w.n++
	return w.Do(w.t, agent, protocol.Operation{
		ID: fmt.Sprintf("op_%d", w.n), Kind: kind, Epoch: epoch, Slots: slots, Spec: raw, PickUpBy: time.Now().Add(time.Minute), DoneBy: time.Now().Add(time.Minute),
	})
}

func succeeded[E any](t *testing.T, result protocol.Result) E {
	t.Helper()
	require.Equal(t, protocol.Succeeded, result.State, "%+v", result.Fault)
	return evidence[E](t, result)
}

func evidence[E any](t *testing.T, result protocol.Result) E {
	t.Helper()
	var e E
	require.NoError(t, json.Unmarshal(result.Evidence, &e))
	return e
}

func all() protocol.Slots { return protocol.Slots{From: 0, To: 64} }

func (w *world) prepareSpec(name, lease string) protocol.PrepareSpec {
	m := w.machine(name)
	spec := protocol.PrepareSpec{LeaseID: lease, Hostname: name, Mode: "bare_metal", Image: "ubuntu-24.04-cuda", GPUUUIDs: []string{}, PortGUIDs: []protocol.GUID{}}
	for _, g := range m.GPUs {
		spec.GPUUUIDs = append(spec.GPUUUIDs, g.UUID)
	}
	for _, h := range m.HCAs {
		spec.PortGUIDs = append(spec.PortGUIDs, h.Ports[0].GUID)
	}
	return spec
}

func (w *world) grantSpec(lease string) protocol.GrantSpec {
	return protocol.GrantSpec{
		LeaseID: lease, User: "lease", AuthorizedKeys: []string{strings.TrimSpace(string(gossh.MarshalAuthorizedKey(w.me.PublicKey())))},
		NotAfter: time.Now().Add(time.Hour),
	}
}

// ssh runs a command on a node as the customer does.
func (w *world) ssh(at protocol.GrantEvidence, command string) (string, error) {
	w.t.Helper()
	client, err := gossh.Dial("tcp", net.JoinHostPort(at.Host, fmt.Sprint(at.Port)), &gossh.ClientConfig{
		User: at.User, Auth: []gossh.AuthMethod{gossh.PublicKeys(w.me)}, HostKeyCallback: gossh.InsecureIgnoreHostKey(), Timeout: 10 * time.Second,
	})
	if err != nil {
		return "", err
	}
	defer client.Close() //nolint:errcheck // the test is over
	session, err := client.NewSession()
	require.NoError(w.t, err)
	out, err := session.CombinedOutput(command)
	return string(out), err
}

func (w *world) mustSSH(at protocol.GrantEvidence, command string) string {
	w.t.Helper()
	out, err := w.ssh(at, command)
	require.NoError(w.t, err, "%s: %s", command, out)
	return out
}

func TestALeaseFromPreparationToWipe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run()
	const name, lease = "gpu-h100-01", "lease_1"
	m := w.machine(name)
	require.Equal(t, m.Serial, w.AwaitInventory(t, name).Node.Serial)
	require.Len(t, w.AwaitInventory(t, "ib-1").Fabric.Topology.Ports, 16)

	prepared := succeeded[protocol.PrepareEvidence](t, w.order(name, protocol.Prepare, 1, all(), w.prepareSpec(name, lease)))
	require.Contains(t, prepared.ImageDigest, "sha256:")

	ports := w.prepareSpec(name, lease).PortGUIDs
	applied := w.order("ib-1", protocol.ApplyPartitions, 1, protocol.Slots{}, protocol.ApplyPartitionsSpec{
		Nonce: "n1", ManagedLow: 0x10, ManagedHi: 0x7000, Partitions: []protocol.Partition{{PKey: 0x12, Name: "lease-1", Members: ports}}, Observe: []protocol.GUID{},
	})
	require.True(t, succeeded[protocol.FabricObservation](t, applied).Converged)
	w.Verify(t, "ib-1", applied)

	observed := w.order(name, protocol.ObservePKeys, 1, all(), protocol.ObservePKeysSpec{Nonce: "n2", PortGUIDs: append(ports, 0xdead)})
	w.Verify(t, name, observed)
	witness := succeeded[protocol.PKeyObservation](t, observed)
	require.Equal(t, w.Agent(t, name).NodeID, witness.NodeID)
	require.Equal(t, []protocol.PKey{0x8012, 0x7fff}, witness.Ports[0].Keys)
	require.False(t, witness.Ports[8].Readable, "another machine's port is unknown, not left out")

	at := succeeded[protocol.GrantEvidence](t, w.order(name, protocol.Grant, 1, all(), w.grantSpec(lease)))
	listed := w.mustSSH(at, "nvidia-smi -L")
	for _, g := range m.GPUs {
		require.Contains(t, listed, g.UUID)
	}
	require.Equal(t, name+"\n", w.mustSSH(at, "hostname"))
	require.Contains(t, w.mustSSH(at, "pkeys"), "0x8012 0x7fff")
	require.Equal(t, strings.Repeat("0x8012\n", 8), w.mustSSH(at, "cat /sys/class/infiniband/*/ports/1/pkeys/0"))
	require.Equal(t, "secret\n", w.mustSSH(at, "echo secret > weights && cat weights"))
	beat := w.AwaitHeartbeat(t, name, func(b protocol.Heartbeat) bool { return len(b.Samples) > 0 })
	require.Greater(t, beat.Samples[0].Values["gpu_utilization_percent"], 50.0)

	early := w.order(name, protocol.Wipe, 1, all(), protocol.WipeSpec{LeaseID: lease, Nonce: "early"})
	require.Equal(t, "access-not-revoked", early.Fault.Code)
	next := w.order(name, protocol.Prepare, 2, all(), w.prepareSpec(name, "lease_2"))
	require.Equal(t, protocol.Failed, next.State)

	require.True(t, succeeded[protocol.RevokeEvidence](t, w.order(name, protocol.Revoke, 2, all(), protocol.RevokeSpec{LeaseID: lease})).LoginRefused)
	_, err := w.ssh(at, "hostname")
	require.ErrorContains(t, err, "unable to authenticate")
	left := w.order("ib-1", protocol.ApplyPartitions, 2, protocol.Slots{}, protocol.ApplyPartitionsSpec{
		Nonce: "n3", ManagedLow: 0x10, ManagedHi: 0x7000, Partitions: []protocol.Partition{}, AllowShrink: true, Observe: ports,
	})
	require.True(t, succeeded[protocol.FabricObservation](t, left).Converged)

	unwiped := w.order(name, protocol.Prepare, 2, all(), w.prepareSpec(name, "lease_2"))
	require.Equal(t, "earlier-tenant-not-wiped", unwiped.Fault.Code)
	wiped := w.order(name, protocol.Wipe, 2, all(), protocol.WipeSpec{LeaseID: lease, Nonce: "n4"})
	certificate := succeeded[protocol.WipeEvidence](t, wiped)
	w.Verify(t, name, wiped)
	require.Len(t, certificate.Devices, 1+8+8+8, "scratch, disks, adapters, GPUs")
	require.NoFileExists(t, filepath.Join(w.dir, "nodes", name, "machine", "scratch", "000-064", "weights"))

	succeeded[protocol.PrepareEvidence](t, w.order(name, protocol.Prepare, 3, all(), w.prepareSpec(name, "lease_2")))
	stale := w.order(name, protocol.Grant, 2, all(), w.grantSpec("lease_2"))
	require.Equal(t, protocol.Fenced, stale.State)
	require.Empty(t, w.Refusals())
}

func TestSlicesOfOneGPUAreTenantsOfTheirOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run()
	const name = "gpu-a100-01"
	gpu := w.machine(name).GPUs[0].UUID
	slice := func(lease, profile string) protocol.PrepareSpec {
		return protocol.PrepareSpec{
			LeaseID: lease, Hostname: lease + "-host", Mode: "shared", MIGProfile: profile, GPUUUIDs: []string{gpu}, PortGUIDs: []protocol.GUID{}, Image: "i",
		}
	}
	left, right := protocol.Slots{From: 0, To: 4}, protocol.Slots{From: 4, To: 8}
	succeeded[protocol.PrepareEvidence](t, w.order(name, protocol.Prepare, 1, left, slice("lease_a", "3g.40gb")))
	succeeded[protocol.PrepareEvidence](t, w.order(name, protocol.Prepare, 1, right, slice("lease_b", "3g.40gb")))
	odd := w.order(name, protocol.Prepare, 1, protocol.Slots{From: 9, To: 11}, protocol.PrepareSpec{
		LeaseID: "lease_c", Mode: "shared", MIGProfile: "2g.20gb", GPUUUIDs: []string{w.machine(name).GPUs[1].UUID}, PortGUIDs: []protocol.GUID{},
	})
	require.Equal(t, protocol.Failed, odd.State, "2g.20gb cannot begin at slice 1")

	a := succeeded[protocol.GrantEvidence](t, w.order(name, protocol.Grant, 1, left, w.grantSpec("lease_a")))
	b := succeeded[protocol.GrantEvidence](t, w.order(name, protocol.Grant, 1, right, w.grantSpec("lease_b")))
	require.Equal(t, "lease_a-host\n", w.mustSSH(a, "hostname"))
	require.Equal(t, "lease_b-host\n", w.mustSSH(b, "hostname"))
	require.Equal(t, 1, strings.Count(w.mustSSH(a, "nvidia-smi -L"), "MIG 3g.40gb"))
	w.mustSSH(a, "echo a > mine")
	require.Empty(t, w.mustSSH(b, "ls"), "another tenant's files show")

	succeeded[protocol.RevokeEvidence](t, w.order(name, protocol.Revoke, 2, left, protocol.RevokeSpec{LeaseID: "lease_a"}))
	require.Equal(t, "lease_b-host\n", w.mustSSH(b, "hostname"), "the neighbour is out too")
	certificate := succeeded[protocol.WipeEvidence](t, w.order(name, protocol.Wipe, 2, left, protocol.WipeSpec{LeaseID: "lease_a", Nonce: "n"}))
	kinds := []string{}
	for _, d := range certificate.Devices {
		kinds = append(kinds, d.Kind)
	}
	require.ElementsMatch(t, []string{"scratch", "gpu_memory", "mig_layout"}, kinds)
	require.Equal(t, 1, strings.Count(w.mustSSH(b, "nvidia-smi -L"), "MIG 3g.40gb"), "the neighbour's instance is gone too")
}

func TestOneLeaseMayHaveSeveralPlacesOnANode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run()
	const name, lease = "gpu-a100-01", "lease_1"
	gpus := w.machine(name).GPUs
	places := []protocol.Slots{{From: 0, To: 8}, {From: 8, To: 16}, {From: 16, To: 24}}
	at := make([]protocol.GrantEvidence, len(places))
	for i, slots := range places {
		succeeded[protocol.PrepareEvidence](t, w.order(name, protocol.Prepare, 1, slots, protocol.PrepareSpec{
			LeaseID: lease, Hostname: fmt.Sprint("host-", i), Mode: "shared", GPUUUIDs: []string{gpus[i].UUID}, PortGUIDs: []protocol.GUID{},
		}))
		at[i] = succeeded[protocol.GrantEvidence](t, w.order(name, protocol.Grant, 1, slots, w.grantSpec(lease)))
	}
	for i := range places {
		require.Equal(t, fmt.Sprintf("host-%d\n", i), w.mustSSH(at[i], "hostname"))
		require.Contains(t, w.mustSSH(at[i], "nvidia-smi -L"), gpus[i].UUID)
	}
	succeeded[protocol.RevokeEvidence](t, w.order(name, protocol.Revoke, 1, places[1], protocol.RevokeSpec{LeaseID: lease}))
	_, err := w.ssh(at[1], "hostname")
	require.ErrorContains(t, err, "unable to authenticate")
	succeeded[protocol.WipeEvidence](t, w.order(name, protocol.Wipe, 1, places[1], protocol.WipeSpec{LeaseID: lease, Nonce: "n"}))
	require.Equal(t, "host-2\n", w.mustSSH(at[2], "hostname"), "the lease's other places stay")
}

func TestARestartGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := w.run()
	const name, lease = "gpu-h100-02", "lease_1"
	succeeded[protocol.PrepareEvidence](t, w.order(name, protocol.Prepare, 5, all(), w.prepareSpec(name, lease)))
	at := succeeded[protocol.GrantEvidence](t, w.order(name, protocol.Grant, 5, all(), w.grantSpec(lease)))
	id := w.Agent(t, name).ID
	w.mustSSH(at, "touch here")
	stop()
	_, err := w.ssh(at, "hostname")
	require.Error(t, err, "somebody still listens")

	w.token = ""
	w.run()
	require.Equal(t, id, w.Agent(t, name).ID)
	require.Equal(t, "here\n", w.mustSSH(at, "ls"))
	require.Equal(t, protocol.Fenced, w.order(name, protocol.Revoke, 4, all(), protocol.RevokeSpec{LeaseID: lease}).State)
	require.Equal(t, "earlier-tenant-not-wiped", w.order(name, protocol.Prepare, 6, all(), w.prepareSpec(name, "lease_2")).Fault.Code)
}

// victim is the node that faults are injected into.
const victim = "gpu-h100-01"

func (w *world) inject(fault string, device int) {
	w.t.Helper()
	require.NoError(w.t, sim.Inject(w.t.Context(), w.dir, sim.Injection{Node: victim, Fault: fault, Device: device}))
}

func TestInjectedFaultsShow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run()
	const name, lease = victim, "lease_1"
	for fault, condition := range map[string]string{"xid79": "gpu-xid-79", "ecc": "gpu-ecc-uncorrectable", "ib-down": "ib-port-down"} {
		w.inject(fault, 3)
		w.AwaitHeartbeat(t, name, func(b protocol.Heartbeat) bool {
			return len(b.Conditions) == 1 && b.Conditions[0].Name == condition
		})
		failed := w.order(name, protocol.Prepare, 1, all(), w.prepareSpec(name, lease))
		require.Equal(t, "preflight-failed", failed.Fault.Code, fault)
		require.True(t, failed.Fault.Retryable)
		w.inject("clear", 0)
	}
	w.inject("prepare-fails", 0)
	require.Equal(t, protocol.Failed, w.order(name, protocol.Prepare, 1, all(), w.prepareSpec(name, lease)).State)
	w.inject("clear", 0)
	succeeded[protocol.PrepareEvidence](t, w.order(name, protocol.Prepare, 1, all(), w.prepareSpec(name, lease)))
	succeeded[protocol.GrantEvidence](t, w.order(name, protocol.Grant, 1, all(), w.grantSpec(lease)))
	succeeded[protocol.RevokeEvidence](t, w.order(name, protocol.Revoke, 1, all(), protocol.RevokeSpec{LeaseID: lease}))

	w.inject("wipe-fails", 0)
	failed := w.order(name, protocol.Wipe, 1, all(), protocol.WipeSpec{LeaseID: lease, Nonce: "n"})
	require.Equal(t, "wipe-failed", failed.Fault.Code)
	w.Verify(t, name, failed)
	dirty := 0
	for _, d := range evidence[protocol.WipeEvidence](t, failed).Devices {
		dirty += d.ReadBackDirty
	}
	require.Positive(t, dirty)
	require.Equal(t, "earlier-tenant-not-wiped", w.order(name, protocol.Prepare, 2, all(), w.prepareSpec(name, "lease_2")).Fault.Code)
	w.inject("clear", 0)
	succeeded[protocol.WipeEvidence](t, w.order(name, protocol.Wipe, 2, all(), protocol.WipeSpec{LeaseID: lease, Nonce: "m"}))

	require.ErrorContains(t, sim.Inject(t.Context(), w.dir, sim.Injection{Node: "gpu-none", Fault: "ecc"}), "no node")
	require.ErrorContains(t, sim.Inject(t.Context(), w.dir, sim.Injection{Node: name, Fault: "flood"}), "unknown fault")
	require.ErrorContains(t, sim.Inject(t.Context(), w.dir, sim.Injection{Node: name, Fault: "ecc", Device: 8}), "no device")
	info, err := os.Stat(filepath.Join(w.dir, sim.ControlSocket))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestAnUnreachableNodeFallsSilentAndComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run()
	const name = victim
	w.AwaitInventory(t, name)
	w.inject("unreachable", 0)
	count := func(agent string) int { return len(w.Agent(t, agent).Heartbeats) }
	before, others := count(name), count("gpu-h100-02")
	require.Eventually(t, func() bool { return count("gpu-h100-02") > others+5 }, 10*time.Second, 5*time.Millisecond)
	require.LessOrEqual(t, count(name), before+1, "one may have been under way")
	w.inject("clear", 0)
	require.Eventually(t, func() bool { return count(name) > before+2 }, 10*time.Second, 5*time.Millisecond)
}

func TestTwoProcessesCannotHaveOneStateDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run()
	err := sim.Run(t.Context(), sim.Options{StateDir: w.dir, Site: smallSite()})
	require.ErrorIs(t, err, durable.ErrLocked)
}

func TestAWrongTokenEndsTheSite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	err := sim.Run(t.Context(), sim.Options{
		Server: w.URL, HTTP: &http.Client{Transport: &http.Transport{}}, Token: "wrong", StateDir: w.dir, Site: smallSite(), Fabric: sim.InMemory,
		SSHListen: "127.0.0.1", BootID: "b", Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	require.ErrorContains(t, err, "403")
}
