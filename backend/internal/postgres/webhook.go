package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/tenant"
	"github.com/leasehold/leasehold/backend/webhook"
)

// Webhooks keeps events, endpoints and deliveries. It implements webhook.Store and webhook.Rounds.
type Webhooks struct{ db *DB }

var (
	_ webhook.Store  = (*Webhooks)(nil)
	_ webhook.Rounds = (*Webhooks)(nil)
)

// NewWebhooks returns the webhooks of db.
func NewWebhooks(db *DB) *Webhooks { return &Webhooks{db: db} }

type endpointRow struct {
	ID            ids.Webhook `gorm:"primaryKey"`
	OrgID         ids.Org
	URL           string `gorm:"column:url"`
	Description   string
	Types         textArray
	Disabled      string
	DisabledAt    *time.Time
	FailingSince  *time.Time
	Secret        []byte
	Previous      []byte
	PreviousUntil *time.Time
	CreatedBy     string
	CreatedAt     time.Time
	DeletedAt     *time.Time
	Version       int64
}

func (endpointRow) TableName() string { return "webhook_endpoint" }

func newEndpointRow(e webhook.Endpoint) endpointRow {
	return endpointRow{
		ID: e.ID, OrgID: e.Org, URL: e.URL, Description: e.Description, Types: e.Types, Disabled: string(e.Disabled), DisabledAt: nullable(e.DisabledAt),
		FailingSince: nullable(e.FailingSince), Secret: e.Secret, Previous: e.Previous, PreviousUntil: nullable(e.PreviousUntil), CreatedBy: e.CreatedBy,
		CreatedAt: e.CreatedAt, Version: e.Version,
	}
}

func toEndpoint(r endpointRow) webhook.Endpoint {
	return webhook.Endpoint{
		ID: r.ID, Org: r.OrgID, URL: r.URL, Description: r.Description, Types: r.Types, Disabled: webhook.Disability(r.Disabled),
		DisabledAt: instant(r.DisabledAt), FailingSince: instant(r.FailingSince), Secret: r.Secret, Previous: r.Previous,
		PreviousUntil: instant(r.PreviousUntil), CreatedBy: r.CreatedBy, CreatedAt: r.CreatedAt.UTC(), Version: r.Version,
	}
}

// InsertEndpoint implements webhook.Endpoints.
func (s *Webhooks) InsertEndpoint(ctx context.Context, e webhook.Endpoint) error {
	row := newEndpointRow(e)
	if err := conn(ctx).Create(&row).Error; err != nil {
		return fmt.Errorf("insert webhook endpoint: %w", err)
	}
	return nil
}

// Endpoint implements webhook.Endpoints.
func (s *Webhooks) Endpoint(ctx context.Context, id ids.Webhook) (webhook.Endpoint, error) {
	return takeOne(conn(ctx).Where("id = ? AND deleted_at IS NULL", id), toEndpoint, "webhook endpoint")
}

// EndpointForUpdate implements webhook.Endpoints.
func (s *Webhooks) EndpointForUpdate(ctx context.Context, id ids.Webhook) (webhook.Endpoint, error) {
	return takeOne(conn(ctx).Where("id = ? AND deleted_at IS NULL", id).Clauses(clause.Locking{Strength: "NO KEY UPDATE"}), toEndpoint, "webhook endpoint")
}

// Endpoints implements webhook.Endpoints.
func (s *Webhooks) Endpoints(ctx context.Context, org ids.Org, page tenant.Page[ids.Webhook]) ([]webhook.Endpoint, error) {
	find := conn(ctx).Where("org_id = ? AND deleted_at IS NULL", org).Order("id DESC")
	if !page.After.IsZero() {
		find = find.Where("id < ?", page.After)
	}
	var rows []endpointRow
	if err := find.Limit(page.Limit).Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("list webhook endpoints: %w", err)
	}
	return each(rows, toEndpoint), nil
}

// CountEndpoints implements webhook.Endpoints.
func (s *Webhooks) CountEndpoints(ctx context.Context, org ids.Org) (int, error) {
	var n int64
	if err := conn(ctx).Model(&endpointRow{}).Where("org_id = ? AND deleted_at IS NULL", org).Count(&n).Error; err != nil {
		return 0, fmt.Errorf("count webhook endpoints: %w", err)
	}
	return int(n), nil
}

// UpdateEndpoint implements webhook.Endpoints.
func (s *Webhooks) UpdateEndpoint(ctx context.Context, e webhook.Endpoint) error {
	err := conn(ctx).Model(&endpointRow{}).Where("id = ?", e.ID).
		Select("url", "description", "types", "disabled", "disabled_at", "failing_since", "secret", "previous", "previous_until", "version").
		Updates(newEndpointRow(e)).Error
	if err != nil {
		return fmt.Errorf("update webhook endpoint: %w", err)
	}
	return nil
}

// DeleteEndpoint implements webhook.Endpoints. The row stays for its deliveries' sake, without its secrets.
func (s *Webhooks) DeleteEndpoint(ctx context.Context, id ids.Webhook, at time.Time) error {
	err := conn(ctx).Exec("UPDATE webhook_endpoint SET deleted_at = ?, secret = '', previous = NULL, version = version + 1 WHERE id = ?", at, id).Error
	if err != nil {
		return fmt.Errorf("delete webhook endpoint: %w", err)
	}
	return nil
}

// Abandon implements webhook.Endpoints.
func (s *Webhooks) Abandon(ctx context.Context, id ids.Webhook, why string, at time.Time) error {
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Exec(`
			WITH ended AS (
				UPDATE webhook_delivery SET state = 'failed', finished_at = ?, claim = claim + 1, claimed_until = NULL
				WHERE endpoint_id = ? AND state = 'pending' RETURNING id, org_id, claim)
			INSERT INTO webhook_attempt (delivery_id, number, org_id, at, took_ms, status, error)
			SELECT id, claim, org_id, ?, 0, 0, ? FROM ended`, at, id, at, why).Error
	})
	if err != nil {
		return fmt.Errorf("abandon deliveries: %w", err)
	}
	return nil
}

type deliveryRow struct {
	ID           ids.Delivery `gorm:"primaryKey"`
	OrgID        ids.Org
	EndpointID   ids.Webhook
	EventID      ids.Event
	State        string
	Tries        int
	Claim        int64
	ClaimedUntil *time.Time
	NextAt       time.Time
	CreatedAt    time.Time
	FinishedAt   *time.Time
}

func (deliveryRow) TableName() string { return "webhook_delivery" }

type attemptRow struct {
	DeliveryID ids.Delivery `gorm:"primaryKey"`
	Number     int64        `gorm:"primaryKey;autoIncrement:false"`
	OrgID      ids.Org
	At         time.Time
	TookMs     int64
	Status     int
	Error      string
	Body       string
}

func (attemptRow) TableName() string { return "webhook_attempt" }

func toAttempt(r attemptRow) webhook.Attempt {
	return webhook.Attempt{Number: r.Number, At: r.At.UTC(), TookMS: r.TookMs, Status: r.Status, Error: r.Error, Body: r.Body}
}

// withEvents joins deliveries with their events and last attempts.
func withEvents(ctx context.Context, rows []deliveryRow) ([]webhook.Delivery, error) {
	events, attempts := map[ids.Event]webhook.Event{}, map[ids.Delivery]webhook.Attempt{}
	if len(rows) > 0 {
		var found []eventRow
		if err := conn(ctx).Where("id IN ?", each(rows, func(r deliveryRow) ids.Event { return r.EventID })).Find(&found).Error; err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		for _, e := range found {
			events[e.ID] = toEvent(e)
		}
		var last []attemptRow
		err := conn(ctx).Raw("SELECT DISTINCT ON (delivery_id) * FROM webhook_attempt WHERE delivery_id IN ? ORDER BY delivery_id, number DESC",
			each(rows, func(r deliveryRow) ids.Delivery { return r.ID })).Scan(&last).Error
		if err != nil {
			return nil, fmt.Errorf("read attempts: %w", err)
		}
		for _, a := range last {
			attempts[a.DeliveryID] = toAttempt(a)
		}
	}
	return each(rows, func(r deliveryRow) webhook.Delivery {
		return webhook.Delivery{
			ID: r.ID, Org: r.OrgID, Endpoint: r.EndpointID, Event: events[r.EventID], State: webhook.State(r.State), Tries: r.Tries, Claim: r.Claim,
			NextAt: r.NextAt.UTC(), CreatedAt: r.CreatedAt.UTC(), FinishedAt: instant(r.FinishedAt), Last: attempts[r.ID],
		}
	}), nil
}

// Deliveries implements webhook.Deliveries.
func (s *Webhooks) Deliveries(ctx context.Context, f webhook.DeliveryFilter) ([]webhook.Delivery, error) {
	find := conn(ctx).Where("endpoint_id = ?", f.Endpoint).Order("id DESC").Limit(f.Limit)
	if f.State != "" {
		find = find.Where("state = ?", string(f.State))
	}
	if f.Type != "" {
		find = find.Where("event_id IN (SELECT id FROM event WHERE type = ?)", f.Type)
	}
	if !f.After.IsZero() {
		find = find.Where("id < ?", f.After)
	}
	var rows []deliveryRow
	if err := find.Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("list deliveries: %w", err)
	}
	return withEvents(ctx, rows)
}

// Delivery implements webhook.Deliveries.
func (s *Webhooks) Delivery(ctx context.Context, endpoint ids.Webhook, id ids.Delivery) (webhook.Delivery, error) {
	var rows []deliveryRow
	if err := conn(ctx).Where("id = ? AND endpoint_id = ?", id, endpoint).Limit(1).Find(&rows).Error; err != nil {
		return webhook.Delivery{}, fmt.Errorf("read delivery: %w", err)
	}
	if len(rows) == 0 {
		return webhook.Delivery{}, fault.New(fault.NotFound, "not-found", "there is no such delivery")
	}
	all, err := withEvents(ctx, rows)
	if err != nil {
		return webhook.Delivery{}, err
	}
	return all[0], nil
}

// Attempts implements webhook.Deliveries.
func (s *Webhooks) Attempts(ctx context.Context, id ids.Delivery) ([]webhook.Attempt, error) {
	var rows []attemptRow
	if err := conn(ctx).Where("delivery_id = ?", id).Order("number").Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("list attempts: %w", err)
	}
	return each(rows, toAttempt), nil
}

// Replay implements webhook.Deliveries.
func (s *Webhooks) Replay(ctx context.Context, endpoint ids.Webhook, deliveries []ids.Delivery, now time.Time) (int, error) {
	return again(conn(ctx).Where("endpoint_id = ? AND id IN ?", endpoint, deliveries), now)
}

// again makes deliveries due. One that is being sent right now stays claimed: what comes of it counts.
func again(which *gorm.DB, now time.Time) (int, error) {
	done := which.Model(&deliveryRow{}).Updates(map[string]any{"state": string(webhook.Pending), "tries": 0, "next_at": now, "finished_at": nil})
	if done.Error != nil {
		return 0, fmt.Errorf("replay deliveries: %w", done.Error)
	}
	return int(done.RowsAffected), nil
}

// ReplayPeriod implements webhook.Deliveries.
func (s *Webhooks) ReplayPeriod(
	ctx context.Context, e webhook.Endpoint, in webhook.ReplayInput, match func(string) bool, limit int, now time.Time,
) (int, error) {
	const within = "org_id = ? AND at >= ? AND at < ? AND sequence IS NOT NULL"
	var events []struct {
		ID         ids.Event
		Type       string
		Only       ids.Webhook
		DeliveryID ids.Delivery
		State      string
	}
	err := conn(ctx).Raw(`
		SELECT v.id, v.type, v.only_endpoint_id AS only, d.id AS delivery_id, coalesce(d.state, '') AS state
		FROM (SELECT * FROM event WHERE `+within+`) v LEFT JOIN webhook_delivery d ON d.event_id = v.id AND d.endpoint_id = ?
		ORDER BY v.sequence`, e.Org, in.Since, in.Until, e.ID).Scan(&events).Error
	if err != nil {
		return 0, fmt.Errorf("read events: %w", err)
	}
	var known []ids.Delivery
	var missing []webhook.Delivery
	for _, v := range events {
		switch {
		case !v.DeliveryID.IsZero() && (in.State == "" || in.State == webhook.State(v.State)):
			known = append(known, v.DeliveryID)
		case v.DeliveryID.IsZero() && in.State == "" && v.Only.IsZero() && match(v.Type):
			missing = append(missing, webhook.Delivery{
				ID: ids.Make[ids.Delivery](), Org: e.Org, Endpoint: e.ID, Event: webhook.Event{ID: v.ID}, State: webhook.Pending, NextAt: now, CreatedAt: now,
			})
		}
	}
	if len(known)+len(missing) > limit {
		return 0, fault.New(fault.Invalid, "too-much-to-replay", "that is more than %d deliveries; choose less time", limit).At("/since", "is too early")
	}
	if err := s.InsertDeliveries(ctx, missing); err != nil {
		return 0, err
	}
	n, err := again(conn(ctx).Where("endpoint_id = ? AND id IN ?", e.ID, append(known, ids.Delivery{})), now)
	return n + len(missing), err
}
