package money_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/backend/money"
)

func cost(t require.TestingT, r money.Rate, unitMillis *big.Int) int64 {
	amount, err := r.Cost(unitMillis)
	require.NoError(t, err)
	require.Equal(t, r.Currency, amount.Currency)
	return amount.Minor
}

func currencies() *rapid.Generator[money.Currency] {
	return rapid.SampledFrom([]money.Currency{money.USD, money.EUR, money.CNY, money.JPY, money.KWD})
}

func TestHoweverUsageIsCutItSumsToTheRoundingOfTheWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rate := money.Rate{Micros: rapid.Int64Range(0, 100_000_000).Draw(t, "micros"), Currency: currencies().Draw(t, "currency")}
		parts := rapid.SliceOfN(rapid.Int64Range(0, 5_000_000_000), 1, 50).Draw(t, "parts")
		whole, charged := new(big.Int), int64(0)
		for _, part := range parts {
			whole.Add(whole, big.NewInt(part))
			line := cost(t, rate, whole) - charged
			require.GreaterOrEqual(t, line, int64(0), "a rate that is not negative never takes back")
			charged += line
		}
		require.Equal(t, cost(t, rate, whole), charged)
	})
}

func TestTheRoundingIsOffByAtMostHalfAMinorUnit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		num := rapid.Int64().Draw(t, "num")
		den := rapid.Int64Range(1, 1<<40).Draw(t, "den")
		got := money.RoundHalfEven(big.NewInt(num), big.NewInt(den))
		// |2·(got·den − num)| ≤ den, and on a tie got is even.
		off := new(big.Int).Mul(got, big.NewInt(den))
		off.Sub(off, big.NewInt(num)).Abs(off).Lsh(off, 1)
		require.LessOrEqual(t, off.Cmp(big.NewInt(den)), 0)
		if off.Cmp(big.NewInt(den)) == 0 {
			require.Zero(t, got.Bit(0), "a tie goes to the even neighbour")
		}
	})
}

func TestTiesGoToTheEvenNeighbour(t *testing.T) {
	t.Parallel()
	for num, want := range map[int64]int64{1: 0, 3: 2, 5: 2, 7: 4, -1: 0, -3: -2, -5: -2, -7: -4, 4: 2, -4: -2} {
		require.Equal(t, want, money.RoundHalfEven(big.NewInt(num), big.NewInt(2)).Int64(), "%d/2", num)
	}
}

func TestKnownCosts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		rate   money.Rate
		units  int64
		length time.Duration
		want   int64
	}{
		{"2.4999 USD for 720 h, rounded once", money.Rate{Micros: 2_499_900, Currency: money.USD}, 1, 720 * time.Hour, 179_993},
		{"64 nodes of 8 GPUs for 182 days at 10 USD is past int64 before the division", money.Rate{Micros: 10_000_000, Currency: money.USD}, 64 * 8, 182 * 24 * time.Hour, 2_236_416_000},
		{"the yen has no minor unit", money.Rate{Micros: 350_500_000, Currency: money.JPY}, 1, 3 * time.Hour, 1_052}, // 1,051.5, and 1,052 is even
		{"the dinar has three digits", money.Rate{Micros: 769_123, Currency: money.KWD}, 1, time.Hour, 769},
		{"a third of a cent, 10,000 times", money.Rate{Micros: 3_333, Currency: money.USD}, 10_000, time.Hour, 3_333},
		{"half a cent is a tie: down to 0", money.Rate{Micros: 5_000, Currency: money.USD}, 1, time.Hour, 0},
		{"one and a half: up to 2", money.Rate{Micros: 15_000, Currency: money.USD}, 1, time.Hour, 2},
		{"less than a millisecond is nothing", money.Rate{Micros: 1_000_000_000_000, Currency: money.USD}, 1, 999 * time.Microsecond, 0},
		{"nothing", money.Rate{Micros: 1, Currency: money.USD}, 0, time.Hour, 0},
	} {
		require.Equal(t, c.want, cost(t, c.rate, money.UnitMillis(c.units, c.length)), c.name)
	}
}

func TestACostBeyondTheRangeIsAnErrorAndNeverWraps(t *testing.T) {
	t.Parallel()
	huge := new(big.Int).Lsh(big.NewInt(1), 100)
	_, err := money.Rate{Micros: 1 << 62, Currency: money.USD}.Cost(huge)
	require.ErrorContains(t, err, "range")
	_, err = money.Rate{Micros: 1, Currency: "XXX"}.Cost(huge)
	require.ErrorContains(t, err, "not supported")
}

func TestAShareAndItsRestAreTheWhole(t *testing.T) {
	t.Parallel()
	require.Equal(t, int64(1_900), money.Of(10_000, money.EUR).Share(1_900).Minor)
	rapid.Check(t, func(t *rapid.T) {
		amount := money.Of(rapid.Int64Range(-1<<50, 1<<50).Draw(t, "minor"), money.USD)
		bps := rapid.Int64Range(0, 10_000).Draw(t, "bps")
		share := amount.Share(bps)
		require.Equal(t, amount, share.Add(amount.Sub(share)))
		require.Equal(t, amount, amount.Share(10_000))
		require.True(t, amount.Share(0).IsZero())
		require.Equal(t, share.Neg(), amount.Neg().Share(bps), "half-even has no bias of sign")
	})
}

func TestAmountsAndRatesAreWrittenForPeople(t *testing.T) {
	t.Parallel()
	for want, amount := range map[string]money.Amount{
		"0.00 USD":                       money.Of(0, money.USD),
		"0.05 USD":                       money.Of(5, money.USD),
		"-0.05 USD":                      money.Of(-5, money.USD),
		"1,234.50 USD":                   money.Of(123_450, money.USD),
		"-1,234,567.89 EUR":              money.Of(-123_456_789, money.EUR),
		"999 JPY":                        money.Of(999, money.JPY),
		"1,000 JPY":                      money.Of(1_000, money.JPY),
		"0.001 KWD":                      money.Of(1, money.KWD),
		"1,000.000 KWD":                  money.Of(1_000_000, money.KWD),
		"-92,233,720,368,547,758.08 CNY": money.Of(-1<<63, money.CNY),
		"7 minor units XXX":              money.Of(7, "XXX"),
	} {
		require.Equal(t, want, amount.String())
	}
	for want, rate := range map[string]money.Rate{
		"2.4999 USD":   {Micros: 2_499_900, Currency: money.USD},
		"10.00 USD":    {Micros: 10_000_000, Currency: money.USD},
		"0.000001 EUR": {Micros: 1, Currency: money.EUR},
	} {
		require.Equal(t, want, rate.String())
	}
}

func TestCurrenciesNeverMix(t *testing.T) {
	t.Parallel()
	require.Panics(t, func() { money.Of(1, money.USD).Add(money.Of(1, money.EUR)) })
	require.Panics(t, func() { money.Of(1, money.USD).Sub(money.Of(1, money.EUR)) })
}
