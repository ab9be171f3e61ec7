package ufm_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/fabric/ufm"
	"github.com/leasehold/leasehold/agent/internal/fabric/ufm/ufmtest"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

func set(partitions ...protocol.Partition) fabric.Desired {
	return fabric.Desired{Partitions: partitions, Managed: fabric.Range{Low: 0x0001, High: 0x3fff, Reserved: []protocol.PKey{0x20}}}
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

func TestForeignAndReservedPartitionsAreReportedAndNeverTouched(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{}, withReader)
	p := b.ports
	b.server.SetMember(0x8000|0x5000, p[0], false) // outside the range
	b.server.SetMember(0x8000|0x0020, p[1], false) // within, reserved
	_, err := b.Apply(t.Context(), set(tenant(5, "lease-a", p[0], p[1])), 1)
	require.NoError(t, err)
	_, err = b.Apply(t.Context(), set(), 2)
	require.NoError(t, err)
	require.Equal(t, p[:1], b.server.Members(0x5000))
	require.Equal(t, p[1:2], b.server.Members(0x0020))
	for _, write := range b.server.Writes() {
		require.True(t, strings.HasSuffix(write, " 0x5"), write)
	}
	links, err := b.Observe(t.Context(), p)
	require.NoError(t, err)
	require.Equal(t, []protocol.PKey{0x0020, 0x5000}, fabric.NewJudge(set()).Foreign(links))
}

func TestWhatStandsInTheRangeAtTheFirstStartIsTakenOverUnderTheShrinkGuard(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{})
	p := b.ports
	for i, key := range []protocol.PKey{0x8007, 0x8008, 0x8009} {
		b.server.SetMember(key, p[2*i], true)
		b.server.SetMember(key, p[2*i+1], true)
	}
	_, err := b.Apply(t.Context(), set(), 1)
	requireCode(t, fabric.CodeShrinkRefused, err)
	require.Empty(t, b.server.Writes())
	allowed := set()
	allowed.AllowShrink = true
	applied, err := b.Apply(t.Context(), allowed, 1)
	require.NoError(t, err)
	require.Equal(t, p[:6], applied.Changed)
	require.Empty(t, applied.Unsettled)
	require.Empty(t, b.server.Members(7))
}

func TestAPortLeavesOneLeaseBeforeItJoinsTheNext(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{}, withReader)
	p := b.ports
	_, err := b.Apply(t.Context(), set(tenant(5, "lease-a", p[0], p[1]), tenant(6, "lease-b", p[2])), 1)
	require.NoError(t, err)
	before := len(b.server.Writes())
	applied, err := b.Apply(t.Context(), set(tenant(5, "lease-a", p[0]), tenant(6, "lease-b", p[1], p[2])), 2)
	require.NoError(t, err)
	require.Equal(t, 1, applied.Sweeps)
	require.Equal(t, []string{"DELETE /resources/pkey 0x5", "PUT /resources/pkey 0x6"}, b.server.Writes()[before:])
}

func TestEachReleaseIsAskedInTheFormThatItHas(t *testing.T) {
	t.Parallel()
	for name, claim := range map[string]struct {
		options ufmtest.Options
		want    []string
	}{
		"current": {ufmtest.Options{Release: "6.22.1"}, []string{"PUT /resources/pkey 0x5", "DELETE /resources/pkey 0x5"}},
		"old":     {ufmtest.Options{Release: "6.7.100-1"}, []string{"POST /resources/pkey 0x5", "POST /actions/remove_guids_from_pkey 0x5"}},
		"claims to be current": {
			ufmtest.Options{Release: "6.19.3", Deceptive: true},
			[]string{"PUT /resources/pkey 0x5", "DELETE /resources/pkeys/0x5/guids/0002c90000010001", "POST /actions/remove_guids_from_pkey 0x5"},
		},
		"does not say": {ufmtest.Options{Release: "lab build"}, []string{"POST /resources/pkey 0x5", "POST /actions/remove_guids_from_pkey 0x5"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, claim.options, withReader)
			_, err := b.Apply(t.Context(), set(tenant(5, "lease-a", b.ports[0])), 1)
			require.NoError(t, err)
			_, err = b.Apply(t.Context(), set(), 2)
			require.NoError(t, err)
			require.Equal(t, claim.want, b.server.Writes())
			require.Empty(t, b.server.Members(5))
		})
	}
}

func TestAnAdditionWhoseAnswerWasLostIsLookedForAndNotMadeAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{Release: "6.7.1"}, withReader)
	b.server.Inject(ufmtest.Faults{LoseAnswers: true})
	_, err := b.Apply(t.Context(), set(tenant(5, "lease-a", b.ports[0])), 1)
	require.NoError(t, err)
	require.Equal(t, []string{"POST /resources/pkey 0x5"}, b.server.Writes())
}

func TestARefusalIsNotPressed(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{})
	b.server.Inject(ufmtest.Faults{RefuseWrites: true})
	_, err := b.Apply(t.Context(), set(tenant(5, "lease-a", b.ports[0])), 1)
	requireCode(t, fabric.CodeManagerUnavailable, err)
	require.ErrorContains(t, err, "not this one", "why is told")
	require.Len(t, b.server.Writes(), 1)
}

func TestAnotherFabricsUFMIsNotWrittenTo(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{})
	b.server.Inject(ufmtest.Faults{OtherFabric: true})
	_, err := b.Apply(t.Context(), set(tenant(5, "lease-a", b.ports[0])), 1)
	requireCode(t, fabric.CodeForeignConfiguration, err)
	require.Empty(t, b.server.Writes())
	state, err := b.Current(t.Context())
	require.NoError(t, err)
	require.Zero(t, state.Epoch, "it is not in place either")
}

func TestTheManagersOwnPortIsNobodysMember(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{})
	_, err := b.Apply(t.Context(), set(tenant(5, "lease-a", ufmtest.ManagerPort)), 1)
	requireCode(t, fabric.CodeUnknownPort, err)
	topology, err := b.Topology(t.Context())
	require.NoError(t, err)
	require.Len(t, topology.Ports, len(b.ports))
}

func TestATableThatWouldOverflowWithForeignKeysIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{})
	for i := range ufm.MaxPKeysPerPort - 1 {
		b.server.SetMember(protocol.FullMember|0x5000+protocol.PKey(i), b.ports[0], false) //nolint:gosec // small
	}
	_, err := b.Apply(t.Context(), set(tenant(5, "lease-a", b.ports[0])), 1)
	requireCode(t, fabric.CodeInvalidPartitions, err)
	require.Empty(t, b.server.Writes())
}

func TestBeforeUFMWasEverReachedNothingIsInPlaceAndNothingIsRefusedForGood(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{})
	b.server.Inject(ufmtest.Faults{Unreachable: true})
	_, err := b.Apply(t.Context(), set(tenant(5, "lease-a", b.ports[0])), 1)
	require.Error(t, err)
	var refusal *operation.Refusal
	require.NotErrorAs(t, err, &refusal, "what is no refusal may be tried again")
	_, err = b.Topology(t.Context())
	require.Error(t, err)
	_, err = b.Controller(t.Context())
	require.Error(t, err)
	b.server.Inject(ufmtest.Faults{})
	_, err = b.Apply(t.Context(), set(tenant(5, "lease-a", b.ports[0])), 1)
	require.NoError(t, err)
}

func TestASilentUFMHoldsUpNoMoreThanTheLastCallersPatience(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{}, func(c *ufm.Config, _ *ufmtest.Server) { c.Server.Timeout = 50 * time.Millisecond })
	_, err := b.Apply(t.Context(), set(tenant(5, "lease-a", b.ports[0])), 1)
	require.NoError(t, err)
	b.server.Inject(ufmtest.Faults{Silent: true})
	before := b.server.Calls()
	_, err = b.Observe(t.Context(), b.ports)
	require.NoError(t, err)
	for range 16 {
		require.Equal(t, protocol.Unknown, b.HasPath(t.Context(), b.ports[0], b.ports[1]))
	}
	_, err = b.Posture(t.Context())
	require.NoError(t, err)
	require.LessOrEqual(t, b.server.Calls()-before, 6, "cross-checks of the same breath do not each wait again")
}

func TestWordsOfTheManagerAreMarkedAsSuch(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{})
	_, err := b.Apply(t.Context(), set(tenant(5, "lease-a", b.ports[0])), 1)
	require.NoError(t, err)
	links, err := b.Observe(t.Context(), b.ports[:1])
	require.NoError(t, err)
	require.Equal(t, ufm.Source, links[0].HCA.Source)
	require.Equal(t, ufm.Source, links[0].Switch.Source)
	require.NotEmpty(t, links[0].HCA.Detail)
	require.NotEmpty(t, links[0].Switch.Detail)

	read := newBench(t, ufmtest.Options{}, withReader)
	_, err = read.Apply(t.Context(), set(tenant(5, "lease-a", read.ports[0])), 1)
	require.NoError(t, err)
	links, err = read.Observe(t.Context(), read.ports[:1])
	require.NoError(t, err)
	require.Equal(t, "smp", links[0].HCA.Source)
}

func TestAPortThatLooksRightWhileUFMSaysSomethingElseIsUnknown(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{}, withReader)
	p := b.ports
	desired := set(tenant(5, "lease-a", p[0]), tenant(6, "lease-b", p[1]))
	_, err := b.Apply(t.Context(), desired, 1)
	require.NoError(t, err)
	b.server.SetMember(0x8006, p[0], false) // somebody joins the two; the port does not have it yet
	b.server.Overwrite(p[0], []protocol.PKey{0x8005, 0x7fff}, []protocol.PKey{0x8005, 0x7fff})
	links, err := b.Observe(t.Context(), p[:1])
	require.NoError(t, err)
	require.False(t, links[0].HCA.Readable)
	require.Contains(t, links[0].HCA.Detail, "0x8006")
	applied, err := b.Apply(t.Context(), desired, 2)
	require.NoError(t, err)
	require.Equal(t, 1, applied.Sweeps, "what UFM has that it should not goes, though nothing was changed by us")
	require.Empty(t, b.server.Members(6)[1:])
}

func TestWithoutAReaderOrTheExplicitWordThereIsNoDriver(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{})
	config := b.config
	config.AcceptManagersWord = false
	_, err := ufm.New(config)
	require.ErrorContains(t, err, "nothing reads the ports")
}

func TestAUFMThatComesForwardByHalvesIsGivenTheTimeForIt(t *testing.T) {
	t.Parallel()
	b := newBench(t, ufmtest.Options{}, withReader)
	_, err := b.Apply(t.Context(), set(tenant(5, "lease-a", b.ports...)), 1)
	require.NoError(t, err)
	b.server.Inject(ufmtest.Faults{HalfWrites: true})
	applied, err := b.Apply(t.Context(), set(), 2)
	require.NoError(t, err)
	require.Empty(t, applied.Unsettled)
	require.Len(t, b.server.Writes(), 1+4, "8, 4, 2 and 1 were left")
}
