// Package pgtest gives every test a real PostgreSQL database of its own, in which all migrations ran.
//
// The server is the one that LEASEHOLD_TEST_DATABASE_URL names (an administrator's address), or else a throwaway that the
// first test of a process starts. The throwaway ends with the process, however that ends; no TestMain is needed. The
// migrations run once per server, into a template; a test's database is a copy of it, and goes when the test has passed.
package pgtest

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/peterldowns/pgtestdb"

	"github.com/leasehold/leasehold/backend/internal/local/postgres"
	"github.com/leasehold/leasehold/migrations"
)

// A Database belongs to one test.
type Database struct {
	// URL is an administrator's address of the database, with its password.
	URL string
}

// New makes a database for the test. Its connections are cut and it is dropped when the test has passed; after a failure
// it stays, on a server that outlives the test run, to be looked at.
func New(t testing.TB) *Database {
	t.Helper()
	return NewFrom(t, migrations.FS)
}

// NewFrom is New with other migrations than the product's.
func NewFrom(t testing.TB, files fs.FS) *Database {
	t.Helper()
	server, err := config()
	if err != nil {
		t.Fatalf("find a PostgreSQL server for tests: %v", err)
	}
	made := pgtestdb.Custom(quiet{t}, server, migrator{files: files})
	return &Database{URL: made.URL()}
}

// Pool opens an administrator's connection pool, which closes when the test ends.
func (d *Database) Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.WithoutCancel(t.Context()), d.URL)
	if err != nil {
		t.Fatalf("connect to the test's database: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// quiet keeps the database's address, and so its password, out of the logs of tests.
type quiet struct{ testing.TB }

// Logf implements pgtestdb.TB.
func (quiet) Logf(string, ...any) {}

// config tells pgtestdb about the server. The tests' role is the administrator itself, because migrations make roles and
// row-level security binds everybody else.
func config() (pgtestdb.Config, error) {
	address, err := server()
	if err != nil {
		return pgtestdb.Config{}, err
	}
	admin, err := url.Parse(address)
	if err != nil {
		return pgtestdb.Config{}, fmt.Errorf("read LEASEHOLD_TEST_DATABASE_URL: %w", err)
	}
	user, password, _ := strings.Cut(admin.User.String(), ":") // still escaped: it goes into an address again.
	return pgtestdb.Config{
		DriverName: "pgx", Host: admin.Hostname(), Port: admin.Port(), User: user, Password: password,
		Database: strings.TrimPrefix(admin.Path, "/"), Options: admin.RawQuery, ForceTerminateConnections: true,
		TestRole: &pgtestdb.Role{Username: user, Password: password},
	}, nil
}

// server is the address of the process's server. The test binary has no owner that could stop it, and no test may: the
// next one needs it. So it is left to its watchdog.
//
//nolint:gochecknoglobals // one server for all tests of a process is the point.
var server = sync.OnceValues(func() (string, error) {
	if address := os.Getenv("LEASEHOLD_TEST_DATABASE_URL"); address != "" {
		return address, nil
	}
	throwaway, err := postgres.Start(context.Background(), postgres.Options{Throwaway: true}) //nolint:forbidigo // no test's context: it outlives each.
	if err != nil {
		return "", err
	}
	return throwaway.URL("postgres"), nil
})

// migrator runs goose migrations into pgtestdb's template.
type migrator struct{ files fs.FS }

// Hash implements pgtestdb.Migrator: the same names and contents share one template.
func (m migrator) Hash() (string, error) {
	hash := sha256.New()
	err := fs.WalkDir(m.files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(m.files, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(hash, "%s %d\n", path, len(content))
		hash.Write(content)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("hash migrations: %w", err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// Migrate implements pgtestdb.Migrator.
func (m migrator) Migrate(ctx context.Context, _ *sql.DB, template pgtestdb.Config) error {
	return migrations.UpFrom(ctx, template.URL(), m.files)
}
