package billing

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/ledger"
	"github.com/leasehold/leasehold/backend/metering"
	"github.com/leasehold/leasehold/backend/money"
)

// Transactor runs fn in a transaction that the context carries; a nested call joins the outer one.
type Transactor interface {
	WithinTx(ctx context.Context, fn func(ctx context.Context) error) error
}

// Ledger moves the money. Its faults pass through.
type Ledger interface {
	Hold(ctx context.Context, lease ids.Lease, org ids.Org, amount money.Amount) error
	Raise(ctx context.Context, lease ids.Lease, extra money.Amount) error
	HoldOf(ctx context.Context, lease ids.Lease) (ledger.Hold, error)
	Capture(ctx context.Context, lease ids.Lease, charges ...ledger.Charge) error
	Release(ctx context.Context, lease ids.Lease) error
	Share(ctx context.Context, customer, provider ids.Org, lease ids.Lease, earned money.Amount, feeBPS int64) error
	TopUp(ctx context.Context, org ids.Org, payment ids.Payment, amount money.Amount, memo string) error
	Balance(ctx context.Context, org ids.Org) (ledger.Balance, error)
	Transactions(ctx context.Context, org ids.Org, after ids.LedgerTx, limit int) ([]ledger.Tx, error)
}

// Provider is whose capacity a lease is on.
type Provider struct {
	Org      ids.Org
	FeeBPS   int64 // what the platform keeps of its earnings
	Operator bool  // the platform's own capacity: nothing to share
}

// Meter keeps what leases are rated from, and the lines.
type Meter interface {
	// Facts reads a lease's facts; locked, the lease's row is locked until the transaction ends. It returns a NotFound fault.
	Facts(ctx context.Context, id ids.Lease, locked bool) (metering.Facts, error)
	// Provider reads who provides the site.
	Provider(ctx context.Context, site ids.Site) (Provider, error)
	// LinesOf reads all lines of a lease, oldest first.
	LinesOf(ctx context.Context, id ids.Lease) ([]ChargeLine, error)
	// Lines lists lines, newest first.
	Lines(ctx context.Context, filter LineFilter) ([]ChargeLine, error)
	// InsertRun writes a run with its lines.
	InsertRun(ctx context.Context, run RatingRun, lines []ChargeLine) error
	// InsertIntervals writes the intervals of a lease that is settled.
	InsertIntervals(ctx context.Context, l lease.Lease, intervals []metering.Interval) error
	// Settled lists leases whose hold is closed and that no other rules than the version's have rated, by id, after the given one.
	Settled(ctx context.Context, version string, after ids.Lease, limit int) ([]ids.Lease, error)
	// AppendEvent writes the lease's next event.
	AppendEvent(ctx context.Context, e lease.Event) (lease.Event, error)
}

// Invoices keeps invoices.
type Invoices interface {
	// OfLease reads the lease's invoice that is not void. It returns a NotFound fault.
	OfLease(ctx context.Context, id ids.Lease) (Invoice, error)
	// Invoice reads an invoice with its lines. It returns a NotFound fault.
	Invoice(ctx context.Context, id ids.Invoice) (Invoice, error)
	// InvoiceForUpdate is Invoice with the row locked until the transaction ends.
	InvoiceForUpdate(ctx context.Context, id ids.Invoice) (Invoice, error)
	// List lists invoices with their lines, newest first.
	List(ctx context.Context, filter InvoiceFilter) ([]Invoice, error)
	// Within lists an organization's invoices that are not void and have a line that overlaps [from, to), with all their lines, oldest first.
	Within(ctx context.Context, org ids.Org, from, to time.Time) ([]Invoice, error)
	// Names reads whose the organization's invoices are and what its leases are called. Another organization's have no title.
	Names(ctx context.Context, org ids.Org, leases map[ids.Lease]bool) (Party, map[ids.Lease]Title, error)
	// Insert writes a draft and puts its lines on it.
	Insert(ctx context.Context, invoice Invoice) error
	// Finalize writes number, snapshot and digest.
	Finalize(ctx context.Context, invoice Invoice) error
	// NextNumber draws the issuer's next number; who has drawn it keeps others waiting until the transaction ends, hence no gaps.
	NextNumber(ctx context.Context, issuer string) (int64, error)
}

// Service charges leases.
type Service struct {
	tx       Transactor
	ledger   Ledger
	meter    Meter
	invoices Invoices
	clock    clock.Clock
}

// New returns the service.
func New(tx Transactor, books Ledger, meter Meter, invoices Invoices, clk clock.Clock) *Service {
	return &Service{tx: tx, ledger: books, meter: meter, invoices: invoices, clock: clk}
}

// Hold takes a lease's worst-case total at booking. It returns an Unfunded fault, code "insufficient-balance", with the numbers.
func (s *Service) Hold(ctx context.Context, id ids.Lease, org ids.Org, amount money.Amount) error {
	return s.ledger.Hold(ctx, id, org, amount)
}

// Raise adds an extension's worst case to the lease's hold. It returns an Unfunded fault likewise.
func (s *Service) Raise(ctx context.Context, id ids.Lease, extra money.Amount) error {
	return s.ledger.Raise(ctx, id, extra)
}

// Balance reads what the organization has. It returns a NotFound fault.
func (s *Service) Balance(ctx context.Context, org ids.Org) (ledger.Balance, error) {
	return s.ledger.Balance(ctx, org)
}

// Transactions lists the organization's ledger, newest first.
func (s *Service) Transactions(ctx context.Context, org ids.Org, after ids.LedgerTx, limit int) ([]ledger.Tx, error) {
	return s.ledger.Transactions(ctx, org, after, limit)
}

// Accrue captures what was used until the instant, or until now if that is earlier. A lease that is settled, or that has nothing
// new to charge, stays as it is.
func (s *Service) Accrue(ctx context.Context, id ids.Lease, until time.Time) error {
	return s.within(ctx, "accrue", func(ctx context.Context) error {
		facts, prior, err := s.state(ctx, id, true)
		if err != nil || facts.Lease.Final() {
			return err
		}
		if now := s.clock.Now(); now.Before(until) {
			until = now
		}
		run, err := metering.Accrue(facts, plain(prior), until)
		if err != nil {
			return err
		}
		_, err = s.charge(ctx, facts, run, prior)
		return err
	})
}

// Settle makes the final bill of a lease whose clock has stopped: the rest of its usage and its fees are captured, the rest of its
// hold released, the provider's share allotted, an invoice drafted. A lease that is settled keeps its invoice.
//
// It returns a Conflict fault, code "lease-not-over", while the log does not say that the lease ended.
func (s *Service) Settle(ctx context.Context, id ids.Lease) (ids.Invoice, error) {
	var invoice ids.Invoice
	err := s.within(ctx, "settle", func(ctx context.Context) error {
		facts, prior, err := s.state(ctx, id, true)
		if err != nil {
			return err
		}
		if known, err := s.invoices.OfLease(ctx, id); err == nil || !fault.Is(err, fault.NotFound) {
			invoice = known.ID
			return err
		}
		if facts.Lease.State != lease.Releasing {
			return fault.New(fault.Conflict, "lease-not-over", "a lease that is %s is not settled", facts.Lease.State)
		}
		run, err := metering.Settle(facts, plain(prior))
		if err != nil {
			return err
		}
		if err := s.meter.InsertIntervals(ctx, facts.Lease, run.Intervals); err != nil {
			return err
		}
		invoice, err = s.close(ctx, facts, run, prior)
		return err
	})
	return invoice, err
}

// Cancel settles a lease that ends before anything was touched: keep, with tax, is what the customer was told is not given back.
// Cancelling again with the same amount does nothing.
//
// It returns a Conflict fault, code "hold-exceeded" when keep is more than the lease's price, "already-settled" when it was settled
// with another amount.
func (s *Service) Cancel(ctx context.Context, id ids.Lease, keep money.Amount) error {
	return s.within(ctx, "cancel", func(ctx context.Context) error {
		facts, prior, err := s.state(ctx, id, true)
		if err != nil {
			return err
		}
		hold, err := s.ledger.HoldOf(ctx, id)
		switch {
		case err != nil:
			return err
		case hold.Closed() && hold.Captured == keep:
			return nil
		case hold.Closed():
			return fault.New(fault.Conflict, "already-settled", "the lease was settled with %s", hold.Captured)
		case keep.Minor > hold.Remaining().Minor || keep.Minor < 0:
			return fault.New(fault.Conflict, "hold-exceeded", "%s cannot be kept of %s", keep, hold.Remaining())
		case keep.IsZero():
			return s.ledger.Release(ctx, id)
		}
		run, err := metering.Keep(facts, keep, s.clock.Now())
		if err != nil {
			return err
		}
		_, err = s.close(ctx, facts, run, prior)
		return err
	})
}

// Ending says what the unused time costs if the customer ends a lease that was delivered at the instant, and what then comes back of what
// is held, both with tax. It rates the lease as Settle will, so that what the customer is told is what is billed.
func (s *Service) Ending(ctx context.Context, id ids.Lease, at time.Time) (money.Amount, money.Amount, error) {
	var fee, refund money.Amount
	err := s.within(ctx, "foresee early end", func(ctx context.Context) error {
		facts, prior, err := s.state(ctx, id, false)
		if err != nil {
			return err
		}
		hold, err := s.ledger.HoldOf(ctx, id)
		if err != nil {
			return err
		}
		run, err := metering.End(facts, plain(prior), at)
		if err != nil {
			return err
		}
		fee, refund = money.Of(0, facts.Lease.Currency), hold.Remaining()
		for _, line := range run.Lines {
			refund = refund.Sub(line.Gross())
			if line.Kind == metering.Fee {
				fee = fee.Add(line.Gross())
			}
		}
		return nil
	})
	return fee, refund, err
}

// Usage says how a lease stands now. It returns a NotFound fault.
func (s *Service) Usage(ctx context.Context, id ids.Lease) (LeaseUsage, error) {
	var usage LeaseUsage
	err := s.within(ctx, "read usage", func(ctx context.Context) error {
		facts, lines, err := s.state(ctx, id, false)
		if err != nil {
			return err
		}
		now := s.clock.Now()
		usage.Lines = lines
		net, tax := sums(lines, facts.Lease.Currency)
		usage.Charged = net.Add(tax)
		if usage.Intervals, err = metering.Intervals(facts, now); err != nil {
			return err
		}
		usage.Forecast = usage.Charged
		if !facts.Lease.Final() {
			usage.Forecast, err = metering.Forecast(facts, plain(lines), now)
		}
		return err
	})
	return usage, err
}

// Lines lists charge lines, newest first.
func (s *Service) Lines(ctx context.Context, filter LineFilter) ([]ChargeLine, error) {
	var lines []ChargeLine
	err := s.within(ctx, "list charge lines", func(ctx context.Context) (err error) {
		lines, err = s.meter.Lines(ctx, filter)
		return err
	})
	return lines, err
}

// state reads a lease's facts and the lines that it has.
func (s *Service) state(ctx context.Context, id ids.Lease, locked bool) (metering.Facts, []ChargeLine, error) {
	facts, err := s.meter.Facts(ctx, id, locked)
	if err != nil {
		return metering.Facts{}, nil, err
	}
	lines, err := s.meter.LinesOf(ctx, id)
	return facts, lines, err
}

// charge writes a run's lines and captures them. It returns the lease's lines, old and new.
func (s *Service) charge(ctx context.Context, f metering.Facts, run metering.Run, prior []ChargeLine) ([]ChargeLine, error) {
	if len(run.Lines) == 0 {
		return prior, nil
	}
	now := s.clock.Now()
	kept := RatingRun{ID: ids.Make[ids.Rating](), Org: f.Lease.Org, Lease: f.Lease.ID, CreatedAt: now, Version: metering.Version, Run: run}
	lines := make([]ChargeLine, len(run.Lines))
	charges := make([]ledger.Charge, len(run.Lines))
	gross := money.Of(0, f.Lease.Currency)
	for i, line := range run.Lines {
		lines[i] = ChargeLine{
			Line: line, ID: ids.Make[ids.Charge](), Org: f.Lease.Org, Project: f.Lease.Project, Lease: f.Lease.ID, Run: kept.ID,
			Named: named(line, prior), CreatedAt: now,
		}
		charges[i] = ledger.Charge{Reference: line.Reference(f.Lease.ID), Net: line.Amount, Tax: line.Tax, Memo: line.Description}
		gross = gross.Add(line.Gross())
	}
	if err := s.meter.InsertRun(ctx, kept, lines); err != nil {
		return nil, err
	}
	if err := s.ledger.Capture(ctx, f.Lease.ID, charges...); err != nil {
		return nil, err
	}
	_, err := s.meter.AppendEvent(ctx, lease.Event{
		Lease: f.Lease.ID, Type: lease.EventCharged, At: now,
		Data: map[string]any{"amount_minor": gross.Minor, "currency": string(gross.Currency), "until": run.Until},
	})
	return append(slices.Clip(prior), lines...), err
}

// named finds the usage line that a correction names.
func named(line metering.Line, prior []ChargeLine) ids.Charge {
	for _, p := range prior {
		if line.Kind == metering.Correction && p.Kind == metering.Usage && p.Segment == line.Segment && p.Seq == line.Corrects {
			return p.ID
		}
	}
	return ids.Charge{}
}

// close charges the last lines, gives back the rest of the hold, shares what was earned and drafts the invoice.
func (s *Service) close(ctx context.Context, f metering.Facts, run metering.Run, prior []ChargeLine) (ids.Invoice, error) {
	lines, err := s.charge(ctx, f, run, prior)
	if err != nil {
		return ids.Invoice{}, err
	}
	if err := s.ledger.Release(ctx, f.Lease.ID); err != nil {
		return ids.Invoice{}, err
	}
	if err := s.share(ctx, f.Lease, lines); err != nil {
		return ids.Invoice{}, err
	}
	return s.draft(ctx, f.Lease, lines)
}

func (s *Service) share(ctx context.Context, l lease.Lease, lines []ChargeLine) error {
	provider, err := s.meter.Provider(ctx, l.Site)
	if err != nil || provider.Operator {
		return err
	}
	net, _ := sums(lines, l.Currency)
	return s.ledger.Share(ctx, l.Org, provider.Org, l.ID, net, provider.FeeBPS)
}

func (s *Service) within(ctx context.Context, verb string, fn func(ctx context.Context) error) error {
	if err := s.tx.WithinTx(ctx, fn); err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	return nil
}
