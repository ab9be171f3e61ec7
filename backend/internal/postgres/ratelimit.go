package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/ratelimit"
)

// RateLimits keeps the buckets that all replicas share. It implements ratelimit.Store.
type RateLimits struct{ db *DB }

var _ ratelimit.Store = (*RateLimits)(nil)

// NewRateLimits returns the buckets of db.
func NewRateLimits(db *DB) *RateLimits { return &RateLimits{db: db} }

// drawQuery moves the bucket's theoretical arrival time on by what is taken, unless that would put it further ahead of now than the
// whole bucket is worth; then it answers no row, and the row stays as it was.
const drawQuery = `
	INSERT INTO rate_limit AS r (key, arrival_at) VALUES (?, ?::timestamptz + ?::interval)
	ON CONFLICT (key) DO UPDATE SET arrival_at = greatest(r.arrival_at, ?::timestamptz) + ?::interval
	WHERE greatest(r.arrival_at, ?::timestamptz) + ?::interval <= ?::timestamptz
	RETURNING arrival_at`

// Draw implements ratelimit.Store. It has a transaction of its own, never a request's: what was taken stays taken when the request
// fails, and no request waits for another's commit.
func (s *RateLimits) Draw(ctx context.Context, key string, n int, interval time.Duration, burst int, now time.Time) (bool, time.Time, error) {
	var (
		taken   bool
		arrival time.Time
	)
	err := s.db.begin(context.WithValue(ctx, txKey{}, nil), platformRole, ids.Org{}, func(ctx context.Context) error {
		var rows []time.Time
		cost := fmt.Sprintf("%d microseconds", (time.Duration(n) * interval).Microseconds())
		err := conn(ctx).Raw(drawQuery, key, now, cost, now, cost, now, cost, now.Add(time.Duration(burst)*interval)).Scan(&rows).Error
		if err != nil {
			return err
		}
		if taken = len(rows) == 1; !taken {
			err = conn(ctx).Raw("SELECT arrival_at FROM rate_limit WHERE key = ?", key).Scan(&rows).Error
		}
		if err == nil && len(rows) == 1 {
			arrival = rows[0].UTC()
		}
		return err
	})
	if err != nil {
		return false, time.Time{}, fmt.Errorf("draw from bucket: %w", err)
	}
	return taken, arrival, nil
}

// Forget deletes buckets that have been full since before the instant.
func (s *RateLimits) Forget(ctx context.Context, before time.Time) error {
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Exec("DELETE FROM rate_limit WHERE arrival_at < ?", before).Error
	})
	if err != nil {
		return fmt.Errorf("forget buckets: %w", err)
	}
	return nil
}
