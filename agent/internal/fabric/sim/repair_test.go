package sim_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/protocol"
)

func TestDriftStaysUntilItIsToBeRepaired(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	desired := fabric.Desired{Partitions: []protocol.Partition{b.lease(1, 0, 1)}, Managed: fabric.Range{Low: 1, High: 0x0fff}}
	_, err := b.Apply(t.Context(), desired, 1)
	require.NoError(t, err)
	b.OverwriteHCA(b.ports[0], protocol.DefaultLimited)
	b.OverwriteSwitch(b.ports[5], protocol.DefaultFull)
	applied, err := b.Apply(t.Context(), desired, 1)
	require.NoError(t, err)
	require.Equal(t, b.ports[:1], applied.Unsettled, "the manager trusts what it wrote")
	desired.Repair = b.ports
	applied, err = b.Apply(t.Context(), desired, 1)
	require.NoError(t, err)
	require.Equal(t, []protocol.GUID{b.ports[0], b.ports[5]}, applied.Repaired)
	require.Empty(t, applied.Unsettled)
	links, err := b.Observe(t.Context(), b.ports)
	require.NoError(t, err)
	for _, link := range links {
		require.Empty(t, fabric.NewJudge(desired).Disagreement(link))
	}
}
