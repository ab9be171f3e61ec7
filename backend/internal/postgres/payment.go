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

// Payments keeps payments, which tenants read and write as their own, and webhooks, which only the platform sees.
type Payments struct{ db *DB }

// NewPayments returns the payments of db.
func NewPayments(db *DB) *Payments { return &Payments{db: db} }

var _ billing.PaymentStore = (*Payments)(nil)

type paymentRow struct {
	ID          ids.Payment `gorm:"primaryKey"`
	OrgID       ids.Org
	Kind        string
	InvoiceID   ids.Invoice
	Currency    string
	AmountMinor int64
	State       string
	Gateway     string
	GatewayRef  *string
	ActionURL   string `gorm:"column:action_url"`
	Failure     string
	Method      string
	EffectKey   string
	Attempt     int
	Unsure      bool
	CreatedBy   string
	CreatedAt   time.Time
	UpdatedAt   time.Time `gorm:"autoUpdateTime:false"`
}

func (paymentRow) TableName() string { return "payment" }

func newPaymentRow(p billing.Payment) paymentRow {
	row := paymentRow{
		ID: p.ID, OrgID: p.Org, Kind: "top_up", Currency: string(p.Amount.Currency), AmountMinor: p.Amount.Minor, State: string(p.State),
		Gateway: p.Gateway, ActionURL: p.ActionURL, Failure: p.Failure, Method: p.Method, EffectKey: p.EffectKey, Attempt: p.Attempt,
		Unsure: p.Unsure, CreatedBy: p.CreatedBy, CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt,
	}
	if p.Ref != "" {
		row.GatewayRef = &p.Ref
	}
	return row
}

func toPayment(r paymentRow) billing.Payment {
	p := billing.Payment{
		ID: r.ID, Org: r.OrgID, Amount: money.Of(r.AmountMinor, money.Currency(r.Currency)), State: billing.PaymentState(r.State), Gateway: r.Gateway,
		Method: r.Method, ActionURL: r.ActionURL, Failure: r.Failure, EffectKey: r.EffectKey, Attempt: r.Attempt, Unsure: r.Unsure,
		CreatedBy: r.CreatedBy, CreatedAt: r.CreatedAt.UTC(), UpdatedAt: r.UpdatedAt.UTC(),
	}
	if r.GatewayRef != nil {
		p.Ref = *r.GatewayRef
	}
	return p
}

// InsertPayment implements billing.PaymentStore.
func (s *Payments) InsertPayment(ctx context.Context, payment billing.Payment) (billing.Payment, error) {
	row := newPaymentRow(payment)
	if err := conn(ctx).Clauses(clause.OnConflict{Columns: []clause.Column{{Name: "effect_key"}}, DoNothing: true}).Create(&row).Error; err != nil {
		return billing.Payment{}, fmt.Errorf("insert payment: %w", translate(err))
	}
	return s.PaymentOfEffect(ctx, payment.EffectKey)
}

// Payment implements billing.PaymentStore.
func (s *Payments) Payment(ctx context.Context, id ids.Payment) (billing.Payment, error) {
	return takePayment(conn(ctx).Where("id = ?", id))
}

// PaymentForUpdate implements billing.PaymentStore.
func (s *Payments) PaymentForUpdate(ctx context.Context, id ids.Payment) (billing.Payment, error) {
	return takePayment(conn(ctx).Where("id = ?", id).Clauses(clause.Locking{Strength: "NO KEY UPDATE"}))
}

// PaymentOfEffect implements billing.PaymentStore.
func (s *Payments) PaymentOfEffect(ctx context.Context, key string) (billing.Payment, error) {
	return takePayment(conn(ctx).Where("effect_key = ?", key))
}

func takePayment(find *gorm.DB) (billing.Payment, error) {
	var rows []paymentRow
	if err := find.Limit(1).Find(&rows).Error; err != nil {
		return billing.Payment{}, fmt.Errorf("read payment: %w", err)
	}
	if len(rows) == 0 {
		return billing.Payment{}, fault.New(fault.NotFound, "payment-not-found", "there is no such payment")
	}
	return toPayment(rows[0]), nil
}

// UpdatePayment implements billing.PaymentStore.
func (s *Payments) UpdatePayment(ctx context.Context, payment billing.Payment) error {
	err := conn(ctx).Model(&paymentRow{}).Where("id = ?", payment.ID).
		Select("state", "gateway_ref", "action_url", "failure", "attempt", "unsure", "updated_at").Updates(newPaymentRow(payment)).Error
	if err != nil {
		return fmt.Errorf("update payment: %w", translate(err))
	}
	return nil
}

// Payments implements billing.PaymentStore.
func (s *Payments) Payments(ctx context.Context, org ids.Org, after ids.Payment, limit int) ([]billing.Payment, error) {
	find := conn(ctx).Where("org_id = ? AND kind = 'top_up'", org).Order("created_at DESC, id DESC").Limit(limit)
	if !after.IsZero() {
		find = find.Where("(created_at, id) < (SELECT created_at, id FROM payment WHERE id = ?)", after)
	}
	var rows []paymentRow
	if err := find.Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("list payments: %w", err)
	}
	return each(rows, toPayment), nil
}

// DuePayments implements billing.PaymentStore: a payment rests for a tenth of its age, five seconds at least.
func (s *Payments) DuePayments(ctx context.Context, gateway string, now time.Time, limit int) ([]ids.Payment, error) {
	var rows []paymentRow
	err := conn(ctx).Where(`gateway = ? AND state IN ('pending', 'requires_action')
		AND updated_at <= ?::timestamptz - greatest(interval '5 seconds', (updated_at - created_at) / 10)`, gateway, now).
		Order("updated_at, id").Limit(limit).Find(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("list due payments: %w", err)
	}
	return each(rows, func(r paymentRow) ids.Payment { return r.ID }), nil
}

type gatewayEventRow struct {
	ID           string `gorm:"primaryKey"`
	Gateway      string
	Type         string
	Payload      string
	ReceivedAt   time.Time
	ObjectRef    string
	ProcessedAt  *time.Time
	ParkedReason string
}

func (gatewayEventRow) TableName() string { return "gateway_event" }

// InsertEvent implements billing.PaymentStore.
func (s *Payments) InsertEvent(ctx context.Context, gateway string, e billing.GatewayEvent, at time.Time) error {
	row := gatewayEventRow{ID: e.ID, Gateway: gateway, Type: e.Type, Payload: string(e.Payload), ReceivedAt: at, ObjectRef: e.Ref, ParkedReason: e.Parked}
	if err := conn(ctx).Clauses(clause.OnConflict{DoNothing: true}).Create(&row).Error; err != nil {
		return fmt.Errorf("insert gateway event: %w", translate(err))
	}
	return nil
}

// OpenEvents implements billing.PaymentStore.
func (s *Payments) OpenEvents(ctx context.Context, gateway string, limit int) ([]billing.GatewayEvent, error) {
	var rows []gatewayEventRow
	err := conn(ctx).Where("gateway = ? AND processed_at IS NULL AND parked_reason = ''", gateway).Order("received_at, id").Limit(limit).Find(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("list gateway events: %w", err)
	}
	return each(rows, func(r gatewayEventRow) billing.GatewayEvent {
		return billing.GatewayEvent{ID: r.ID, Type: r.Type, Ref: r.ObjectRef, Payload: []byte(r.Payload), Parked: r.ParkedReason}
	}), nil
}

// FinishEvent implements billing.PaymentStore.
func (s *Payments) FinishEvent(ctx context.Context, id, parked string, at time.Time) error {
	row := gatewayEventRow{ParkedReason: parked}
	if parked == "" {
		row.ProcessedAt = &at
	}
	if err := conn(ctx).Model(&gatewayEventRow{}).Where("id = ?", id).Select("processed_at", "parked_reason").Updates(row).Error; err != nil {
		return fmt.Errorf("finish gateway event: %w", translate(err))
	}
	return nil
}
