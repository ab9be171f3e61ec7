package opensm_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/fabric/opensm"
	"github.com/leasehold/leasehold/agent/internal/ibsim"
	"github.com/leasehold/leasehold/agent/internal/ibsim/ibsimtest"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

// subnet is a simulated subnet and its ports.
type subnet struct {
	*opensm.Simulated

	ports []protocol.GUID
	dir   string
}

func newSubnet(t *testing.T, nodes, rails int) (context.Context, subnet) {
	t.Helper()
	ibsimtest.Tools(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	topology := ibsimtest.FatTree(nodes, rails)
	s := subnet{Simulated: simulate(t, topology)}
	for _, port := range topology.Ports {
		s.ports = append(s.ports, port.GUID)
	}
	s.dir = s.Subnet.Dir()
	return ctx, s
}

func (s subnet) partitionsFile() string { return filepath.Join(s.dir, ibsim.PartitionsFile) }

func set(partitions ...protocol.Partition) fabric.Desired {
	return fabric.Desired{Partitions: partitions, Managed: fabric.Range{Low: 0x0001, High: 0x3fff}}
}

func tenant(key protocol.PKey, name string, members ...protocol.GUID) protocol.Partition {
	return protocol.Partition{PKey: key, Name: name, Members: members}
}

func requireCode(t *testing.T, code string, err error) {
	t.Helper()
	var refusal *operation.Refusal
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, code, refusal.Code, refusal.Detail)
}

// requireAll requires that every port has what the set says, at both ends.
func requireAll(ctx context.Context, t *testing.T, driver fabric.Driver, desired fabric.Desired, ports []protocol.GUID) {
	t.Helper()
	links, err := driver.Observe(ctx, ports)
	require.NoError(t, err)
	judge := fabric.NewJudge(desired)
	for _, link := range links {
		require.Empty(t, judge.Disagreement(link), "%v", link.GUID)
	}
}

func TestAFreshFabricIsNeverOpen(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 2)
	requireAll(ctx, t, s.Driver, set(), s.ports)
	require.False(t, s.Subnet.Complaints())
}

func TestTheSetSurvivesARestartOfEverything(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 1)
	desired := set(tenant(5, "lease-a", s.ports[0], s.ports[1]))
	_, err := s.Apply(ctx, desired, 3)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	again, err := opensm.Simulate(ctx, ibsimtest.FatTree(4, 1), s.dir, ibsimtest.Prefixes()...)
	require.NoError(t, err)
	defer func() { require.NoError(t, again.Close()) }()
	requireAll(ctx, t, again.Driver, desired, s.ports)
	_, err = again.Apply(ctx, set(), 2)
	requireCode(t, fabric.CodeStaleEpoch, err)
	applied, err := again.Apply(ctx, desired, 3)
	require.NoError(t, err)
	require.Zero(t, applied.Sweeps)
	require.Equal(t, s.ports[:2], applied.Changed)
}

func TestASetThatOpenSMWasNotThereForIsTakenWhenItIsBack(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 1)
	require.NoError(t, s.Subnet.KillManager(ctx))
	desired := set(tenant(5, "lease-a", s.ports[0], s.ports[1]))
	applied, err := s.Apply(ctx, desired, 1)
	requireCode(t, fabric.CodeManagerUnavailable, err)
	require.Equal(t, s.ports[:2], applied.Changed)
	require.Equal(t, s.ports[:2], applied.Unsettled)
	state, err := s.Current(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, state.Epoch, "it is in place")
	require.NoError(t, s.Subnet.StartManager(ctx))
	requireAll(ctx, t, s.Driver, desired, s.ports)
	applied, err = s.Apply(ctx, desired, 1)
	require.NoError(t, err)
	require.Zero(t, applied.Sweeps, "it read the file when it started")
	require.Equal(t, s.ports[:2], applied.Changed)
}

// mortal is a manager that dies of the next SIGHUP.
type mortal struct {
	opensm.Manager

	subnet *ibsim.Subnet
}

func (m mortal) Hangup(ctx context.Context) error { return m.subnet.KillManager(ctx) }

func TestWaitingEndsWhenOpenSMDies(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 1)
	driver := s.ReopenWith(ctx, t, func(c *opensm.Config) { c.Manager = mortal{c.Manager, s.Subnet} })
	desired := set(tenant(5, "lease-a", s.ports[0], s.ports[1]))
	_, err := driver.Apply(ctx, desired, 1)
	requireCode(t, fabric.CodeManagerUnavailable, err)
	require.NoError(t, s.Subnet.StartManager(ctx))
	_, err = s.Apply(ctx, desired, 1)
	require.NoError(t, err)
	requireAll(ctx, t, s.Driver, desired, s.ports)
}

func TestAnOpenSMThatHasJustStartedSurvivesASet(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 1)
	for epoch := range int64(5) {
		s.Subnet.StopManager()
		require.NoError(t, s.Subnet.StartManager(ctx))
		pid, err := s.Subnet.ManagerPID(ctx)
		require.NoError(t, err)
		_, err = s.Apply(ctx, set(tenant(protocol.PKey(epoch+1), "lease-a", s.ports[0], s.ports[1])), epoch)
		require.NoError(t, err)
		after, err := s.Subnet.ManagerPID(ctx)
		require.NoError(t, err)
		require.Equal(t, pid, after)
	}
}

func TestAFileDamagedBehindOurBackIsNoticedAndPutRight(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(path string) error{
		"a malformed line": func(path string) error { return os.WriteFile(path, []byte("Default=0x7fff ALL=full\n"), 0o600) },
		"an empty file":    func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"no file":          os.Remove,
		"a file that opens the fabric": func(path string) error {
			return os.WriteFile(path, []byte("Default=0x7fff : ALL=full;\n"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, s := newSubnet(t, 4, 1)
			desired := set(tenant(5, "lease-a", s.ports[0], s.ports[1]))
			_, err := s.Apply(ctx, desired, 2)
			require.NoError(t, err)
			require.NoError(t, damage(s.partitionsFile()))
			require.NoError(t, s.Subnet.Hangup(ctx))
			s.awaitOpen(ctx, t)
			posture, err := s.Posture(ctx)
			require.NoError(t, err)
			require.NotEqual(t, protocol.True, posture[0].Verdict)
			_, err = s.Apply(ctx, desired, 1)
			requireCode(t, fabric.CodeStaleEpoch, err)
			applied, err := s.Apply(ctx, desired, 2)
			require.NoError(t, err)
			require.Equal(t, s.ports[:2], applied.Changed)
			requireAll(ctx, t, s.Driver, desired, s.ports)
		})
	}
}

// awaitOpen waits until an idle port is a full member of the default partition, and requires that an audit says so.
func (s subnet) awaitOpen(ctx context.Context, t *testing.T) {
	t.Helper()
	judge := fabric.NewJudge(set())
	idle := s.ports[3]
	require.Eventually(t, func() bool {
		links, err := s.Observe(ctx, []protocol.GUID{idle})
		return err == nil && slices.Contains(links[0].HCA.Keys, protocol.DefaultFull) && judge.Disagreement(links[0]) != ""
	}, 20*time.Second, 5*time.Millisecond)
}

func TestSomebodyElsesFileIsLeftAlone(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 1)
	const theirs = "Default=0x7fff, ipoib : ALL=full;\n"
	require.NoError(t, os.WriteFile(s.partitionsFile(), []byte(theirs), 0o600))
	driver := s.ReopenWith(ctx, t, func(c *opensm.Config) { c.StateDir = t.TempDir() })
	_, err := driver.Apply(ctx, set(tenant(5, "lease-a", s.ports[0])), 1)
	requireCode(t, fabric.CodeForeignConfiguration, err)
	text, err := os.ReadFile(s.partitionsFile())
	require.NoError(t, err)
	require.Equal(t, theirs, string(text))
	state, err := driver.Current(ctx)
	require.NoError(t, err)
	require.Equal(t, fabric.State{}, state)
}

func TestForeignPartitionsAreKeptOnTheFabric(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 1)
	theirs := "Default=0x7fff : ALL=limited, ALL_SWITCHES=full, SELF=full;\nstorage=0x4001 : " +
		s.ports[0].String() + "=limited, " + s.ports[2].String() + "=full;\n"
	require.NoError(t, os.WriteFile(s.partitionsFile(), []byte(theirs), 0o600))
	driver := s.ReopenWith(ctx, t, func(c *opensm.Config) { c.StateDir = t.TempDir() })
	desired := set(tenant(5, "lease-a", s.ports[0], s.ports[1]))
	_, err := driver.Apply(ctx, desired, 1)
	require.NoError(t, err)
	_, err = driver.Apply(ctx, desired, 2)
	require.NoError(t, err)
	requireAll(ctx, t, driver, desired, s.ports)
	links, err := driver.Observe(ctx, s.ports)
	require.NoError(t, err)
	require.Contains(t, links[0].HCA.Keys, protocol.PKey(0x4001))
	require.Contains(t, links[2].HCA.Keys, protocol.PKey(0xc001))
	require.Equal(t, []protocol.PKey{0x4001}, fabric.NewJudge(desired).Foreign(links))
}

func TestAReservedKeyWithinTheRangeIsSomebodyElses(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 1)
	theirs := "Default=0x7fff : ALL=limited, ALL_SWITCHES=full, SELF=full;\nstorage=0x0040 : " +
		s.ports[0].String() + "=limited, " + s.ports[2].String() + "=full;\n"
	require.NoError(t, os.WriteFile(s.partitionsFile(), []byte(theirs), 0o600))
	driver := s.ReopenWith(ctx, t, func(c *opensm.Config) { c.StateDir = t.TempDir() })
	desired := set(tenant(5, "lease-a", s.ports[0], s.ports[1]))
	desired.Managed.Reserved = []protocol.PKey{0x0040}
	for epoch := range int64(2) {
		_, err := driver.Apply(ctx, desired, epoch)
		require.NoError(t, err)
	}
	requireAll(ctx, t, driver, desired, s.ports)
	links, err := driver.Observe(ctx, s.ports)
	require.NoError(t, err)
	require.Contains(t, links[0].HCA.Keys, protocol.PKey(0x0040))
	require.Contains(t, links[2].HCA.Keys, protocol.PKey(0x8040))
	require.Equal(t, []protocol.PKey{0x0040}, fabric.NewJudge(desired).Foreign(links))
	state, err := driver.Current(ctx)
	require.NoError(t, err)
	require.Equal(t, desired.Managed, state.Desired.Managed)
	taken := desired
	taken.Partitions = append(taken.Partitions, tenant(0x0040, "lease-b", s.ports[3]))
	_, err = driver.Apply(ctx, taken, 3)
	requireCode(t, fabric.CodeInvalidPartitions, err)
}

// A controller that was away, or that reads from a backup, would put a released lease back.
func TestAStaleControllerPassCannotReaddAReleasedPKey(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 1)
	stale := set(tenant(5, "lease-a", s.ports[0], s.ports[1]), tenant(6, "lease-b", s.ports[2]))
	_, err := s.Apply(ctx, stale, 7)
	require.NoError(t, err)
	old, err := os.ReadFile(s.partitionsFile())
	require.NoError(t, err)
	released := set(tenant(6, "lease-b", s.ports[2]))
	_, err = s.Apply(ctx, released, 8)
	require.NoError(t, err)

	_, err = s.Apply(ctx, stale, 7)
	requireCode(t, fabric.CodeStaleEpoch, err)
	_, err = s.Apply(ctx, repairOf(stale, s.ports...), 7)
	requireCode(t, fabric.CodeStaleEpoch, err)
	requireAll(ctx, t, s.Driver, released, s.ports)

	require.NoError(t, os.WriteFile(s.partitionsFile(), old, 0o600)) // the file itself comes back from a backup
	for _, driver := range []fabric.Driver{s.Driver, s.Reopen(ctx, t)} {
		_, err = driver.Apply(ctx, stale, 7)
		requireCode(t, fabric.CodeStaleEpoch, err)
	}
	require.NoError(t, s.Subnet.Hangup(ctx))
	judge := fabric.NewJudge(released)
	require.Eventually(t, func() bool { // OpenSM reads it
		links, err := s.Observe(ctx, s.ports[:1])
		return err == nil && judge.Disagreement(links[0]) != ""
	}, 20*time.Second, 5*time.Millisecond)
	_, err = s.Apply(ctx, repairOf(released, s.ports...), 8)
	require.NoError(t, err)
	requireAll(ctx, t, s.Driver, released, s.ports)
}

func TestAnHCAThatWasRecabledIsFoundAtItsNewPlace(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 1)
	desired := set(tenant(5, "lease-a", s.ports[0]))
	_, err := s.Apply(ctx, desired, 1)
	require.NoError(t, err)
	for _, command := range []string{
		`Unlink "n0001-h0"[1]`, `Unlink "n0002-h0"[1]`, `Link "n0001-h0"[1] "leaf-0"[2]`, `Link "n0002-h0"[1] "leaf-0"[1]`,
	} {
		require.NoError(t, s.Subnet.Console(ctx, command))
	}
	links, err := s.Observe(ctx, s.ports[:2])
	require.NoError(t, err)
	require.Equal(t, 2, links[0].SwitchPort)
	require.Equal(t, 1, links[1].SwitchPort)
	judge := fabric.NewJudge(desired)
	// OpenSM sees the links come up, or else at its next light sweep, ten seconds later; this is not about that.
	require.NoError(t, s.Subnet.Hangup(ctx))
	require.Eventually(t, func() bool {
		links, err := s.Observe(ctx, s.ports[:2])
		return err == nil && judge.Disagreement(links[0]) == "" && judge.Disagreement(links[1]) == ""
	}, 20*time.Second, 5*time.Millisecond)
}

func TestTwoTenantsOfSixtyFourPortsAsInfinibandDiagsSeeThem(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 16, 8)
	desired := set(tenant(5, "lease-a", s.ports[:64]...), tenant(6, "lease-b", s.ports[64:]...))
	began := time.Now()
	applied, err := s.Apply(ctx, desired, 1)
	require.NoError(t, err)
	t.Logf("128 ports in %v", time.Since(began))
	require.Len(t, applied.Changed, 128)
	require.Empty(t, applied.Unsettled)
	require.Equal(t, 1, applied.Sweeps)
	requireAll(ctx, t, s.Driver, desired, s.ports)
	require.False(t, s.Subnet.Complaints())
	for _, port := range []int{0, 63, 64, 127} {
		want := "0x8005"
		if port >= 64 {
			want = "0x8006"
		}
		require.Equal(t, []string{want, "0x7fff", "0x0000"}, s.smpquery(ctx, t, s.ports[port])[1:4])
	}
	require.True(t, s.saquery(ctx, t, s.ports[0], s.ports[63]))
	require.False(t, s.saquery(ctx, t, s.ports[0], s.ports[64]))
	require.Equal(t, protocol.True, s.HasPath(ctx, s.ports[0], s.ports[63]))
	require.Equal(t, protocol.False, s.HasPath(ctx, s.ports[0], s.ports[64]))
}

// smpquery reads a table with somebody else's program, from the port's own host.
func (s subnet) smpquery(ctx context.Context, t *testing.T, port protocol.GUID) []string {
	t.Helper()
	return strings.Fields(s.output(ctx, t, port, "smpquery", "-G", "pkeys", port.String()))
}

// saquery asks for a path from the first port to the second.
func (s subnet) saquery(ctx context.Context, t *testing.T, from, to protocol.GUID) bool {
	t.Helper()
	gid := func(guid protocol.GUID) string {
		hex := strings.TrimPrefix(guid.String(), "0x")
		return "fe80::" + hex[0:4] + ":" + hex[4:8] + ":" + hex[8:12] + ":" + hex[12:16]
	}
	return strings.Contains(s.output(ctx, t, from, "saquery", "--sgid", gid(from), "--dgid", gid(to), "PR"), "PathRecord dump")
}

func (s subnet) output(ctx context.Context, t *testing.T, from protocol.GUID, name string, args ...string) string {
	t.Helper()
	cmd, err := s.Subnet.Command(ctx, from, name, args...)
	if errors.Is(err, ibsim.ErrNoTools) {
		t.Skipf("no %s to cross-check with (infiniband-diags)", name)
	}
	require.NoError(t, err)
	out, err := cmd.Output()
	require.NoError(t, err)
	return string(out)
}

func TestManyChangesInARowAllArriveWithOneSignalEach(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 8, 2)
	pid, err := s.Subnet.ManagerPID(ctx)
	require.NoError(t, err)
	for epoch := int64(1); epoch <= 20; epoch++ {
		members := s.ports[epoch%8 : epoch%8+4]
		desired := set(tenant(protocol.PKey(epoch), "lease-a", members...), tenant(0x3000, "lease-b", s.ports[15]))
		applied, err := s.Apply(ctx, desired, epoch)
		require.NoError(t, err)
		require.Empty(t, applied.Unsettled)
		require.Equal(t, 1, applied.Sweeps)
		requireAll(ctx, t, s.Driver, desired, s.ports)
	}
	after, err := s.Subnet.ManagerPID(ctx)
	require.NoError(t, err)
	require.Equal(t, pid, after)
	require.False(t, s.Subnet.Complaints())
}
