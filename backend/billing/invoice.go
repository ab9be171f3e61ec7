package billing

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/metering"
	"github.com/leasehold/leasehold/backend/money"
)

// issuer is whose numbers the invoices have.
const issuer = "leasehold"

// draft writes the invoice of a lease that is over. What the hold covered is prepaid.
func (s *Service) draft(ctx context.Context, l lease.Lease, lines []ChargeLine) (ids.Invoice, error) {
	hold, err := s.ledger.HoldOf(ctx, l.ID)
	if err != nil {
		return ids.Invoice{}, err
	}
	invoice := newInvoice(l.Org, l.Currency, lines, hold.Captured)
	invoice.ID, invoice.Lease, invoice.CreatedAt = ids.Make[ids.Invoice](), l.ID, s.clock.Now()
	invoice.From, invoice.To = l.Start, latest(l.Start, l.EffectiveEnd())
	return invoice.ID, s.invoices.Insert(ctx, invoice)
}

func newInvoice(org ids.Org, currency money.Currency, lines []ChargeLine, prepaid money.Amount) Invoice {
	net, tax := sums(lines, currency)
	total := net.Add(tax)
	return Invoice{
		Org: org, State: Draft, Subtotal: net, Tax: tax, Total: total, Prepaid: prepaid, Payable: total.Sub(prepaid), Lines: lines,
	}
}

// Invoice reads an invoice with its lines. It returns a NotFound fault, also for another organization's.
func (s *Service) Invoice(ctx context.Context, id ids.Invoice) (Invoice, error) {
	var invoice Invoice
	err := s.within(ctx, "read invoice", func(ctx context.Context) (err error) {
		invoice, err = s.invoices.Invoice(ctx, id)
		return err
	})
	return invoice, err
}

// Invoices lists invoices with their lines, newest first.
func (s *Service) Invoices(ctx context.Context, filter InvoiceFilter) ([]Invoice, error) {
	var found []Invoice
	err := s.within(ctx, "list invoices", func(ctx context.Context) (err error) {
		found, err = s.invoices.List(ctx, filter)
		return err
	})
	return found, err
}

// Finalize gives a draft its number and freezes it: from here on there are corrections only. A final invoice stays as it is.
//
// It returns a NotFound fault, and a Conflict fault, code "invoice-void".
func (s *Service) Finalize(ctx context.Context, id ids.Invoice) (Invoice, error) {
	var invoice Invoice
	err := s.within(ctx, "finalize invoice", func(ctx context.Context) (err error) {
		if invoice, err = s.invoices.InvoiceForUpdate(ctx, id); err != nil {
			return err
		}
		switch invoice.State {
		case Final:
			return nil
		case Void:
			return fault.New(fault.Conflict, "invoice-void", "a void invoice is not finalized")
		case Draft:
		}
		n, err := s.invoices.NextNumber(ctx, issuer)
		if err != nil {
			return err
		}
		invoice.State, invoice.Number, invoice.FinalizedAt = Final, fmt.Sprintf("LH-%06d", n), s.clock.Now()
		if err := invoice.freeze(); err != nil {
			return err
		}
		return s.invoices.Finalize(ctx, invoice)
	})
	return invoice, err
}

// snapshot is an invoice as it was when it became final; its JSON is what the digest is over.
type snapshot struct {
	Number      string         `json:"number"`
	Invoice     ids.Invoice    `json:"invoice"`
	Org         ids.Org        `json:"organization"`
	Lease       ids.Lease      `json:"lease"`
	From        time.Time      `json:"from"`
	To          time.Time      `json:"to"`
	Subtotal    money.Amount   `json:"subtotal"`
	Tax         money.Amount   `json:"tax"`
	Total       money.Amount   `json:"total"`
	Prepaid     money.Amount   `json:"prepaid"`
	Payable     money.Amount   `json:"payable"`
	FinalizedAt time.Time      `json:"finalized_at"`
	Lines       []snapshotLine `json:"lines"`
}

type snapshotLine struct {
	ID    ids.Charge    `json:"id"`
	Lease ids.Lease     `json:"lease"`
	Run   ids.Rating    `json:"rating_run"`
	Line  metering.Line `json:"line"`
}

func (i *Invoice) freeze() error {
	frozen := snapshot{
		Number: i.Number, Invoice: i.ID, Org: i.Org, Lease: i.Lease, From: i.From, To: i.To, Subtotal: i.Subtotal, Tax: i.Tax, Total: i.Total,
		Prepaid: i.Prepaid, Payable: i.Payable, FinalizedAt: i.FinalizedAt,
	}
	for _, l := range i.Lines {
		frozen.Lines = append(frozen.Lines, snapshotLine{ID: l.ID, Lease: l.Lease, Run: l.Run, Line: l.Line})
	}
	body, err := json.Marshal(frozen)
	if err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	i.Snapshot = body
	i.Digest, err = metering.Digest(frozen)
	return err
}

// Verify reports whether a final invoice's snapshot still has its digest, however the database ordered the snapshot's JSON.
func (i Invoice) Verify() error {
	var frozen snapshot
	if err := json.Unmarshal(i.Snapshot, &frozen); err != nil {
		return fmt.Errorf("read snapshot of %s: %w", i.Number, err)
	}
	digest, err := metering.Digest(frozen)
	if err != nil {
		return err
	}
	if digest != i.Digest {
		return fmt.Errorf("snapshot of %s has digest %s, not %s", i.Number, digest, i.Digest)
	}
	return nil
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
