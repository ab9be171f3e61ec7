// Package moneytest puts the rows into a test's database that money refers to: organizations, and leases with their quotes, types
// and sites. It writes SQL, so that tests of money need no other package's services.
package moneytest

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/pgtest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/money"
)

// Start is the instant at which everything in these tests begins.
//
//nolint:gochecknoglobals // a constant that Go cannot spell as one
var Start = time.Date(2026, 3, 29, 0, 0, 0, 0, time.UTC) // a DST edge in Europe

// World is one test's database with a provider, its site and one instance type.
type World struct {
	DB       *postgres.DB
	Pool     *pgxpool.Pool // the administrator's, past row-level security
	Provider ids.Org
	Site     ids.Site
	Type     ids.Instance
	Price    ids.Price
}

// New makes the world. feeBPS is what the platform keeps of the provider's earnings.
func New(t *testing.T, feeBPS int) *World {
	t.Helper()
	database := pgtest.New(t)
	db, err := postgres.Open(t.Context(), database.URL, 16)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return On(t, db, database.Pool(t), feeBPS)
}

// On puts the world into a database that a test has already.
func On(t *testing.T, db *postgres.DB, pool *pgxpool.Pool, feeBPS int) *World {
	t.Helper()
	w := &World{
		DB: db, Pool: pool, Provider: ids.Make[ids.Org](), Site: ids.Make[ids.Site](),
		Type: ids.Make[ids.Instance](), Price: ids.Make[ids.Price](),
	}
	w.exec(t, `INSERT INTO organization (id, name, kind, platform_fee_bps, created_at) VALUES ($1, 'Provider', 'provider', $2, $3)`, w.Provider, feeBPS, Start)
	w.exec(t, `INSERT INTO site (id, provider_org_id, name, region, country, created_at) VALUES ($1, $2, 'fra1', 'eu', 'DE', $3)`, w.Site, w.Provider, Start)
	w.exec(t, `INSERT INTO instance_type (id, name, title, hardware, mode, slot_width, slot_stride, gpu_count, gpu_model, gpu_memory_bytes, rated_per,
		lead_seconds, turnaround_seconds, created_at)
		VALUES ($1, 'h100-sxm.8x', 'Eight H100', 'h100', 'bare_metal', 64, 64, 8, 'H100', 1, 'gpu', 60, 60, $2)`, w.Type, Start)
	w.exec(t, `INSERT INTO price_version (id, instance_type_id, site_id, currency, rate_micros, valid, min_duration_seconds, max_duration_seconds, created_at)
		VALUES ($1, $2, $3, 'USD', 2499900, '[2020-01-01,)', 60, 31536000, $4)`, w.Price, w.Type, w.Site, Start)
	return w
}

func (w *World) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	_, err := w.Pool.Exec(context.WithoutCancel(t.Context()), sql, args...)
	require.NoError(t, err)
}

// Org adds a customer, in US dollars, that may owe up to creditMinor.
func (w *World) Org(t testing.TB, creditMinor int64) ids.Org {
	t.Helper()
	org := ids.Make[ids.Org]()
	w.exec(t, `INSERT INTO organization (id, name, kind, credit_limit_minor, created_at) VALUES ($1, 'Customer', 'customer', $2, $3)`, org, creditMinor, Start)
	return org
}

// Lease adds a reserved lease of n instances over the segments, which say window, rate, tax and terms. Nothing is held for it.
func (w *World) Lease(t testing.TB, org ids.Org, n int, segments ...lease.Segment) lease.Lease {
	t.Helper()
	l := lease.Lease{
		ID: ids.Make[ids.Lease](), Org: org, Project: ids.Make[ids.Project](), Quote: ids.Make[ids.Quote](), Instances: n, Site: w.Site,
		InstanceType: w.Type, Start: segments[0].Start, End: segments[len(segments)-1].End, State: lease.Reserved, Currency: money.USD, Version: 1,
	}
	w.exec(t, `INSERT INTO project (id, org_id, name, created_at) VALUES ($1, $2, $3, $4)`, l.Project, org, l.Project.String(), Start)
	w.exec(t, `INSERT INTO quote (id, org_id, project_id, instance_type_id, site_id, price_version_id, class, instances, start_at, end_at, currency, rate_micros,
		tax_rate_bps, subtotal_minor, tax_minor, total_minor, terms, terms_digest, placement, expires_at, created_by, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, 'reserved', $7, $8, $9, 'USD', 1, 0, 0, 0, 0, '{}', '', '{}', $8, 'test', $10)`,
		l.Quote, org, l.Project, w.Type, w.Site, w.Price, n, l.Start, l.End, Start)
	w.exec(t, `INSERT INTO lease (id, org_id, project_id, name, quote_id, instance_type_id, site_id, class, instances, start_at, end_at, state, currency, created_by, created_at)
		VALUES ($1, $2, $3, 'test', $4, $5, $6, 'reserved', $7, $8, $9, 'reserved', 'USD', 'test', $10)`,
		l.ID, org, l.Project, l.Quote, w.Type, w.Site, n, l.Start, l.End, Start)
	for _, s := range segments {
		terms, err := json.Marshal(s.Terms)
		require.NoError(t, err)
		w.exec(t, `INSERT INTO lease_segment (lease_id, seq, org_id, start_at, end_at, price_version_id, rate_micros, tax_rate_bps, terms, created_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
			l.ID, s.Seq, org, s.Start, s.End, w.Price, s.Rate.Micros, s.TaxRateBPS, terms, Start)
	}
	for i := range n {
		w.allocate(t, l, i)
	}
	return l
}

// allocate gives the lease a node of its own.
func (w *World) allocate(t testing.TB, l lease.Lease, ordinal int) {
	t.Helper()
	node := ids.Make[ids.Node]()
	name := strings.ReplaceAll(node.String(), "_", "-")
	w.exec(t, `INSERT INTO node (id, site_id, name, state, slots, created_at) VALUES ($1, $2, $3, 'available', 64, $4)`, node, w.Site, name, Start)
	w.exec(t, `INSERT INTO allocation (id, node_id, purpose, lease_id, ordinal, slots, occupied, state, created_at)
		VALUES ($1, $2, 'lease', $3, $4, '[0,64)', tstzrange($5, $6), 'held', $7)`, ids.Make[ids.Allocation](), node, l.ID, ordinal, l.Start, l.End, Start)
}

// Happens appends to the lease's log.
func (w *World) Happens(t testing.TB, l lease.Lease, at time.Time, kind lease.EventType, data map[string]any) {
	t.Helper()
	require.NoError(t, w.DB.WithinTx(t.Context(), func(ctx context.Context) error {
		_, err := postgres.NewLeases(w.DB).AppendEvent(ctx, lease.Event{Lease: l.ID, Type: kind, At: at, Data: data})
		return err
	}))
}

// Is puts the lease into a state, as its workflow would.
func (w *World) Is(t testing.TB, l lease.Lease, state lease.State, outcome lease.Outcome) {
	t.Helper()
	w.exec(t, `UPDATE lease SET state = $2, outcome = $3 WHERE id = $1`, l.ID, string(state), string(outcome))
}

// Wants sets when an early end takes effect.
func (w *World) Wants(t testing.TB, l lease.Lease, end time.Time) {
	t.Helper()
	w.exec(t, `UPDATE lease SET wanted_end_at = $2 WHERE id = $1`, l.ID, end)
}

// Segment makes a segment of a lease rated per GPU.
func Segment(seq int, start, end time.Time, micros int64, taxBPS int, units int64) lease.Segment {
	return lease.Segment{
		Seq: seq, Start: start, End: end, Rate: money.Rate{Micros: micros, Currency: money.USD}, TaxRateBPS: taxBPS,
		Terms: lease.Terms{RatedPer: "gpu", UnitsPerInstance: units},
	}
}

// Plain is a segment of a lease whose price does not matter: one unit, 2 USD an hour, no tax.
func Plain(length time.Duration) lease.Segment {
	return Segment(1, Start, Start.Add(length), 2_000_000, 0, 1)
}
