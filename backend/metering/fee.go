package metering

import (
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
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
		if s.active.IsZero() || s.allOut(f.Allocations, s.end) {
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

// allOut reports whether at the instant none of the lease's instances could be used: who leaves then owes nothing for what they leave.
func (s story) allOut(allocations []lease.Allocation, at time.Time) bool {
	serving := 0
	for _, a := range allocations {
		if left, replaced := s.replacedAt[a.ID]; replaced && !instant(left.At).After(at) {
			continue
		}
		serving++
		if !slices.ContainsFunc(slices.Concat(s.outages[ids.Allocation{}], s.outages[a.ID]), func(w window) bool {
			return !w.from.After(at) && (w.to.IsZero() || w.to.After(at))
		}) {
			return false
		}
	}
	return serving > 0
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
	classes := classesOf(f.Segments, nil)
	for _, segment := range f.Segments {
		m := newMeter(f, segment, nil)
		m.class = classes[segment.TaxRateBPS]
		if fee, due := fees[segment.Seq]; due {
			m.fee(fee)
		}
		run.Lines = append(run.Lines, m.lines...)
	}
	return run, run.sign(f, nil, true)
}

// earlyFees is what ending at the instant costs beyond usage: the part of each segment's unused time that its terms do not give back.
// The parts are cut from their cumulative sum per tax rate, as usage is.
func earlyFees(segments []lease.Segment, instances int, end time.Time) (map[int]fee, error) {
	whole, err := costs(segments, instances, time.Time{})
	if err != nil {
		return nil, err
	}
	used, err := costs(segments, instances, end)
	if err != nil {
		return nil, err
	}
	fees, exact, charged := map[int]fee{}, map[int]int64{}, map[int]int64{}
	for i, s := range segments {
		from := latest(instant(s.Start), instant(end))
		if !from.Before(instant(s.End)) {
			continue
		}
		bps := 10_000 - s.Terms.EarlyRefundBPS
		exact[s.TaxRateBPS] += (whole[i] - used[i]) * bps
		net := cut(exact[s.TaxRateBPS], 1, 10_000) - charged[s.TaxRateBPS]
		charged[s.TaxRateBPS] += net
		fees[s.Seq] = fee{
			from: from, quantity: span(s, instances, from), net: net, description: fmt.Sprintf("Early end: %s of the unused time", percent(bps)),
		}
	}
	return fees, nil
}

// keepFees spreads what is kept over the segments by their price; the parts sum to the whole. It includes tax.
func keepFees(segments []lease.Segment, instances int, kept money.Amount) (map[int]fee, error) {
	nets, err := costs(segments, instances, time.Time{})
	if err != nil {
		return nil, err
	}
	total, err := Total(segments, instances)
	if err != nil {
		return nil, err
	}
	fees, price, spread := map[int]fee{}, int64(0), int64(0)
	gross, net := map[int]int64{}, map[int]int64{}
	for i, t := range taxes(segments, nets) {
		s := segments[i]
		price += nets[i] + t
		part := cut(kept.Minor, price, total.Minor) - spread
		spread += part
		gross[s.TaxRateBPS] += part
		own := cut(gross[s.TaxRateBPS], 10_000, 10_000+int64(s.TaxRateBPS)) - net[s.TaxRateBPS]
		net[s.TaxRateBPS] += own
		if tax := part - own; part != 0 || own != 0 {
			from := instant(s.Start)
			fees[s.Seq] = fee{from: from, quantity: span(s, instances, from), net: own, tax: &tax, description: "Cancellation"}
		}
	}
	return fees, nil
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
