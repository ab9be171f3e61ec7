package postgres

import (
	"context"
	"database/sql"
	"fmt"

	"gorm.io/gorm"

	"github.com/leasehold/leasehold/backend/ids"
)

// role is a database role of migrations/00008_security.sql.
type role string

const (
	tenantRole   role = "leasehold_tenant"
	platformRole role = "leasehold_platform"
)

// settle assumes the role and the organization that the code is in, for the rest of the transaction and in one round trip. Every
// statement comes through here first, so that going there and back costs nothing when no statement was sent in between, and several
// visits to the platform role one after the other cost one.
func (t *tx) settle(ctx context.Context) error {
	if t.assumed == t.role {
		return nil
	}
	setting := ""
	if !t.org.IsZero() {
		value, err := t.org.Value()
		if err != nil {
			return err
		}
		setting, _ = value.(string)
	}
	if _, err := t.sql.ExecContext(ctx, "SELECT set_config('role', $1, true), set_config('app.org', $2, true)", string(t.role), setting); err != nil {
		return fmt.Errorf("assume role %s: %w", t.role, err)
	}
	t.assumed = t.role
	return nil
}

// asPlatform runs fn with the platform role within the transaction that ctx carries, and goes back to the role before. It is for
// the narrow functions that a tenant's request needs beyond its own rows: allocations, the ledger, the outbox.
func (db *DB) asPlatform(ctx context.Context, fn func(ctx context.Context) error) error {
	t, ok := ctx.Value(txKey{}).(*tx)
	if !ok {
		return db.begin(ctx, platformRole, ids.Org{}, fn)
	}
	before := t.role
	t.role = platformRole
	defer func() { t.role = before }() // after a failure and a panic too: who swallows those is no platform
	return fn(ctx)
}

// settled is the transaction for GORM: each statement runs in the role that the code is in when it is sent, not when its handle was
// made.
type settled struct{ t *tx }

var _ gorm.ConnPool = settled{}

// PrepareContext implements gorm.ConnPool.
func (s settled) PrepareContext(ctx context.Context, query string) (*sql.Stmt, error) {
	if err := s.t.settle(ctx); err != nil {
		return nil, err
	}
	return s.t.sql.PrepareContext(ctx, query)
}

// ExecContext implements gorm.ConnPool.
func (s settled) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if err := s.t.settle(ctx); err != nil {
		return nil, err
	}
	return s.t.sql.ExecContext(ctx, query, args...)
}

// QueryContext implements gorm.ConnPool.
func (s settled) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	if err := s.t.settle(ctx); err != nil {
		return nil, err
	}
	return s.t.sql.QueryContext(ctx, query, args...)
}

// QueryRowContext implements gorm.ConnPool.
func (s settled) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if err := s.t.settle(ctx); err != nil {
		failed, cancel := context.WithCancelCause(ctx)
		cancel(err)
		ctx = failed // only database/sql can make a row with an error in it
	}
	return s.t.sql.QueryRowContext(ctx, query, args...)
}
