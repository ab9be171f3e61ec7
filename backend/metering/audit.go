package metering

import (
	"fmt"
	"math/big"
	"slices"

	"github.com/leasehold/leasehold/backend/lease"
)

// Audit rates a settled lease from its facts alone and says, in words, where its lines differ from that; "" when they do not. However it was
// accrued on the way, the lines of a segment sum to the same quantity and the same net amount, and those of a tax rate to the same tax.
func Audit(f Facts, lines []Line) (string, error) {
	run, err := f.whole()
	if err != nil {
		return "", err
	}
	for _, segment := range f.Segments {
		of := func(l Line) bool { return l.Segment == segment.Seq }
		got, want := sumOf(lines, of), sumOf(run.Lines, of)
		if got.net != want.net || got.quantity.Cmp(want.quantity) != 0 {
			return fmt.Sprintf("segment %d is charged %d for %s unit-ms, and costs %d for %s", segment.Seq, got.net, got.quantity, want.net, want.quantity), nil
		}
		of = func(l Line) bool { return l.TaxRateBPS == segment.TaxRateBPS }
		if got, want := sumOf(lines, of), sumOf(run.Lines, of); got.tax != want.tax {
			return fmt.Sprintf("at %d basis points of tax %d is charged, and %d is due", segment.TaxRateBPS, got.tax, want.tax), nil
		}
	}
	return "", nil
}

// whole rates all of a lease that is over as if nothing had been charged yet.
func (f Facts) whole() (Run, error) {
	if !slices.ContainsFunc(f.Events, func(e lease.Event) bool { return e.Type == lease.EventCancelled }) {
		return Settle(f, nil)
	}
	s, err := f.read()
	if err != nil || s.cancelAsked == nil {
		return Run{}, err
	}
	total, err := Total(f.Segments, f.Lease.Instances)
	if err != nil {
		return Run{}, err
	}
	return Keep(f, f.kept(s, total), s.cancelAsked.At)
}

type sums struct {
	quantity *big.Int // of usage
	net, tax int64
}

func sumOf(lines []Line, of func(Line) bool) sums {
	out := sums{quantity: new(big.Int)}
	for _, l := range lines {
		if !of(l) {
			continue
		}
		out.net, out.tax = out.net+l.Amount.Minor, out.tax+l.Tax.Minor
		if l.Kind == Usage || l.Kind == Correction {
			out.quantity.Add(out.quantity, l.Quantity)
		}
	}
	return out
}
