package metering

import (
	"fmt"
	"math/big"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/money"
)

// Version names the rules of this package. It changes with every change that may alter a line.
const Version = "rating/3"

// LineKind says what a charge line is for.
type LineKind string

// The kinds of line.
const (
	Usage      LineKind = "usage"
	Credit     LineKind = "credit"
	Fee        LineKind = "fee"
	Correction LineKind = "correction"
)

// Line is one line of the bill. Amount is without tax.
type Line struct {
	Segment     int          `json:"segment"`
	Kind        LineKind     `json:"kind"`
	Seq         int          `json:"seq"` // 1, 2, 3… within segment and kind
	Description string       `json:"description"`
	From        time.Time    `json:"from"`
	To          time.Time    `json:"to"`
	Unit        string       `json:"unit"`                 // gpu_milliseconds, instance_milliseconds
	Quantity    *big.Int     `json:"quantity_unit_millis"` // negative in a correction
	Rate        money.Rate   `json:"rate"`
	Amount      money.Amount `json:"amount"`
	TaxRateBPS  int          `json:"tax_rate_bps"`
	Tax         money.Amount `json:"tax"`
	Corrects    int          `json:"corrects,omitempty"` // the Seq of the usage line that a correction names
}

// Gross returns amount and tax together.
func (l Line) Gross() money.Amount { return l.Amount.Add(l.Tax) }

// Reference is the line's name in the ledger.
func (l Line) Reference(of ids.Lease) string {
	return fmt.Sprintf("capture:%s:%d:%s:%d", of, l.Segment, l.Kind, l.Seq)
}

// Run is one rating: what it was made from, and the lines that are new.
type Run struct {
	Until        time.Time
	EventSeq     int64 // the last event that it knew
	Intervals    []Interval
	Lines        []Line
	InputsDigest string
	LinesDigest  string
}

// Accrue rates what was used until the instant and is not on prior lines yet. What rounds to nothing waits for a later line.
func Accrue(f Facts, prior []Line, until time.Time) (Run, error) {
	return rate(f, prior, until, false)
}

// Settle rates a lease that is over: the rest of its usage, and its fees.
//
// It returns an error when the log does not say that it is over.
func Settle(f Facts, prior []Line) (Run, error) {
	s, err := f.read()
	if err != nil {
		return Run{}, err
	}
	if s.stop.IsZero() {
		return Run{}, fmt.Errorf("settle %s: its log has no %s", f.Lease.ID, lease.EventReleasing)
	}
	return rate(f, prior, latest(s.stop, s.end), true)
}

func rate(f Facts, prior []Line, until time.Time, final bool) (Run, error) {
	s, err := f.read()
	if err != nil {
		return Run{}, err
	}
	run := Run{Until: instant(until)}
	for _, e := range f.Events {
		run.EventSeq = max(run.EventSeq, e.Seq)
	}
	if run.Intervals, err = Intervals(f, until); err != nil {
		return Run{}, err
	}
	fees := map[int]fee{}
	if final {
		if fees, err = f.fees(s); err != nil {
			return Run{}, err
		}
	}
	classes := classesOf(f.Segments, prior)
	for _, segment := range f.Segments {
		m := newMeter(f, segment, prior)
		m.class = classes[segment.TaxRateBPS]
		if err := m.usage(run.Intervals, earliest(run.Until, earliest(s.end, s.stop)), final); err != nil {
			return Run{}, fmt.Errorf("rate segment %d: %w", segment.Seq, err)
		}
		if fee, due := fees[segment.Seq]; due {
			m.fee(fee)
		}
		run.Lines = append(run.Lines, m.lines...)
	}
	return run, run.sign(f, prior, final)
}

// meter charges one segment.
type meter struct {
	facts                   Facts
	segment                 lease.Segment
	quantity                *big.Int // of usage, charged so far
	used, net, tax          int64    // charged so far: usage, everything, its tax
	usages, fixes, feeCount int      // lines so far
	at                      time.Time
	class                   *class // that the segment is of; only where lines are made
	lines                   []Line
}

func newMeter(f Facts, segment lease.Segment, prior []Line) *meter {
	m := &meter{facts: f, segment: segment, quantity: new(big.Int), at: instant(segment.Start)}
	for _, line := range prior {
		if line.Segment != segment.Seq {
			continue
		}
		m.net, m.tax = m.net+line.Amount.Minor, m.tax+line.Tax.Minor
		switch line.Kind {
		case Usage, Correction:
			m.quantity.Add(m.quantity, line.Quantity)
			m.used += line.Amount.Minor
			m.at = latest(m.at, line.To)
			if line.Kind == Usage {
				m.usages++
			} else {
				m.fixes++
			}
		case Fee:
			m.feeCount++
		case Credit:
		}
	}
	return m
}

// usage adds the line from the last one's end to until, which makes all lines of the segment's class sum to the rounding of the whole.
func (m *meter) usage(intervals []Interval, until time.Time, final bool) error {
	quantity := m.billable(intervals)
	if _, err := m.class.usage.climb(m.segment.Rate, quantity); err != nil {
		return err
	}
	m.class.charged += m.used
	more, amount := new(big.Int).Sub(quantity, m.quantity), m.class.usage.rounded-m.class.charged
	if amount == 0 && (more.Sign() == 0 || !final) {
		return nil
	}
	m.class.charged += amount
	line := m.line(Usage, m.at, latest(m.at, earliest(instant(m.segment.End), until)), more, amount)
	line.Description = m.describe()
	if more.Sign() < 0 || more.Sign() == 0 && amount < 0 { // the facts of an earlier segment of the class have shrunk
		line.Kind, line.Corrects, line.Description = Correction, m.usages, "Correction of usage"
		m.fixes++
		line.Seq = m.fixes
	} else {
		m.usages++
		line.Seq = m.usages
	}
	m.lines = append(m.lines, line)
	return nil
}

// billable sums the billable intervals within the segment.
func (m *meter) billable(intervals []Interval) *big.Int {
	sum := new(big.Int)
	for _, i := range intervals {
		from, to := latest(instant(m.segment.Start), i.From), earliest(i.To, instant(m.segment.End))
		if i.Class == Billable && from.Before(to) {
			sum.Add(sum, money.UnitMillis(m.segment.Terms.UnitsPerInstance, to.Sub(from)))
		}
	}
	return sum
}

func (m *meter) fee(f fee) {
	if m.feeCount > 0 || f.net == 0 && f.tax == nil {
		return // charged already, or nothing to charge
	}
	line := m.line(Fee, f.from, instant(m.segment.End), f.quantity, f.net)
	if f.tax != nil {
		m.class.tax += *f.tax - line.Tax.Minor
		line.Tax.Minor = *f.tax
	}
	line.Seq, line.Description = 1, f.description
	m.lines = append(m.lines, line)
}

// line starts a line and takes its tax from the cumulative tax of the segment's class.
func (m *meter) line(kind LineKind, from, to time.Time, quantity *big.Int, amount int64) Line {
	currency := m.segment.Rate.Currency
	m.class.net += amount
	tax := money.Of(m.class.net, currency).Share(int64(m.segment.TaxRateBPS)).Minor - m.class.tax
	m.class.tax += tax
	return Line{
		Segment: m.segment.Seq, Kind: kind, From: from, To: to, Unit: unit(m.segment.Terms), Quantity: quantity, Rate: m.segment.Rate,
		Amount: money.Of(amount, currency), TaxRateBPS: m.segment.TaxRateBPS, Tax: money.Of(tax, currency),
	}
}

func (m *meter) describe() string {
	return fmt.Sprintf("%d × %s at %s per %s-hour", m.facts.Lease.Instances, m.facts.Product, m.segment.Rate, m.segment.Terms.RatedPer)
}

func unit(t lease.Terms) string { return t.RatedPer + "_milliseconds" }
