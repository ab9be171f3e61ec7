package metering_test

import (
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/metering"
	"github.com/leasehold/leasehold/backend/money"
)

// start is the night in which Europe's clocks go forward: nothing here may care.
//
//nolint:gochecknoglobals // a constant that Go cannot spell as one
var start = time.Date(2026, 3, 28, 23, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return start.Add(d) }

// world is a lease under construction.
type world struct{ metering.Facts }

// lasting is a lease of n instances of 8 GPUs for 24 h at 2.4999 USD, 19 % tax, rated per GPU.
func lasting(length time.Duration, n int) *world {
	w := &world{metering.Facts{
		Lease: lease.Lease{
			ID: ids.Make[ids.Lease](), Instances: n, Start: start, End: at(length), Currency: money.USD, Outcome: lease.NoOutcome,
		},
		Product: "h100-sxm.8x.ndr",
		Segments: []lease.Segment{{
			Seq: 1, Start: start, End: at(length), Rate: money.Rate{Micros: 2_499_900, Currency: money.USD}, TaxRateBPS: 1_900,
			Terms: lease.Terms{RatedPer: "gpu", UnitsPerInstance: 8},
		}},
	}}
	for i := range n {
		w.Allocations = append(w.Allocations, lease.Allocation{ID: ids.Make[ids.Allocation](), Ordinal: i})
	}
	return w
}

func (w *world) happens(d time.Duration, kind lease.EventType, data map[string]any) *world {
	w.Events = append(w.Events, lease.Event{Lease: w.Lease.ID, Seq: int64(len(w.Events) + 1), Type: kind, At: at(d), Data: data})
	return w
}

func (w *world) outage(i int, from, to time.Duration) *world {
	data := map[string]any{"allocation": w.Allocations[i].ID.String()}
	w.happens(from, lease.EventOutageBegan, data)
	return w.happens(to, lease.EventOutageEnded, data)
}

// over ends the lease at d with the outcome.
func (w *world) over(d time.Duration, outcome lease.Outcome) *world {
	w.Lease.Outcome = outcome
	return w.happens(d, lease.EventReleasing, map[string]any{"outcome": string(outcome)})
}

func (w *world) settle(t *testing.T, prior ...metering.Line) metering.Run {
	t.Helper()
	run, err := metering.Settle(w.Facts, prior)
	require.NoError(t, err)
	return run
}

func (w *world) accrue(t *testing.T, d time.Duration, prior ...metering.Line) metering.Run {
	t.Helper()
	run, err := metering.Accrue(w.Facts, prior, at(d))
	require.NoError(t, err)
	return run
}

// shape shortens intervals to what a test wants to see.
type shape struct {
	Class    metering.Class
	From, To time.Duration
}

func shapes(t *testing.T, intervals []metering.Interval, of ids.Allocation) []shape {
	t.Helper()
	var out []shape
	for _, i := range intervals {
		if i.Allocation == of {
			out = append(out, shape{i.Class, i.From.Sub(start), i.To.Sub(start)})
		}
	}
	return out
}

func sum(lines []metering.Line) (int64, int64) {
	net, tax := int64(0), int64(0)
	for _, l := range lines {
		net, tax = net+l.Amount.Minor, tax+l.Tax.Minor
	}
	return net, tax
}

// nodeCost is what a node of 8 GPUs costs for that long.
func nodeCost(t *testing.T, d time.Duration) int64 {
	t.Helper()
	cost, err := money.Rate{Micros: 2_499_900, Currency: money.USD}.Cost(money.UnitMillis(8, d))
	require.NoError(t, err)
	return cost.Minor
}

func TestAThirtyDayLeaseCostsTheRoundingOfTheWhole(t *testing.T) {
	t.Parallel()
	w := lasting(720*time.Hour, 1).happens(0, lease.EventActive, nil)
	w.Segments[0].Terms = lease.Terms{RatedPer: "instance", UnitsPerInstance: 1}
	w.over(720*time.Hour, lease.Completed)
	var lines []metering.Line
	for hour := range 720 {
		lines = append(lines, w.accrue(t, time.Duration(hour+1)*time.Hour, lines...).Lines...)
	}
	require.Len(t, lines, 720)
	net, tax := sum(lines)
	require.Equal(t, int64(179_993), net)
	require.Equal(t, money.Of(179_993, money.USD).Share(1_900).Minor, tax)
	require.Empty(t, w.settle(t, lines...).Lines, "nothing is left to charge")
	require.Equal(t, "instance_milliseconds", lines[0].Unit)
	require.Equal(t, lines[0].To, lines[1].From)
	require.Equal(t, 720, lines[719].Seq)

	whole := w.settle(t)
	require.Len(t, whole.Lines, 1)
	require.Equal(t, int64(179_993), whole.Lines[0].Amount.Minor)
}

func TestTenThousandThirdsOfACentAreNotNothing(t *testing.T) {
	t.Parallel()
	w := lasting(10_000*time.Hour, 1).happens(0, lease.EventActive, nil)
	w.Segments[0].Rate.Micros = 3_333
	w.Segments[0].Terms = lease.Terms{RatedPer: "instance", UnitsPerInstance: 1}
	var lines []metering.Line
	prior := 0
	for hour := range 10_000 {
		lines = append(lines, w.accrue(t, time.Duration(hour+1)*time.Hour, lines...).Lines...)
		prior = max(prior, len(lines))
	}
	net, _ := sum(lines)
	require.Equal(t, int64(3_333), net)
	require.Len(t, lines, 3_333, "an hour that rounds to nothing waits for the next line")
}

func TestLateDeliveryIsNotBilledAndNeitherIsGrace(t *testing.T) {
	t.Parallel()
	w := lasting(2*time.Hour, 1).happens(10*time.Minute, lease.EventActive, nil).over(125*time.Minute, lease.Completed)
	run := w.settle(t)
	require.Equal(t, []shape{
		{metering.Provisioning, 0, 10 * time.Minute},
		{metering.Billable, 10 * time.Minute, 2 * time.Hour},
		{metering.Grace, 2 * time.Hour, 125 * time.Minute},
	}, shapes(t, run.Intervals, w.Allocations[0].ID))
	net, _ := sum(run.Lines)
	require.Equal(t, nodeCost(t, 110*time.Minute), net)
}

func TestAccessBeforeTheStartIsFree(t *testing.T) {
	t.Parallel()
	w := lasting(time.Hour, 1).happens(-5*time.Minute, lease.EventActive, nil).over(time.Hour, lease.Completed)
	require.Equal(t, []shape{{metering.Billable, 0, time.Hour}}, shapes(t, w.settle(t).Intervals, w.Allocations[0].ID))
}

func TestOneOfSixteenNodesOutForThirtySevenMinutes(t *testing.T) {
	t.Parallel()
	w := lasting(24*time.Hour, 16).happens(0, lease.EventActive, nil)
	w.outage(3, 5*time.Hour, 5*time.Hour+37*time.Minute).over(24*time.Hour, lease.Completed)
	run := w.settle(t)
	net, _ := sum(run.Lines)
	whole := money.UnitMillis(16*8, 24*time.Hour)
	whole.Sub(whole, money.UnitMillis(8, 37*time.Minute))
	want, err := w.Segments[0].Rate.Cost(whole)
	require.NoError(t, err)
	require.Equal(t, want.Minor, net)
	require.Equal(t, whole, run.Lines[0].Quantity)
	for _, i := range run.Intervals {
		if i.Class == metering.Outage {
			require.Equal(t, []string{w.Lease.ID.String() + "#2", w.Lease.ID.String() + "#3"}, i.Evidence)
		}
	}
}

func TestOverlappingOutagesAreAUnionAndNotASum(t *testing.T) {
	t.Parallel()
	w := lasting(4*time.Hour, 1).happens(0, lease.EventActive, nil)
	w.happens(60*time.Minute, lease.EventOutageBegan, nil) // the whole lease's
	w.outage(0, 70*time.Minute, 100*time.Minute)
	w.happens(90*time.Minute, lease.EventOutageEnded, nil)
	w.outage(0, 100*time.Minute, 110*time.Minute) // touches
	w.happens(3*time.Hour, lease.EventOutageBegan, map[string]any{"allocation": w.Allocations[0].ID.String(), "cause": "tenant"})
	w.happens(200*time.Minute, lease.EventOutageEnded, map[string]any{"allocation": w.Allocations[0].ID.String()})
	w.outage(0, 230*time.Minute, 300*time.Minute) // reaches past the end
	w.over(4*time.Hour, lease.Completed)
	require.Equal(t, []shape{
		{metering.Billable, 0, 60 * time.Minute},
		{metering.Outage, 60 * time.Minute, 110 * time.Minute},
		{metering.Billable, 110 * time.Minute, 230 * time.Minute},
		{metering.Outage, 230 * time.Minute, 4 * time.Hour},
	}, shapes(t, w.settle(t).Intervals, w.Allocations[0].ID))
}

func TestAnOutageThatNobodyEndedLastsUntilTheLeaseEnds(t *testing.T) {
	t.Parallel()
	w := lasting(2*time.Hour, 1).happens(0, lease.EventActive, nil)
	w.happens(time.Hour, lease.EventOutageBegan, map[string]any{"allocation": w.Allocations[0].ID.String()})
	net, _ := sum(w.accrue(t, 90*time.Minute).Lines)
	require.Equal(t, nodeCost(t, time.Hour), net)
	w.over(2*time.Hour, lease.FailedOutcome)
	net, _ = sum(w.settle(t).Lines)
	require.Equal(t, nodeCost(t, time.Hour), net)
}

func TestAReplacementIsBilledFromItsOwnDelivery(t *testing.T) {
	t.Parallel()
	w := lasting(10*time.Hour, 2).happens(0, lease.EventActive, nil)
	left, came := w.Allocations[0], lease.Allocation{ID: ids.Make[ids.Allocation](), Ordinal: 0}
	w.happens(2*time.Hour, lease.EventOutageBegan, map[string]any{"allocation": left.ID.String()})
	w.happens(3*time.Hour, lease.EventNodeReplaced, map[string]any{"allocation": left.ID.String(), "by": came.ID.String()})
	w.happens(4*time.Hour, lease.EventOutageEnded, map[string]any{"allocation": came.ID.String()})
	w.Allocations[0].ReplacedBy = came.ID
	w.Allocations = append(w.Allocations, came)
	w.over(10*time.Hour, lease.Completed)
	run := w.settle(t)
	require.Equal(t, []shape{{metering.Billable, 0, 2 * time.Hour}, {metering.Outage, 2 * time.Hour, 3 * time.Hour}}, shapes(t, run.Intervals, left.ID))
	require.Equal(t, []shape{{metering.Outage, 3 * time.Hour, 4 * time.Hour}, {metering.Billable, 4 * time.Hour, 10 * time.Hour}}, shapes(t, run.Intervals, came.ID))
	net, _ := sum(run.Lines)
	require.Equal(t, nodeCost(t, 18*time.Hour), net)
}

func TestANodeReplacedBeforeDeliveryIsJustNotDeliveredYet(t *testing.T) {
	t.Parallel()
	w := lasting(3*time.Hour, 1)
	left, came := w.Allocations[0], lease.Allocation{ID: ids.Make[ids.Allocation]()}
	w.happens(10*time.Minute, lease.EventNodeReplaced, map[string]any{"allocation": left.ID.String(), "by": came.ID.String()})
	w.Allocations[0].ReplacedBy = came.ID
	w.Allocations = append(w.Allocations, came)
	w.happens(20*time.Minute, lease.EventActive, nil).over(3*time.Hour, lease.Completed)
	run := w.settle(t)
	require.Equal(t, []shape{{metering.Provisioning, 0, 10 * time.Minute}}, shapes(t, run.Intervals, left.ID))
	require.Equal(t, []shape{{metering.Provisioning, 10 * time.Minute, 20 * time.Minute}, {metering.Billable, 20 * time.Minute, 3 * time.Hour}}, shapes(t, run.Intervals, came.ID))
}

func TestALogThatContradictsTheRowsIsNotGuessedFrom(t *testing.T) {
	t.Parallel()
	w := lasting(time.Hour, 1).happens(0, lease.EventActive, nil)
	_, err := metering.Settle(w.Facts, nil)
	require.ErrorContains(t, err, "lease.releasing", "it is not over")
	w.Allocations[0].ReplacedBy = ids.Make[ids.Allocation]()
	_, err = metering.Accrue(w.Facts, nil, at(time.Hour))
	require.ErrorContains(t, err, "does not say when")
	w.happens(1, lease.EventNodeReplaced, map[string]any{"allocation": "garbage"})
	_, err = metering.Accrue(w.Facts, nil, at(time.Hour))
	require.Error(t, err)
}

func TestALeaseThatWasNeverDeliveredCostsNothing(t *testing.T) {
	t.Parallel()
	w := lasting(time.Hour, 2).over(40*time.Minute, lease.FailedOutcome)
	run := w.settle(t)
	require.Empty(t, run.Lines)
	require.Equal(t, []shape{{metering.Provisioning, 0, 40 * time.Minute}}, shapes(t, run.Intervals, w.Allocations[1].ID))
}

func TestAnExtensionIsChargedAtItsOwnPrice(t *testing.T) {
	t.Parallel()
	w := lasting(2*time.Hour, 1).happens(0, lease.EventActive, nil)
	more := w.Segments[0]
	more.Seq, more.Start, more.End, more.Rate.Micros, more.TaxRateBPS = 2, at(2*time.Hour), at(5*time.Hour), 3_000_000, 2_000
	w.Segments, w.Lease.End = append(w.Segments, more), at(5*time.Hour)
	early := w.accrue(t, time.Hour)
	require.Len(t, early.Lines, 1)
	w.over(5*time.Hour, lease.Completed)
	run := w.settle(t, early.Lines...)
	require.Len(t, run.Lines, 2)
	require.Equal(t, 1, run.Lines[0].Segment)
	require.Equal(t, 2, run.Lines[0].Seq)
	require.Equal(t, int64(7_200), run.Lines[1].Amount.Minor)
	require.Equal(t, int64(1_440), run.Lines[1].Tax.Minor)
	require.Equal(t, at(2*time.Hour), run.Lines[1].From)
	require.Equal(t, at(5*time.Hour), run.Lines[1].To)
	net, _ := sum(append(early.Lines, run.Lines...))
	require.Equal(t, nodeCost(t, 2*time.Hour)+7_200, net)
}

func TestAnEarlyEndChargesThePartThatIsNotGivenBack(t *testing.T) {
	t.Parallel()
	w := lasting(10*time.Hour, 1).happens(0, lease.EventActive, nil)
	w.Segments[0].Rate.Micros = 1_000_000 // 8 GPUs: 8 USD an hour, 80 USD in all
	w.Segments[0].Terms.EarlyRefundBPS = 7_500
	told, err := metering.End(w.Facts, nil, at(4*time.Hour))
	require.NoError(t, err)
	w.Lease.WantedEnd = at(4 * time.Hour)
	w.happens(4*time.Hour, lease.EventTerminateAsked, map[string]any{"end": w.Lease.WantedEnd.Format(time.RFC3339)})
	w.over(4*time.Hour+30*time.Second, lease.Terminated)
	run := w.settle(t)
	require.Len(t, run.Lines, 2)
	usage, fee := run.Lines[0], run.Lines[1]
	require.Equal(t, int64(3_200), usage.Amount.Minor)
	require.Equal(t, metering.Fee, fee.Kind)
	require.Equal(t, int64(1_200), fee.Amount.Minor, "a quarter of the 48 USD unused")
	require.Equal(t, "Early end: 25.00 % of the unused time", fee.Description)
	require.Equal(t, money.UnitMillis(8, 6*time.Hour), fee.Quantity)
	_, tax := sum(run.Lines)
	require.Equal(t, int64(836), tax)

	require.Equal(t, int64(1_428), fee.Gross().Minor)
	require.Equal(t, run.LinesDigest, told.LinesDigest, "what the customer is told is what is charged")
	require.Empty(t, w.settle(t, run.Lines...).Lines, "a fee is charged once")
}

func TestCancellingBeforeDeliveryFollowsTheSchedule(t *testing.T) {
	t.Parallel()
	schedule := []lease.RefundStep{{NoticeSeconds: 3_600, RefundBPS: 10_000}, {NoticeSeconds: 600, RefundBPS: 5_000}}
	for _, c := range []struct {
		name  string
		asked time.Duration
		told  any
		want  int64
	}{
		{"two hours before: all comes back", -2 * time.Hour, nil, 0},
		{"half an hour before: half", -30 * time.Minute, nil, 476},
		{"a minute before: nothing", -time.Minute, nil, 952},
		{"after the start, undelivered: our fault", time.Minute, nil, 0},
		{"what the customer was told counts", -time.Minute, float64(852), 100},
	} {
		w := lasting(time.Hour, 1) // 8 USD and 1.52 tax
		w.Segments[0].Rate.Micros, w.Segments[0].Terms.RefundSchedule = 1_000_000, schedule
		data := map[string]any{}
		if c.told != nil {
			data["refund_minor"] = c.told
		}
		w.happens(c.asked, lease.EventCancelAsked, data)
		w.over(max(c.asked, 0)+time.Second, lease.CancelledOutcome)
		run := w.settle(t)
		net, tax := sum(run.Lines)
		require.Equal(t, c.want, net+tax, c.name)
	}
}

func TestWhatIsKeptOfACancellationSumsToTheCent(t *testing.T) {
	t.Parallel()
	w := lasting(time.Hour, 3)
	second := w.Segments[0]
	second.Seq, second.Start, second.End, second.TaxRateBPS, second.Rate.Micros = 2, at(time.Hour), at(4*time.Hour), 0, 7_777_777
	w.Segments = append(w.Segments, second)
	total, err := metering.Total(w.Segments, 3)
	require.NoError(t, err)
	for _, kept := range []int64{1, 2, 3, 999, total.Minor - 1, total.Minor} {
		run, err := metering.Keep(w.Facts, money.Of(kept, money.USD), start)
		require.NoError(t, err)
		net, tax := sum(run.Lines)
		require.Equal(t, kept, net+tax)
	}
}

func TestFactsThatShrinkAfterwardsAreCorrectedByName(t *testing.T) {
	t.Parallel()
	w := lasting(4*time.Hour, 1).happens(0, lease.EventActive, nil)
	first := w.accrue(t, 2*time.Hour)
	w.outage(0, time.Hour, 110*time.Minute) // an event that waited for the lease's lock while the accrual held it
	second := w.accrue(t, 2*time.Hour, first.Lines...)
	require.Len(t, second.Lines, 1)
	fix := second.Lines[0]
	require.Equal(t, metering.Correction, fix.Kind)
	require.Equal(t, 1, fix.Corrects)
	require.Equal(t, nodeCost(t, 70*time.Minute)-nodeCost(t, 2*time.Hour), fix.Amount.Minor)
	require.Equal(t, new(big.Int).Neg(money.UnitMillis(8, 50*time.Minute)), fix.Quantity)
	require.Negative(t, fix.Tax.Minor)
	w.over(4*time.Hour, lease.Completed)
	lines := append(first.Lines, second.Lines...)
	lines = append(lines, w.settle(t, lines...).Lines...)
	net, _ := sum(lines)
	require.Equal(t, nodeCost(t, 190*time.Minute), net)
}

func TestTheTwentyNinthOfFebruaryIsADay(t *testing.T) {
	t.Parallel()
	w := lasting(time.Hour, 1)
	w.Lease.Start = time.Date(2028, 2, 28, 0, 0, 0, 0, time.UTC)
	w.Lease.End = time.Date(2028, 3, 1, 0, 0, 0, 0, time.UTC)
	w.Segments[0].Start, w.Segments[0].End = w.Lease.Start, w.Lease.End
	w.happens(w.Lease.Start.Sub(start), lease.EventActive, nil)
	w.over(w.Lease.End.Sub(start), lease.Completed)
	require.Equal(t, money.UnitMillis(8, 48*time.Hour), w.settle(t).Lines[0].Quantity)
}

func TestExtendingASecondAtATimeIsNotFree(t *testing.T) {
	t.Parallel()
	w := lasting(20*time.Second, 1).happens(0, lease.EventActive, nil)
	w.Segments[0].Rate.Micros = 10_000 // a cent an hour for each of 8 GPUs: a second is 0.02 cents
	w.Segments[0].Terms.EarlyRefundBPS = 5_000
	for i := range 3_600 {
		more := w.Segments[0]
		more.Seq, more.Start, more.End = i+2, w.Lease.End, w.Lease.End.Add(time.Second)
		w.Segments, w.Lease.End = append(w.Segments, more), more.End
	}
	one := w.Segments[0]
	one.End = w.Lease.End
	want, err := metering.Total([]lease.Segment{one}, 1)
	require.NoError(t, err)
	require.EqualValues(t, 10, want.Minor, "8.04 cents, and 19 % of them")
	held, err := metering.Total(w.Segments, 1)
	require.NoError(t, err)
	require.Equal(t, want, held)

	told, err := metering.End(w.Facts, nil, at(20*time.Second))
	require.NoError(t, err)
	net, _ := sum(told.Lines)
	require.Equal(t, int64(1+4), net, "a cent for the moment that was used, and half of the 7 unused, however it was booked")

	w.over(3_620*time.Second, lease.Completed)
	net, tax := sum(w.settle(t).Lines)
	require.Equal(t, want.Minor, net+tax)
}

func TestAMomentCostsTheLeastThereIsAndNoTimeNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rate, want int64
		active     bool
	}{
		"a fifth of a cent":  {10_000, 1, true},
		"two and a half":     {1_125_000, 2, true}, // half-even, as everywhere
		"what is given free": {0, 0, true},
		"never delivered":    {10_000, 0, false},
	} {
		w := lasting(10*time.Second, 1)
		w.Segments[0].Rate.Micros, w.Segments[0].TaxRateBPS = c.rate, 0
		held, err := metering.Total(w.Segments, 1)
		require.NoError(t, err)
		if c.active {
			w.happens(0, lease.EventActive, nil)
			require.Equal(t, c.want, held.Minor, name)
		}
		w.over(10*time.Second, lease.Completed)
		net, _ := sum(w.settle(t).Lines)
		require.Equal(t, c.want, net, name)
	}
}

func TestWhoLeavesWhileAllIsOutPaysNoFee(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		out  []int
		back bool
		fee  bool
	}{
		"all are out":        {[]int{0, 1}, false, false},
		"one of two is out":  {[]int{0}, false, true},
		"all are back again": {[]int{0, 1}, true, true},
	} {
		w := lasting(10*time.Hour, 2).happens(0, lease.EventActive, nil)
		w.Segments[0].Terms.EarlyRefundBPS = 5_000
		for _, i := range c.out {
			data := map[string]any{"allocation": w.Allocations[i].ID.String()}
			w.happens(time.Hour, lease.EventOutageBegan, data)
			if c.back {
				w.happens(2*time.Hour, lease.EventOutageEnded, data)
			}
		}
		told, err := metering.End(w.Facts, nil, at(3*time.Hour))
		require.NoError(t, err)
		w.Lease.WantedEnd = at(3 * time.Hour)
		w.over(3*time.Hour+time.Minute, lease.Terminated)
		run := w.settle(t)
		require.Equal(t, told.LinesDigest, run.LinesDigest, name)
		fees := slices.ContainsFunc(run.Lines, func(l metering.Line) bool { return l.Kind == metering.Fee })
		require.Equal(t, c.fee, fees, name)
	}
}
