package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/webhook"
)

// Listening implements webhook.Rounds.
func (s *Webhooks) Listening(ctx context.Context, orgs []ids.Org) ([]webhook.Endpoint, error) {
	var rows []endpointRow
	// Locked, so that an endpoint that is being disabled or deleted is told nothing afterwards.
	err := conn(ctx).Where("org_id IN ? AND disabled = '' AND deleted_at IS NULL", orgs).Order("id").
		Clauses(clause.Locking{Strength: "SHARE"}).Find(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("list endpoints: %w", err)
	}
	return each(rows, toEndpoint), nil
}

// InsertDeliveries implements webhook.Rounds.
func (s *Webhooks) InsertDeliveries(ctx context.Context, deliveries []webhook.Delivery) error {
	if len(deliveries) == 0 {
		return nil
	}
	rows := each(deliveries, func(d webhook.Delivery) deliveryRow {
		return deliveryRow{
			ID: d.ID, OrgID: d.Org, EndpointID: d.Endpoint, EventID: d.Event.ID, State: string(d.State), Tries: d.Tries, NextAt: d.NextAt, CreatedAt: d.CreatedAt,
		}
	})
	if err := conn(ctx).Clauses(clause.OnConflict{DoNothing: true}).CreateInBatches(rows, insertBatch).Error; err != nil {
		return fmt.Errorf("insert deliveries: %w", err)
	}
	return nil
}

// claimQuery takes of each organization, and of each of its endpoints, what the share leaves beside what is claimed already.
const claimQuery = `
	WITH chosen AS MATERIALIZED (
		SELECT c.id
		FROM (SELECT DISTINCT org_id FROM webhook_delivery
		      WHERE state = 'pending' AND next_at <= @now AND (claimed_until IS NULL OR claimed_until <= @now)) o
		CROSS JOIN LATERAL (
			SELECT q.id FROM webhook_endpoint e
			CROSS JOIN LATERAL (
				SELECT d.id FROM webhook_delivery d
				WHERE d.org_id = o.org_id AND d.endpoint_id = e.id AND d.state = 'pending' AND d.next_at <= @now
				  AND (d.claimed_until IS NULL OR d.claimed_until <= @now)
				ORDER BY d.next_at, d.id
				LIMIT greatest(0, @per_endpoint - (SELECT count(*) FROM webhook_delivery b
					WHERE b.org_id = o.org_id AND b.endpoint_id = e.id AND b.claimed_until > @now))
				FOR UPDATE SKIP LOCKED) q
			WHERE e.org_id = o.org_id AND e.deleted_at IS NULL AND e.disabled = ''
			LIMIT greatest(0, @per_org - (SELECT count(*) FROM webhook_delivery b WHERE b.org_id = o.org_id AND b.claimed_until > @now))) c
		LIMIT @limit)
	UPDATE webhook_delivery d SET claim = claim + 1, tries = tries + 1, claimed_until = @until FROM chosen WHERE d.id = chosen.id
	RETURNING d.*`

// Claim implements webhook.Rounds.
func (s *Webhooks) Claim(ctx context.Context, share webhook.Share, now, until time.Time) ([]webhook.Parcel, error) {
	var rows []deliveryRow
	err := conn(ctx).Raw(claimQuery, map[string]any{
		"now": now, "until": until, "limit": share.Limit, "per_endpoint": share.PerEndpoint, "per_org": share.PerOrg,
	}).Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("claim deliveries: %w", err)
	}
	if len(rows) == 0 {
		return nil, nil
	}
	deliveries, err := withEvents(ctx, rows)
	if err != nil {
		return nil, err
	}
	var endpoints []endpointRow
	if err := conn(ctx).Where("id IN ?", each(rows, func(r deliveryRow) ids.Webhook { return r.EndpointID })).Find(&endpoints).Error; err != nil {
		return nil, fmt.Errorf("read endpoints: %w", err)
	}
	to := map[ids.Webhook]webhook.Endpoint{}
	for _, e := range endpoints {
		to[e.ID] = toEndpoint(e)
	}
	return each(deliveries, func(d webhook.Delivery) webhook.Parcel { return webhook.Parcel{Delivery: d, To: to[d.Endpoint]} }), nil
}

// Finish implements webhook.Rounds. A delivery that was abandoned meanwhile is not tried again; one that arrived all the same did arrive.
func (s *Webhooks) Finish(ctx context.Context, d webhook.Delivery, a webhook.Attempt) (bool, error) {
	state := string(d.State)
	done := conn(ctx).Exec(`
		UPDATE webhook_delivery SET claimed_until = NULL,
			state = CASE WHEN state = 'pending' OR ? = 'delivered' THEN ? ELSE state END,
			next_at = CASE WHEN state = 'pending' AND ? = 'pending' THEN ? ELSE next_at END,
			finished_at = CASE WHEN state = 'pending' OR ? = 'delivered' THEN ? ELSE finished_at END
		WHERE id = ? AND claim = ?`, state, state, state, d.NextAt, state, nullable(d.FinishedAt), d.ID, d.Claim)
	if done.Error != nil {
		return false, fmt.Errorf("finish delivery: %w", done.Error)
	}
	if done.RowsAffected == 0 {
		return false, nil
	}
	row := attemptRow{
		DeliveryID: d.ID, Number: a.Number, OrgID: d.Org, At: a.At, TookMs: a.TookMS, Status: a.Status, Error: a.Error, Body: a.Body,
	}
	if err := conn(ctx).Create(&row).Error; err != nil {
		return false, fmt.Errorf("insert attempt: %w", err)
	}
	return true, nil
}
