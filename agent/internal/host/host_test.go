package host_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/host"
	"github.com/leasehold/leasehold/agent/protocol"
)

func machine(t *testing.T, files map[string]string) host.Machine {
	t.Helper()
	root := t.TempDir()
	for path, content := range files {
		full := filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(full), 0o755))
		require.NoError(t, os.WriteFile(full, []byte(content+"\n"), 0o644))
	}
	return host.Machine{Root: root}
}

func TestAMachineIsReadFromItsFiles(t *testing.T) {
	t.Parallel()
	m := machine(t, map[string]string{
		"proc/sys/kernel/random/boot_id": "b-1", "proc/sys/kernel/hostname": "gpu-01", "proc/sys/kernel/osrelease": "6.8.0", "proc/uptime": "12.34 99.0",
		"sys/class/dmi/id/chassis_serial": "C1", "sys/class/dmi/id/sys_vendor": "Dell Inc.", "sys/class/dmi/id/product_name": "PowerEdge XE9680",
		"proc/meminfo": "MemTotal:       2113394008 kB\nMemFree: 1 kB",
		"proc/cpuinfo": "processor\t: 0\nmodel name\t: Xeon 8480C\nphysical id\t: 0\ncore id\t: 0\n\nprocessor\t: 1\nmodel name\t: Xeon 8480C\nphysical id\t: 1\ncore id\t: 0\n\n" +
			"processor\t: 2\nmodel name\t: Xeon 8480C\nphysical id\t: 1\ncore id\t: 0\n",
		"sys/block/nvme0n1/size": "7501476528", "sys/block/nvme0n1/removable": "0", "sys/block/nvme0n1/ro": "0", "sys/block/nvme0n1/device/model": "SAMSUNG MZQL2",
		"sys/block/nvme0n1/device/serial": "S64", "sys/block/nvme0n1/device/firmware_rev": "GDC5",
		"sys/block/loop0/size": "100", "sys/block/sr0/size": "100", "sys/block/sr0/removable": "1", "sys/block/sr0/device/model": "DVD",
		"sys/block/sda/size": "0", "sys/block/sda/device/model": "empty reader",
	})
	id, err := m.BootID()
	require.NoError(t, err)
	require.Equal(t, "b-1", id)
	require.EqualValues(t, 12340, m.UptimeMillis())
	got, err := m.Inventory(t.Context())
	require.NoError(t, err)
	require.Equal(t, protocol.NodeInventory{
		Hostname: "gpu-01", Serial: "C1", Manufacturer: "Dell Inc.", Product: "PowerEdge XE9680", CPUModel: "Xeon 8480C", CPUCores: 2,
		MemoryBytes: 2113394008 * 1024, Kernel: "6.8.0", GPUs: []protocol.GPU{}, HCAs: []protocol.HCA{},
		Disks: []protocol.Disk{{Name: "nvme0n1", Model: "SAMSUNG MZQL2", Serial: "S64", Firmware: "GDC5", SizeBytes: 7501476528 * 512}},
	}, got)
}

func TestAMachineThatShowsNothingIsUnknownAndNoError(t *testing.T) {
	t.Parallel()
	m := machine(t, nil)
	got, err := m.Inventory(t.Context())
	require.NoError(t, err)
	require.Empty(t, got.Serial)
	require.Zero(t, got.CPUCores)
	_, err = m.BootID()
	require.Error(t, err)
}

func TestThisMachineCanBeRead(t *testing.T) {
	t.Parallel()
	got, err := host.Machine{Root: "/"}.Inventory(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, got.Kernel)
	require.Positive(t, got.MemoryBytes)
	require.Positive(t, got.CPUCores)
}
