//go:build cgo

package nvidia

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/protocol"
)

func noon() time.Time { return time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC) }

// complete gives the mock's devices what it leaves out, which is all but inventory and MIG: any other call would panic.
func complete(s *server.Server) *server.Server {
	for i, d := range s.Devices {
		device := card(d)
		device.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
			return nvml.PciInfo{Domain: 0, Bus: uint32(0xf0 - i), Device: 0}, nvml.SUCCESS
		}
		device.GetSerialFunc = func() (string, nvml.Return) { return "165", nvml.SUCCESS }
		device.GetVbiosVersionFunc = func() (string, nvml.Return) { return "", nvml.ERROR_NOT_SUPPORTED }
		device.GetNumaNodeIdFunc = func() (int, nvml.Return) { return i / 4, nvml.SUCCESS }
		device.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 0, nvml.SUCCESS }
		device.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 97}, nvml.SUCCESS }
		device.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 641_500, nvml.SUCCESS }
		device.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 61, nvml.SUCCESS }
		device.GetClockInfoFunc = func(nvml.ClockType) (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
		device.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 0, nvml.SUCCESS }
		device.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 0, false, false, nvml.SUCCESS }
	}
	return s
}

func device(s *server.Server, i int) *server.Device { return card(s.Devices[i]) }

// card is the mock behind the interface; the mock's servers make no others.
func card(d nvml.Device) *server.Device {
	c, ok := d.(*server.Device)
	if !ok {
		return nil
	}
	return c
}

func TestWithoutADriverTheLibraryIsNotCalledAgain(t *testing.T) {
	t.Parallel()
	// Every function but Init panics when it is called.
	lib := &mock.Interface{InitFunc: func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }}
	d := open(lib, noon)
	devices, err := d.Devices(t.Context())
	require.NoError(t, err)
	require.Empty(t, devices)
	require.Empty(t, d.Version())
	conditions, err := d.Health(t.Context())
	require.NoError(t, err)
	require.Equal(t, "gpu-driver-absent", conditions[0].Name)
	require.Contains(t, conditions[0].Evidence, "not installed")
	samples, err := d.Samples(t.Context())
	require.NoError(t, err)
	require.Empty(t, samples)
	_, err = d.WipeMemory(t.Context(), "GPU-1", protocol.Slots{To: 8})
	require.ErrorIs(t, err, gpu.ErrNoDriver)
	_, err = d.CreateInstance(t.Context(), "GPU-1", "1g.10gb", 0)
	require.ErrorIs(t, err, gpu.ErrNoDriver)
}

func TestAMachineWithoutTheLibraryStillGetsADriver(t *testing.T) {
	t.Parallel()
	// Whatever this machine has: it must not end the process.
	_, err := Open(noon).Devices(t.Context())
	require.NoError(t, err)
}

func TestDevicesComeInTheOrderOfTheBus(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*server.Server{"h100": dgxh100.New(), "a100": dgxa100.New()} {
		devices, err := open(complete(s), noon).Devices(t.Context())
		require.NoError(t, err, name)
		require.Len(t, devices, 8, name)
		require.Equal(t, "0000:e9:00.0", devices[0].PCIAddress)
		require.Equal(t, device(s, 7).UUID, devices[0].UUID)
		require.Equal(t, "nvidia", devices[0].Vendor)
		require.Equal(t, "165", devices[0].Serial)
		require.Empty(t, devices[0].VBIOS, "what is not supported is unknown")
		require.True(t, devices[0].MIGCapable)
		require.False(t, devices[0].MIGEnabled)
		require.Positive(t, devices[0].MemoryBytes)
	}
}

func TestAGPUThatNoLongerAnswersIsMissed(t *testing.T) {
	t.Parallel()
	s := complete(dgxh100.New())
	d := open(s, noon)
	all, err := d.Devices(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 8)
	lost := device(s, 2)
	lost.GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
	left, err := d.Devices(t.Context())
	require.NoError(t, err)
	require.Len(t, left, 7)
	conditions, err := d.Health(t.Context())
	require.NoError(t, err)
	require.Len(t, conditions, 1)
	require.Equal(t, "gpu-missing", conditions[0].Name)
	require.Equal(t, lost.UUID, conditions[0].Device)
	require.Equal(t, protocol.PreventsAllocation, conditions[0].Class)
}

func TestMemoryErrorsAreConditionsWithTheInstantOfTheirBeginning(t *testing.T) {
	t.Parallel()
	s := complete(dgxa100.New())
	now := noon()
	d := open(s, func() time.Time { return now })
	healthy, err := d.Health(t.Context())
	require.NoError(t, err)
	require.Empty(t, healthy)
	device(s, 0).GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 3, nvml.SUCCESS }
	device(s, 1).GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 1, true, true, nvml.SUCCESS }
	first, err := d.Health(t.Context())
	require.NoError(t, err)
	require.Len(t, first, 3)
	now = now.Add(time.Minute)
	second, err := d.Health(t.Context())
	require.NoError(t, err)
	require.ElementsMatch(t, first, second)
	for _, c := range second {
		require.Equal(t, noon(), c.Onset)
	}
}

func TestSamplesHoldWhatTheCardHas(t *testing.T) {
	t.Parallel()
	samples, err := open(complete(dgxh100.New()), noon).Samples(t.Context())
	require.NoError(t, err)
	require.Len(t, samples, 8)
	require.InDelta(t, 641.5, samples[0].Values["gpu_power_watts"], 0.001)
	require.NotContains(t, samples[0].Values, "gpu_sm_clock_mhz", "a meter that is not supported is not zero")
}

func TestMemoryCannotBeWipedThroughNVMLAndItSaysSo(t *testing.T) {
	t.Parallel()
	s := complete(dgxh100.New())
	row, err := open(s, noon).WipeMemory(t.Context(), device(s, 0).UUID, protocol.Slots{To: 8})
	require.NoError(t, err)
	require.Equal(t, protocol.WipeUnsupported, row.Status)
}

func migOn(s *server.Server) *server.Server {
	for i := range s.Devices {
		device(s, i).MigMode = nvml.DEVICE_MIG_ENABLE
	}
	return s
}

func TestAMIGInstanceIsMadeOnceListedAndDestroyed(t *testing.T) {
	t.Parallel()
	s := migOn(complete(dgxh100.New()))
	d := open(s, noon)
	uuid := device(s, 0).UUID
	made, err := d.CreateInstance(t.Context(), uuid, "1g.10gb", 6)
	require.NoError(t, err)
	require.Equal(t, 6, made.Start)
	require.Equal(t, 1, made.Width)
	again, err := d.CreateInstance(t.Context(), uuid, "1g.10gb", 6)
	require.NoError(t, err)
	require.Equal(t, made, again)
	_, err = d.CreateInstance(t.Context(), uuid, "1g.10gb", 7)
	require.ErrorIs(t, err, gpu.ErrPlacement)

	there, err := d.Instances(t.Context(), uuid)
	require.NoError(t, err)
	require.Equal(t, []gpu.Instance{made}, there)
	require.NoError(t, d.DestroyInstance(t.Context(), uuid, 6))
	require.NoError(t, d.DestroyInstance(t.Context(), uuid, 6))
	there, err = d.Instances(t.Context(), uuid)
	require.NoError(t, err)
	require.Empty(t, there)
}

func TestACardThatDisagreesWithOurTableGetsNoInstance(t *testing.T) {
	t.Parallel()
	// The mock's 3g is three slices wide, which no such card is.
	s := migOn(complete(dgxh100.New()))
	_, err := open(s, noon).CreateInstance(t.Context(), device(s, 0).UUID, "3g.40gb", 0)
	require.ErrorIs(t, err, gpu.ErrPlacement)
	require.ErrorContains(t, err, "our table")
}

func TestMIGIsRefusedWhileItIsOffAndForUnknownCards(t *testing.T) {
	t.Parallel()
	s := complete(dgxh100.New())
	d := open(s, noon)
	_, err := d.CreateInstance(t.Context(), device(s, 0).UUID, "1g.10gb", 0)
	require.ErrorIs(t, err, gpu.ErrUnsupported)
	_, err = d.CreateInstance(t.Context(), "GPU-none", "1g.10gb", 0)
	require.ErrorIs(t, err, gpu.ErrNotFound)
}
