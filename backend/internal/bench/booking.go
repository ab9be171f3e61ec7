package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/leasehold/leasehold/backend/internal/local/postgres"
)

const (
	environment = "bench"
	clients     = 32
	rounds      = 3

	// Not contended: every client books windows of its own, on plenty of nodes.
	many    = 0
	plenty  = 256
	perMany = 40 // of each client in each round
	// Contended: all clients want the same windows on four nodes.
	few     = 1
	scarce  = 4
	perFew  = 40
	leased  = 2 * time.Hour
	fewStep = 3 * time.Hour
)

// Scripts have numbers, which keep their ids apart.
const (
	manyTag = iota + 1
	fewTag
	loserTag
)

// keyOrdinal is beyond what a booking makes for itself.
const keyOrdinal = 999

// bookingBench is two databases with the same market: the API books in one, pgbench in the other.
type bookingBench struct {
	server    *postgres.Server
	dir       string
	url       string
	base      time.Time // when the windows begin
	customers []customer
	recorded  [loserTag + 1]recording
	pgbench   string
}

// recording is what one request sent, and what it named.
type recording struct {
	statements []statement
	since      time.Time
	start      time.Time // of its window
	quote      [16]byte
	key        [16]byte // of idempotency
	client     int
}

// benchBooking compares bookings through the API with the same SQL through pgbench.
func benchBooking(ctx context.Context, server *postgres.Server) error {
	dir, err := os.MkdirTemp("", "leasehold-bench-booking-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	if keep := os.Getenv("LEASEHOLD_BENCH_KEEP"); keep != "" {
		dir = keep
	}
	b := &bookingBench{server: server, dir: dir, base: time.Now().UTC().Truncate(time.Hour).Add(72 * time.Hour)}
	b.pgbench, _ = findPgbench()
	var pool *pgxpool.Pool
	if b.url, pool, err = database(ctx, server, "booking"); err != nil {
		return err
	}
	defer pool.Close()
	if _, err := seedMarket(ctx, pool, plenty, scarce); err != nil {
		return err
	}
	if b.customers, err = seedCustomers(ctx, b.url, pool, clients); err != nil {
		return err
	}
	pool.Close()
	quotes, err := b.prepare(ctx)
	if err != nil {
		return err
	}
	replayURL, err := b.prepareReplay(ctx)
	if err != nil {
		return err
	}
	return b.compare(ctx, quotes, replayURL)
}

// offers are quotes made beforehand, by client.
type offers struct {
	many, few [][]string
	rate      float64 // at which they were made
}

// window of a client's i-th booking.
func (b *bookingBench) window(kind, client, i int) time.Time {
	if kind == many { // minutes apart, clients hours apart: at any time a good half of the nodes is taken
		return b.base.Add(time.Duration(client*rounds*perMany+i) * time.Minute)
	}
	return b.base.Add(time.Duration(i) * fewStep)
}

// prepare makes all quotes and records the three kinds of request.
func (b *bookingBench) prepare(ctx context.Context) (offers, error) {
	s, err := serve(ctx, b.url, b.dir, b.customers)
	if err != nil {
		return offers{}, err
	}
	defer s.close(ctx)
	say("recording what a booking sends")
	before := b.base.Add(-12 * time.Hour)
	if b.recorded[manyTag], err = s.record(ctx, many, before, 1, http.StatusCreated); err != nil {
		return offers{}, err
	}
	if b.recorded[fewTag], err = s.record(ctx, few, before, 1, http.StatusCreated); err != nil {
		return offers{}, err
	}
	if b.recorded[loserTag], err = s.record(ctx, few, before.Add(-fewStep), scarce, http.StatusConflict); err != nil {
		return offers{}, err
	}
	say("making quotes")
	var q offers
	began := time.Now()
	if q.many, err = s.quotes(ctx, rounds*perMany, func(c, i int) (int, time.Time) { return many, b.window(many, c, i) }); err != nil {
		return q, err
	}
	if q.few, err = s.quotes(ctx, rounds*perFew, func(c, i int) (int, time.Time) { return few, b.window(few, c, i) }); err != nil {
		return q, err
	}
	q.rate = float64(clients*rounds*(perMany+perFew)) / time.Since(began).Seconds()
	return q, nil
}

// prepareReplay copies the database as it is before the bookings, and adds what the scripts name: the clients' ids and quotes.
func (b *bookingBench) prepareReplay(ctx context.Context) (string, error) {
	admin, err := pgx.Connect(ctx, b.server.URL("postgres"))
	if err != nil {
		return "", err
	}
	defer admin.Close(context.WithoutCancel(ctx)) //nolint:errcheck // done
	if _, err := admin.Exec(ctx, "CREATE DATABASE replay TEMPLATE booking"); err != nil {
		return "", err
	}
	url := b.server.URL("replay")
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // done
	if err := b.insertClients(ctx, conn); err != nil {
		return "", err
	}
	for tag, s := range map[int]struct {
		g   string
		per int
	}{manyTag: {manyG, rounds * perMany}, fewTag: {fewG, rounds * perFew}, loserTag: {loserG, 1}} {
		g := strings.NewReplacer(":client_id", "$4::int", ":i", "i").Replace(s.g)
		id := strings.ReplaceAll(ordinal(tag, 0).uuid, ":g", "("+g+")")
		for c, own := range b.customers {
			_, err := conn.Exec(ctx, `INSERT INTO quote (`+quoteColumns+`, id, org_id, project_id, lease_id)
				SELECT `+quoteColumns+`, `+id+`, $2, $3, NULL FROM quote, generate_series(0, $5::int - 1) i WHERE id = $1`,
				b.recorded[tag].quote, own.org, own.project, c, s.per)
			if err != nil {
				return "", fmt.Errorf("copy quotes: %w", err)
			}
		}
	}
	_, err = conn.Exec(ctx, "ANALYZE")
	return url, err
}

// The ordinal of a client's i-th run, which says its quote, node and window.
const (
	manyG  = "120 * :client_id + :i" // rounds * perMany
	fewG   = "32 * :i + :client_id"  // clients
	loserG = "1 * :client_id"
)

const quoteColumns = `instance_type_id, site_id, price_version_id, class, instances, topology, start_at, end_at, currency, rate_micros, tax_rate_bps,
	subtotal_minor, tax_minor, total_minor, terms, terms_digest, placement, expires_at, created_by, created_at`

// insertClients puts down what the scripts' clients know of themselves.
func (b *bookingBench) insertClients(ctx context.Context, conn *pgx.Conn) error {
	known := len(knownOf(b.customers[0]))
	columns := []string{"client int PRIMARY KEY"}
	for i := range known {
		columns = append(columns, fmt.Sprintf("e%d uuid, t%d text", i, i))
	}
	if _, err := conn.Exec(ctx, "CREATE TABLE bench_client ("+strings.Join(columns, ", ")+")"); err != nil {
		return err
	}
	for c, own := range b.customers {
		values, args := []string{"$1"}, []any{c}
		for _, uuid := range knownOf(own) {
			args = append(args, uuid, suffix(uuid))
			values = append(values, fmt.Sprintf("$%d, $%d", len(args)-1, len(args)))
		}
		if _, err := conn.Exec(ctx, "INSERT INTO bench_client VALUES ("+strings.Join(values, ", ")+")", args...); err != nil {
			return err
		}
	}
	return nil
}

// script makes a pgbench script of a recording.
func (b *bookingBench) script(ctx context.Context, name string, tag int, g, node, shift string, weight int) (script, error) {
	conn, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return script{}, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // done
	r := b.recorded[tag]
	w := &writer{conn: conn, tag: tag, since: r.since, shift: shift, node: node}
	w.known = with(customerValues(b.customers[r.client]), map[[16]byte]value{r.quote: ordinal(tag, 0), r.key: ordinal(tag, keyOrdinal)})
	if err := w.write(ctx, r.statements); err != nil {
		return script{}, fmt.Errorf("write script %s: %w", name, err)
	}
	return script{name: name, g: g, statements: w.rendered, weight: weight}, nil
}

// scripts are the three, in the order of their tags.
func (b *bookingBench) scripts(ctx context.Context) (manyWins, fewWins, fewLoses script, err error) {
	seconds := func(tag int, perG string, of time.Duration) string {
		return fmt.Sprintf("interval '1 second' * (%d + %s * %d)", int(b.base.Sub(b.recorded[tag].start).Seconds()), perG, int(of.Seconds()))
	}
	manyWins, err = b.script(ctx, "many", manyTag, manyG, nodeID("0", fmt.Sprintf(":g::bigint %% %d", plenty)),
		seconds(manyTag, ":g::bigint", time.Minute), 1)
	if err != nil {
		return manyWins, fewWins, fewLoses, err
	}
	// A window for each four bookings, as many as there are nodes.
	fewWins, err = b.script(ctx, "few-win", fewTag, fewG, nodeID("1", fmt.Sprintf(":g::bigint %% %d", scarce)),
		seconds(fewTag, fmt.Sprintf("(:g::bigint / %d)", scarce), fewStep), scarce)
	if err != nil {
		return manyWins, fewWins, fewLoses, err
	}
	fewLoses, err = b.script(ctx, "few-lose", loserTag, loserG, "NULL::uuid", "interval '0'", clients-scarce)
	return manyWins, fewWins, fewLoses, err
}
