package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/outbox"
)

// Outbox keeps effects that must follow a commit; relays deliver them.
type Outbox struct{ db *DB }

// NewOutbox returns the outbox of db.
func NewOutbox(db *DB) *Outbox { return &Outbox{db: db} }

type outboxRow struct {
	ID          ids.Outbox `gorm:"primaryKey"`
	Topic       string
	Key         string
	Payload     []byte `gorm:"type:jsonb"`
	AvailableAt time.Time
	Attempts    int
	LastError   string
	CreatedAt   time.Time
	DoneAt      *time.Time
}

func (outboxRow) TableName() string { return "outbox" }

// Put writes a message that is delivered at least once after the transaction in ctx commits. Package outbox lists the topics; those
// that somebody waits for are announced, and what the operator's people are told is told to their webhooks too.
func (o *Outbox) Put(ctx context.Context, topic, key string, payload any, at time.Time) error {
	body, err := json.Marshal(payload)
	if err != nil {
		return fmt.Errorf("encode %s: %w", topic, err)
	}
	return o.db.asPlatform(ctx, func(ctx context.Context) error {
		if topic == outbox.Notify && key == outbox.Operator {
			if err := publishAlarm(ctx, body, at); err != nil {
				return err
			}
		}
		row := outboxRow{ID: ids.Make[ids.Outbox](), Topic: topic, Key: key, Payload: body, AvailableAt: at, CreatedAt: at}
		if err := conn(ctx).Create(&row).Error; err != nil || !outbox.Awaited(topic) {
			return err
		}
		return conn(ctx).Exec("SELECT pg_notify(?, ?)", outbox.Channel, topic).Error
	})
}

// Claim takes up to limit due messages of the topics for lease, oldest first; a message that is not done by then is claimed again.
// Claims of several relays never overlap.
func (o *Outbox) Claim(ctx context.Context, topics []string, limit int, now time.Time, lease time.Duration) ([]outbox.Message, error) {
	var rows []outboxRow
	err := o.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`
			UPDATE outbox SET available_at = ?, attempts = attempts + 1
			WHERE id IN (SELECT id FROM outbox WHERE done_at IS NULL AND available_at <= ? AND topic IN ?
			             ORDER BY available_at, id LIMIT ? FOR UPDATE SKIP LOCKED)
			RETURNING *`, now.Add(lease), now, topics, limit).Scan(&rows).Error
	})
	if err != nil {
		return nil, fmt.Errorf("claim outbox: %w", err)
	}
	return each(rows, func(r outboxRow) outbox.Message {
		return outbox.Message{ID: r.ID, Topic: r.Topic, Key: r.Key, Payload: r.Payload, Attempt: r.Attempts}
	}), nil
}

// Done marks messages as delivered.
func (o *Outbox) Done(ctx context.Context, delivered []ids.Outbox, at time.Time) error {
	if len(delivered) == 0 {
		return nil
	}
	return o.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Model(&outboxRow{}).Where(clause.IN{Column: "id", Values: anySlice(delivered)}).Update("done_at", at).Error
	})
}

// Forget deletes messages that were delivered before the instant, and returns how many.
func (o *Outbox) Forget(ctx context.Context, deliveredBefore time.Time) (int64, error) {
	var gone int64
	err := o.db.asPlatform(ctx, func(ctx context.Context) error {
		done := conn(ctx).Where("done_at < ?", deliveredBefore).Delete(&outboxRow{})
		gone = done.RowsAffected
		return done.Error
	})
	if err != nil {
		return 0, fmt.Errorf("forget delivered messages: %w", err)
	}
	return gone, nil
}

func anySlice[T any](in []T) []any {
	out := make([]any, len(in))
	for i, v := range in {
		out[i] = v
	}
	return out
}
