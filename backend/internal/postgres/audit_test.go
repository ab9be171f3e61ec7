package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/markettest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/tenant"
)

type auditWorld struct {
	*markettest.Market
	db    *postgres.DB
	rows  *postgres.AuditEvents
	clock *clock.Fake
	org   markettest.Customer
}

func newAuditWorld(t *testing.T) *auditWorld {
	t.Helper()
	m := markettest.New(t)
	db, err := postgres.Open(t.Context(), m.URL, 16)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return &auditWorld{Market: m, db: db, rows: postgres.NewAuditEvents(db), clock: clock.NewFake(clock.System{}.Now()), org: m.Customer(t, "Acme")}
}

// record writes n events of the organization, as itself.
func (w *auditWorld) record(t *testing.T, n int) {
	t.Helper()
	log := audit.New(w.rows, w.clock)
	for i := range n {
		require.NoError(t, w.db.WithinTx(as(t, w.org), func(ctx context.Context) error {
			return log.Record(audit.WithRequest(ctx, "req_1", "192.0.2.1"), "thing.changed", "thing_1", map[string]any{"size": 1.50, "a": "<é\u2028>"}, map[string]any{"size": i})
		}))
	}
}

func (w *auditWorld) chain(t *testing.T) {
	t.Helper()
	require.NoError(t, audit.Chainer{Tx: w.db, Chains: w.rows}.Chain(t.Context()))
}

func (w *auditWorld) verify(t *testing.T) []audit.Breach {
	t.Helper()
	found, err := audit.Verifier{Tx: w.db, Witness: w.rows, Clock: w.clock}.Verify(t.Context())
	require.NoError(t, err)
	return found
}

// TestChainsAreWholeUnderManyWritersAndChainers has them all at it at once, and transactions that fail in between.
func TestChainsAreWholeUnderManyWritersAndChainers(t *testing.T) {
	t.Parallel()
	w := newAuditWorld(t)
	other := w.Customer(t, "Other")
	log := audit.New(w.rows, w.clock)
	var writers, chainers errgroup.Group
	stop := make(chan struct{})
	for range 3 {
		chainers.Go(func() error {
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				if err := (audit.Chainer{Tx: w.db, Chains: w.rows}).Chain(t.Context()); err != nil {
					return err
				}
			}
		})
	}
	failed := errors.New("no")
	for i := range 6 {
		org := []ids.Org{w.org.Org, other.Org, {}}[i%3]
		writers.Go(func() error {
			ctx := tenant.WithActor(t.Context(), tenant.Actor{Org: org, Platform: org.IsZero()})
			for n := range 40 {
				err := w.db.WithinTx(ctx, func(ctx context.Context) error {
					if err := log.Record(ctx, "thing.changed", "thing_1", nil, map[string]any{"n": n}); err != nil || n%4 != 0 {
						return err
					}
					return failed
				})
				if err != nil && !errors.Is(err, failed) {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, writers.Wait())
	close(stop)
	require.NoError(t, chainers.Wait())
	w.chain(t)
	require.Empty(t, w.verify(t))
	for _, org := range []ids.Org{w.org.Org, other.Org, {}} {
		var events []audit.Event
		require.NoError(t, w.db.WithinTx(t.Context(), func(ctx context.Context) (err error) {
			events, err = w.rows.ChainedEvents(ctx, org, w.clock.Now(), w.clock.Now().AddDate(0, 0, 1), 0, 1000)
			return err
		}))
		require.Len(t, events, 60)
		require.EqualValues(t, 60, events[59].Link.Seq)
	}
}

// TestEveryTamperingWithTheLogIsFound damages a whole log as an administrator of the database could.
func TestEveryTamperingWithTheLogIsFound(t *testing.T) {
	t.Parallel()
	const third = "(SELECT event_id FROM audit_link WHERE seq = 3)"
	for name, c := range map[string]struct {
		damage []string
		want   string
	}{
		"an event is changed":        {[]string{"UPDATE audit_event SET actor = 'user_x' WHERE id = " + third}, "number 3 is not what was written"},
		"what was before is changed": {[]string{"UPDATE audit_event SET before = '{}' WHERE id = " + third}, "number 3 is not what was written"},
		"an instant is changed":      {[]string{"UPDATE audit_event SET at = at - interval '1 microsecond' WHERE id = " + third}, "number 3 is not what was written"},
		"an event is deleted": {[]string{
			"ALTER TABLE audit_link DROP CONSTRAINT audit_link_event_id_fkey", "DELETE FROM audit_event WHERE id = " + third,
		}, "number 4 comes after number 2"},
		"an event is taken out of its chain": {[]string{"DELETE FROM audit_link WHERE seq = 3"}, "number 4 comes after number 2"},
		"the last is deleted": {[]string{
			"ALTER TABLE audit_link DROP CONSTRAINT audit_link_event_id_fkey", "DELETE FROM audit_event WHERE id = (SELECT event_id FROM audit_link WHERE seq = 5)",
		}, "numbers 5 to 5 are gone"},
		"one is deleted and the rest moves up": {[]string{
			"DELETE FROM audit_link WHERE seq = 3", "DELETE FROM audit_event WHERE id NOT IN (SELECT event_id FROM audit_link)",
			"UPDATE audit_link SET seq = 3 WHERE seq = 4", "UPDATE audit_link SET seq = 4 WHERE seq = 5",
		}, "number 3 does not continue number 2"},
		"one is written past the log": {[]string{
			"ALTER TABLE audit_event DISABLE TRIGGER audit_event_unchained",
			"INSERT INTO audit_event (id, actor, action, at) VALUES (gen_random_uuid(), 'user_x', 'x', now() - interval '1 day')",
		}, "is in no chain"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newAuditWorld(t)
			w.record(t, 5)
			w.chain(t)
			require.Empty(t, w.verify(t), "whole at first")
			for _, sql := range c.damage {
				w.Exec(t, sql)
			}
			found := w.verify(t)
			require.NotEmpty(t, found)
			require.Contains(t, found[0].What, c.want)
		})
	}
}

func TestTheApplicationsRolesCannotChangeTheLog(t *testing.T) {
	t.Parallel()
	w := newAuditWorld(t)
	w.record(t, 1)
	w.chain(t)
	for _, ctx := range []context.Context{t.Context(), as(t, w.org)} {
		for _, sql := range []string{
			"UPDATE audit_event SET actor = 'x'", "DELETE FROM audit_event", "UPDATE audit_link SET hash = 'x'", "DELETE FROM audit_link", "TRUNCATE audit_event CASCADE",
		} {
			require.ErrorContains(t, w.db.WithinTx(ctx, func(ctx context.Context) error { return w.db.ExecSimple(ctx, sql) }), "permission denied", sql)
		}
	}
}

func TestAnExportIsVerifiedWithoutTheDatabase(t *testing.T) {
	t.Parallel()
	w := newAuditWorld(t)
	w.record(t, 4)
	w.chain(t)
	var lines [][]byte
	require.NoError(t, audit.NewReader(w.db, w.rows).Export(as(t, w.org), ids.Org{}, w.clock.Now().AddDate(-1, 0, 0), w.clock.Now().AddDate(1, 0, 0), func(events []audit.Event) error {
		for _, e := range events {
			line, err := e.Line()
			require.NoError(t, err)
			lines = append(lines, line)
		}
		return nil
	}))
	require.Len(t, lines, 4)
	check := func(lines [][]byte) error {
		var last *audit.Link
		for _, line := range lines {
			link, err := audit.CheckLine(line, last)
			if err != nil {
				return err
			}
			last = &link
		}
		return nil
	}
	require.NoError(t, check(lines))
	require.NoError(t, check(lines[1:]), "it may begin anywhere")
	require.Error(t, check([][]byte{lines[0], lines[2]}))
	for at := range lines[1] {
		typo := append([]byte{}, lines[1]...)
		typo[at] ^= 1
		require.Error(t, check([][]byte{lines[0], typo, lines[2]}), "at %d: %s", at, typo)
	}
}
