package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/ids"
)

// Outbox keeps effects that must follow a commit; the relay workflow delivers them.
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

// Put writes a message that is delivered at least once after the transaction in ctx commits. The topics are listed in package
// workflows/relay.
func (o *Outbox) Put(ctx context.Context, topic, key string, payload any, at time.Time) error {
	body, err := json.Marshal(payload)
	if err != nil {
		return fmt.Errorf("encode %s: %w", topic, err)
	}
	return o.db.asPlatform(ctx, func(ctx context.Context) error {
		row := outboxRow{ID: ids.Make[ids.Outbox](), Topic: topic, Key: key, Payload: body, AvailableAt: at, CreatedAt: at}
		return conn(ctx).Create(&row).Error
	})
}

// OutboxMessage is one effect to deliver.
type OutboxMessage struct {
	ID      ids.Outbox
	Topic   string
	Key     string
	Payload []byte
	Attempt int
}

// Claim takes up to limit due messages for lease, oldest first; a message that is not done by then is claimed again. Claims of
// several relays never overlap.
func (o *Outbox) Claim(ctx context.Context, limit int, now time.Time, lease time.Duration) ([]OutboxMessage, error) {
	var rows []outboxRow
	err := o.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`
			UPDATE outbox SET available_at = ?, attempts = attempts + 1
			WHERE id IN (SELECT id FROM outbox WHERE done_at IS NULL AND available_at <= ?
			             ORDER BY available_at, id LIMIT ? FOR UPDATE SKIP LOCKED)
			RETURNING *`, now.Add(lease), now, limit).Scan(&rows).Error
	})
	if err != nil {
		return nil, fmt.Errorf("claim outbox: %w", err)
	}
	messages := make([]OutboxMessage, len(rows))
	for i, r := range rows {
		messages[i] = OutboxMessage{ID: r.ID, Topic: r.Topic, Key: r.Key, Payload: r.Payload, Attempt: r.Attempts}
	}
	return messages, nil
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

func anySlice[T any](in []T) []any {
	out := make([]any, len(in))
	for i, v := range in {
		out[i] = v
	}
	return out
}
