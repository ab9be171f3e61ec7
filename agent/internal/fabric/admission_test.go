package fabric_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

var all = fabric.Range{Low: protocol.FirstPartitionID, High: protocol.LastPartitionID}

func limits() fabric.Limits {
	return fabric.Limits{Known: func(port protocol.GUID) bool { return port != 0 && port < 1<<32 }, MaxPKeysPerPort: 31}
}

func lease(key protocol.PKey, members ...protocol.GUID) protocol.Partition {
	return protocol.Partition{PKey: key, Name: fmt.Sprintf("lease-%d", key), Members: members}
}

func desired(partitions ...protocol.Partition) fabric.Desired {
	return fabric.Desired{Partitions: partitions, Managed: all}
}

func ports(from, count int) []protocol.GUID {
	out := make([]protocol.GUID, count)
	for i := range out {
		out[i] = protocol.GUID(from + i)
	}
	return out
}

func requireCode(t require.TestingT, code string, err error) {
	var refusal *operation.Refusal
	require.ErrorAs(t, err, &refusal)
	require.Equal(t, code, refusal.Code, refusal.Detail)
}

// drawDesired draws a set that is right: every port in at most one partition.
func drawDesired(t *rapid.T, label string) fabric.Desired {
	assigned := rapid.MapOfN(rapid.IntRange(1, 200), rapid.IntRange(1, 12), 0, 80).Draw(t, label)
	members := map[int][]protocol.GUID{}
	for port, key := range assigned {
		members[key] = append(members[key], protocol.GUID(port))
	}
	var d fabric.Desired
	d.Managed = all
	for key, list := range members {
		d.Partitions = append(d.Partitions, lease(protocol.PKey(key), list...))
	}
	return d
}

func TestAnAdmittedSetIsNormalAndSaysTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := drawDesired(t, "set")
		admitted, err := fabric.Admit(fabric.State{}, d, 1, limits())
		require.NoError(t, err)
		require.Equal(t, d.KeyOf(), admitted.KeyOf())
		require.Equal(t, admitted, admitted.Normal())
		require.Empty(t, fabric.Changes(d, admitted))
	})
}

func TestChangesAreWhatMakesOneSetTheOther(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		before, after := drawDesired(t, "before"), drawDesired(t, "after")
		was, is := before.KeyOf(), after.KeyOf()
		changed := fabric.Changes(before, after)
		require.True(t, slices.IsSorted(changed))
		for port := protocol.GUID(1); port <= 200; port++ {
			require.Equal(t, was[port] != is[port], slices.Contains(changed, port))
		}
	})
}

func TestOneLeaseMayAlwaysEnd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		before := drawDesired(t, "set").Normal()
		for i := range before.Partitions {
			after := desired(slices.Delete(slices.Clone(before.Partitions), i, i+1)...)
			_, err := fabric.Admit(fabric.State{Desired: before}, after, 0, limits())
			require.NoError(t, err)
		}
	})
}

func TestASetThatOnlyGrowsIsAdmitted(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		after := drawDesired(t, "set").Normal()
		before := desired(after.Partitions[:rapid.IntRange(0, len(after.Partitions)).Draw(t, "kept")]...)
		_, err := fabric.Admit(fabric.State{Desired: before}, after, 0, limits())
		require.NoError(t, err)
	})
}

func TestTheShrinkGuard(t *testing.T) {
	t.Parallel()
	four := desired(lease(1, ports(1, 8)...), lease(2, ports(11, 8)...), lease(3, ports(21, 8)...), lease(4, ports(31, 8)...))
	big := desired(lease(1, ports(1, 64)...), lease(2, ports(101, 4)...), lease(3, ports(111, 4)...))
	for name, c := range map[string]struct {
		before, after fabric.Desired
		refused       bool
	}{
		"nothing changes":                          {four, four, false},
		"one of four ends":                         {four, desired(four.Partitions[1:]...), false},
		"two of four end: half remains":            {four, desired(four.Partitions[2:]...), false},
		"three of four end at once":                {four, desired(four.Partitions[3:]...), true},
		"all end at once":                          {four, desired(), true},
		"the last one ends":                        {desired(four.Partitions[0]), desired(), false},
		"one of two ends":                          {desired(four.Partitions[:2]...), desired(four.Partitions[0]), false},
		"both of two end at once":                  {desired(four.Partitions[:2]...), desired(), true},
		"the largest ends":                         {big, desired(big.Partitions[1:]...), false},
		"the largest ends, and all others too":     {big, desired(), true},
		"a lease loses half its ports":             {desired(four.Partitions[0]), desired(lease(1, ports(1, 4)...)), false},
		"a lease is cut short":                     {desired(four.Partitions[0]), desired(lease(1, 1)), true},
		"every lease is cut short":                 {four, desired(lease(1, 1), lease(2, 11), lease(3, 21), lease(4, 31)), true},
		"a node is replaced":                       {desired(four.Partitions[0]), desired(lease(1, append(ports(1, 7), 99)...)), false},
		"ports go from a lease to the next":        {desired(lease(1, ports(1, 8)...)), desired(lease(9, ports(1, 8)...)), false},
		"all leases end and others take the place": {four, desired(lease(9, ports(1, 8)...), lease(10, ports(11, 8)...), lease(11, ports(21, 8)...), lease(12, ports(31, 8)...)), false},
	} {
		_, err := fabric.Admit(fabric.State{Desired: c.before.Normal()}, c.after, 0, limits())
		if !c.refused {
			require.NoError(t, err, name)
			continue
		}
		requireCode(t, fabric.CodeShrinkRefused, err)
		c.after.AllowShrink = true
		_, err = fabric.Admit(fabric.State{Desired: c.before.Normal()}, c.after, 0, limits())
		require.NoError(t, err, name)
	}
}

func TestAnOlderEpochIsStaleAndTheSameIsNot(t *testing.T) {
	t.Parallel()
	state := fabric.State{Desired: desired(), Epoch: 7}
	_, err := fabric.Admit(state, desired(lease(1, 1)), 6, limits())
	requireCode(t, fabric.CodeStaleEpoch, err)
	for _, epoch := range []int64{7, 8} {
		_, err = fabric.Admit(state, desired(lease(1, 1)), epoch, limits())
		require.NoError(t, err)
	}
}

func TestEveryFaultOfASetIsNamed(t *testing.T) {
	t.Parallel()
	_, err := fabric.Admit(fabric.State{}, desired(
		protocol.Partition{PKey: 1, Name: "all", Members: ports(1, 1)},
		protocol.Partition{PKey: 1, Name: "Lease", Members: ports(2, 1)},
		protocol.Partition{PKey: 0x7fff, Name: "lease-c", Members: ports(1, 1)},
	), 1, limits())
	requireCode(t, fabric.CodeInvalidPartitions, err)
	for _, word := range []string{`"all" is a keyword`, `"Lease" has characters`, "key 0x0001 is used by", "key 0x7fff is not within", "is in"} {
		require.ErrorContains(t, err, word)
	}
}

func TestAPortWhoseTableWouldBeFullIsRefused(t *testing.T) {
	t.Parallel()
	l := limits()
	l.ForeignKeys = func(port protocol.GUID) int {
		if port == 2 {
			return 30
		}
		return 29
	}
	_, err := fabric.Admit(fabric.State{}, desired(lease(1, 1)), 1, l)
	require.NoError(t, err)
	_, err = fabric.Admit(fabric.State{}, desired(lease(1, 2)), 1, l)
	requireCode(t, fabric.CodeInvalidPartitions, err)
	require.ErrorContains(t, err, "would hold 32 keys")
}

func TestAPartitionWithoutMembersIsLeftOut(t *testing.T) {
	t.Parallel()
	admitted, err := fabric.Admit(fabric.State{}, desired(lease(1, 1), lease(2)), 1, limits())
	require.NoError(t, err)
	require.Equal(t, []protocol.Partition{lease(1, 1)}, admitted.Partitions)
}

func TestALongListOfFaultsIsCutShort(t *testing.T) {
	t.Parallel()
	_, err := fabric.Admit(fabric.State{}, desired(lease(1, ports(1<<33, 500)...)), 1, limits())
	requireCode(t, fabric.CodeUnknownPort, err)
	require.ErrorContains(t, err, "and 490 more")
	require.Less(t, len(err.Error()), 2000)
	require.Equal(t, 10, strings.Count(err.Error(), " in "))
}
