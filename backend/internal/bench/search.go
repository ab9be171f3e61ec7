package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/internal/local/postgres"
	store "github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/tenant"
)

const searches = 100

// benchSearch searches for 16 whole nodes in an exact window of two hours, among so many nodes and allocations spread over 90 days.
func benchSearch(ctx context.Context, server *postgres.Server) error {
	fmt.Println("availability search: 16 nodes in an exact window of 2 h, allocations over 90 days")
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
		scan, err := counted(ctx, pool, "SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off")
		if err != nil {
			return err
		}
		index, err := counted(ctx, pool, "SET enable_seqscan = off; SET enable_bitmapscan = off")
		if err != nil {
			return err
		}
		pool.Close()
		slices.Sort(took)
		p50, p99 := took[len(took)/2], took[len(took)*99/100]
		fmt.Printf("  %6d nodes %8d allocations: p50 %6.1f ms, p99 %6.1f ms; p50 is %.2f × a sequential scan of the allocations, %.1f × an index-only scan of those in the window\n",
			size.nodes, size.allocations, ms(p50), ms(p99), float64(p50)/float64(scan), float64(p50)/float64(index))
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
			InstanceType: typeName(0), Instances: 16, Topology: booking.Anywhere, Window: lease.Window{Start: start, End: start.Add(2 * time.Hour)},
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

// counted is what counting the allocations of a window takes under the planner's settings: the median of five.
func counted(ctx context.Context, pool *pgxpool.Pool, settings string) (time.Duration, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, settings); err != nil {
		return 0, err
	}
	defer conn.Exec(context.WithoutCancel(ctx), "RESET ALL") //nolint:errcheck // the pool is closed soon
	took := make([]time.Duration, 5)
	for i := range took {
		var n int
		began := time.Now()
		err := conn.QueryRow(ctx, `SELECT count(*) FROM allocation WHERE released_at IS NULL AND occupied && tstzrange(now() + interval '24 hours', now() + interval '26 hours')`,
			pgx.QueryExecModeSimpleProtocol).Scan(&n) // a prepared statement would keep the plan of other settings
		if err != nil {
			return 0, err
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// seedSearch fills the market: allocations follow each other on every node, with gaps, over 90 days.
func seedSearch(ctx context.Context, pool *pgxpool.Pool, nodes, allocations int) (tenant.Actor, error) {
	actor, err := seedMarket(ctx, pool, nodes)
	if err != nil {
		return actor, err
	}
	// Rows come faster without their constraint, which is checked once for all of them afterwards.
	var overlap string
	if err := pool.QueryRow(ctx, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'allocation_no_overlap'").Scan(&overlap); err != nil {
		return actor, err
	}
	if _, err := pool.Exec(ctx, "ALTER TABLE allocation DROP CONSTRAINT allocation_no_overlap"); err != nil {
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
	if _, err := pool.Exec(ctx, "ALTER TABLE allocation ADD CONSTRAINT allocation_no_overlap "+overlap); err != nil {
		return actor, err
	}
	_, err = pool.Exec(ctx, "VACUUM ANALYZE") // as autovacuum has long done where nobody inserts everything at once
	return actor, err
}
