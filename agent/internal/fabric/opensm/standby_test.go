package opensm_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/fabric/opensm"
	"github.com/leasehold/leasehold/agent/internal/ibsim"
	"github.com/leasehold/leasehold/agent/protocol"
)

// standby is a second OpenSM of the subnet with the driver of the agent beside it.
type standby struct {
	*opensm.Driver
	*ibsim.Standby
}

// newPair is a subnet with a standby on the host of its last port. A pair that the simulator has failed is made anew.
func newPair(t *testing.T, nodes int) (context.Context, subnet, standby) {
	t.Helper()
	for range 6 {
		ctx, s := newSubnet(t, nodes, 1)
		b, err := s.standBy(ctx, t)
		if err == nil {
			return ctx, s, b
		}
		require.ErrorIs(t, err, ibsim.ErrManagerStuck)
	}
	t.Fatal("six times in a row the simulator has lost a message between the managers")
	return nil, subnet{}, standby{}
}

func (s subnet) standBy(ctx context.Context, t *testing.T) (standby, error) {
	t.Helper()
	dir := t.TempDir()
	partitions := filepath.Join(dir, ibsim.PartitionsFile)
	require.NoError(t, opensm.Prepare(partitions))
	second, err := s.Subnet.StartStandby(ctx, s.ports[len(s.ports)-1], dir)
	if err != nil {
		return standby{}, err
	}
	t.Cleanup(func() { require.NoError(t, second.Close()) })
	driver, err := opensm.New(ctx, opensm.Config{
		Client: s.Subnet.Client(), Manager: second, PartitionsFile: partitions, OptionsFile: filepath.Join(dir, ibsim.OptionsFile), StateDir: dir,
		Version: "OpenSM", Patience: fabric.DefaultPatience(),
	})
	require.NoError(t, err)
	return standby{Driver: driver, Standby: second}, nil
}

// failOver kills the manager, waits until the standby has taken over, and lets it program a port anew.
func (s subnet) failOver(ctx context.Context, t *testing.T, b standby, port protocol.GUID) {
	t.Helper()
	require.NoError(t, s.Subnet.KillManager(ctx))
	require.NoError(t, b.TakenOver(ctx))
	require.NoError(t, s.Subnet.Cut(ctx, port))
	require.NoError(t, s.Subnet.Join(ctx, port))
}

// Give implements opensm.Standby: the file is put in place in one step and the standby signalled.
func (b standby) Give(ctx context.Context, partitionsFile string) error {
	text, err := os.ReadFile(partitionsFile)
	if err != nil {
		return err
	}
	next := filepath.Join(b.Dir(), "next")
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	if err := os.Rename(next, filepath.Join(b.Dir(), ibsim.PartitionsFile)); err != nil {
		return err
	}
	return b.Hangup(ctx)
}

func (standby) Name() string { return "sm-2" }

func TestAStandbyThatIsGivenEverySetTakesOverAndTheLifeOfLeasesGoesOn(t *testing.T) {
	t.Parallel()
	ctx, s, b := newPair(t, 4)
	driver := s.ReopenWith(ctx, t, func(c *opensm.Config) { c.Standbys = []opensm.Standby{b} })
	desired := set(tenant(5, "lease-a", s.ports[0], s.ports[1]), tenant(6, "lease-b", s.ports[2]))
	_, err := driver.Apply(ctx, desired, 1)
	require.NoError(t, err)
	require.Equal(t, protocol.True, inStep(ctx, t, driver).Verdict)
	s.failOver(ctx, t, b, s.ports[0])
	requireSoon(ctx, t, driver, desired, s.ports[:3])

	after := set(tenant(5, "lease-a", s.ports[0], s.ports[1]))
	applied, err := driver.Apply(ctx, after, 2)
	require.NoError(t, err, "the agent's own manager is gone, and the standby has been told")
	require.Empty(t, applied.Unsettled)
	requireAll(ctx, t, driver, after, s.ports[:3])
}

// requireSoon waits until the ports have what the set says: a manager that has just taken over is at them.
func requireSoon(ctx context.Context, t *testing.T, driver *opensm.Driver, desired fabric.Desired, ports []protocol.GUID) {
	t.Helper()
	left, err := fabric.Settle(ctx, fabric.DefaultPatience(), fabric.NewJudge(desired), ports, driver.Observe)
	require.NoError(t, err)
	require.Empty(t, left)
}

func inStep(ctx context.Context, t *testing.T, driver *opensm.Driver) protocol.PostureCheck {
	t.Helper()
	checks, err := driver.Posture(ctx)
	require.NoError(t, err)
	for _, c := range checks {
		if c.Item == fabric.PostureStandbyInStep {
			return c
		}
	}
	t.Fatal("the item is not told")
	return protocol.PostureCheck{}
}

// unreachable is a standby that can be cut off.
type unreachable struct{ cut atomic.Bool }

func (*unreachable) Name() string { return "sm-2" }

func (u *unreachable) Give(context.Context, string) error {
	if u.cut.Load() {
		return errors.New("no route to host")
	}
	return nil
}

func TestAStandbyThatMissedASetIsAFalsePostureAndHoldsNothingUp(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 1)
	b := &unreachable{}
	driver := s.ReopenWith(ctx, t, func(c *opensm.Config) { c.Standbys = []opensm.Standby{b} })
	require.Equal(t, protocol.Unknown, inStep(ctx, t, driver).Verdict, "nothing is known of it yet")
	_, err := driver.Apply(ctx, set(tenant(5, "lease-a", s.ports[0], s.ports[1])), 1)
	require.NoError(t, err)
	require.Equal(t, protocol.True, inStep(ctx, t, driver).Verdict)
	b.cut.Store(true)
	_, err = driver.Apply(ctx, set(), 2)
	require.NoError(t, err, "a revocation does not wait for a standby")
	requireAll(ctx, t, driver, set(), s.ports)
	behind := inStep(ctx, t, driver)
	require.Equal(t, protocol.False, behind.Verdict)
	require.Contains(t, behind.Detail, "sm-2: no route to host")
	b.cut.Store(false)
	require.Equal(t, protocol.True, inStep(ctx, t, driver).Verdict, "it is tried again without a new set")
}

func TestAProgramReachesAStandby(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, copied, program := filepath.Join(dir, "partitions.conf"), filepath.Join(dir, "copy"), filepath.Join(dir, "to-standby")
	require.NoError(t, os.WriteFile(file, []byte("Default=0x7fff : ALL=limited;\n"), 0o600))
	script := "#!/bin/sh\n[ -e " + copied + " ] && { echo no space left; exit 3; }\ncp \"$1\" " + copied + "\n"
	require.NoError(t, os.WriteFile(program, []byte(script), 0o700)) //nolint:gosec // it is a program
	require.NoError(t, opensm.Program(program).Give(t.Context(), file))
	got, err := os.ReadFile(copied)
	require.NoError(t, err)
	require.Equal(t, "Default=0x7fff : ALL=limited;\n", string(got))
	require.ErrorContains(t, opensm.Program(program).Give(t.Context(), file), "exit status 3: no space left")
}

// TestAStandbyWithAnOldSetBringsItBack shows why every manager must be given every set: the released tenant's key returns.
func TestAStandbyWithAnOldSetBringsItBack(t *testing.T) {
	t.Parallel()
	ctx, s, b := newPair(t, 4)
	old := set(tenant(5, "lease-a", s.ports[0], s.ports[1]))
	for _, driver := range []*opensm.Driver{s.Driver, b.Driver} {
		_, err := driver.Apply(ctx, old, 1)
		require.NoError(t, err)
	}
	_, err := s.Apply(ctx, set(), 2)
	require.NoError(t, err)
	requireAll(ctx, t, s.Driver, set(), s.ports)
	s.failOver(ctx, t, b, s.ports[0])
	require.Eventually(t, func() bool {
		links, err := b.Observe(ctx, s.ports[:1])
		return err == nil && links[0].HCA.Readable && len(links[0].HCA.Keys) > 0 && links[0].HCA.Keys[0] == 0x8005
	}, 20*time.Second, 50*time.Millisecond)
	_, err = b.Apply(ctx, set(), 2)
	require.NoError(t, err, "the set that it missed puts it right")
	requireAll(ctx, t, b.Driver, set(), s.ports[:3])
}
