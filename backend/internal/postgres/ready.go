package postgres

import (
	"context"
	"fmt"

	"github.com/leasehold/leasehold/migrations"
)

// CheckMigrations answers an error unless the newest migration that this program knows has run.
func (db *DB) CheckMigrations(ctx context.Context) error {
	want, err := migrations.Head()
	if err != nil {
		return err
	}
	var have int64
	if err := db.pool.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&have); err != nil {
		return fmt.Errorf("read schema version: %w", err)
	}
	if have < want {
		return fmt.Errorf("the schema is at version %d, and this program needs %d", have, want)
	}
	return nil
}
