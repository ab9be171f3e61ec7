// Package postgres keeps Leasehold's rows. It is the only package that knows GORM and pgx: each noun has a file with its row
// structs and a repository that implements the ports of the domain.
package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	gormpostgres "gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/tenant"
)

// DB is the database behind every repository. All access goes through WithinTx, reads included, since the transaction is what
// carries the role and the organization.
type DB struct {
	pool *pgxpool.Pool
	sql  *sql.DB
	gorm *gorm.DB
}

// Tracer sees every statement; one that implements pgx.BatchTracer sees batches too. It must be quick, and safe for many at once.
type Tracer = pgx.QueryTracer

// Option changes how Open connects.
type Option func(*pgxpool.Config)

// Traced shows every statement to the tracer; nil: to nobody.
func Traced(t Tracer) Option {
	return func(config *pgxpool.Config) { config.ConnConfig.Tracer = t }
}

// Open connects to the database at url (postgres://…) with at most maxConns connections; 0 takes the pool's default.
func Open(ctx context.Context, url string, maxConns int, options ...Option) (*DB, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	if maxConns > 0 {
		config.MaxConns = int32(min(maxConns, 10_000)) //nolint:gosec // bounded above
	}
	config.MaxConnIdleTime = 5 * time.Minute
	config.ConnConfig.RuntimeParams["timezone"] = "UTC"
	for _, change := range options {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	sqlDB := stdlib.OpenDBFromPool(pool)
	orm, err := gorm.Open(gormpostgres.New(gormpostgres.Config{Conn: sqlDB}), &gorm.Config{
		// pgx caches prepared statements for each connection, so GORM's own cache would only keep a second copy.
		SkipDefaultTransaction: true,
		TranslateError:         false, // translate does it, with the constraint's name
		Logger:                 logger.Discard,
		NowFunc:                clock.System{}.Now,
	})
	if err != nil {
		pool.Close()
		return nil, fmt.Errorf("open orm: %w", err)
	}
	return &DB{pool: pool, sql: sqlDB, gorm: orm}, nil
}

// Close ends all connections.
func (db *DB) Close() error {
	err := db.sql.Close()
	db.pool.Close()
	return err
}

// Ping reports whether the database answers.
func (db *DB) Ping(ctx context.Context) error {
	if err := db.pool.Ping(ctx); err != nil {
		return translate(fmt.Errorf("ping database: %w", err))
	}
	return nil
}

type txKey struct{}

// tx is the transaction that a context carries.
type tx struct {
	gorm    *gorm.DB
	sql     *sql.Tx
	conn    *sql.Conn
	role    role // that the code is in
	assumed role // that the database is in; "": none yet
	org     ids.Org

	attempts int // savepoints so far, for their names
}

// WithinTx runs fn in a transaction, which the context carries to every repository; a nested call joins the outer one. Whoever
// acts decides the role: an organization's actor sees only its rows, the platform (no actor) sees what it may.
//
// Never call it around the network. Errors of the database come out as faults: a violated exclusion, unique or foreign key is a
// Conflict, a deadlock or serialization failure is Unavailable and worth a retry in a new transaction.
func (db *DB) WithinTx(ctx context.Context, fn func(ctx context.Context) error) error {
	if _, ok := ctx.Value(txKey{}).(*tx); ok {
		return fn(ctx)
	}
	as, org := platformRole, ids.Org{}
	if actor, ok := tenant.ActorFrom(ctx); ok && !actor.Platform {
		as, org = tenantRole, actor.Org
	}
	return db.begin(ctx, as, org, fn)
}

func (db *DB) begin(ctx context.Context, as role, org ids.Org, fn func(ctx context.Context) error) error {
	conn, err := db.sql.Conn(ctx)
	if err != nil {
		return translate(fmt.Errorf("take connection: %w", err))
	}
	defer conn.Close() //nolint:errcheck // returns the connection to the pool; it has no news
	sqlTx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return translate(fmt.Errorf("begin: %w", err))
	}
	defer sqlTx.Rollback() //nolint:errcheck // a no-op after commit
	t := &tx{sql: sqlTx, conn: conn, role: as, org: org}
	t.gorm = db.gorm.Session(&gorm.Session{NewDB: true, Context: ctx})
	t.gorm.Statement.ConnPool = settled{t}
	if err := fn(context.WithValue(ctx, txKey{}, t)); err != nil {
		return translate(err)
	}
	if t.assumed != "" { // deferred triggers run at the commit, in the role of that moment
		if err := t.settle(ctx); err != nil {
			return translate(err)
		}
	}
	if err := sqlTx.Commit(); err != nil {
		return translate(fmt.Errorf("commit: %w", err))
	}
	return nil
}

// Attempt runs fn within the transaction that ctx carries, behind a savepoint: when fn returns an error or panics, what it did is undone and
// the locks that it took are given back, and the transaction goes on.
func (db *DB) Attempt(ctx context.Context, fn func(ctx context.Context) error) error {
	t, ok := ctx.Value(txKey{}).(*tx)
	if !ok {
		return errNoTransaction
	}
	if err := t.settle(ctx); err != nil { // a role that is assumed within would be undone with the rest
		return translate(err)
	}
	t.attempts++
	name, role, assumed := fmt.Sprintf("attempt_%d", t.attempts), t.role, t.assumed
	if _, err := t.sql.ExecContext(ctx, "SAVEPOINT "+name); err != nil {
		return translate(fmt.Errorf("set savepoint: %w", err))
	}
	done := false
	undo := func() error {
		t.role, t.assumed = role, assumed
		// The context may be why it failed; the transaction must know where it stands all the same.
		_, err := t.sql.ExecContext(context.WithoutCancel(ctx), "ROLLBACK TO SAVEPOINT "+name)
		return err
	}
	defer func() {
		if !done {
			_ = undo() // a panic is on its way, which rolls everything back
		}
	}()
	err := fn(ctx)
	done = true
	if err != nil {
		if failed := undo(); failed != nil {
			return translate(fmt.Errorf("roll back to savepoint: %w", failed))
		}
		return translate(err)
	}
	if _, err := t.sql.ExecContext(ctx, "RELEASE SAVEPOINT "+name); err != nil {
		return translate(fmt.Errorf("release savepoint: %w", err))
	}
	return nil
}

// conn returns the transaction's GORM handle, the only one that repositories use.
func conn(ctx context.Context) *gorm.DB {
	t, ok := ctx.Value(txKey{}).(*tx)
	if !ok {
		return refused()
	}
	return t.gorm.WithContext(ctx)
}

var errNoTransaction = errors.New("access outside WithinTx")

// refused returns a handle on which every statement fails with errNoTransaction.
func refused() *gorm.DB {
	orm, err := gorm.Open(gormpostgres.New(gormpostgres.Config{Conn: noPool{}}), &gorm.Config{Logger: logger.Discard, DisableAutomaticPing: true})
	if err != nil {
		_ = orm.AddError(err)
	}
	return orm
}

type noPool struct{}

func (noPool) PrepareContext(context.Context, string) (*sql.Stmt, error) {
	return nil, errNoTransaction
}

func (noPool) ExecContext(context.Context, string, ...any) (sql.Result, error) {
	return nil, errNoTransaction
}

func (noPool) QueryContext(context.Context, string, ...any) (*sql.Rows, error) {
	return nil, errNoTransaction
}

func (noPool) QueryRowContext(ctx context.Context, _ string, _ ...any) *sql.Row {
	// A *sql.Row with an error in it can only be had from database/sql itself: a closed pool gives one.
	closed := sql.OpenDB(noConnector{})
	_ = closed.Close()
	return closed.QueryRowContext(ctx, "")
}

type noConnector struct{}

func (noConnector) Connect(context.Context) (driver.Conn, error) { return nil, errNoTransaction }
func (noConnector) Driver() driver.Driver                        { return nil }

// raw runs fn on the transaction's own pgx connection, for COPY, batches and hot paths.
func raw(ctx context.Context, fn func(conn *pgx.Conn) error) error {
	t, ok := ctx.Value(txKey{}).(*tx)
	if !ok {
		return errNoTransaction
	}
	if err := t.settle(ctx); err != nil {
		return err
	}
	err := t.conn.Raw(func(driverConn any) error {
		std, ok := driverConn.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("unexpected driver connection %T", driverConn)
		}
		return fn(std.Conn())
	})
	if err != nil {
		return fmt.Errorf("raw: %w", err)
	}
	return nil
}
