package catalog_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/money"
)

func TestEveryDefaultTypeHasALegalGeometry(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, l := range catalog.Defaults(catalog.SimulatedPace(), time.Now()) {
		require.NoError(t, l.Type.Check(), l.Type.Name)
		require.False(t, seen[l.Type.Name], l.Type.Name)
		seen[l.Type.Name] = true
		starts := l.Type.Starts(64)
		require.NotEmpty(t, starts, l.Type.Name)
		for i := 1; i < len(starts); i++ {
			require.GreaterOrEqual(t, starts[i], starts[i-1]+l.Type.Width, "%s: places of one type never overlap", l.Type.Name)
		}
	}
}

func TestAWholeNodeIsRatedByItsGPUsAndASliceByTheInstance(t *testing.T) {
	t.Parallel()
	for _, l := range catalog.Defaults(catalog.RealPace(), time.Now()) {
		switch l.Type.Name {
		case "h100-sxm.8x.ndr":
			require.EqualValues(t, 8, l.Type.UnitsPerInstance())
		case "h100-sxm.2x.ndr", "a100-sxm.mig-1g.10gb":
			require.EqualValues(t, 1, l.Type.UnitsPerInstance(), l.Type.Name)
		}
	}
}

func TestOurOwnTableDecidesMIGPlacements(t *testing.T) {
	t.Parallel()
	slice := catalog.InstanceType{Name: "x", Hardware: "h100-sxm-80gb.8", Width: 4, BayStarts: []int{0, 4}, MIGProfile: "3g.40gb"}
	require.NoError(t, slice.Check())
	require.Equal(t, []int{0, 4, 8, 12}, slice.Starts(16))

	slice.Width, slice.BayStarts = 3, []int{0, 4} // what NVML's mocks say of an H100
	require.ErrorContains(t, slice.Check(), "4 slots at [0 4]")

	one80, _ := catalog.ModelOf("a100-sxm-80gb.8")
	one40, _ := catalog.ModelOf("a100-sxm-40gb.8")
	require.Equal(t, 1, one80.MIG["1g.10gb"].Slots)
	require.Equal(t, 2, one40.MIG["1g.10gb"].Slots, "one name, two cards, two widths")
}

func TestNoLegalMixOfProfilesExceedsTheComputeSlices(t *testing.T) {
	t.Parallel()
	// A GPU has seven compute slices. The first digit of a profile is how many it takes; memory placement alone must keep any
	// mix that fits the slot line within seven.
	for _, m := range catalog.Models() {
		if m.MIG == nil {
			continue
		}
		require.LessOrEqual(t, mostCompute(m, 0), 7, m.Key)
	}
}

func mostCompute(m catalog.Model, taken int) int {
	best := 0
	for profile, p := range m.MIG {
		for _, start := range p.Starts {
			mask := (1<<p.Slots - 1) << start
			if taken&mask == 0 && taken < 1<<start { // in rising order only
				best = max(best, int(profile[0]-'0')+mostCompute(m, taken|mask))
			}
		}
	}
	return best
}

func TestModelsAreRecognisedByNameAndMemory(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	m, ok := catalog.RecogniseModel("nvidia", "NVIDIA H100 80GB HBM3", 81559*mib)
	require.True(t, ok)
	require.Equal(t, "h100-sxm-80gb.8", catalog.HardwareKey(m, 8))
	_, ok = catalog.RecogniseModel("nvidia", "NVIDIA H100 80GB HBM3", 40000*mib)
	require.False(t, ok, "a card that has half its memory is not what it says")
	_, ok = catalog.RecogniseModel("nvidia", "NVIDIA H900", 81559*mib)
	require.False(t, ok)
}

func TestAWorstCaseIsRoundedOnceForPriceAndOnceForTax(t *testing.T) {
	t.Parallel()
	cost, err := catalog.CostOf(money.Rate{Micros: 2_490_000, Currency: money.USD}, 16*8, time.Hour, 1900)
	require.NoError(t, err)
	require.Equal(t, catalog.Cost{Subtotal: money.Of(31872, "USD"), Tax: money.Of(6056, "USD"), Total: money.Of(37928, "USD")}, cost)

	_, err = catalog.CostOf(money.Rate{Micros: 1 << 62, Currency: money.USD}, 1<<40, 5000*time.Hour, 0)
	require.Error(t, err)
}
