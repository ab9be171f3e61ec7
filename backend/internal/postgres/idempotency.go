package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/idempotency"
)

// Idempotency keeps the answers to requests that carry a key. It implements idempotency.Store.
type Idempotency struct{ db *DB }

var _ idempotency.Store = (*Idempotency)(nil)

// NewIdempotency returns the idempotency records of db.
func NewIdempotency(db *DB) *Idempotency { return &Idempotency{db: db} }

type idempotencyRow struct {
	OrgID     ids.Org `gorm:"primaryKey"`
	Actor     string  `gorm:"primaryKey"`
	Key       string  `gorm:"primaryKey"`
	Method    string
	Path      string
	BodyHash  []byte
	Status    int
	Header    document[map[string]string]
	Body      []byte
	CreatedAt time.Time
}

func (idempotencyRow) TableName() string { return "idempotency_record" }

// TryLock implements idempotency.Store. Two keys may share a lock, with odds of one in 2⁶⁴: then one of them has to repeat.
func (s *Idempotency) TryLock(ctx context.Context, effectKey string) (bool, error) {
	var free bool
	if err := conn(ctx).Raw("SELECT pg_try_advisory_xact_lock(hashtextextended(?, 7121))", effectKey).Scan(&free).Error; err != nil {
		return false, fmt.Errorf("lock: %w", err)
	}
	return free, nil
}

// Find implements idempotency.Store.
func (s *Idempotency) Find(ctx context.Context, org ids.Org, actor, key string) (idempotency.Record, bool, error) {
	var rows []idempotencyRow
	if err := conn(ctx).Where("org_id = ? AND actor = ? AND key = ?", org, actor, key).Limit(1).Find(&rows).Error; err != nil {
		return idempotency.Record{}, false, fmt.Errorf("read record: %w", err)
	}
	if len(rows) == 0 {
		return idempotency.Record{}, false, nil
	}
	r := rows[0]
	return idempotency.Record{
		Org: r.OrgID, Actor: r.Actor, Key: r.Key, Method: r.Method, Path: r.Path, BodyHash: r.BodyHash,
		Answer: idempotency.Answer{Status: r.Status, Header: r.Header.Of, Body: r.Body}, CreatedAt: r.CreatedAt.UTC(),
	}, true, nil
}

// Save implements idempotency.Store.
func (s *Idempotency) Save(ctx context.Context, r idempotency.Record) error {
	header := r.Answer.Header
	if header == nil {
		header = map[string]string{}
	}
	row := idempotencyRow{
		OrgID: r.Org, Actor: r.Actor, Key: r.Key, Method: r.Method, Path: r.Path, BodyHash: r.BodyHash, Status: r.Answer.Status,
		Header: document[map[string]string]{header}, Body: append([]byte{}, r.Answer.Body...), CreatedAt: r.CreatedAt,
	}
	if err := conn(ctx).Clauses(clause.OnConflict{UpdateAll: true}).Create(&row).Error; err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// Forget deletes records made before the instant, at most limit of them, and tells how many. Their keys may be used again.
func (s *Idempotency) Forget(ctx context.Context, before time.Time, limit int) (int64, error) {
	var gone int64
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		done := conn(ctx).Exec(`DELETE FROM idempotency_record WHERE (org_id, actor, key) IN
			(SELECT org_id, actor, key FROM idempotency_record WHERE created_at < ? ORDER BY created_at LIMIT ?)`, before, limit)
		gone = done.RowsAffected
		return done.Error
	})
	if err != nil {
		return 0, fmt.Errorf("forget idempotency records: %w", err)
	}
	return gone, nil
}
