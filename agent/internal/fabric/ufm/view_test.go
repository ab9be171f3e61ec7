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
	"github.com/leasehold/leasehold/agent/internal/smp"
	"github.com/leasehold/leasehold/agent/protocol"
)

func posture(t *testing.T, b bench) map[string]protocol.PostureCheck {
	t.Helper()
	checks, err := b.Posture(t.Context())
	require.NoError(t, err)
	found := map[string]protocol.PostureCheck{}
	for _, check := range checks {
		found[check.Item] = check
	}
	require.Len(t, found, len(fabric.PostureItems()))
	return found
}

func TestPostureIsWhatUFMSaysItemByItem(t *testing.T) {
	t.Parallel()
	for name, claim := range map[string]struct {
		conf map[string]any
		want map[string]protocol.Verdict
	}{
		"hardened": {
			map[string]any{"m_key": "0x1234", "sm_key": "0x99", "sa_key": "0x98", "m_key_per_port": true},
			map[string]protocol.Verdict{
				fabric.PostureMKeySet: protocol.True, fabric.PostureMKeyPerPort: protocol.True, fabric.PostureSMKeySet: protocol.True,
				fabric.PostureSAKeySet: protocol.True, fabric.PostureSwitchEnforcement: protocol.Unknown, fabric.PostureGuestsDeniedSM: protocol.Unknown,
				fabric.PostureDefaultLimited: protocol.True,
			},
		},
		"as delivered": {
			map[string]any{"m_key": "0x0000000000000000", "sm_key": "0x0000000000000001", "sa_key": "0x0000000000000001", "m_key_per_port": false},
			map[string]protocol.Verdict{
				fabric.PostureMKeySet: protocol.False, fabric.PostureMKeyPerPort: protocol.False, fabric.PostureSMKeySet: protocol.False,
				fabric.PostureSAKeySet: protocol.False,
			},
		},
		"hidden keys": {
			map[string]any{"m_key": "******", "sm_key": nil, "sa_key": map[string]any{}, "m_key_per_port": "perhaps"},
			map[string]protocol.Verdict{
				fabric.PostureMKeySet: protocol.Unknown, fabric.PostureMKeyPerPort: protocol.Unknown, fabric.PostureSMKeySet: protocol.Unknown,
				fabric.PostureSAKeySet: protocol.Unknown,
			},
		},
		"one M_Key for all": {
			map[string]any{"m_key": "0x1234", "m_key_per_port": false},
			map[string]protocol.Verdict{fabric.PostureMKeySet: protocol.Unknown, fabric.PostureMKeyPerPort: protocol.False},
		},
		"unprotected": {
			map[string]any{"m_key": "0x1234", "m_key_per_port": true, "m_key_protection_level": 0},
			map[string]protocol.Verdict{fabric.PostureMKeySet: protocol.False},
		},
		"protected": {
			map[string]any{"m_key": "0x1234", "m_key_per_port": false, "m_key_protection_level": "2"},
			map[string]protocol.Verdict{fabric.PostureMKeySet: protocol.True},
		},
		"nothing": {
			map[string]any{},
			map[string]protocol.Verdict{
				fabric.PostureMKeySet: protocol.Unknown, fabric.PostureSMKeySet: protocol.Unknown, fabric.PostureDefaultLimited: protocol.True,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, ufmtest.Options{})
			b.server.SetSMConf(claim.conf)
			found := posture(t, b)
			for item, want := range claim.want {
				require.Equal(t, want, found[item].Verdict, item)
				require.NotContains(t, found[item].Detail, "1234", "a key stays where it is")
			}
		})
	}
}

func TestAFullMemberOfTheDefaultPartitionFailsThePosture(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{})
	b.server.SetMember(protocol.DefaultFull, ufmtest.ManagerPort, false)
	require.Equal(t, protocol.True, posture(t, b)[fabric.PostureDefaultLimited].Verdict, "UFM's own port is one")
	open := newBench(t, ufmtest.Options{})
	open.server.SetMember(protocol.DefaultFull, open.ports[0], false)
	found := posture(t, open)[fabric.PostureDefaultLimited]
	require.Equal(t, protocol.False, found.Verdict)
	require.Contains(t, found.Detail, open.ports[0].String())
}

func TestAUFMThatCannotBeAskedLeavesEveryItemUnknown(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{})
	b.server.Inject(ufmtest.Faults{Status: 503})
	for item, check := range posture(t, b) {
		require.Equal(t, protocol.Unknown, check.Verdict, item)
		require.Contains(t, check.Detail, "503", item)
	}
}

func TestTheGraphIsUFMsAndAbsentPortsKeepTheirPlace(t *testing.T) {
	t.Parallel()
	want := ibsimtest.FatTree(4, 2)
	b := newBench(t, ufmtest.Options{})
	seen, err := b.Topology(t.Context())
	require.NoError(t, err)
	require.ElementsMatch(t, want.Switches, seen.Switches)
	for i := range want.Links {
		want.Links[i].RateGbps = 0 // UFM does not tell it
	}
	require.ElementsMatch(t, want.Links, seen.Links)
	for i, port := range seen.Ports {
		port.LID = 0
		require.Equal(t, want.Ports[i], port)
	}
	b.server.Cut(b.ports[0])
	b.server.Inject(ufmtest.Faults{HalfAnswers: true})
	again, err := b.Topology(t.Context())
	require.NoError(t, err)
	require.Len(t, again.Ports, len(want.Ports))
	require.Equal(t, want.Ports[0].SwitchGUID, again.Ports[0].SwitchGUID)
	b.server.Inject(ufmtest.Faults{Unreachable: true})
	last, err := b.Topology(t.Context())
	require.NoError(t, err)
	require.Equal(t, again, last, "while it cannot be asked, the graph is as it was")
}

func TestSMPsReadThroughTheReaderWhatOpenSMWrote(t *testing.T) {
	t.Parallel()
	ibsimtest.Tools(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	topology := ibsimtest.FatTree(4, 2)
	subnet, err := opensm.Simulate(ctx, topology, t.TempDir(), ibsimtest.Prefixes()...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, subnet.Close()) })
	p := make([]protocol.GUID, 0, len(topology.Ports))
	for _, port := range topology.Ports {
		p = append(p, port.GUID)
	}
	_, err = subnet.Apply(ctx, fabric.Desired{
		Partitions: []protocol.Partition{tenant(5, "lease-a", p[0], p[1])}, Managed: fabric.Range{Low: 1, High: 0x3fff},
	}, 1)
	require.NoError(t, err)
	reader := ufm.NewSMPReader(subnet.Subnet.Client())
	want, err := subnet.Observe(ctx, p)
	require.NoError(t, err)
	got, err := reader.Read(ctx, p)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, protocol.True, reader.HasPath(ctx, p[0], p[1]))
	require.Equal(t, protocol.False, reader.HasPath(ctx, p[0], p[2]))
	require.True(t, reader.MayAskPaths(ctx))

	transport, err := subnet.Subnet.Dial(ctx, "n0004-h1")
	require.NoError(t, err)
	client := smp.NewClient(transport, 0)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	elsewhere := ufm.NewSMPReader(client)
	got, err = elsewhere.Read(ctx, p)
	require.NoError(t, err)
	require.Equal(t, want, got, "tables can be read from any host")
	require.False(t, elsewhere.MayAskPaths(ctx))
	require.Equal(t, protocol.False, elsewhere.HasPath(ctx, p[0], p[1]), "a stranger is not told, which is why he must not ask")

	require.NoError(t, subnet.Subnet.Cut(ctx, p[0]))
	got, err = reader.Read(ctx, []protocol.GUID{p[0], 0xdead, p[1]})
	require.NoError(t, err)
	require.False(t, got[0].HCA.Readable)
	require.False(t, got[1].HCA.Readable)
	require.False(t, got[1].Switch.Readable)
	require.True(t, got[2].HCA.Readable)
}

func TestWhereNobodyCanBeAskedForPathsNoneAreAskedFor(t *testing.T) {
	t.Parallel()
	for release, may := range map[string]bool{"6.19.3": true, "6.15.1": false} {
		b := newBench(t, ufmtest.Options{Stranger: true, Release: release}, withReader)
		_, err := b.Apply(t.Context(), set(tenant(5, "lease-a", b.ports[0])), 1)
		require.NoError(t, err)
		require.Equal(t, may, b.MayAskPaths(t.Context()), release)
		b.server.Inject(ufmtest.Faults{Unreachable: true})
		_, err = b.Observe(t.Context(), b.ports)
		require.NoError(t, err)
		require.True(t, b.MayAskPaths(t.Context()), "that nothing is known is said so")
		require.Equal(t, protocol.Unknown, b.HasPath(t.Context(), b.ports[0], b.ports[1]))
	}
}
