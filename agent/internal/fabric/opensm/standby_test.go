package opensm_test

import (
	"context"
	"path/filepath"
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

func TestAStandbyThatWasGivenEverySetTakesOverAndNothingChanges(t *testing.T) {
	t.Parallel()
	ctx, s, b := newPair(t, 4)
	desired := set(tenant(5, "lease-a", s.ports[0], s.ports[1]), tenant(6, "lease-b", s.ports[2]))
	_, err := s.Apply(ctx, desired, 1)
	require.NoError(t, err)
	_, err = b.Apply(ctx, desired, 1)
	require.NoError(t, err, "what the manager has made true is true for the standby too")
	s.failOver(ctx, t, b, s.ports[0])
	after := set(tenant(5, "lease-a", s.ports[0], s.ports[1]))
	_, err = b.Apply(ctx, after, 2)
	require.NoError(t, err, "the life of leases goes on with the new manager")
	requireAll(ctx, t, b.Driver, after, s.ports[:3])
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
