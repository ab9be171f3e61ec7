// Package migrations holds the schema's history as numbered SQL files, embedded, and brings a database up to date with it.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	_ "github.com/jackc/pgx/v5/stdlib" // the database/sql driver "pgx", which goose runs on.
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// FS holds the migrations, in goose's format: NNNNN_name.sql.
//
//go:embed *.sql
var FS embed.FS

// Starters that come second look for the lock this often, in seconds, and this many times: ten minutes in all.
const (
	lockPeriodSeconds = 1
	lockTries         = 600
)

// Up applies every migration that the database lacks, in order, each in a transaction of its own unless the file says otherwise.
// Several processes may call it at once: one works, the others wait. It needs an administrator's URL.
func Up(ctx context.Context, databaseURL string) error { return UpFrom(ctx, databaseURL, FS) }

// UpFrom is Up with other files, for tests of the runner itself and of upgrades from an earlier version.
func UpFrom(ctx context.Context, databaseURL string, files fs.FS) (err error) { //nolint:nonamedreturns // the deferred close reports through it.
	db, err := sql.Open("pgx", databaseURL)
	if err != nil {
		return fmt.Errorf("migrate database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(lockPeriodSeconds, lockTries))
	if err != nil {
		return fmt.Errorf("migrate database: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("migrate database: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("migrate database: %w", err)
	}
	return nil
}
