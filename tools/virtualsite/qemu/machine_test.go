package qemu_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/tools/virtualsite/qemu"
)

// machine is a virtual machine with an empty disk and nothing to boot from the network.
func machine(t *testing.T) *qemu.Machine {
	t.Helper()
	cache := os.Getenv("LEASEHOLD_CACHE")
	if _, _, err := qemu.Find("qemu-system-x86_64", filepath.Join(cache, "debian")); err != nil {
		t.Skip("QEMU is not installed (tools/setup qemu)")
	}
	m, err := qemu.New(t.Context(), qemu.Config{
		Name: "m1", Dir: t.TempDir(), UUID: "7f1c9c52-0000-4000-8000-000000000001", Serial: "SN1", MAC: "52:54:00:00:00:01", MemoryMiB: 128, DiskBytes: 64 << 20,
	}, filepath.Join(cache, "debian"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.TurnOff(context.Background()) })
	return m
}

func TestAMachineIsOnUntilItsPowerIsCut(t *testing.T) {
	t.Parallel()
	m := machine(t)
	require.False(t, m.On())
	require.Error(t, m.PressPower(t.Context()))
	for range 2 {
		require.NoError(t, m.TurnOn(t.Context(), []qemu.Source{qemu.Network, qemu.Disk}, func(bool) { t.Error("it lost power by itself") }))
		require.NoError(t, m.TurnOn(t.Context(), []qemu.Source{qemu.Disk}, nil), "one that is on stays on")
		require.True(t, m.On())
		require.NoError(t, m.PressPower(t.Context()), "nobody listens yet, which is no error")
		require.NoError(t, m.TurnOff(t.Context()))
		require.False(t, m.On())
	}
	size, err := os.Stat(m.Disk())
	require.NoError(t, err)
	require.EqualValues(t, 64<<20, size.Size())
}

func TestWhatAMachineWritesToItsConsoleIsKept(t *testing.T) {
	t.Parallel()
	m := machine(t)
	// A boot sector that writes L to the serial port and halts.
	sector := make([]byte, 512)
	copy(sector, []byte{0xba, 0xf8, 0x03, 0xb0, 'L', 0xee, 0xf4, 0xeb, 0xfd})
	sector[510], sector[511] = 0x55, 0xaa
	disk, err := os.OpenFile(m.Disk(), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = disk.Write(sector)
	require.NoError(t, err)
	require.NoError(t, disk.Close())
	require.NoError(t, m.TurnOn(t.Context(), []qemu.Source{qemu.Disk}, nil))
	require.Eventually(t, func() bool {
		said, err := os.ReadFile(m.Console())
		return err == nil && strings.Contains(string(said), "L")
	}, time.Minute, 100*time.Millisecond)
}
