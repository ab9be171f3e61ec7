package metering

import (
	"fmt"
	"math/big"
	"time"

	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/money"
)

// fee is what one segment costs beyond its usage.
type fee struct {
	from        time.Time
	quantity    *big.Int // the time that it is for
	net         int64
	tax         *int64 // nil: by the segment's rate
	description string
}

// Total is the worst case of a lease's segments: all of it used, with tax. It is what is quoted and held.
func Total(segments []lease.Segment, instances int) (money.Amount, error) {
	var total money.Amount
	for i, s := range segments {
		net, err := worth(s, instances, s.Start)
		if err != nil {
			return money.Amount{}, err
		}
		gross := net.Add(net.Share(int64(s.TaxRateBPS)))
		if i == 0 {
			total.Currency = gross.Currency
		}
		total = total.Add(gross)
	}
	return total, nil
}

// EarlyFee is what ending at the instant costs beyond usage, with tax: the part of the unused time that the terms do not give back.
// The refund is the total less the usage up to then less this.
func EarlyFee(segments []lease.Segment, instances int, end time.Time) (money.Amount, error) {
	fees, err := earlyFees(segments, instances, end)
	if err != nil || len(segments) == 0 {
		return money.Amount{}, err
	}
	sum := money.Of(0, segments[0].Rate.Currency)
	for _, s := range segments {
		net := money.Of(fees[s.Seq].net, s.Rate.Currency)
		sum = sum.Add(net).Add(net.Share(int64(s.TaxRateBPS)))
	}
	return sum, nil
}

// RefundBPS is what the schedule gives back of the price when a lease is cancelled that long before its start. After the start, a
// lease that was not delivered costs nothing.
func RefundBPS(terms lease.Terms, notice time.Duration) int64 {
	if notice <= 0 {
		return 10_000
	}
	for _, step := range terms.RefundSchedule {
		if notice >= time.Duration(step.NoticeSeconds)*time.Second {
			return step.RefundBPS
		}
	}
	return 0
}

// fees says what each segment of a lease that is over costs beyond usage, by how it came to its end.
func (f Facts) fees(s story) (map[int]fee, error) {
	switch f.Lease.Outcome {
	case lease.Terminated:
		if s.active.IsZero() {
			return nil, nil //nolint:nilnil // no fees
		}
		return earlyFees(f.Segments, f.Lease.Instances, s.end)
	case lease.CancelledOutcome:
		if s.cancelAsked == nil || len(f.Segments) == 0 {
			return nil, nil //nolint:nilnil // no fees
		}
		total, err := Total(f.Segments, f.Lease.Instances)
		if err != nil {
			return nil, err
		}
		return keepFees(f.Segments, f.Lease.Instances, f.kept(s, total))
	case lease.NoOutcome, lease.Completed, lease.FailedOutcome:
		return nil, nil //nolint:nilnil // no fees
	default:
		return nil, fmt.Errorf("unknown outcome %q", f.Lease.Outcome)
	}
}

// kept is what a cancellation does not give back: as the customer was told, else by the schedule.
func (f Facts) kept(s story, total money.Amount) money.Amount {
	if refund, told := integer(s.cancelAsked.Data["refund_minor"]); told {
		return money.Of(max(0, total.Minor-refund), total.Currency)
	}
	notice := s.start.Sub(instant(s.cancelAsked.At))
	return total.Sub(total.Share(RefundBPS(f.Segments[0].Terms, notice)))
}

// Keep rates a cancellation before delivery of which the customer was told that kept, with tax, is not given back.
func Keep(f Facts, kept money.Amount, at time.Time) (Run, error) {
	fees, err := keepFees(f.Segments, f.Lease.Instances, kept)
	if err != nil {
		return Run{}, err
	}
	run := Run{Until: instant(at)}
	for _, e := range f.Events {
		run.EventSeq = max(run.EventSeq, e.Seq)
	}
	for _, segment := range f.Segments {
		m := newMeter(f, segment, nil)
		if fee, due := fees[segment.Seq]; due {
			m.fee(fee)
		}
		run.Lines = append(run.Lines, m.lines...)
	}
	return run, run.sign(f, nil, true)
}

func earlyFees(segments []lease.Segment, instances int, end time.Time) (map[int]fee, error) {
	fees := map[int]fee{}
	for _, s := range segments {
		from := latest(instant(s.Start), instant(end))
		if !from.Before(instant(s.End)) {
			continue
		}
		unused, err := worth(s, instances, from)
		if err != nil {
			return nil, err
		}
		bps := 10_000 - s.Terms.EarlyRefundBPS
		fees[s.Seq] = fee{
			from: from, quantity: span(s, instances, from), net: unused.Share(bps).Minor,
			description: fmt.Sprintf("Early end: %s of the unused time", percent(bps)),
		}
	}
	return fees, nil
}

// keepFees spreads what is kept over the segments by their price; the parts sum to the whole. It includes tax.
func keepFees(segments []lease.Segment, instances int, kept money.Amount) (map[int]fee, error) {
	total, err := Total(segments, instances)
	if err != nil {
		return nil, err
	}
	fees, price, spread := map[int]fee{}, int64(0), int64(0)
	for _, s := range segments {
		own, err := Total([]lease.Segment{s}, instances)
		if err != nil {
			return nil, err
		}
		price += own.Minor
		gross := cut(kept.Minor, price, total.Minor) - spread
		spread += gross
		net := cut(gross, 10_000, 10_000+int64(s.TaxRateBPS))
		tax := gross - net
		if gross != 0 {
			from := instant(s.Start)
			fees[s.Seq] = fee{from: from, quantity: span(s, instances, from), net: net, tax: &tax, description: "Cancellation"}
		}
	}
	return fees, nil
}

// worth is the price of a segment's time from the instant to its end: the whole less what comes before, so that both parts sum to
// the rounding of the whole.
func worth(s lease.Segment, instances int, from time.Time) (money.Amount, error) {
	whole := span(s, instances, instant(s.Start))
	before := new(big.Int).Sub(whole, span(s, instances, from))
	all, err := s.Rate.Cost(whole)
	if err != nil {
		return money.Amount{}, fmt.Errorf("price segment %d: %w", s.Seq, err)
	}
	gone, err := s.Rate.Cost(before)
	if err != nil {
		return money.Amount{}, fmt.Errorf("price segment %d: %w", s.Seq, err)
	}
	return all.Sub(gone), nil
}

// span is the quantity of a segment's time from the instant to its end.
func span(s lease.Segment, instances int, from time.Time) *big.Int {
	return money.UnitMillis(int64(instances)*s.Terms.UnitsPerInstance, instant(s.End).Sub(instant(from)))
}

// cut returns amount × part / whole, rounded half-even; 0 of nothing.
func cut(amount, part, whole int64) int64 {
	if whole == 0 {
		return 0
	}
	return money.RoundHalfEven(new(big.Int).Mul(big.NewInt(amount), big.NewInt(part)), big.NewInt(whole)).Int64()
}

func percent(bps int64) string { return fmt.Sprintf("%d.%02d %%", bps/100, bps%100) }

// integer reads a number of an event's data, which comes from JSON or from a test.
func integer(v any) (int64, bool) {
	switch n := v.(type) {
	case int64:
		return n, true
	case int:
		return int64(n), true
	case float64: // JSON's number; minor units of one lease are far below 2⁵³
		return int64(n), n == float64(int64(n))
	default:
		return 0, false
	}
}
