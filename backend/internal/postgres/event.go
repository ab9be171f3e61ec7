package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/webhook"
)

type eventRow struct {
	ID              ids.Event `gorm:"primaryKey"`
	OrgID           ids.Org
	Position        int64  `gorm:"<-:false"` // drawn by the database
	Sequence        *int64 // nil: not numbered yet
	Type            string
	Subject         string
	SubjectSequence int64
	OnlyEndpointID  ids.Webhook
	At              time.Time
	Data            document[json.RawMessage]
}

func (eventRow) TableName() string { return "event" }

func newEventRow(e webhook.Event) eventRow {
	return eventRow{
		ID: e.ID, OrgID: e.Org, Type: e.Type, Subject: e.Subject, SubjectSequence: e.SubjectSequence, OnlyEndpointID: e.Only, At: e.At,
		Data: document[json.RawMessage]{e.Data},
	}
}

func toEvent(r eventRow) webhook.Event {
	e := webhook.Event{
		ID: r.ID, Org: r.OrgID, Type: r.Type, Subject: r.Subject, SubjectSequence: r.SubjectSequence, Only: r.OnlyEndpointID, At: r.At.UTC(), Data: r.Data.Of,
	}
	if r.Sequence != nil {
		e.Sequence = *r.Sequence
	}
	return e
}

// publish writes an event in the transaction that ctx carries.
func publish(ctx context.Context, e webhook.Event) error {
	row := newEventRow(e)
	if err := conn(ctx).Create(&row).Error; err != nil {
		return fmt.Errorf("publish %s: %w", e.Type, err)
	}
	return nil
}

// publishLeaseEvent tells the lease's organization what its log says. The lease's row is locked, so that a lease's events are published
// in the order of their numbers.
func publishLeaseEvent(ctx context.Context, e lease.Event) error {
	data := maps.Clone(e.Data)
	if data == nil {
		data = map[string]any{}
	}
	data["lease_id"], data["actor"] = e.Lease.String(), e.Actor
	raw, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	return publish(ctx, webhook.Event{
		ID: ids.Make[ids.Event](), Org: e.Org, Type: string(e.Type), Subject: e.Lease.String(), SubjectSequence: e.Seq, At: e.At, Data: raw,
	})
}

// publishAlarm tells the operator's organizations what the operator's people are told.
func publishAlarm(ctx context.Context, payload []byte, at time.Time) error {
	var alarm struct {
		Event string `json:"event"`
	}
	if err := json.Unmarshal(payload, &alarm); err != nil || alarm.Event == "" {
		alarm.Event = "alarm"
	}
	var operators []ids.Org
	if err := conn(ctx).Raw("SELECT id FROM organization WHERE kind = 'operator' ORDER BY id").Scan(&operators).Error; err != nil {
		return fmt.Errorf("find operators: %w", err)
	}
	for _, org := range operators {
		err := publish(ctx, webhook.Event{
			ID: ids.Make[ids.Event](), Org: org, Type: webhook.PlatformPrefix + alarm.Event, At: at, Data: payload,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Publish implements webhook.Events.
func (s *Webhooks) Publish(ctx context.Context, e webhook.Event) error { return publish(ctx, e) }

// Events implements webhook.Events.
func (s *Webhooks) Events(ctx context.Context, org ids.Org, after int64, limit int) ([]webhook.Event, error) {
	var rows []eventRow
	if err := conn(ctx).Where("org_id = ? AND sequence > ?", org, after).Order("sequence").Limit(limit).Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	return each(rows, toEvent), nil
}

// LastEvent implements webhook.Events.
func (s *Webhooks) LastEvent(ctx context.Context, org ids.Org) (int64, error) {
	var last int64
	if err := conn(ctx).Raw("SELECT coalesce(max(last), 0) FROM event_counter WHERE org_id = ?", org).Scan(&last).Error; err != nil {
		return 0, fmt.Errorf("read last event: %w", err)
	}
	return last, nil
}

// numberLock is the advisory lock of whoever numbers events.
const numberLock = 7122

// Number implements webhook.Rounds. Under the lock, every event that is numbered later is numbered higher: what is committed by then
// and has no number comes after all that has one.
func (s *Webhooks) Number(ctx context.Context, limit int) ([]webhook.Event, error) {
	var free bool
	if err := conn(ctx).Raw("SELECT pg_try_advisory_xact_lock(?)", numberLock).Scan(&free).Error; err != nil || !free {
		return nil, err
	}
	var rows []eventRow
	err := conn(ctx).Raw(`
		WITH fresh AS (
			SELECT id, org_id, row_number() OVER (PARTITION BY org_id ORDER BY position) AS n
			FROM (SELECT id, org_id, position FROM event WHERE sequence IS NULL ORDER BY position LIMIT ?) f),
		sized AS (SELECT org_id, count(*) AS size FROM fresh GROUP BY org_id),
		counted AS (
			INSERT INTO event_counter AS c (org_id, last) SELECT org_id, size FROM sized ORDER BY org_id
			ON CONFLICT (org_id) DO UPDATE SET last = c.last + excluded.last RETURNING c.org_id, c.last)
		UPDATE event e SET sequence = counted.last - sized.size + fresh.n
		FROM fresh JOIN sized USING (org_id) JOIN counted USING (org_id) WHERE e.id = fresh.id
		RETURNING e.*`, limit).Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("number events: %w", err)
	}
	slices.SortFunc(rows, func(a, b eventRow) int { return cmp.Compare(a.Position, b.Position) })
	orgs := each(rows, func(r eventRow) string { return r.OrgID.String() })
	slices.Sort(orgs)
	if err := announce(ctx, webhook.Channel, slices.Compact(orgs)); err != nil {
		return nil, fmt.Errorf("announce events: %w", err)
	}
	return each(rows, toEvent), nil
}

// Forget implements webhook.Rounds. Deliveries go with their events.
func (s *Webhooks) Forget(ctx context.Context, before time.Time, limit int) (int, error) {
	gone := conn(ctx).Exec("DELETE FROM event WHERE id IN (SELECT id FROM event WHERE at < ? AND sequence IS NOT NULL ORDER BY at LIMIT ?)", before, limit)
	if gone.Error != nil {
		return 0, fmt.Errorf("forget events: %w", gone.Error)
	}
	return int(gone.RowsAffected), nil
}
