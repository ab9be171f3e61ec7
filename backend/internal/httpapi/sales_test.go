package httpapi_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi"
	"github.com/leasehold/leasehold/backend/internal/markettest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
)

func newSales(w *world) *booking.Service {
	store := postgres.NewBooking(w.db)
	return booking.New(booking.Deps{
		Tx: w.db, Catalog: postgres.NewCatalog(w.db), Market: store, Customers: store, Quotes: store, Leases: postgres.NewLeases(w.db),
		Allocations: postgres.NewAllocations(w.db), Money: newBilling(w).Bills, Outbox: postgres.NewOutbox(w.db),
		Audit: audit.New(postgres.NewAuditEvents(w.db), w.clock), Clock: w.clock,
	})
}

func newMarket(w *world) httpapi.Market {
	return httpapi.Market{Catalog: catalog.New(w.db, postgres.NewCatalog(w.db), w.clock), Sites: newInventory(w), Sales: newSales(w), Clock: w.clock}
}

// object is the answer's body.
func (a answer) object(t *testing.T) map[string]any {
	t.Helper()
	var members map[string]any
	require.NoError(t, json.Unmarshal(a.body, &members), a.text())
	return members
}

// stocked adds a site with nodes of eight GPUs that are for rent as "h100.8x".
func (w *world) stocked(nodes int) {
	w.t.Helper()
	m := &markettest.Market{Pool: w.database.Pool(w.t), URL: w.database.URL, Provider: w.seeded[2].Org, Site: ids.Make[ids.Site](), Fabric: ids.Make[ids.Fabric]()}
	m.Exec(w.t, `INSERT INTO site (id, provider_org_id, name, region, country, created_at) VALUES ($1, $2, 'stock', 'test', 'DE', now())`, m.Site, m.Provider)
	m.Exec(w.t, `INSERT INTO fabric (id, site_id, name, created_at) VALUES ($1, $2, 'ib1', now())`, m.Fabric, m.Site)
	m.Nodes(w.t, "stock", "hw", "bare_metal", nodes, 4)
	m.InstanceType(w.t, "h100.8x", "hw", "bare_metal", 8)
}

// window is a good one of an hour, that many hours ahead.
func (w *world) window(ahead int) map[string]any {
	start := w.clock.Now().Add(time.Duration(ahead) * time.Hour)
	return map[string]any{"start": start.Format(time.RFC3339), "end": start.Add(time.Hour).Format(time.RFC3339)}
}

func (m *matrix) quoted(ahead int) string {
	m.t.Helper()
	got := m.ada.do(http.MethodPost, "/v1/quotes", map[string]any{"instance_type": "h100.8x", "instances": 1, "window": m.window(ahead)})
	require.Equal(m.t, http.StatusCreated, got.status, got.text())
	return got.member("id")
}

func (m *matrix) booked(ahead int, key string) string {
	m.t.Helper()
	got := m.ada.do(http.MethodPost, "/v1/leases", map[string]any{"quote_id": m.quoted(ahead), "ssh_key_ids": []string{key}})
	require.Equal(m.t, http.StatusCreated, got.status, got.text())
	return got.member("id")
}

// running is a lease that is active, by its row.
func (m *matrix) running(ahead int, key string) string {
	m.t.Helper()
	id := m.booked(ahead, key)
	parsed, err := ids.Parse[ids.LeaseKind](id)
	require.NoError(m.t, err)
	_, err = m.database.Pool(m.t).Exec(m.t.Context(), "UPDATE lease SET state = 'active', active_at = now() WHERE id = $1", parsed)
	require.NoError(m.t, err)
	return id
}

// sales are good requests for what sells.
func (m *matrix) sales() map[string]write {
	m.stocked(4)
	require.Equal(m.t, http.StatusCreated, m.ada.do(http.MethodPost, "/v1/billing/top-ups", topUp(100_000, "pm_card_visa")).status)
	key := m.ada.do(http.MethodPost, "/v1/ssh-keys", map[string]any{"name": "sales", "public_key": newPublicKey(m.t)}).member("id")
	end := m.clock.Now().Add(4 * time.Hour)
	wish := func(n int) map[string]any {
		return map[string]any{"instance_type": "h100.8x", "instances": n, "window": m.window(9)}
	}
	return map[string]write{
		"createQuote": {who: m.ada, path: "/v1/quotes", body: wish(1), other: wish(2)},
		"createLease": {
			who: m.ada, path: "/v1/leases", body: map[string]any{"quote_id": m.quoted(2), "ssh_key_ids": []string{key}},
			other: map[string]any{"quote_id": m.quoted(2), "ssh_key_ids": []string{key}},
		},
		"updateLease": {
			who: m.ada, path: "/v1/leases/" + m.booked(20, key), ifMatch: `"1"`, body: map[string]any{"name": "a"}, other: map[string]any{"name": "b"},
		},
		"extendLease": {
			who: m.ada, path: "/v1/leases/" + m.booked(2, key) + "/extensions", ifMatch: `"1"`, body: map[string]any{"end": end.Format(time.RFC3339)},
			other: map[string]any{"end": end.Add(time.Hour).Format(time.RFC3339)},
		},
		"cancelLease": {who: m.ada, path: "/v1/leases/" + m.booked(30, key) + "/cancellation", ifMatch: `"1"`},
		"setLeaseNodePower": {
			who: m.ada, path: m.metal(50, key), body: map[string]any{"action": "reboot"}, other: map[string]any{"action": "stop"},
		},
		"requestAttestation": {who: m.ada, path: "/v1/leases/" + m.running(40, key) + "/attestations"},
	}
}

func TestANameIsOfLetters(t *testing.T) {
	t.Parallel()
	ada := newWorld(t).logIn(0)
	for _, name := range []string{"a\x1b[31m", "a\nb", "\u202egpj.exe", ""} {
		got := ada.do(http.MethodPost, "/v1/projects", map[string]any{"name": name})
		require.Equal(t, http.StatusUnprocessableEntity, got.status, "%q: %s", name, got.text())
	}
	for _, name := range []string{"vision", "北京 Ω", "می\u200cخواهم", "\U0001F600"} {
		got := ada.do(http.MethodPost, "/v1/projects", map[string]any{"name": name})
		require.Equal(t, http.StatusCreated, got.status, "%q: %s", name, got.text())
	}
}

func TestADryRunChangesNothing(t *testing.T) {
	t.Parallel()
	m := newMatrix(t)
	sales := m.sales()
	held := func() any { return m.ada.do(http.MethodGet, "/v1/billing/balance", nil).object(t)["held"] }
	before := held()
	for _, op := range []string{"createLease", "extendLease", "cancelLease"} {
		w := sales[op]
		got := w.who.do(http.MethodPost, w.path+"?dry_run=true", w.body, w.options("dry-"+op)...)
		require.Less(t, got.status, 300, "%s: %s", op, got.text())
		require.Equal(t, before, held(), op)
		got = w.who.do(http.MethodPost, w.path, w.body, w.options("wet-"+op)...)
		require.Less(t, got.status, 300, "the same for real, with the same ETag: %s: %s", op, got.text())
		require.NotEqual(t, before, held(), op)
		before = held()
	}
}

func TestTheMarketShowsWhatIsFreeAndForHowMuch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stocked(3)
	ada := w.logIn(0)
	types := ada.do(http.MethodGet, "/v1/instance-types", nil)
	require.Equal(t, http.StatusOK, types.status, types.text())
	first, _ := types.object(t)["items"].([]any)[0].(map[string]any)
	offer, _ := first["offers"].([]any)[0].(map[string]any)
	require.EqualValues(t, 3, offer["free_now"])
	require.EqualValues(t, 3, offer["total_instances"])
	require.Equal(t, map[string]any{"micros": float64(2_490_000), "currency": "USD", "per": "gpu"}, offer["rate"])

	options := ada.do(http.MethodPost, "/v1/availability/search", map[string]any{"instance_type": "h100.8x", "instances": 2, "window": w.window(2)})
	require.Equal(t, http.StatusOK, options.status, options.text())
	best, _ := options.object(t)["items"].([]any)[0].(map[string]any)
	require.Equal(t, map[string]any{"amount": float64(2 * 8 * 249), "currency": "USD"}, best["total"])

	calendar := ada.do(http.MethodGet, "/v1/availability?instance_type=h100.8x&from=2026-03-02T00:00:00Z&to=2026-03-02T03:00:00Z", nil)
	require.Equal(t, http.StatusOK, calendar.status, calendar.text())
	require.Equal(t, []any{float64(3), float64(3), float64(3)}, calendar.object(t)["sites"].([]any)[0].(map[string]any)["free"])
}

func TestTextThatNoColumnHoldsAndAbsurdDurationsAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.stocked(1)
	ada := w.logIn(0)
	nul := map[string]any{"name": "a\x00b"}
	requireProblem(t, ada.do(http.MethodPost, "/v1/projects", nul), http.StatusBadRequest, "malformed-text")
	requireProblem(t, ada.do(http.MethodPost, "/v1/projects", map[string]any{"name": "a"}, withKey("\xff\xfe")), http.StatusBadRequest, "malformed-text")
	got := ada.do(http.MethodPost, "/v1/projects", map[string]any{"name": `a\u0000b`})
	require.Equal(t, http.StatusCreated, got.status, "a backslash and a few letters are text: %s", got.text())
	for _, seconds := range []int64{36028797018967568, 9223372037, 0, -1} { // the first is 2^55 + 3600, an hour when it overflows
		got := ada.do(http.MethodPost, "/v1/quotes", map[string]any{"instance_type": "h100.8x", "instances": 1, "duration_seconds": seconds})
		require.Equal(t, http.StatusUnprocessableEntity, got.status, "%d: %s", seconds, got.text())
	}
}
