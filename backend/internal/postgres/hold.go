package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/ledger"
	"github.com/leasehold/leasehold/backend/money"
)

type holdRow struct {
	ID            ids.Hold `gorm:"primaryKey"`
	OrgID         ids.Org
	LeaseID       ids.Lease
	Currency      string
	AmountMinor   int64
	CapturedMinor int64
	ReleasedMinor int64
	ClosedAt      *time.Time
	CreatedAt     time.Time
}

func (holdRow) TableName() string { return "hold" }

func newHoldRow(h ledger.Hold) holdRow {
	return holdRow{
		ID: h.ID, OrgID: h.Org, LeaseID: h.Lease, Currency: string(h.Amount.Currency), AmountMinor: h.Amount.Minor,
		CapturedMinor: h.Captured.Minor, ReleasedMinor: h.Released.Minor, ClosedAt: nullable(h.ClosedAt), CreatedAt: h.CreatedAt,
	}
}

func toHold(r holdRow) ledger.Hold {
	c := money.Currency(r.Currency)
	return ledger.Hold{
		ID: r.ID, Org: r.OrgID, Lease: r.LeaseID, Amount: money.Of(r.AmountMinor, c), Captured: money.Of(r.CapturedMinor, c),
		Released: money.Of(r.ReleasedMinor, c), ClosedAt: instant(r.ClosedAt), CreatedAt: r.CreatedAt.UTC(),
	}
}

// Hold implements ledger.Store. An actor sees its own organization's.
func (s *Ledger) Hold(ctx context.Context, lease ids.Lease) (ledger.Hold, error) {
	var rows []holdRow
	if err := conn(ctx).Where("lease_id = ?", lease).Limit(1).Find(&rows).Error; err != nil {
		return ledger.Hold{}, fmt.Errorf("read hold: %w", err)
	}
	if len(rows) == 0 {
		return ledger.Hold{}, fault.New(fault.NotFound, "hold-not-found", "nothing is held for this lease")
	}
	return toHold(rows[0]), nil
}

// InsertHold implements ledger.Store.
func (s *Ledger) InsertHold(ctx context.Context, hold ledger.Hold) error {
	row := newHoldRow(hold)
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Create(&row).Error })
	if err != nil {
		return fmt.Errorf("insert hold: %w", translate(err))
	}
	return nil
}

// UpdateHold implements ledger.Store.
func (s *Ledger) UpdateHold(ctx context.Context, hold ledger.Hold) error {
	row := newHoldRow(hold)
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Model(&holdRow{}).Where("id = ?", hold.ID).
			Select("amount_minor", "captured_minor", "released_minor", "closed_at").Updates(row).Error
	})
	if err != nil {
		return fmt.Errorf("update hold: %w", translate(err))
	}
	return nil
}
