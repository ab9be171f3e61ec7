// Command bench measures what docs/benchmarks.md reports: each figure is a ratio from one run on one machine, never a bare time.
//
//	go run ./backend/internal/bench [booking] [search] [audit] [herd]
//
// LEASEHOLD_PGBENCH names another pgbench than that on PATH, "-" none; LEASEHOLD_BENCH_PROFILE a file for a CPU profile of the bookings;
// LEASEHOLD_BENCH_KEEP a directory in which the scripts for pgbench and the API's log stay.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/backend/internal/local/postgres"
	"github.com/leasehold/leasehold/migrations"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type benchmark struct {
	name  string
	bench func(ctx context.Context, server *postgres.Server) error
}

// run measures what is named; everything when nothing is.
func run(ctx context.Context, names []string) error {
	all := []benchmark{{"booking", benchBooking}, {"search", benchSearch}, {"audit", benchAudit}, {"herd", benchHerd}}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(b benchmark) bool { return b.name == name }) {
			return fmt.Errorf("there is no benchmark %q: booking, search, audit and herd are", name)
		}
	}
	dir, err := os.MkdirTemp("", "leasehold-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	// Durable, as in production: a booking's commit waits for the disk.
	server, err := postgres.Start(ctx, postgres.Options{DataDir: dir + "/postgres", Progress: say})
	if err != nil {
		return err
	}
	defer server.Stop(context.WithoutCancel(ctx)) //nolint:errcheck // the process ends
	fmt.Printf("%s, %d cores, %s/%s, PostgreSQL on the same machine with fsync\n\n", time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	for _, one := range all {
		if len(names) > 0 && !slices.Contains(names, one.name) {
			continue
		}
		if err := one.bench(ctx, server); err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
	}
	return nil
}

func say(progress string) { fmt.Fprintln(os.Stderr, progress) }

// database makes a migrated database of that name.
func database(ctx context.Context, server *postgres.Server, name string) (string, *pgxpool.Pool, error) {
	if err := server.EnsureDatabase(ctx, name); err != nil {
		return "", nil, err
	}
	url := server.URL(name)
	if err := migrations.Up(ctx, url); err != nil {
		return "", nil, err
	}
	pool, err := pgxpool.New(ctx, url+"&pool_max_conns=40")
	return url, pool, err
}
