package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/money"
)

// Invoices keeps invoices. Tenants read their own; every write steps into the platform role.
type Invoices struct{ db *DB }

// NewInvoices returns the invoices of db.
func NewInvoices(db *DB) *Invoices { return &Invoices{db: db} }

var _ billing.Invoices = (*Invoices)(nil)

type invoiceRow struct {
	ID            ids.Invoice `gorm:"primaryKey"`
	OrgID         ids.Org
	Number        *string
	State         string
	LeaseID       ids.Lease
	PeriodStart   time.Time
	PeriodEnd     time.Time
	Currency      string
	SubtotalMinor int64
	TaxMinor      int64
	TotalMinor    int64
	PrepaidMinor  int64
	PayableMinor  int64
	Snapshot      *string
	Digest        string
	CreatedAt     time.Time
	FinalizedAt   *time.Time
}

func (invoiceRow) TableName() string { return "invoice" }

func newInvoiceRow(i billing.Invoice) invoiceRow {
	row := invoiceRow{
		ID: i.ID, OrgID: i.Org, State: string(i.State), LeaseID: i.Lease, PeriodStart: i.From, PeriodEnd: i.To, Currency: string(i.Total.Currency),
		SubtotalMinor: i.Subtotal.Minor, TaxMinor: i.Tax.Minor, TotalMinor: i.Total.Minor, PrepaidMinor: i.Prepaid.Minor,
		PayableMinor: i.Payable.Minor, Digest: i.Digest, CreatedAt: i.CreatedAt, FinalizedAt: nullable(i.FinalizedAt),
	}
	if i.Number != "" {
		row.Number = &i.Number
	}
	if i.Snapshot != nil {
		text := string(i.Snapshot)
		row.Snapshot = &text
	}
	return row
}

func toInvoice(r invoiceRow) billing.Invoice {
	c := money.Currency(r.Currency)
	i := billing.Invoice{
		ID: r.ID, Org: r.OrgID, State: billing.InvoiceState(r.State), Lease: r.LeaseID, From: r.PeriodStart.UTC(), To: r.PeriodEnd.UTC(),
		Subtotal: money.Of(r.SubtotalMinor, c), Tax: money.Of(r.TaxMinor, c), Total: money.Of(r.TotalMinor, c), Prepaid: money.Of(r.PrepaidMinor, c),
		Payable: money.Of(r.PayableMinor, c), Digest: r.Digest, CreatedAt: r.CreatedAt.UTC(), FinalizedAt: instant(r.FinalizedAt),
	}
	if r.Number != nil {
		i.Number = *r.Number
	}
	if r.Snapshot != nil {
		i.Snapshot = []byte(*r.Snapshot)
	}
	return i
}

// OfLease implements billing.Invoices.
func (s *Invoices) OfLease(ctx context.Context, id ids.Lease) (billing.Invoice, error) {
	return takeInvoice(ctx, conn(ctx).Where("lease_id = ? AND state <> 'void'", id))
}

// Invoice implements billing.Invoices.
func (s *Invoices) Invoice(ctx context.Context, id ids.Invoice) (billing.Invoice, error) {
	return takeInvoice(ctx, conn(ctx).Where("id = ?", id))
}

// InvoiceForUpdate implements billing.Invoices.
func (s *Invoices) InvoiceForUpdate(ctx context.Context, id ids.Invoice) (billing.Invoice, error) {
	return takeInvoice(ctx, conn(ctx).Where("id = ?", id).Clauses(clause.Locking{Strength: "NO KEY UPDATE"}))
}

func takeInvoice(ctx context.Context, find *gorm.DB) (billing.Invoice, error) {
	var rows []invoiceRow
	if err := find.Limit(1).Find(&rows).Error; err != nil {
		return billing.Invoice{}, fmt.Errorf("read invoice: %w", err)
	}
	if len(rows) == 0 {
		return billing.Invoice{}, fault.New(fault.NotFound, "invoice-not-found", "there is no such invoice")
	}
	found, err := withLines(ctx, rows)
	if err != nil {
		return billing.Invoice{}, err
	}
	return found[0], nil
}

// List implements billing.Invoices.
func (s *Invoices) List(ctx context.Context, f billing.InvoiceFilter) ([]billing.Invoice, error) {
	find := conn(ctx).Where("org_id = ?", f.Org).Order("created_at DESC, id DESC")
	if !f.Lease.IsZero() {
		find = find.Where("lease_id = ?", f.Lease)
	}
	if !f.After.IsZero() {
		find = find.Where("(created_at, id) < (SELECT created_at, id FROM invoice WHERE id = ?)", f.After)
	}
	if f.Limit > 0 {
		find = find.Limit(f.Limit)
	}
	var rows []invoiceRow
	if err := find.Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("list invoices: %w", err)
	}
	return withLines(ctx, rows)
}

// withLines reads the lines of all the invoices at once.
func withLines(ctx context.Context, rows []invoiceRow) ([]billing.Invoice, error) {
	found := each(rows, toInvoice)
	if len(found) == 0 {
		return found, nil
	}
	at := make(map[ids.Invoice]int, len(found))
	for i, invoice := range found {
		at[invoice.ID] = i
	}
	on, err := lines(ctx, "invoice_id IN ?", each(found, func(i billing.Invoice) ids.Invoice { return i.ID }))
	if err != nil {
		return nil, err
	}
	for _, line := range on {
		invoice := &found[at[line.Invoice]]
		invoice.Lines = append(invoice.Lines, line)
	}
	return found, nil
}

// Insert implements billing.Invoices.
func (s *Invoices) Insert(ctx context.Context, invoice billing.Invoice) error {
	row := newInvoiceRow(invoice)
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		if err := conn(ctx).Create(&row).Error; err != nil || len(invoice.Lines) == 0 {
			return err
		}
		on := each(invoice.Lines, func(l billing.ChargeLine) ids.Charge { return l.ID })
		put := conn(ctx).Exec("UPDATE charge_line SET invoice_id = ? WHERE id IN ? AND invoice_id IS NULL", invoice.ID, on)
		if put.Error == nil && put.RowsAffected != int64(len(on)) {
			return fault.New(fault.Conflict, "line-invoiced", "a charge line is on another invoice already")
		}
		return put.Error
	})
	if err != nil {
		return fmt.Errorf("insert invoice: %w", translate(err))
	}
	return nil
}

// Finalize implements billing.Invoices.
func (s *Invoices) Finalize(ctx context.Context, invoice billing.Invoice) error {
	row := newInvoiceRow(invoice)
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Model(&invoiceRow{}).Where("id = ? AND state = 'draft'", invoice.ID).
			Select("number", "state", "snapshot", "digest", "finalized_at").Updates(row).Error
	})
	if err != nil {
		return fmt.Errorf("finalize invoice: %w", translate(err))
	}
	return nil
}

// NextNumber implements billing.Invoices.
func (s *Invoices) NextNumber(ctx context.Context, issuer string) (int64, error) {
	var n int64
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`INSERT INTO invoice_counter (issuer, last) VALUES (?, 1)
			ON CONFLICT (issuer) DO UPDATE SET last = invoice_counter.last + 1 RETURNING last`, issuer).Scan(&n).Error
	})
	if err != nil {
		return 0, fmt.Errorf("draw invoice number: %w", translate(err))
	}
	return n, nil
}
