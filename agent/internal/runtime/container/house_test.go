//go:build linux

package container_test

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	gossh "golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/leasehold/leasehold/agent/internal/access"
	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/internal/node"
	"github.com/leasehold/leasehold/agent/internal/rdma"
	"github.com/leasehold/leasehold/agent/internal/runtime/container"
	"github.com/leasehold/leasehold/agent/protocol"
)

func now() time.Time { return time.Now().UTC() }

// house is a host with two simulated GPUs whose tenants are real: containers, disks, log-ins.
type house struct {
	t       *testing.T
	dir     string
	cfg     container.Config
	gpus    *gpu.Sim
	driver  *container.Driver
	door    *access.Server
	node    *node.Node
	machine container.Machine
}

// The GPUs of the house, and of each the device node that stands for it: two that every Linux machine has and no container is given otherwise.
const (
	cardA, nodeA, minorA = "GPU-aaaa", "/dev/nvidia0", 229 // fuse
	cardB, nodeB, minorB = "GPU-bbbb", "/dev/nvidia1", 237 // loop-control
	uverbs               = "uverbs0"
)

func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{t: t, dir: t.TempDir()}
	h.describeDevices()
	writeImage(t, filepath.Join(h.dir, "images"), "tiny")
	h.cfg = container.Config{Name: uniqueName(t)}
	h.build()
	t.Cleanup(func() {
		h.close()
		h.abandon()
	})
	return h
}

// build completes a house of which the configuration's words are known, and opens it.
func (h *house) build() {
	t := h.t
	t.Helper()
	var cards []protocol.GPU
	for i, uuid := range []string{cardA, cardB} {
		cards = append(cards, protocol.GPU{UUID: uuid, Vendor: "nvidia", Model: "NVIDIA H100 80GB HBM3", PCIAddress: fmt.Sprintf("0000:0%d:00.0", i), MIGCapable: true, MIGEnabled: true})
	}
	var err error
	h.gpus, err = gpu.NewSim(gpu.SimConfig{GPUs: cards, StateFile: filepath.Join(h.dir, "gpus.json"), Now: now})
	require.NoError(t, err)
	h.machine = container.Machine{
		Bays:         []int{0, 0},
		Nodes:        []container.NUMANode{{ID: 0, Cores: everyCore(t), MemoryBytes: 512 << 20}},
		ScratchBytes: 256 << 20, Processes: 160,
	}
	h.cfg.Dir, h.cfg.Images, h.cfg.CDIDirs = filepath.Join(h.dir, "containers"), filepath.Join(h.dir, "images"), []string{filepath.Join(h.dir, "cdi")}
	h.cfg.Slots, h.cfg.GPU, h.cfg.Now, h.cfg.Runtime, h.cfg.Init = 16, h.gpus, now, runtimeProgram(), "catatonit"
	h.cfg.Machine = func(context.Context) (container.Machine, error) { return h.machine, nil }
	h.cfg.Run = filepath.Join("/run/leasehold", h.cfg.Name)
	if h.cfg.Log == nil {
		h.cfg.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	h.open()
}

// abandon takes away what a failed test left.
func (h *house) abandon() {
	driver, err := container.New(context.Background(), h.cfg)
	require.NoError(h.t, err)
	_, err = driver.Wipe(context.Background(), node.Tenancy{Slots: protocol.Slots{From: 0, To: 16}}, quiet)
	require.NoError(h.t, err)
	require.NoError(h.t, os.RemoveAll(h.cfg.Run))
	groups, err := filepath.Glob("/sys/fs/cgroup/*/leasehold/" + h.cfg.Name)
	require.NoError(h.t, err)
	for _, dir := range append(groups, "/sys/fs/cgroup/leasehold/"+h.cfg.Name) {
		if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
			require.NoError(h.t, err)
		}
	}
}

func quiet(int, string) {}

// runtimeProgram is runc, or what LEASEHOLD_TEST_OCI_RUNTIME says.
func runtimeProgram() string { return cmp.Or(os.Getenv("LEASEHOLD_TEST_OCI_RUNTIME"), "runc") }

// uniqueName keeps tests of all packages and processes apart: control groups and interfaces are the machine's.
func uniqueName(t *testing.T) string {
	t.Helper()
	return "t" + strings.ToLower(rand.Text()[:5])
}

func everyCore(t *testing.T) []container.Core {
	t.Helper()
	var set unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &set))
	var cores []container.Core
	for cpu := range 1024 {
		if set.IsSet(cpu) {
			cores = append(cores, container.Core{cpu})
		}
	}
	return cores
}

// open starts the agent's parts, as a process does.
func (h *house) open() {
	h.t.Helper()
	var err error
	if h.driver, err = container.New(h.t.Context(), h.cfg); err != nil {
		h.t.Skipf("tenants cannot be held here: %v", err)
	}
	h.door, err = access.NewServer(h.t.Context(), access.ServerConfig{
		Dir: filepath.Join(h.dir, "access"), Listen: "127.0.0.1", Sessions: h.driver, Now: now, Log: h.cfg.Log,
	})
	require.NoError(h.t, err)
	h.node, err = node.New(node.Config{
		Dir: h.dir, NodeID: func() string { return "node_1" }, GPU: h.gpus, RDMA: rdma.NewSim(nil, nil, now), Access: h.door, Runtime: h.driver, Now: now,
		Host: func(context.Context) (protocol.NodeInventory, error) { return protocol.NodeInventory{}, nil },
	})
	require.NoError(h.t, err)
}

func (h *house) close() { _ = h.door.Close() }

// describeDevices writes what a vendor's tool does: a CDI specification, here of device nodes that stand for GPUs.
func (h *house) describeDevices() {
	t := h.t
	t.Helper()
	dir := filepath.Join(h.dir, "cdi")
	require.NoError(t, os.MkdirAll(dir, 0o755))
	var devices []map[string]any
	add := func(name, path string, minor uint32) {
		host := filepath.Join(h.dir, "dev-"+name)
		if os.Geteuid() == 0 {
			require.NoError(t, unix.Mknod(host, unix.S_IFCHR|0o666, int(unix.Mkdev(10, minor))))
			require.NoError(t, os.Chmod(host, 0o666))
		}
		devices = append(devices, map[string]any{"name": name, "containerEdits": map[string]any{
			"deviceNodes": []map[string]any{{"path": path, "hostPath": host, "type": "c", "major": 10, "minor": minor, "permissions": "rw"}},
			"env":         []string{"NVIDIA_VISIBLE_DEVICES=" + name},
		}})
	}
	add(cardA, nodeA, minorA)
	add(cardB, nodeB, minorB)
	add("MIG-"+cardB+"-4", "/dev/mig4", minorB)
	data, err := json.Marshal(map[string]any{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nvidia.json"), data, 0o644))
}

// writeImage makes an image of busybox, with its checksum.
func writeImage(t *testing.T, dir, name string) {
	t.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("there is no busybox to make an image of")
	}
	program, err := os.ReadFile(path)
	require.NoError(t, err)
	list, err := exec.CommandContext(t.Context(), path, "--list").Output()
	require.NoError(t, err)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	put := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		require.NoError(t, w.WriteHeader(&h))
		_, err := w.Write(content)
		require.NoError(t, err)
	}
	for _, d := range []string{"bin", "etc", "root", "tmp", "home", "dev", "proc", "sys", "run", "scratch"} {
		put(tar.Header{Name: d + "/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	put(tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	put(tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o4755}, program)
	put(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home:/bin/sh\n"))
	put(tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:\n"))
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" {
			put(tar.Header{Name: "bin/" + applet, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}, nil)
		}
	}
	require.NoError(t, w.Close())
	require.NoError(t, os.MkdirAll(dir, 0o755))
	file := filepath.Join(dir, name+".tar")
	require.NoError(t, os.WriteFile(file, archive.Bytes(), 0o644))
	require.NoError(t, os.WriteFile(file+".sha256", fmt.Appendf(nil, "%x  %s.tar\n", sha256.Sum256(archive.Bytes()), name), 0o644))
}

// tenant is a lease's people in their place.
type tenant struct {
	*house

	lease string
	slots protocol.Slots
	key   gossh.Signer
	at    protocol.GrantEvidence
	ssh   *gossh.Client
}

func (h *house) do(kind protocol.OperationKind, slots protocol.Slots, spec any) (any, error) {
	h.t.Helper()
	raw, err := json.Marshal(spec)
	require.NoError(h.t, err)
	outcome, err := h.node.Handlers()[kind].Handle(h.t.Context(), protocol.Operation{ID: "op", Kind: kind, Slots: slots, Spec: raw}, quiet)
	return outcome.Evidence, err
}

func specOf(lease string, cards ...string) protocol.PrepareSpec {
	return protocol.PrepareSpec{LeaseID: lease, Hostname: strings.ReplaceAll(lease, "_", "-"), Mode: "shared", GPUUUIDs: cards, Image: "tiny"}
}

// moveIn prepares, grants and logs in.
func (h *house) moveIn(slots protocol.Slots, spec protocol.PrepareSpec) *tenant {
	h.t.Helper()
	_, err := h.do(protocol.Prepare, slots, spec)
	require.NoError(h.t, err)
	m := &tenant{house: h, lease: spec.LeaseID, slots: slots, key: newKey(h.t)}
	m.grant()
	m.logIn()
	return m
}

func newKey(t *testing.T) gossh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	signer, err := gossh.NewSignerFromKey(private)
	require.NoError(t, err)
	return signer
}

func (m *tenant) grant() {
	m.t.Helper()
	evidence, err := m.do(protocol.Grant, m.slots, protocol.GrantSpec{
		LeaseID: m.lease, User: "lease", AuthorizedKeys: []string{strings.TrimSpace(string(gossh.MarshalAuthorizedKey(m.key.PublicKey())))}, NotAfter: now().Add(time.Hour),
	})
	require.NoError(m.t, err)
	at, ok := evidence.(protocol.GrantEvidence)
	require.True(m.t, ok)
	m.at = at
}

func (m *tenant) dial(key gossh.Signer) (*gossh.Client, error) {
	m.t.Helper()
	host, _, _, _, err := gossh.ParseAuthorizedKey([]byte(m.at.HostKeys[0]))
	require.NoError(m.t, err)
	return gossh.Dial("tcp", net.JoinHostPort(m.at.Host, fmt.Sprint(m.at.Port)), &gossh.ClientConfig{
		User: m.at.User, Auth: []gossh.AuthMethod{gossh.PublicKeys(key)}, HostKeyCallback: gossh.FixedHostKey(host), Timeout: 10 * time.Second,
	})
}

func (m *tenant) logIn() {
	m.t.Helper()
	client, err := m.dial(m.key)
	require.NoError(m.t, err)
	m.t.Cleanup(func() { _ = client.Close() })
	m.ssh = client
}

// try runs a command in the tenant's place and returns everything that it said.
func (m *tenant) try(command string) (string, error) {
	m.t.Helper()
	session, err := m.ssh.NewSession()
	require.NoError(m.t, err)
	defer session.Close() //nolint:errcheck // it has ended
	out, err := session.CombinedOutput(command)
	return strings.TrimSpace(string(out)), err
}

// run is try for commands that must work.
func (m *tenant) run(command string) string {
	m.t.Helper()
	out, err := m.try(command)
	require.NoError(m.t, err, "%s: %s", command, out)
	return out
}

// begin leaves a command running.
func (m *tenant) begin(command string) {
	m.t.Helper()
	m.run("(" + command + ") >/dev/null 2>&1 </dev/null & echo started")
}

// moveOut revokes and wipes and returns the certificate's rows.
func (m *tenant) moveOut() (protocol.RevokeEvidence, []protocol.DeviceWipe) {
	m.t.Helper()
	evidence, err := m.do(protocol.Revoke, m.slots, protocol.RevokeSpec{LeaseID: m.lease})
	require.NoError(m.t, err)
	revoked, ok := evidence.(protocol.RevokeEvidence)
	require.True(m.t, ok)
	evidence, err = m.do(protocol.Wipe, m.slots, protocol.WipeSpec{LeaseID: m.lease, Nonce: "n"})
	require.NoError(m.t, err)
	wiped, ok := evidence.(protocol.WipeEvidence)
	require.True(m.t, ok)
	return revoked, wiped.Devices
}
