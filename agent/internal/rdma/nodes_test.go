package rdma_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/rdma"
	"github.com/leasehold/leasehold/agent/protocol"
)

func TestAnAdapterIsUsedThroughItsOwnNodeOnly(t *testing.T) {
	t.Parallel()
	tr := newTree(t)
	tr.adapter(0, "InfiniBand")
	tr.adapter(1, "InfiniBand")
	for device, verbs := range map[string]string{"mlx5_0": "uverbs1", "mlx5_1": "uverbs0"} { // numbers need not agree
		require.NoError(t, os.MkdirAll(filepath.Join(tr.root, device, "device", "infiniband_verbs", verbs), 0o755))
	}
	driver, _ := tr.driver()
	nodes, err := driver.DeviceNodes(t.Context(), []protocol.GUID{portGUID})
	require.NoError(t, err)
	require.Contains(t, nodes, "/dev/infiniband/uverbs1")
	require.NotContains(t, nodes, "/dev/infiniband/uverbs0")
	nodes, err = driver.DeviceNodes(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, nodes)
	_, err = driver.DeviceNodes(t.Context(), []protocol.GUID{0x1234})
	require.ErrorIs(t, err, rdma.ErrNotFound)

	tr.adapter(2, "InfiniBand")
	_, err = driver.DeviceNodes(t.Context(), []protocol.GUID{0x0002c90300302001})
	require.ErrorIs(t, err, rdma.ErrNotFound, "an adapter without a verbs device cannot be given away")
}
