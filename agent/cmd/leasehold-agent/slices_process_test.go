package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	gossh "golang.org/x/crypto/ssh"

	"github.com/leasehold/leasehold/agent/internal/uplink/uplinktest"
	"github.com/leasehold/leasehold/agent/protocol"
)

// imagesFor makes an image of a name, or skips the test where tenants cannot be held.
func imagesFor(t *testing.T, name string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("tenants cannot be held here: it takes root")
	}
	for _, program := range []string{"runc", "catatonit", "busybox", "mkfs.ext4"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("tenants cannot be held here: there is no %s", program)
		}
	}
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "../../../tools/image", "busybox", name, dir).CombinedOutput()
	require.NoError(t, err, string(out))
	return dir
}

// tidyAfter takes away what is left on the machine of containers that keep their files in dir: empty control groups and directories.
func tidyAfter(t *testing.T, dir string) {
	t.Helper()
	name := containersOf(dir)
	t.Cleanup(func() {
		_ = os.RemoveAll(filepath.Join("/run/leasehold", name))
		for _, pattern := range []string{"/sys/fs/cgroup/*/leasehold/", "/sys/fs/cgroup/leasehold/"} {
			groups, err := filepath.Glob(pattern + name)
			require.NoError(t, err)
			for _, group := range groups {
				require.NoError(t, os.Remove(group), "something is left")
			}
		}
	})
}

// slot is a lease's place on an agent, as the control plane sees it.
type slot struct {
	t     *testing.T
	plane *uplinktest.Server
	agent string
	key   gossh.Signer
	n     int
}

func (s *slot) order(kind protocol.OperationKind, spec any) protocol.Result {
	s.t.Helper()
	raw, err := json.Marshal(spec)
	require.NoError(s.t, err)
	s.n++
	soon := time.Now().Add(time.Minute)
	return s.plane.Do(s.t, s.agent, protocol.Operation{
		ID: fmt.Sprint("op", s.n), Kind: kind, Epoch: 1, Slots: protocol.Slots{To: 8}, Spec: raw, PickUpBy: soon, DoneBy: soon,
	})
}

func (s *slot) succeeds(kind protocol.OperationKind, spec, evidence any) {
	s.t.Helper()
	result := s.order(kind, spec)
	require.Equal(s.t, protocol.Succeeded, result.State, "%s: %+v", kind, result.Fault)
	require.NoError(s.t, json.Unmarshal(result.Evidence, evidence))
}

func (s *slot) ssh(at protocol.GrantEvidence, command string) (string, error) {
	s.t.Helper()
	client, err := gossh.Dial("tcp", net.JoinHostPort(at.Host, fmt.Sprint(at.Port)), &gossh.ClientConfig{
		User: at.User, Auth: []gossh.AuthMethod{gossh.PublicKeys(s.key)}, HostKeyCallback: gossh.InsecureIgnoreHostKey(), Timeout: 10 * time.Second, //nolint:gosec // the test's own server
	})
	if err != nil {
		return "", err
	}
	defer client.Close() //nolint:errcheck // the test is over
	session, err := client.NewSession()
	if err != nil {
		return "", err
	}
	out, err := session.CombinedOutput(command)
	return strings.TrimSpace(string(out)), err
}

// A lease of a part of a machine through the real program, journal and protocol, with a kill in its middle: what the tenant runs does not notice.
func TestATenantInAContainerOutlivesItsAgent(t *testing.T) {
	t.Parallel()
	plane := uplinktest.New(t)
	state, images := t.TempDir(), imagesFor(t, "tiny")
	tidyAfter(t, filepath.Join(state, "nodes", "gpu-x-01", "containers"))
	args := append(oneNode(t, plane, state), "--images", images)
	first := startProcess(t, args...)
	card := plane.AwaitInventory(t, "gpu-x-01").Node.GPUs[0].UUID
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	s := &slot{t: t, plane: plane, agent: "gpu-x-01"}
	s.key, err = gossh.NewSignerFromKey(private)
	require.NoError(t, err)

	var prepared protocol.PrepareEvidence
	s.succeeds(protocol.Prepare, protocol.PrepareSpec{
		LeaseID: "lease_1", Hostname: "mine", Mode: "shared", GPUUUIDs: []string{card}, PortGUIDs: []protocol.GUID{}, Image: "tiny",
	}, &prepared)
	require.Contains(t, prepared.ImageDigest, "sha256:")
	var at protocol.GrantEvidence
	s.succeeds(protocol.Grant, protocol.GrantSpec{
		LeaseID: "lease_1", User: "lease", NotAfter: time.Now().Add(time.Hour), AuthorizedKeys: []string{strings.TrimSpace(string(gossh.MarshalAuthorizedKey(s.key.PublicKey())))},
	}, &at)
	out, err := s.ssh(at, "hostname; env | grep SIMULATED; (sleep 484848 >/dev/null 2>&1 </dev/null &); echo data >/scratch/file")
	require.NoError(t, err, out)
	require.Equal(t, "mine\nLEASEHOLD_SIMULATED_GPU_0="+card, out)

	require.NoError(t, first.Process.Kill())
	require.Error(t, first.Wait())
	startProcess(t, args...)
	require.Eventually(t, func() bool {
		out, err = s.ssh(at, "cat /scratch/file; ps | grep -c '[4]84848'")
		return err == nil && out == "data\n1"
	}, 20*time.Second, 50*time.Millisecond, "after the agent's death: %s", out)

	var revoked protocol.RevokeEvidence
	s.succeeds(protocol.Revoke, protocol.RevokeSpec{LeaseID: "lease_1"}, &revoked)
	require.True(t, revoked.LoginRefused)
	require.Positive(t, revoked.ProcessesEnded)
	var wiped protocol.WipeEvidence
	s.succeeds(protocol.Wipe, protocol.WipeSpec{LeaseID: "lease_1", Nonce: "n"}, &wiped)
	kinds := []string{}
	for _, row := range wiped.Devices {
		require.Equal(t, protocol.Wiped, row.Status, row.Detail)
		kinds = append(kinds, row.Kind)
	}
	require.Equal(t, []string{"scratch", "container", "gpu_memory"}, kinds)
	_, err = s.ssh(at, "true")
	require.ErrorContains(t, err, "unable to authenticate")
}

func TestAHostThatIsLeasedInPartsDoesItsOperations(t *testing.T) {
	t.Parallel()
	plane := uplinktest.New(t)
	state, images := t.TempDir(), imagesFor(t, "tiny")
	tidyAfter(t, filepath.Join(state, "tenants"))
	startProcess(t, "node", "--server", plane.URL, "--token-file", tokenFile(t), "--state-dir", state, "--name", "host-1", "--root", filepath.Join(state, "none"),
		"--images", images, "--ssh-listen", "127.0.0.1", "--ssh-port", "0")
	s := &slot{t: t, plane: plane, agent: "host-1"}
	plane.AwaitInventory(t, "host-1")
	result := s.order(protocol.Prepare, protocol.PrepareSpec{
		LeaseID: "lease_1", Hostname: "mine", Mode: "shared", GPUUUIDs: []string{"GPU-1"}, PortGUIDs: []protocol.GUID{}, Image: "tiny",
	})
	require.Equal(t, protocol.Failed, result.State)
	require.Equal(t, "preflight-failed", result.Fault.Code, "this machine has no such GPU, and can hold tenants")
	var revoked protocol.RevokeEvidence
	s.succeeds(protocol.Revoke, protocol.RevokeSpec{LeaseID: "lease_1"}, &revoked)
	require.True(t, revoked.LoginRefused)
}
