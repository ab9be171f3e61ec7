package postgres

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
)

// Due lists reserved leases whose slots are held as of now, soonest start first: their provisioning must begin.
//
// The bound on start_at lets the query read the index's head only, however many leases are booked ahead.
func (w *LeaseWork) Due(ctx context.Context, now time.Time, limit int) ([]ids.Lease, error) {
	return w.leases(ctx, `
		SELECT l.id FROM lease l
		WHERE l.state = 'reserved'
		  AND l.start_at <= ?::timestamptz + (SELECT coalesce(max(lead_seconds), 0) FROM instance_type) * interval '1 second'
		  AND EXISTS (SELECT FROM allocation a WHERE a.lease_id = l.id AND a.released_at IS NULL AND lower(a.occupied) <= ?)
		ORDER BY l.start_at, l.id LIMIT ?`, now, now, limit)
}

// Live lists the leases that must have a workflow: those under way, and those that are due.
func (w *LeaseWork) Live(ctx context.Context, now time.Time) ([]ids.Lease, error) {
	var live []ids.Lease
	err := w.db.WithinTx(ctx, func(ctx context.Context) error {
		underway, err := w.leases(ctx, "SELECT id FROM lease WHERE state IN ('provisioning', 'active', 'releasing') ORDER BY id")
		if err != nil {
			return err
		}
		due, err := w.Due(ctx, now, 10_000)
		live = append(underway, due...)
		return err
	})
	return live, err
}

// Left lists final leases that still have slots which are neither released nor quarantined, nor being cleaned again by the process of
// their node.
func (w *LeaseWork) Left(ctx context.Context) ([]ids.Lease, error) {
	return w.leases(ctx, `
		SELECT DISTINCT l.id FROM lease l JOIN allocation a ON a.lease_id = l.id JOIN node n ON n.id = a.node_id
		WHERE l.state IN ('closed', 'cancelled') AND a.released_at IS NULL AND a.state <> 'quarantined'
		  AND NOT (a.state = 'cleaning' AND n.state = 'verifying') ORDER BY l.id`)
}

// Unsettled lists fabrics with partitions that are on their way: to be made, to be emptied, or to be free again.
func (w *LeaseWork) Unsettled(ctx context.Context) ([]ids.Fabric, error) {
	var found []ids.Fabric
	err := w.db.WithinTx(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw("SELECT DISTINCT fabric_id FROM partition WHERE state NOT IN ('verified', 'free')").Scan(&found).Error
	})
	if err != nil {
		return nil, fmt.Errorf("list unsettled fabrics: %w", err)
	}
	return found, nil
}

func (w *LeaseWork) leases(ctx context.Context, query string, args ...any) ([]ids.Lease, error) {
	var found []ids.Lease
	err := w.db.WithinTx(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(query, args...).Scan(&found).Error
	})
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	return found, nil
}

// noticeLoss has the server end a session whose client cannot be reached any more within half a minute, not within hours: a lock that a lost
// worker has is nobody's for as long.
const noticeLoss = "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 4; SET tcp_user_timeout = '30s'"

// TryLock takes a lock that one session of all has, e.g. to let one worker reconcile. The lock goes with the session, however it ends, which
// held tells. Both functions are nil when somebody else has it.
func (db *DB) TryLock(ctx context.Context, key int64) (held func(context.Context) error, unlock func(), err error) {
	session, err := db.sql.Conn(ctx)
	if err != nil {
		return nil, nil, translate(fmt.Errorf("take connection: %w", err))
	}
	var got bool
	if err := session.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1)", key).Scan(&got); err != nil || !got {
		_ = session.Close()
		if err != nil {
			return nil, nil, translate(fmt.Errorf("take lock: %w", err))
		}
		return nil, nil, nil
	}
	unlock = func() {
		quick, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockWithin)
		defer cancel()
		_, err := session.ExecContext(quick, "SELECT pg_advisory_unlock_all()")
		if err == nil {
			_, err = session.ExecContext(quick, "RESET ALL")
		}
		if err != nil { // it must not go back to the pool with the lock, if it lives
			_ = session.Raw(func(any) error { return driver.ErrBadConn })
		}
		_ = session.Close()
	}
	held = func(ctx context.Context) error {
		quick, cancel := context.WithTimeout(ctx, unlockWithin)
		defer cancel()
		_, err := session.ExecContext(quick, "SELECT 1")
		return translate(err)
	}
	if _, err := session.ExecContext(ctx, noticeLoss); err != nil {
		unlock()
		return nil, nil, translate(fmt.Errorf("keep lock: %w", err))
	}
	return held, unlock, nil
}

// unlockWithin is how long a session that has a lock may take to answer.
const unlockWithin = 5 * time.Second
