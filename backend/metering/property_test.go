package metering_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/metering"
	"github.com/leasehold/leasehold/backend/money"
)

// history draws a lease with any log: late or early delivery, overlapping outages, an early end, instants between milliseconds.
func history(t *rapid.T) *world {
	length := time.Duration(rapid.Int64Range(1, 90*24*3600).Draw(t, "seconds")) * time.Second
	w := lasting(length, rapid.IntRange(1, 4).Draw(t, "instances"))
	w.Segments[0].Rate.Micros = rapid.Int64Range(0, 20_000_000).Draw(t, "rate")
	w.Segments[0].TaxRateBPS = rapid.IntRange(0, 2_500).Draw(t, "tax")
	w.Segments[0].Terms.EarlyRefundBPS = rapid.Int64Range(0, 10_000).Draw(t, "refund")
	for seq := range rapid.IntRange(0, 4).Draw(t, "extensions") {
		more := w.Segments[0]
		more.Seq, more.Start = seq+2, w.Lease.End
		more.End, more.Rate.Micros = more.Start.Add(time.Duration(rapid.Int64Range(1, int64(length)).Draw(t, "more"))), rapid.Int64Range(0, 20_000_000).Draw(t, "rate")
		more.TaxRateBPS = rapid.SampledFrom([]int{more.TaxRateBPS, 0, 700}).Draw(t, "its tax")
		w.Segments, w.Lease.End = append(w.Segments, more), more.End
	}
	length = w.Lease.End.Sub(start)
	within := func(name string) time.Duration {
		return time.Duration(rapid.Int64Range(-int64(length)/10, int64(length)*11/10).Draw(t, name))
	}
	var moments []lease.Event
	add := func(d time.Duration, kind lease.EventType, data map[string]any) {
		moments = append(moments, lease.Event{Type: kind, At: at(d), Data: data})
	}
	add(within("active"), lease.EventActive, nil)
	for range rapid.IntRange(0, 6).Draw(t, "outages") {
		from := within("from")
		data := map[string]any{}
		if i := rapid.IntRange(-1, len(w.Allocations)-1).Draw(t, "whose"); i >= 0 {
			data["allocation"] = w.Allocations[i].ID.String()
		}
		add(from, lease.EventOutageBegan, data)
		add(from+time.Duration(rapid.Int64Range(0, int64(length)/2).Draw(t, "for")), lease.EventOutageEnded, data)
	}
	slices.SortStableFunc(moments, func(a, b lease.Event) int { return a.At.Compare(b.At) })
	for _, m := range moments {
		w.happens(m.At.Sub(start), m.Type, m.Data)
	}
	w.Lease.Outcome = rapid.SampledFrom([]lease.Outcome{lease.Completed, lease.Terminated, lease.FailedOutcome}).Draw(t, "outcome")
	end := w.Lease.End
	if w.Lease.Outcome == lease.Terminated {
		w.Lease.WantedEnd = at(max(0, within("end")))
		end = w.Lease.EffectiveEnd()
	}
	w.happens(end.Add(time.Duration(rapid.Int64Range(-int64(time.Minute), int64(time.Hour)).Draw(t, "late"))).Sub(start), lease.EventReleasing, nil)
	return w
}

func TestHoweverALeaseIsAccruedItsBillIsTheRoundingOfTheWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := history(t)
		var lines []metering.Line
		for _, d := range rapid.SliceOfN(rapid.Int64Range(0, int64(w.Lease.End.Sub(start))), 0, 12).Draw(t, "cuts") {
			run, err := metering.Accrue(w.Facts, lines, at(time.Duration(d)))
			require.NoError(t, err)
			lines = append(lines, run.Lines...)
		}
		run, err := metering.Settle(w.Facts, lines)
		require.NoError(t, err)
		lines = append(lines, run.Lines...)
		whole, err := metering.Settle(w.Facts, nil)
		require.NoError(t, err)

		most, err := metering.Total(w.Segments, w.Lease.Instances)
		require.NoError(t, err)
		net, tax := sum(lines)
		require.LessOrEqual(t, net+tax, most.Minor, "never more than the worst case")
		for _, s := range w.Segments {
			got, want := ofSegment(lines, s.Seq), ofSegment(whole.Lines, s.Seq)
			gotNet, _ := sum(got)
			wantNet, _ := sum(want)
			require.Equal(t, wantNet, gotNet, "net of segment %d", s.Seq)
			gotNet, gotTax := sum(ofRate(lines, s.TaxRateBPS))
			require.Equal(t, money.Of(gotNet, money.USD).Share(int64(s.TaxRateBPS)).Minor, gotTax, "tax is the rate's share of what it is on")
		}
		again, err := metering.Settle(w.Facts, lines)
		require.NoError(t, err)
		require.Empty(t, again.Lines, "settled is settled")
	})
}

func ofSegment(lines []metering.Line, seq int) []metering.Line {
	return slices.DeleteFunc(slices.Clone(lines), func(l metering.Line) bool { return l.Segment != seq })
}

func ofRate(lines []metering.Line, bps int) []metering.Line {
	return slices.DeleteFunc(slices.Clone(lines), func(l metering.Line) bool { return l.TaxRateBPS != bps })
}

func TestIntervalsFollowEachOtherWithoutGapOrOverlap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := history(t)
		until := at(time.Duration(rapid.Int64Range(0, int64(w.Lease.End.Sub(start))*12/10).Draw(t, "until")))
		intervals, err := metering.Intervals(w.Facts, until)
		require.NoError(t, err)
		stop := w.Events[len(w.Events)-1].At.Truncate(time.Millisecond)
		want := until.Truncate(time.Millisecond)
		if stop.Before(want) {
			want = stop
		}
		for _, a := range w.Allocations {
			reached := start
			for _, i := range intervals {
				if i.Allocation != a.ID {
					continue
				}
				require.Equal(t, reached, i.From)
				require.True(t, i.From.Before(i.To))
				reached = i.To
				if i.Class == metering.Billable {
					require.False(t, i.To.After(w.Lease.EffectiveEnd()))
				}
			}
			if want.After(start) {
				require.Equal(t, want, reached)
			}
		}
	})
}

func TestRatingAgainGivesEqualBytes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := history(t)
		one, err := metering.Settle(w.Facts, nil)
		require.NoError(t, err)
		// As another machine would see it: the log through JSON, the clock in another zone.
		other := w.Facts
		other.Events = nil
		zone := time.FixedZone("elsewhere", 5*3600+1800)
		for _, e := range w.Events {
			raw, err := json.Marshal(e.Data)
			require.NoError(t, err)
			e.Data = nil
			require.NoError(t, json.Unmarshal(raw, &e.Data))
			e.At = e.At.In(zone)
			other.Events = append(other.Events, e)
		}
		two, err := metering.Settle(other, nil)
		require.NoError(t, err)
		require.Equal(t, one.InputsDigest, two.InputsDigest)
		require.Equal(t, one.LinesDigest, two.LinesDigest)

		other.Events[0].At = other.Events[0].At.Add(time.Microsecond)
		three, err := metering.Settle(other, nil)
		require.NoError(t, err)
		require.NotEqual(t, one.InputsDigest, three.InputsDigest)
	})
}

func TestTheForecastOfAFreshLeaseIsItsWorstCaseAndOfASettledOneItsBill(t *testing.T) {
	t.Parallel()
	w := lasting(7*time.Hour, 2)
	most, err := metering.Total(w.Segments, 2)
	require.NoError(t, err)
	forecast := func(prior []metering.Line, now time.Duration) money.Amount {
		amount, err := metering.Forecast(w.Facts, prior, at(now))
		require.NoError(t, err)
		return amount
	}
	require.Equal(t, most, forecast(nil, -time.Hour))
	require.Less(t, forecast(nil, time.Hour).Minor, most.Minor, "an hour late")
	w.happens(0, lease.EventActive, nil)
	part := w.accrue(t, 3*time.Hour)
	require.Equal(t, most, forecast(part.Lines, 3*time.Hour))
	w.outage(0, 4*time.Hour, 5*time.Hour).over(7*time.Hour, lease.Completed)
	run := w.settle(t, part.Lines...)
	lines := append(part.Lines, run.Lines...)
	net, tax := sum(lines)
	require.Equal(t, net+tax, forecast(lines, 8*time.Hour).Minor)
}
