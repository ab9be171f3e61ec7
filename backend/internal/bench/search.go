package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/local/postgres"
	store "github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/tenant"
)

const searches = 40

// benchSearch searches for 16 whole nodes in an exact window, among so many nodes and allocations spread over 90 days.
func benchSearch(ctx context.Context, server *postgres.Server) error {
	fmt.Println("availability search: 16 nodes in an exact window, allocations over 90 days")
	for _, size := range []struct{ nodes, allocations int }{{1_000, 20_000}, {10_000, 200_000}, {10_000, 2_000_000}} {
		url, pool, err := database(ctx, server, fmt.Sprintf("search_%d_%d", size.nodes, size.allocations))
		if err != nil {
			return err
		}
		actor, err := seedSearch(ctx, pool, size.nodes, size.allocations)
		if err != nil {
			return err
		}
		took, err := search(ctx, url, actor)
		if err != nil {
			return err
		}
		scan, err := scanned(ctx, pool)
		if err != nil {
			return err
		}
		pool.Close()
		slices.Sort(took)
		p50, p99 := took[len(took)/2], took[len(took)*99/100]
		fmt.Printf("  %6d nodes %8d allocations: p50 %6.1f ms, p99 %6.1f ms; a sequential scan of the allocations takes %.1f × the p50\n",
			size.nodes, size.allocations, ms(p50), ms(p99), float64(scan)/float64(p50))
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func search(ctx context.Context, url string, actor tenant.Actor) ([]time.Duration, error) {
	db, err := store.Open(ctx, url, 8)
	if err != nil {
		return nil, err
	}
	defer db.Close() //nolint:errcheck // read only
	rows := store.NewBooking(db)
	sales := booking.New(booking.Deps{Tx: db, Catalog: store.NewCatalog(db), Market: rows, Customers: rows, Quotes: rows, Clock: clock.System{}})
	ctx = tenant.WithActor(ctx, actor)
	took := make([]time.Duration, searches)
	for i := range took {
		start := time.Now().UTC().Truncate(time.Minute).Add(time.Duration(24+13*i) * time.Hour)
		began := time.Now()
		options, err := sales.Search(ctx, booking.Wish{
			InstanceType: "bench", Instances: 16, Topology: booking.Anywhere, Window: lease.Window{Start: start, End: start.Add(8 * time.Hour)},
		})
		took[i] = time.Since(began)
		if err != nil {
			return nil, err
		}
		if len(options) == 0 {
			return nil, fmt.Errorf("nothing was found at %s", start)
		}
	}
	return took, nil
}

// scanned is what reading all allocations takes, without an index.
func scanned(ctx context.Context, pool *pgxpool.Pool) (time.Duration, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off"); err != nil {
		return 0, err
	}
	began := time.Now()
	var n int
	err = conn.QueryRow(ctx, `SELECT count(*) FROM allocation WHERE released_at IS NULL AND occupied && tstzrange(now() + interval '24 hours', now() + interval '32 hours')`).Scan(&n)
	return time.Since(began), err
}

// seedSearch fills the market: allocations follow each other on every node, with gaps, over 90 days.
func seedSearch(ctx context.Context, pool *pgxpool.Pool, nodes, allocations int) (tenant.Actor, error) {
	actor, err := seedMarket(ctx, pool, nodes, 1)
	if err != nil {
		return actor, err
	}
	// Each node has k maintenance windows of equal length, two thirds of the time taken, staggered by node.
	_, err = pool.Exec(ctx, `
		WITH n AS (SELECT id, row_number() OVER (ORDER BY id) - 1 AS i FROM node), k AS (SELECT ($1::int / $2::int) AS per)
		INSERT INTO allocation (id, node_id, purpose, slots, occupied, state, created_at)
		SELECT gen_random_uuid(), n.id, 'maintenance', '[0,64)',
			tstzrange(now() + (j + (n.i % 100) / 100.0) * (interval '90 days' / k.per), now() + (j + (n.i % 100) / 100.0 + 0.6) * (interval '90 days' / k.per)), 'held', now()
		FROM n, k, generate_series(0, (SELECT per FROM k) - 1) AS j`, allocations, nodes)
	if err != nil {
		return actor, err
	}
	_, err = pool.Exec(ctx, "ANALYZE")
	return actor, err
}

// seedMarket makes a customer with a project, a site with so many nodes of eight GPUs behind leaves of 32, in so many kinds of hardware,
// each sold as a type: bench, bench-1 and so on.
func seedMarket(ctx context.Context, pool *pgxpool.Pool, nodes, kinds int) (tenant.Actor, error) {
	org, site, fabric := ids.Make[ids.Org](), ids.Make[ids.Site](), ids.Make[ids.Fabric]()
	for _, s := range []struct {
		sql  string
		args []any
	}{
		{`INSERT INTO organization (id, name, kind, created_at) VALUES ($1, 'bench', 'customer', now())`, []any{org}},
		{`INSERT INTO project (id, org_id, name, created_at) VALUES (gen_random_uuid(), $1, 'default', now())`, []any{org}},
		{`INSERT INTO site (id, provider_org_id, name, region, country, created_at) VALUES ($1, $2, 'bench', 'x', 'DE', now())`, []any{site, org}},
		{`INSERT INTO fabric (id, site_id, name, created_at) VALUES ($1, $2, 'ib0', now())`, []any{fabric, site}},
		{`INSERT INTO switch (id, fabric_id, guid, name, level, ports) SELECT gen_random_uuid(), $1, '0x' || lpad(to_hex(i), 16, '0'), 'leaf-' || i, 1, 64
			FROM generate_series(1, $2::int / 32 + 1) i`, []any{fabric, nodes}},
		{`INSERT INTO node (id, site_id, fabric_id, name, hardware, mode, state, slots, pod, leaf_id, created_at)
			SELECT gen_random_uuid(), $1, $2, 'n-' || i, 'hw-' || (i % $4::int), 'bare_metal', 'available', 64, 'pod-' || (i / 256),
				(SELECT id FROM switch WHERE name = 'leaf-' || (i / 32 + 1)), now() FROM generate_series(0, $3::int - 1) i`, []any{site, fabric, nodes, kinds}},
		{`INSERT INTO instance_type (id, name, title, hardware, mode, slot_width, slot_stride, gpu_count, with_hca, gpu_model, gpu_memory_bytes, rated_per,
				lead_seconds, turnaround_seconds, created_at)
			SELECT gen_random_uuid(), CASE i WHEN 0 THEN 'bench' ELSE 'bench-' || i END, 'x', 'hw-' || i, 'bare_metal', 64, 64, 8, true, 'X', 1, 'gpu', 600, 900, now()
			FROM generate_series(0, $1::int - 1) i`, []any{kinds}},
		{`INSERT INTO price_version (id, instance_type_id, site_id, currency, rate_micros, valid, min_duration_seconds, max_duration_seconds, created_at)
			SELECT gen_random_uuid(), id, $1, 'USD', 1000, '[2020-01-01,)', 60, 31536000, now() FROM instance_type`, []any{site}},
		{"ANALYZE", nil},
	} {
		if _, err := pool.Exec(ctx, s.sql, s.args...); err != nil {
			return tenant.Actor{}, fmt.Errorf("%.40s: %w", s.sql, err)
		}
	}
	return tenant.Actor{Org: org, OrgKind: tenant.Customer, Role: tenant.Owner}, nil
}
