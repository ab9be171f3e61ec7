package metering

import (
	"fmt"
	"math/big"
	"time"

	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/money"
)

// A lease is rounded once, not once a segment: else a customer who extends a second at a time would never pay for one. Its segments of one
// tax rate form a class, and what a segment costs is what it adds to the rounding of its class up to and including it. Classes are apart,
// so that tax is always the rate's share of the net amount that it is printed beside; how many there are is not the customer's choice.

// ladder rounds the exact costs of one class's segments, one segment after the other.
type ladder struct {
	exact   *big.Int // of the segments so far
	rounded int64
}

// climb returns what the next segment adds, in minor units.
func (l *ladder) climb(rate money.Rate, quantity *big.Int) (int64, error) {
	if l.exact == nil {
		l.exact = new(big.Int)
	}
	l.exact.Add(l.exact, rate.Exact(quantity))
	reached, err := money.Round(l.exact, rate.Currency)
	if err != nil {
		return 0, err
	}
	if reached.Minor == 0 && l.exact.Sign() > 0 {
		reached.Minor = 1 // machines are not given away because they were had for moments: what is not nothing costs the least there is
	}
	added := reached.Minor - l.rounded
	l.rounded = reached.Minor
	return added, nil
}

// costs is what each segment's time until the instant costs, without tax; a zero instant is its whole time.
func costs(segments []lease.Segment, instances int, until time.Time) ([]int64, error) {
	classes := map[int]*ladder{}
	out := make([]int64, len(segments))
	for i, s := range segments {
		class, known := classes[s.TaxRateBPS]
		if !known {
			class = &ladder{}
			classes[s.TaxRateBPS] = class
		}
		whole, left := span(s, instances, s.Start), new(big.Int)
		if from := latest(instant(s.Start), instant(until)); !until.IsZero() && from.Before(instant(s.End)) {
			left = span(s, instances, from)
		}
		added, err := class.climb(s.Rate, whole.Sub(whole, left))
		if err != nil {
			return nil, fmt.Errorf("price segment %d: %w", s.Seq, err)
		}
		out[i] = added
	}
	return out, nil
}

// taxes is the tax on each segment's net amount: what it adds to the tax on its class.
func taxes(segments []lease.Segment, nets []int64) []int64 {
	net, tax := map[int]int64{}, map[int]int64{}
	out := make([]int64, len(segments))
	for i, s := range segments {
		net[s.TaxRateBPS] += nets[i]
		out[i] = cut(net[s.TaxRateBPS], int64(s.TaxRateBPS), 10_000) - tax[s.TaxRateBPS]
		tax[s.TaxRateBPS] += out[i]
	}
	return out
}

// Worth is the worst case of a lease's segments, all of it used: the net amount and its tax. It is what is quoted and held; what an
// extension adds is the difference that its segment makes.
func Worth(segments []lease.Segment, instances int) (money.Amount, money.Amount, error) {
	if len(segments) == 0 {
		return money.Amount{}, money.Amount{}, nil
	}
	nets, err := costs(segments, instances, time.Time{})
	if err != nil {
		return money.Amount{}, money.Amount{}, err
	}
	net, tax := money.Of(0, segments[0].Rate.Currency), money.Of(0, segments[0].Rate.Currency)
	for i, t := range taxes(segments, nets) {
		net.Minor, tax.Minor = net.Minor+nets[i], tax.Minor+t
	}
	return net, tax, nil
}

// Total is Worth with the tax included.
func Total(segments []lease.Segment, instances int) (money.Amount, error) {
	net, tax, err := Worth(segments, instances)
	if err != nil {
		return money.Amount{}, err
	}
	return net.Add(tax), nil
}

// class is how the lines of one tax rate stand while a lease is rated.
type class struct {
	usage    ladder
	charged  int64 // for usage, on the segments so far, before this run and in it
	net, tax int64 // on all lines of the class
}

// classesOf starts from the lines that there are.
func classesOf(segments []lease.Segment, prior []Line) map[int]*class {
	classes := map[int]*class{}
	for _, s := range segments {
		classes[s.TaxRateBPS] = &class{}
	}
	for _, line := range prior {
		if c, known := classes[line.TaxRateBPS]; known {
			c.net, c.tax = c.net+line.Amount.Minor, c.tax+line.Tax.Minor
		}
	}
	return classes
}
