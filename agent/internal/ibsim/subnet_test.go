package ibsim_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/ibsim"
	"github.com/leasehold/leasehold/agent/internal/ibsim/ibsimtest"
	"github.com/leasehold/leasehold/agent/protocol"
)

const oneTenant = `Default=0x7fff : ALL=limited, ALL_SWITCHES=full, SELF=full;
a=0x0001, indx0 :
 0x0002c90000010001=full,
 0x0002c90000020001=full;
`

func start(t *testing.T, topology protocol.Topology) (context.Context, *ibsim.Subnet) {
	t.Helper()
	tools := ibsimtest.Tools(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, ibsim.PartitionsFile), []byte(oneTenant), 0o600))
	subnet, err := ibsim.Start(ctx, ibsim.Config{Topology: topology, Dir: dir, Tools: tools})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, subnet.Close()) })
	require.NoError(t, subnet.StartManager(ctx))
	return ctx, subnet
}

func TestAWalkFindsTheTopologyThatWasWired(t *testing.T) {
	t.Parallel()
	want := ibsimtest.FatTree(4, 2)
	ctx, subnet := start(t, want)
	found, err := subnet.Client().Walk(ctx)
	require.NoError(t, err)
	got := found.Topology()
	require.Len(t, got.Ports, len(want.Ports))
	for i, port := range want.Ports {
		require.Equal(t, port.GUID, got.Ports[i].GUID)
		require.Equal(t, port.SwitchGUID, got.Ports[i].SwitchGUID)
		require.Equal(t, port.SwitchPort, got.Ports[i].SwitchPort)
		require.Equal(t, port.Description, got.Ports[i].Description)
		require.NotZero(t, got.Ports[i].LID)
	}
	require.Len(t, got.Links, len(want.Links))
	for i, s := range want.Switches {
		require.Equal(t, s.GUID, got.Switches[i].GUID)
		require.Equal(t, s.Level, got.Switches[i].Level)
		require.Equal(t, s.Name, got.Switches[i].Name)
	}
	require.Equal(t, subnet.ManagerPort(), found.Local)
}

func TestTheTablesReadAreThoseThatSmpqueryReads(t *testing.T) {
	t.Parallel()
	topology := ibsimtest.FatTree(4, 2)
	ctx, subnet := start(t, topology)
	found, err := subnet.Client().Walk(ctx)
	require.NoError(t, err)
	place := found.Places[topology.Ports[0].GUID]
	keys, err := subnet.Client().PKeyTable(ctx, place.Path, 0, place.PKeyCap)
	require.NoError(t, err)
	require.Equal(t, []protocol.PKey{0x8001, 0x7fff}, keys)
	keys, err = subnet.Client().PKeyTable(ctx, place.Path.Parent(), place.SwitchPort, place.SwitchPKeyCap)
	require.NoError(t, err)
	require.Equal(t, []protocol.PKey{0x8001, 0x7fff}, keys)
	smpquery, err := subnet.Command(ctx, subnet.ManagerPort(), "smpquery", "-D", "pkeys", place.Path.String())
	require.NoError(t, err)
	out, err := smpquery.Output()
	require.NoError(t, err)
	require.Equal(t, []string{"0x8001", "0x7fff"}, strings.Fields(string(out))[1:3])
}

func TestAPathIsFoundWithinAPartitionOnly(t *testing.T) {
	t.Parallel()
	topology := ibsimtest.FatTree(4, 1)
	ctx, subnet := start(t, topology)
	found, err := subnet.Client().Walk(ctx)
	require.NoError(t, err)
	path := func(from, to int) bool {
		got, err := subnet.Client().HasPath(ctx, found.SMLID, topology.Ports[from].GUID, topology.Ports[to].GUID)
		require.NoError(t, err)
		return got
	}
	require.True(t, path(0, 1))
	require.False(t, path(0, 2))
	require.False(t, path(2, 3))
	withManager, err := subnet.Client().HasPath(ctx, found.SMLID, topology.Ports[0].GUID, subnet.ManagerPort())
	require.NoError(t, err)
	require.True(t, withManager)
}
