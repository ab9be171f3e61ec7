package opensm_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/fabric/opensm"
	"github.com/leasehold/leasehold/agent/protocol"
)

// repairOf is the set with ports to repair.
func repairOf(desired fabric.Desired, ports ...protocol.GUID) fabric.Desired {
	desired.Repair = ports
	return desired
}

func TestATableOverwrittenBehindOpenSMsBackIsRepairedByAnEditOfItsBlock(t *testing.T) {
	t.Parallel()
	long := make([]protocol.PKey, 40) // beyond the first block
	long[0], long[1], long[39] = 0x8005, 0x7fff, 0x8006
	for name, c := range map[string]struct {
		port int // 0 is a tenant's, 3 is idle
		end  int // 0: the HCA's, 1: the switch's
		keys []protocol.PKey
	}{
		"an idle port is full in the default partition": {3, 0, []protocol.PKey{0xffff}},
		"an idle switch port is":                        {3, 1, []protocol.PKey{0xffff}},
		"a stranger has the tenant's key":               {3, 0, []protocol.PKey{0x8005, 0x7fff}},
		"the tenant's key is gone":                      {0, 0, []protocol.PKey{0x7fff}},
		"the tenant's key is gone at the switch":        {0, 1, []protocol.PKey{0x7fff}},
		"the tenant's key is not first":                 {0, 0, []protocol.PKey{0x7fff, 0x8005}},
		"the tenant has another's key too":              {0, 0, []protocol.PKey{0x8005, 0x7fff, 0x8006}},
		"another's key far down the table":              {0, 0, long},
		"another's key far down at the switch":          {0, 1, long},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, s := newSubnet(t, 4, 1)
			desired := set(tenant(5, "lease-a", s.ports[0], s.ports[1]), tenant(6, "lease-b", s.ports[2]))
			_, err := s.Apply(ctx, desired, 1)
			require.NoError(t, err)
			file, err := os.ReadFile(s.partitionsFile())
			require.NoError(t, err)
			for block := 0; block*32 < len(c.keys); block++ {
				overwriteBlock(t, s.Simulated, s.ports[c.port], c.end, block, c.keys[block*32:min(len(c.keys), (block+1)*32)])
			}
			links, err := s.Observe(ctx, s.ports)
			require.NoError(t, err)
			require.NotEmpty(t, fabric.NewJudge(desired).Disagreement(links[c.port]))

			applied, err := s.Apply(ctx, repairOf(desired, s.ports...), 1)
			require.NoError(t, err)
			require.Equal(t, []protocol.GUID{s.ports[c.port]}, applied.Repaired, "the others are left alone")
			require.Empty(t, applied.Unsettled)
			requireAll(ctx, t, s.Driver, desired, s.ports)
			after, err := os.ReadFile(s.partitionsFile())
			require.NoError(t, err)
			require.Equal(t, string(file), string(after))
			require.False(t, s.Subnet.Complaints())
			links, err = s.Observe(ctx, s.ports)
			require.NoError(t, err)
			for _, link := range links {
				for _, keys := range [][]protocol.PKey{link.HCA.Keys, link.Switch.Keys} {
					for _, key := range keys {
						require.Contains(t, []protocol.PKey{0, 0x7fff, 0x8005, 0x8006}, key, "nothing of the repair stays")
					}
				}
			}
			applied, err = s.Apply(ctx, repairOf(desired, s.ports...), 1)
			require.NoError(t, err)
			require.Zero(t, applied.Sweeps, "there is nothing to repair")
		})
	}
}

func TestAPortThatDoesNotAnswerIsNotRepairedAndKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 1)
	desired := set(tenant(5, "lease-a", s.ports[0], s.ports[1]))
	_, err := s.Apply(ctx, desired, 1)
	require.NoError(t, err)
	require.NoError(t, s.Subnet.Cut(ctx, s.ports[2]))
	_, err = s.Apply(ctx, set(tenant(5, "lease-a", s.ports[0])), 2) // OpenSM has noticed when this is done
	require.NoError(t, err)
	desired = set(tenant(5, "lease-a", s.ports[0], s.ports[1]))
	_, err = s.Apply(ctx, desired, 3)
	require.NoError(t, err)
	overwrite(t, s.Simulated, s.ports[3], 0, []protocol.PKey{0xffff})
	applied, err := s.Apply(ctx, repairOf(desired, s.ports[2], s.ports[3]), 3)
	require.NoError(t, err)
	require.Equal(t, s.ports[3:4], applied.Repaired)
	requireAll(ctx, t, s.Driver, desired, []protocol.GUID{s.ports[0], s.ports[1], s.ports[3]})
}

func TestARepairThatWasCutShortLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	ctx, s := newSubnet(t, 4, 1)
	desired := set(tenant(5, "lease-a", s.ports[0], s.ports[1]))
	_, err := s.Apply(ctx, desired, 1)
	require.NoError(t, err)
	overwrite(t, s.Simulated, s.ports[3], 0, []protocol.PKey{0xffff})
	driver := s.ReopenWith(ctx, t, func(c *opensm.Config) { c.Manager = mortal{c.Manager, s.Subnet} })
	_, err = driver.Apply(ctx, repairOf(desired, s.ports[3]), 1)
	requireCode(t, fabric.CodeManagerUnavailable, err)
	require.NoError(t, s.Subnet.StartManager(ctx))
	state, err := s.Current(ctx)
	require.NoError(t, err)
	require.Equal(t, desired.Partitions, state.Desired.Partitions)
	_, err = s.Apply(ctx, repairOf(desired, s.ports...), 1)
	require.NoError(t, err)
	requireAll(ctx, t, s.Driver, desired, s.ports)
}
