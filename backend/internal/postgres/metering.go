package postgres

import (
	"context"
	"fmt"
	"math/big"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/metering"
	"github.com/leasehold/leasehold/backend/money"
)

// Metering keeps what leases are rated from, and the lines. Tenants read their own; every write steps into the platform role.
type Metering struct {
	db          *DB
	leases      *Leases
	allocations *Allocations
}

// NewMetering returns the meter of db.
func NewMetering(db *DB) *Metering {
	return &Metering{db: db, leases: NewLeases(db), allocations: NewAllocations(db)}
}

var _ billing.Meter = (*Metering)(nil)

// Facts implements billing.Meter.
func (s *Metering) Facts(ctx context.Context, id ids.Lease, locked bool) (metering.Facts, error) {
	read := s.leases.Get
	if locked {
		read = s.leases.GetForUpdate
	}
	l, err := read(ctx, id)
	if err != nil {
		return metering.Facts{}, err
	}
	f := metering.Facts{Lease: l}
	if f.Segments, err = s.leases.Segments(ctx, id); err != nil {
		return metering.Facts{}, err
	}
	if f.Events, err = s.leases.Events(ctx, id, 0, 0); err != nil {
		return metering.Facts{}, err
	}
	if f.Allocations, err = s.allocations.ByLease(ctx, id); err != nil {
		return metering.Facts{}, err
	}
	err = s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw("SELECT name FROM instance_type WHERE id = ?", l.InstanceType).Scan(&f.Product).Error
	})
	if err != nil {
		return metering.Facts{}, fmt.Errorf("read instance type: %w", err)
	}
	return f, nil
}

// Provider implements billing.Meter.
func (s *Metering) Provider(ctx context.Context, site ids.Site) (billing.Provider, error) {
	var rows []struct {
		ID             ids.Org
		Kind           string
		PlatformFeeBps int64
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`SELECT o.id, o.kind, o.platform_fee_bps FROM site s JOIN organization o ON o.id = s.provider_org_id
			WHERE s.id = ?`, site).Scan(&rows).Error
	})
	if err != nil {
		return billing.Provider{}, fmt.Errorf("read provider: %w", err)
	}
	if len(rows) == 0 {
		return billing.Provider{}, fault.New(fault.NotFound, "site-not-found", "there is no such site")
	}
	return billing.Provider{Org: rows[0].ID, FeeBPS: rows[0].PlatformFeeBps, Operator: rows[0].Kind == "operator"}, nil
}

type chargeLineRow struct {
	ID                 ids.Charge `gorm:"primaryKey"`
	OrgID              ids.Org
	ProjectID          ids.Project
	LeaseID            ids.Lease
	SegmentSeq         int
	Seq                int
	Kind               string
	Description        string
	StartAt            time.Time
	EndAt              time.Time
	Unit               string
	QuantityUnitMillis integerText
	RateMicros         int64
	AmountMinor        int64
	TaxRateBps         int
	TaxMinor           int64
	Currency           string
	RatingRunID        ids.Rating
	CorrectsID         ids.Charge
	InvoiceID          ids.Invoice
	CreatedAt          time.Time
}

func (chargeLineRow) TableName() string { return "charge_line" }

func newChargeLineRow(l billing.ChargeLine) chargeLineRow {
	return chargeLineRow{
		ID: l.ID, OrgID: l.Org, ProjectID: l.Project, LeaseID: l.Lease, SegmentSeq: l.Segment, Seq: l.Seq, Kind: string(l.Kind),
		Description: l.Description, StartAt: l.From, EndAt: l.To, Unit: l.Unit, QuantityUnitMillis: integerText{l.Quantity},
		RateMicros: l.Rate.Micros, AmountMinor: l.Amount.Minor, TaxRateBps: l.TaxRateBPS, TaxMinor: l.Tax.Minor,
		Currency: string(l.Amount.Currency), RatingRunID: l.Run, CorrectsID: l.Named, InvoiceID: l.Invoice, CreatedAt: l.CreatedAt,
	}
}

func toChargeLine(r chargeLineRow) billing.ChargeLine {
	c := money.Currency(r.Currency)
	quantity := r.QuantityUnitMillis.Int
	if quantity == nil {
		quantity = new(big.Int)
	}
	return billing.ChargeLine{
		Line: metering.Line{
			Segment: r.SegmentSeq, Kind: metering.LineKind(r.Kind), Seq: r.Seq, Description: r.Description, From: r.StartAt.UTC(), To: r.EndAt.UTC(),
			Unit: r.Unit, Quantity: quantity, Rate: money.Rate{Micros: r.RateMicros, Currency: c}, Amount: money.Of(r.AmountMinor, c),
			TaxRateBPS: r.TaxRateBps, Tax: money.Of(r.TaxMinor, c),
		},
		ID: r.ID, Org: r.OrgID, Project: r.ProjectID, Lease: r.LeaseID, Run: r.RatingRunID, Named: r.CorrectsID, Invoice: r.InvoiceID,
		CreatedAt: r.CreatedAt.UTC(),
	}
}

// LinesOf implements billing.Meter.
func (s *Metering) LinesOf(ctx context.Context, id ids.Lease) ([]billing.ChargeLine, error) {
	return lines(ctx, "lease_id = ?", id)
}

// lines reads charge lines, oldest first, and what corrections name.
func lines(ctx context.Context, where string, args ...any) ([]billing.ChargeLine, error) {
	var rows []chargeLineRow
	if err := conn(ctx).Where(where, args...).Order("created_at, id").Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("read charge lines: %w", err)
	}
	found := each(rows, toChargeLine)
	seqs := make(map[ids.Charge]int, len(found))
	for i, l := range found {
		seqs[l.ID] = l.Seq
		if !l.Named.IsZero() {
			found[i].Corrects = seqs[l.Named]
		}
	}
	return found, nil
}

// Lines implements billing.Meter.
func (s *Metering) Lines(ctx context.Context, f billing.LineFilter) ([]billing.ChargeLine, error) {
	find := conn(ctx).Where("org_id = ?", f.Org).Order("start_at DESC, id DESC")
	if !f.Lease.IsZero() {
		find = find.Where("lease_id = ?", f.Lease)
	}
	if !f.From.IsZero() {
		find = find.Where("end_at > ?", f.From)
	}
	if !f.To.IsZero() {
		find = find.Where("start_at < ?", f.To)
	}
	if !f.After.IsZero() {
		find = find.Where("(start_at, id) < (SELECT start_at, id FROM charge_line WHERE id = ?)", f.After)
	}
	if f.Limit > 0 {
		find = find.Limit(f.Limit)
	}
	var rows []chargeLineRow
	if err := find.Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("list charge lines: %w", err)
	}
	return each(rows, toChargeLine), nil
}

type ratingRunRow struct {
	ID           ids.Rating `gorm:"primaryKey"`
	OrgID        ids.Org
	LeaseID      ids.Lease
	InputsDigest string
	LinesDigest  string
	CodeVersion  string
	UntilAt      time.Time
	EventSeq     int64
	CreatedAt    time.Time
}

func (ratingRunRow) TableName() string { return "rating_run" }

// InsertRun implements billing.Meter.
func (s *Metering) InsertRun(ctx context.Context, run billing.RatingRun, charged []billing.ChargeLine) error {
	row := ratingRunRow{
		ID: run.ID, OrgID: run.Org, LeaseID: run.Lease, InputsDigest: run.InputsDigest, LinesDigest: run.LinesDigest, CodeVersion: run.Version,
		UntilAt: run.Until, EventSeq: run.EventSeq, CreatedAt: run.CreatedAt,
	}
	rows := each(charged, newChargeLineRow)
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		if err := conn(ctx).Create(&row).Error; err != nil {
			return err
		}
		return conn(ctx).Create(&rows).Error
	})
	if err != nil {
		return fmt.Errorf("insert rating run: %w", translate(err))
	}
	return nil
}

// InsertIntervals implements billing.Meter.
func (s *Metering) InsertIntervals(ctx context.Context, l lease.Lease, intervals []metering.Interval) error {
	batch := &pgx.Batch{}
	for _, i := range intervals {
		evidence := i.Evidence
		if evidence == nil {
			evidence = []string{}
		}
		batch.Queue(`INSERT INTO usage_interval (id, org_id, lease_id, allocation_id, class, start_at, end_at, evidence) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
			ids.Make[ids.Usage](), l.Org, l.ID, i.Allocation, string(i.Class), i.From, i.To, evidence)
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return raw(ctx, func(conn *pgx.Conn) error { return conn.SendBatch(ctx, batch).Close() })
	})
	if err != nil {
		return fmt.Errorf("insert usage intervals: %w", translate(err))
	}
	return nil
}

// Settled implements billing.Meter.
func (s *Metering) Settled(ctx context.Context, version string, after ids.Lease, limit int) ([]ids.Lease, error) {
	find := conn(ctx).Table("hold h").Where(`h.closed_at IS NOT NULL AND NOT EXISTS (SELECT FROM rating_run r WHERE r.lease_id = h.lease_id AND r.code_version <> ?)`, version)
	if !after.IsZero() {
		find = find.Where("h.lease_id > ?", after)
	}
	var found []ids.Lease
	if err := find.Order("h.lease_id").Limit(limit).Pluck("h.lease_id", &found).Error; err != nil {
		return nil, fmt.Errorf("list settled leases: %w", err)
	}
	return found, nil
}

// AppendEvent implements billing.Meter.
func (s *Metering) AppendEvent(ctx context.Context, e lease.Event) (lease.Event, error) {
	return s.leases.AppendEvent(ctx, e)
}
