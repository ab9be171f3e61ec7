package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/ids"
)

func TestAnIDIsReplacedWhereverItIsNamed(t *testing.T) {
	t.Parallel()
	since := time.Now().Add(-time.Second)
	org, lease, other := ids.Make[ids.Org](), ids.Make[ids.Lease](), ids.Make[ids.Lease]()
	w := &writer{
		tag: 1, since: since, shift: "interval '1 h'", node: "the_node", fresh: map[[16]byte]value{},
		known: map[[16]byte]value{org.UUID(): {uuid: ":e0::uuid", text: ":t0::text"}},
	}
	w.meet(lease.UUID())
	w.meet(org.UUID())
	require.Len(t, w.fresh, 1, "the customer's id is not the booking's own")
	for _, c := range []struct {
		arg       any
		typ, want string
	}{
		{org, "uuid", ":e0::uuid"},
		{lease, "uuid", ordinal(1, 1).uuid},
		{lease.UUID(), "uuid", ordinal(1, 1).uuid},
		{"hold:" + lease.String(), "text", "('hold:' || 'lease_' || " + ordinal(1, 1).text + " || '')::text"},
		{[16]byte{6: 0x70, 8: 0x80, 15: 7}, "uuid", "the_node"},
		{"it's 5", "text", "('it''s 5')::text"},
		{`{"a":true}`, "jsonb", `'{"a":true}'::jsonb`},
		{`{"a": {"b":x}}`, "jsonb", `('{"a": {"b":' || 'x}}')::jsonb`},
		{[]byte{1, 255}, "bytea", `'\x01ff'::bytea`},
		{nil, "uuid", "NULL::uuid"},
		{(*time.Time)(nil), "timestamp with time zone", "NULL::timestamp with time zone"},
		{7, "integer", "'7'::integer"},
	} {
		got, err := w.expression(c.arg, c.typ)
		require.NoError(t, err)
		if c.typ == "jsonb" && c.arg == `{"a":true}` {
			require.NotRegexp(t, `:[a-z]`, got[:len(got)-len("::jsonb")], "pgbench would take it for a variable")
			continue
		}
		require.Equal(t, c.want, got)
	}
	got, err := w.expression(other, "uuid")
	require.NoError(t, err)
	require.NotContains(t, got, ":g", "what the booking did not make stays")
	_, err = w.expression(struct{}{}, "text")
	require.ErrorContains(t, err, "cannot be replayed")
}

func TestOnlyTimesOfTheLeaseMove(t *testing.T) {
	t.Parallel()
	w := &writer{since: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), shift: "s"}
	require.Equal(t, "'2026-03-01T00:00:01Z'::timestamptz", w.instant("2026-03-01T00:00:01Z"))
	require.Equal(t, "('2026-03-05 10:00:00+00'::timestamptz + s)", w.instant("2026-03-05 10:00:00+00"))
}

func TestBatchesBecomePipelinesAndTheClientReadsItselfOnce(t *testing.T) {
	t.Parallel()
	s := script{g: "120 * :client_id + :i", statements: []statement{{sql: "begin"}, {sql: "a", batch: 1}, {sql: "b;", batch: 1}, {sql: "c", batch: 2}, {sql: "commit"}}}
	require.Equal(t, `\if :ready = 0
SELECT * FROM bench_client WHERE client = :client_id \gset
\set ready 1
\endif
\set i0 :i0 + 1
\set g 120 * :client_id + :i0
begin;
\startpipeline
a;
b;
\endpipeline
\startpipeline
c;
\endpipeline
commit;
`, s.text("i0"))
	require.Equal(t, 4, roundTrips(s.statements))
}

func TestPgbenchIsUnderstoodOrRefused(t *testing.T) {
	t.Parallel()
	n, took, err := parsePgbench("number of transactions actually processed: 1280/1280\nnumber of failed transactions: 0 (0.000%)\ntps = 640.0 (without initial connection time)\n")
	require.NoError(t, err)
	require.Equal(t, 1280, n)
	require.Equal(t, 2*time.Second, took)
	for _, bad := range []string{"", "number of transactions actually processed: 5\n", "number of transactions actually processed: 5\nnumber of failed transactions: 1 (20%)\ntps = 1.0 (without initial connection time)"} {
		_, _, err := parsePgbench(bad)
		require.Error(t, err)
	}
}

func TestTheLoopCountsAsPgbenchDoes(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]int{manyG: 120*3 + 5, fewG: 32*5 + 3, loserG: 3} {
		got, err := ordinalOf(expression, 5, 3)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.Equal(t, rounds*perMany, 120)
	require.Equal(t, clients, 32)
	require.GreaterOrEqual(t, rounds*perMany, rounds*perFew)
}
