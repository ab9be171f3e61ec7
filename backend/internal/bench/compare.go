package main

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// side is one side of a comparison: transactions, of them bookings, in what time.
type side struct {
	done, booked int
	took         time.Duration
}

func (s *side) add(done, booked int, took time.Duration) {
	s.done, s.booked, s.took = s.done+done, s.booked+booked, s.took+took
}

func (s side) rate() float64       { return float64(s.done) / s.took.Seconds() }
func (s side) bookedRate() float64 { return float64(s.booked) / s.took.Seconds() }

// row is a line of the table.
type row struct {
	name     string
	api, sql side
	byStatus map[int]int
	sent     int64 // statements of the API's side
	trips    int64
	ratios   []float64 // by round
}

// compare lets both sides book in turn, so that what else the machine does troubles both alike, and prints the table.
func (b *bookingBench) compare(ctx context.Context, quotes offers, replayURL string) error {
	manyWins, fewWins, fewLoses, err := b.scripts(ctx)
	if err != nil {
		return err
	}
	s, err := serve(ctx, b.url, b.dir, b.customers)
	if err != nil {
		return err
	}
	defer s.close(ctx)
	stop, err := profile(os.Getenv("LEASEHOLD_BENCH_PROFILE"))
	if err != nil {
		return err
	}
	defer stop()
	rows := []*row{{name: "not contended", byStatus: map[int]int{}}, {name: "contended", byStatus: map[int]int{}}}
	for round := range rounds {
		say(fmt.Sprintf("booking, round %d of %d", round+1, rounds))
		for i, of := range []struct {
			quotes  [][]string
			per     int
			scripts []script
		}{{quotes.many, perMany, []script{manyWins}}, {quotes.few, perFew, []script{fewWins, fewLoses}}} {
			mine := make([][]string, clients)
			for c := range mine {
				mine[c] = of.quotes[c][round*of.per : (round+1)*of.per]
			}
			r := replay{url: replayURL, scripts: of.scripts, clients: clients, perEach: of.per, done: round * of.per}
			if err := b.round(ctx, rows[i], s, mine, r); err != nil {
				return err
			}
		}
	}
	b.print(rows, quotes.rate, map[string][]statement{
		"a booking": b.recorded[manyTag].statements, "a refusal": b.recorded[loserTag].statements,
	})
	return nil
}

func (b *bookingBench) round(ctx context.Context, into *row, s *api, quotes [][]string, r replay) error {
	got, err := s.bookAll(ctx, quotes)
	if err != nil {
		return err
	}
	for status, n := range got.byStatus {
		into.byStatus[status] += n
	}
	into.api.add(got.count(), got.byStatus[http.StatusCreated], got.took)
	into.sent, into.trips = into.sent+got.sent, into.trips+got.trips
	before, err := leases(ctx, r.url)
	if err != nil {
		return err
	}
	done, took, err := r.run(ctx, b.pgbench, b.dir)
	if err != nil {
		return err
	}
	after, err := leases(ctx, r.url)
	if err != nil {
		return err
	}
	into.sql.add(done, after-before, took)
	into.ratios = append(into.ratios, (float64(got.count())/got.took.Seconds())/(float64(done)/took.Seconds()))
	return nil
}

// leases counts what was truly booked.
func leases(ctx context.Context, url string) (int, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // read only
	var n int
	err = conn.QueryRow(ctx, "SELECT count(*) FROM lease").Scan(&n)
	return n, err
}

func (b *bookingBench) print(rows []*row, quoteRate float64, requests map[string][]statement) {
	by := "pgbench"
	if b.pgbench == "" {
		by = "a loop with pgx, since there is no pgbench here,"
	}
	fmt.Printf("bookings over HTTP, %d clients, against the same SQL through %s on the same server; quotes made beforehand (%.0f/s)\n", clients, by, quoteRate)
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		fmt.Printf("  %s alone sends %d statements in %d round trips\n", name, len(requests[name]), roundTrips(requests[name]))
	}
	fmt.Printf("  %-14s | %11s %10s | %11s %10s | %5s  %s\n", "", "HTTP ans./s", "bookings/s", "SQL tx/s", "bookings/s", "ratio", "by round; answers; statements an answer")
	for _, r := range rows {
		fmt.Printf("  %-14s | %11.0f %10.0f | %11.0f %10.0f | %5.2f  %.2f; %s; %.1f\n", r.name, r.api.rate(), r.api.bookedRate(), r.sql.rate(), r.sql.bookedRate(),
			r.api.rate()/r.sql.rate(), r.ratios, statuses(r.byStatus), float64(r.sent)/float64(r.api.done))
	}
	fmt.Println()
}

func roundTrips(all []statement) int {
	trips, batch := 0, 0
	for _, s := range all {
		if s.batch == 0 || s.batch != batch {
			trips++
		}
		batch = s.batch
	}
	return trips
}

func statuses(counts map[int]int) string {
	all := make([]string, 0, len(counts))
	for _, status := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%d × %d", counts[status], status))
	}
	return strings.Join(all, ", ")
}

// profile writes where this process, API and clients, spends its time; "": it does not.
func profile(path string) (func(), error) {
	if path == "" {
		return func() {}, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return func() {
		pprof.StopCPUProfile()
		_ = file.Close()
	}, nil
}
