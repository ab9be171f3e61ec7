package postgres_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/internal/pgtest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
)

// wire is a way to the database that can be cut and mended.
type wire struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	open  []net.Conn
	whole bool
}

// newWire returns the wire and a database behind it.
func newWire(t *testing.T) (*wire, *postgres.DB) {
	t.Helper()
	address, err := url.Parse(pgtest.New(t).URL)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed below
	require.NoError(t, err)
	w := &wire{listener: listener, target: address.Host, whole: true}
	t.Cleanup(func() { _ = listener.Close(); w.cut() })
	go w.serve()
	address.Host = listener.Addr().String()
	db, err := postgres.Open(t.Context(), address.String(), 4)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return w, db
}

func (w *wire) serve() {
	for {
		near, err := w.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", w.target) //nolint:noctx // closed by cut
		w.mu.Lock()
		if err != nil || !w.whole {
			_ = near.Close()
			w.mu.Unlock()
			continue
		}
		w.open = append(w.open, near, far)
		w.mu.Unlock()
		go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
		go func() { _, _ = io.Copy(near, far); _ = near.Close() }()
	}
}

// cut ends every connection, and lets none through until it is mended.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.whole = false
	for _, c := range w.open {
		_ = c.Close()
	}
	w.open = nil
}

func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.whole = true
}

func requireUnavailable(t *testing.T, err error) {
	t.Helper()
	require.Equal(t, "database-unavailable", fault.CodeOf(err), "%v", err)
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
}

func TestADatabaseThatIsGoneIsUnavailableWhereverItIsMissed(t *testing.T) {
	t.Parallel()
	ask := func(db *postgres.DB) func(context.Context) error {
		return func(ctx context.Context) error {
			_, _, err := db.WhoAmI(ctx)
			return err
		}
	}
	for name, within := range map[string]func(*wire, *postgres.DB) func(context.Context) error{
		"before a transaction": func(w *wire, db *postgres.DB) func(context.Context) error {
			w.cut()
			return ask(db)
		},
		"between two statements": func(w *wire, db *postgres.DB) func(context.Context) error {
			return func(ctx context.Context) error {
				if err := ask(db)(ctx); err != nil {
					return err
				}
				w.cut()
				return ask(db)(ctx)
			}
		},
		"at the commit": func(w *wire, db *postgres.DB) func(context.Context) error {
			return func(ctx context.Context) error {
				err := ask(db)(ctx)
				w.cut()
				return err
			}
		},
		"within an attempt": func(w *wire, db *postgres.DB) func(context.Context) error {
			return func(ctx context.Context) error {
				return db.Attempt(ctx, func(ctx context.Context) error {
					w.cut()
					return ask(db)(ctx)
				})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, db := newWire(t)
			requireUnavailable(t, db.WithinTx(t.Context(), within(w, db)))
			requireUnavailable(t, db.Ping(t.Context()))
			w.mend()
			require.NoError(t, db.WithinTx(t.Context(), ask(db)), "it works again as soon as the database does")
		})
	}
}

func TestAStatementThatTheDatabaseStopsIsUnavailable(t *testing.T) {
	t.Parallel()
	_, db := newWire(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, sql := range []string{
		"SET LOCAL statement_timeout = '5ms'; SELECT pg_sleep(60)",
		"SET TRANSACTION READ ONLY; CREATE TABLE x ()",
		"RESET ROLE; SELECT pg_terminate_backend(pg_backend_pid())",
	} {
		err := db.WithinTx(ctx, func(ctx context.Context) error { return db.ExecSimple(ctx, sql) })
		requireUnavailable(t, err)
	}
}

func TestAnAttemptThatFailsIsUndoneAndItsTransactionGoesOn(t *testing.T) {
	t.Parallel()
	db := open(t)
	count := func(ctx context.Context) int {
		n, err := db.Count(ctx, "test_attempt")
		require.NoError(t, err)
		return n
	}
	add := func(ctx context.Context, name string) error {
		return db.ExecSimple(ctx, "INSERT INTO test_attempt VALUES ('"+name+"')")
	}
	require.NoError(t, db.WithinTx(t.Context(), func(ctx context.Context) error {
		require.NoError(t, db.ExecSimple(ctx, "CREATE TEMPORARY TABLE test_attempt (name text PRIMARY KEY) ON COMMIT DROP"))
		require.NoError(t, add(ctx, "a"))
		refused := errors.New("refused")
		require.ErrorIs(t, db.Attempt(ctx, func(ctx context.Context) error {
			require.NoError(t, add(ctx, "b"))
			return refused
		}), refused)
		require.Equal(t, "duplicate", fault.CodeOf(db.Attempt(ctx, func(ctx context.Context) error { return add(ctx, "a") })), "a statement's failure as well")
		require.NoError(t, db.Attempt(ctx, func(ctx context.Context) error {
			return db.Attempt(ctx, func(ctx context.Context) error { return add(ctx, "c") })
		}))
		require.Equal(t, 2, count(ctx), "a and c")
		require.Panics(t, func() { _ = db.Attempt(ctx, func(context.Context) error { panic("once") }) })
		require.Equal(t, 2, count(ctx))
		return nil
	}))
	require.ErrorContains(t, db.Attempt(t.Context(), func(context.Context) error { return nil }), "outside WithinTx")
}
