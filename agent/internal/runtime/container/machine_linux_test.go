package container_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/runtime/container"
	"github.com/leasehold/leasehold/agent/protocol"
)

func TestAMachineIsReadWithItsHostsShareTakenOff(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(path, text string) {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	write("sys/devices/system/node/node0/cpulist", "0-1,4-5\n")
	write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       33554432 kB\nNode 0 MemFree: 1 kB\n")
	write("sys/devices/system/node/node1/cpulist", "2,3,6,7\n")
	write("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       33554432 kB\n")
	write("sys/devices/system/node/node2/cpulist", "\n") // memory of an accelerator
	write("sys/devices/system/node/node2/meminfo", "Node 2 MemTotal:       33554432 kB\n")
	for cpu, siblings := range []string{"0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"} {
		write("sys/devices/system/cpu/cpu"+string(rune('0'+cpu))+"/topology/thread_siblings_list", siblings+"\n")
	}
	write("proc/sys/kernel/pid_max", "4194304\n")
	write("proc/sys/kernel/threads-max", "100000\n")
	m, err := container.ReadMachine(root, root, []int{1})
	require.NoError(t, err)
	require.Equal(t, []container.NUMANode{
		{ID: 0, Cores: []container.Core{{0, 4}, {1, 5}}, MemoryBytes: 30 << 30}, {ID: 1, Cores: []container.Core{{2, 6}, {3, 7}}, MemoryBytes: 30 << 30},
	}, m.Nodes)
	require.Positive(t, m.ScratchBytes)
	require.Equal(t, int64(50_000), m.Processes)

	write("sys/devices/system/node/node0/cpulist", "0-garbage\n")
	_, err = container.ReadMachine(root, root, nil)
	require.Error(t, err)
	write("sys/devices/system/node/node0/cpulist", "0-4000000000\n")
	_, err = container.ReadMachine(root, root, nil)
	require.Error(t, err)
	_, err = container.ReadMachine(t.TempDir(), root, nil)
	require.Error(t, err)
}

func TestALostGPUMovesNoOthersShare(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cards := []protocol.GPU{{UUID: "b", PCIAddress: "0000:80:00.0", NUMANode: 1}, {UUID: "a", PCIAddress: "0000:10:00.0"}}
	for _, present := range [][]protocol.GPU{cards, cards[:1], nil, cards} {
		bays, err := container.BaysOf(dir, present)
		require.NoError(t, err)
		require.Equal(t, []int{0, 1}, bays)
	}
}
