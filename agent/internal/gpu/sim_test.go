package gpu_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/protocol"
)

func noon() time.Time { return time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC) }

func cards(model string, mig bool, n int) []protocol.GPU {
	var out []protocol.GPU
	for i := range n {
		id := string(rune('a' + i))
		out = append(out, protocol.GPU{
			UUID: "GPU-" + id, Vendor: "nvidia", Model: model, MemoryBytes: 80 << 30, PCIAddress: "0000:" + id + "0:00.0", MIGCapable: true, MIGEnabled: mig,
		})
	}
	return out
}

func newSim(t require.TestingT, file string, mig bool) *gpu.Sim {
	s, err := gpu.NewSim(gpu.SimConfig{GPUs: cards("NVIDIA H100 80GB HBM3", mig, 2), Version: "1", StateFile: file, Now: noon})
	require.NoError(t, err)
	return s
}

func TestThePlacementTablesAreNVIDIAs(t *testing.T) {
	t.Parallel()
	h100 := gpu.PlacementsOf("NVIDIA H100 80GB HBM3")
	require.Equal(t, gpu.Placement{Width: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}}, h100["1g.10gb"])
	require.Equal(t, gpu.Placement{Width: 2, Starts: []int{0, 2, 4, 6}}, h100["1g.20gb"])
	require.Equal(t, gpu.Placement{Width: 2, Starts: []int{0, 2, 4}}, h100["2g.20gb"])
	require.Equal(t, gpu.Placement{Width: 4, Starts: []int{0, 4}}, h100["3g.40gb"])
	require.Equal(t, gpu.Placement{Width: 4, Starts: []int{0}}, h100["4g.40gb"])
	require.Equal(t, gpu.Placement{Width: 8, Starts: []int{0}}, h100["7g.80gb"])
	require.Equal(t, 1, gpu.PlacementsOf("NVIDIA A100-SXM4-40GB")["1g.5gb"].Width)
	require.Equal(t, 2, gpu.PlacementsOf("NVIDIA A100-SXM4-40GB")["1g.10gb"].Width, "double memory on the small card, single on the large one")
	require.Nil(t, gpu.PlacementsOf("NVIDIA GeForce RTX 4090"))
}

// Whatever is asked for in whatever order: what stands is legal, and nothing that would fit is refused.
func TestNoOrderOfRequestsMakesAnImpossibleLayout(t *testing.T) {
	t.Parallel()
	table := gpu.PlacementsOf("NVIDIA H100 80GB HBM3")
	profiles := []string{"1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "5g.50gb", ""}
	rapid.Check(t, func(t *rapid.T) {
		s := newSim(t, "", true)
		for range rapid.IntRange(1, 30).Draw(t, "requests") {
			profile, start := rapid.SampledFrom(profiles).Draw(t, "profile"), rapid.IntRange(-1, 9).Draw(t, "start")
			before, err := s.Instances(t.Context(), "GPU-a")
			require.NoError(t, err)
			if rapid.IntRange(0, 3).Draw(t, "destroy") == 0 {
				require.NoError(t, s.DestroyInstance(t.Context(), "GPU-a", start))
				continue
			}
			made, err := s.CreateInstance(t.Context(), "GPU-a", profile, start)
			if err == nil {
				require.Equal(t, table[profile].Width, made.Width)
				continue
			}
			require.ErrorIs(t, err, gpu.ErrPlacement)
			after, listErr := s.Instances(t.Context(), "GPU-a")
			require.NoError(t, listErr)
			require.Equal(t, before, after, "a refused request changed something")
		}
		there, err := s.Instances(t.Context(), "GPU-a")
		require.NoError(t, err)
		taken := map[int]bool{}
		for _, i := range there {
			require.Contains(t, table[i.Profile].Starts, i.Start)
			for slice := i.Start; slice < i.Start+i.Width; slice++ {
				require.False(t, taken[slice])
				require.Less(t, slice, 8)
				taken[slice] = true
			}
		}
	})
}

func TestMIGIsRefusedWhereItIsOff(t *testing.T) {
	t.Parallel()
	_, err := newSim(t, "", false).CreateInstance(t.Context(), "GPU-a", "1g.10gb", 0)
	require.ErrorIs(t, err, gpu.ErrUnsupported)
	_, err = newSim(t, "", true).CreateInstance(t.Context(), "GPU-none", "1g.10gb", 0)
	require.ErrorIs(t, err, gpu.ErrNotFound)
}

func TestAWipeClearsItsSlicesOnlyAndAFailedOneIsSeen(t *testing.T) {
	t.Parallel()
	s := newSim(t, "", true)
	require.NoError(t, s.Occupy("GPU-a", protocol.Slots{From: 0, To: 4}, "lease_a"))
	require.NoError(t, s.Occupy("GPU-a", protocol.Slots{From: 4, To: 8}, "lease_b"))
	row, err := s.WipeMemory(t.Context(), "GPU-a", protocol.Slots{From: 0, To: 4})
	require.NoError(t, err)
	require.Equal(t, protocol.Wiped, row.Status)
	require.Positive(t, row.ReadBackSamples)
	require.Equal(t, []string{"lease_b"}, s.Holds("GPU-a"))

	s.FailWipes("GPU-a")
	row, err = s.WipeMemory(t.Context(), "GPU-a", protocol.Slots{From: 4, To: 8})
	require.NoError(t, err)
	require.Equal(t, protocol.WipeFailed, row.Status)
	require.Equal(t, row.ReadBackSamples, row.ReadBackDirty)
	s.Heal()
	row, err = s.WipeMemory(t.Context(), "GPU-a", protocol.Slots{From: 4, To: 8})
	require.NoError(t, err)
	require.Equal(t, protocol.Wiped, row.Status)
	require.Empty(t, s.Holds("GPU-a"))
}

func TestLayoutAndMemoryOutliveTheProcess(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "gpus.json")
	s := newSim(t, file, true)
	made, err := s.CreateInstance(t.Context(), "GPU-b", "3g.40gb", 4)
	require.NoError(t, err)
	require.NoError(t, s.Occupy("GPU-b", protocol.Slots{From: 4, To: 8}, "lease_a"))
	again := newSim(t, file, true)
	there, err := again.Instances(t.Context(), "GPU-b")
	require.NoError(t, err)
	require.Equal(t, []gpu.Instance{made}, there)
	require.Equal(t, []string{"lease_a"}, again.Holds("GPU-b"))
}

func TestALostGPUIsGoneAndItsNeighboursAreNot(t *testing.T) {
	t.Parallel()
	s := newSim(t, "", false)
	s.Lose("GPU-a")
	devices, err := s.Devices(t.Context())
	require.NoError(t, err)
	require.Len(t, devices, 1)
	_, err = s.WipeMemory(t.Context(), "GPU-a", protocol.Slots{To: 8})
	require.ErrorIs(t, err, gpu.ErrNotFound)
	conditions, err := s.Health(t.Context())
	require.NoError(t, err)
	require.Equal(t, "gpu-xid-79", conditions[0].Name)
	require.Contains(t, conditions[0].Evidence, "0000:a0:00")
}

func TestBusyGPUsWorkAndIdleOnesDoNot(t *testing.T) {
	t.Parallel()
	s := newSim(t, "", false)
	require.NoError(t, s.Occupy("GPU-a", protocol.Slots{To: 8}, "lease_a"))
	samples, err := s.Samples(t.Context())
	require.NoError(t, err)
	require.Greater(t, samples[0].Values["gpu_utilization_percent"], 80.0)
	require.LessOrEqual(t, samples[0].Values["gpu_power_watts"], 700.0)
	require.Zero(t, samples[1].Values["gpu_utilization_percent"])
	require.Less(t, samples[1].Values["gpu_power_watts"], 100.0)
}

func TestBaysAreCountedByBusAddressAndCutIntoSlices(t *testing.T) {
	t.Parallel()
	devices := cards("NVIDIA H100 80GB HBM3", false, 3)
	devices[0], devices[2] = devices[2], devices[0]
	bays, err := gpu.Bays(devices, protocol.Slots{From: 4, To: 18})
	require.NoError(t, err)
	require.Len(t, bays, 3)
	require.Equal(t, "GPU-a", bays[0].GPU.UUID)
	require.Equal(t, protocol.Slots{From: 4, To: 8}, bays[0].Slices)
	require.Equal(t, protocol.Slots{From: 0, To: 8}, bays[1].Slices)
	require.Equal(t, protocol.Slots{From: 0, To: 2}, bays[2].Slices)
	_, err = gpu.Bays(devices, protocol.Slots{From: 0, To: 32})
	require.ErrorIs(t, err, gpu.ErrNotFound)
}
