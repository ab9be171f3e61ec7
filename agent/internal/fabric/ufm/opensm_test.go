package ufm_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/fabric/opensm"
	"github.com/leasehold/leasehold/agent/internal/fabric/ufm"
	"github.com/leasehold/leasehold/agent/internal/fabric/ufm/ufmtest"
	"github.com/leasehold/leasehold/agent/internal/ibsim/ibsimtest"
	"github.com/leasehold/leasehold/agent/protocol"
)

// newRealBench is a stand-in UFM whose partitions a real OpenSM writes to simulated ports, which the driver reads with SMPs.
func newRealBench(ctx context.Context, t *testing.T) (bench, *opensm.Simulated) {
	t.Helper()
	ibsimtest.Tools(t)
	subnet, err := opensm.Simulate(ctx, ibsimtest.FatTree(4, 2), t.TempDir(), ibsimtest.Prefixes()...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, subnet.Close()) })
	epoch := int64(0)
	program := func(members map[protocol.PKey][]protocol.GUID) error {
		all := fabric.Desired{Managed: fabric.Range{Low: protocol.FirstPartitionID, High: protocol.LastPartitionID}, AllowShrink: true}
		for key, guids := range members {
			all.Partitions = append(all.Partitions, protocol.Partition{PKey: key, Name: "ufm-" + key.String(), Members: guids})
		}
		epoch++
		_, err := subnet.Apply(ctx, all, epoch)
		return err
	}
	b := newBench(t, ufmtest.Options{Program: program}, func(c *ufm.Config, _ *ufmtest.Server) {
		c.Ports, c.AcceptManagersWord = ufm.NewSMPReader(subnet.Subnet.Client()), false
		c.Patience.Deadline = 10 * time.Second
		c.Server.Timeout = 20 * time.Second // a write takes as long as OpenSM's sweep here
	})
	return b, subnet
}

func TestWhatUFMTakesIsBelievedWhenTheRealPortsHaveIt(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b, subnet := newRealBench(ctx, t)
	p := b.ports
	applied, err := b.Apply(ctx, set(tenant(5, "lease-a", p[0], p[1]), tenant(6, "lease-b", p[2])), 1)
	require.NoError(t, err)
	require.Empty(t, applied.Unsettled)
	require.NoError(t, b.server.Failed())
	links, err := subnet.Observe(ctx, p[:1])
	require.NoError(t, err)
	require.Equal(t, []protocol.PKey{0x8005, 0x7fff}, links[0].HCA.Keys, "OpenSM's own driver reads the same")
	require.Equal(t, protocol.True, b.HasPath(ctx, p[0], p[1]))
	require.Equal(t, protocol.False, b.HasPath(ctx, p[0], p[2]))

	require.NoError(t, subnet.Subnet.Cut(ctx, p[0]))
	applied, err = b.Apply(ctx, set(tenant(6, "lease-b", p[2])), 2)
	require.NoError(t, err)
	require.Equal(t, p[:1], applied.Unsettled, "UFM says that it has left, and the port was not seen")
	require.NoError(t, subnet.Subnet.Join(ctx, p[0]))
	require.Eventually(t, func() bool {
		applied, err = b.Apply(ctx, set(tenant(6, "lease-b", p[2])), 2)
		return err == nil && len(applied.Unsettled) == 0
	}, 30*time.Second, 20*time.Millisecond)
	links, err = b.Observe(ctx, p[:2])
	require.NoError(t, err)
	require.Equal(t, []protocol.PKey{0x7fff}, links[0].HCA.Keys)
	require.Equal(t, []protocol.PKey{0x7fff}, links[1].HCA.Keys)
}
