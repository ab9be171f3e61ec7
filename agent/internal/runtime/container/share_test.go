package container_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/agent/internal/runtime/container"
	"github.com/leasehold/leasehold/agent/protocol"
)

// hgx is a machine of two sockets with four GPUs and 56 cores of two threads each.
func hgx() container.Machine {
	m := container.Machine{Bays: []int{0, 0, 0, 0, 1, 1, 1, 1}, ScratchBytes: 64 << 40, Processes: 1 << 15}
	for socket := range 2 {
		node := container.NUMANode{ID: socket, MemoryBytes: 1 << 40}
		for core := range 56 {
			first := socket*56 + core
			node.Cores = append(node.Cores, container.Core{first, first + 112})
		}
		m.Nodes = append(m.Nodes, node)
	}
	return m
}

func TestAGPUComesWithItsShareOfItsOwnSocket(t *testing.T) {
	t.Parallel()
	got, err := hgx().ShareOf(protocol.Slots{From: 32, To: 40})
	require.NoError(t, err)
	require.Equal(t, container.Limits{
		CPUs: "56-69,168-181", Mems: "1", QuotaMicros: 28 * 100_000, Weight: 28 * 1024, MemoryBytes: 256 << 30, Processes: 4096, ScratchBytes: 8 << 40,
	}, got)
	got, err = hgx().ShareOf(protocol.Slots{From: 16, To: 48})
	require.NoError(t, err)
	require.Equal(t, "0-1", got.Mems)
	require.Equal(t, "28-83,140-195", got.CPUs)
}

func TestASliceOfLessThanACoreSharesOneAndHasItsQuota(t *testing.T) {
	t.Parallel()
	m := container.Machine{Bays: []int{-1}, Nodes: []container.NUMANode{{ID: 0, Cores: []container.Core{{0}, {1}}, MemoryBytes: 8 << 30}}, ScratchBytes: 8 << 30, Processes: 1 << 22}
	got, err := m.ShareOf(protocol.Slots{From: 5, To: 6})
	require.NoError(t, err)
	require.Equal(t, container.Limits{
		CPUs: "1", Mems: "0", QuotaMicros: 25_000, Weight: 256, MemoryBytes: 1 << 30, Processes: 1024, ScratchBytes: 1 << 30,
	}, got)
}

func TestSlotsThatTheMachineDoesNotHaveAreWorthNothing(t *testing.T) {
	t.Parallel()
	for _, slots := range []protocol.Slots{{From: 0, To: 0}, {From: 60, To: 68}, {From: -8, To: 8}, {From: 8, To: 0}} {
		_, err := hgx().ShareOf(slots)
		require.Error(t, err, slots)
	}
	_, err := container.Machine{Bays: []int{0}}.ShareOf(protocol.Slots{To: 8})
	require.Error(t, err)
}

// Whatever the machine and however it is cut up: memory and disk never add up to more than there is, and places of whole GPUs share no core
// as long as there is one for each.
func TestSharesNeverAddUpToMoreThanThereIs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := container.Machine{ScratchBytes: 1 << 40}
		cpu := 0
		var memory int64
		for id := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			n := container.NUMANode{ID: id, MemoryBytes: rapid.Int64Range(1<<30, 1<<40).Draw(t, "memory")}
			memory += n.MemoryBytes
			for range rapid.IntRange(16, 40).Draw(t, "cores") {
				n.Cores = append(n.Cores, container.Core{cpu, cpu + 1})
				cpu += 2
			}
			m.Nodes = append(m.Nodes, n)
		}
		for range rapid.IntRange(1, 16).Draw(t, "bays") {
			m.Bays = append(m.Bays, rapid.IntRange(-1, len(m.Nodes)-1).Draw(t, "node"))
		}
		owner := map[int]int{}
		var sum, disk int64
		for from := 0; from < len(m.Bays)*8; {
			to := min(from+8*rapid.IntRange(1, 4).Draw(t, "gpus"), len(m.Bays)*8)
			got, err := m.ShareOf(protocol.Slots{From: from, To: to})
			require.NoError(t, err)
			require.NotEmpty(t, got.CPUs)
			sum, disk = sum+got.MemoryBytes, disk+got.ScratchBytes
			for _, cpu := range processors(t, got.CPUs) {
				require.NotContains(t, owner, cpu, "place %d has a processor of place %d", from, owner[cpu])
				owner[cpu] = from
			}
			from = to
		}
		require.LessOrEqual(t, sum, memory)
		require.LessOrEqual(t, disk, m.ScratchBytes)
	})
}

func processors(t require.TestingT, list string) []int {
	var out []int
	for part := range strings.SplitSeq(list, ",") {
		low, high, ranged := strings.Cut(part, "-")
		first, err := strconv.Atoi(low)
		require.NoError(t, err)
		last := first
		if ranged {
			last, err = strconv.Atoi(high)
			require.NoError(t, err)
		}
		for cpu := first; cpu <= last; cpu++ {
			out = append(out, cpu)
		}
	}
	return out
}
