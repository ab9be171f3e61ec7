package httpapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/internal/ratelimit"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/ledger"
)

// newLeases is the area of leases on the world's database, whose waits find changes by looking.
func newLeases(w *world) httpapi.Leases {
	usage := billing.New(w.db, ledger.New(w.db, postgres.NewLedger(w.db), w.clock), postgres.NewMetering(w.db), postgres.NewInvoices(w.db), w.clock)
	return httpapi.Leases{
		Leases: lease.NewService(w.db, postgres.NewLeaseReads(w.db), nil), Usage: usage, Sales: newSales(w), Metrics: noMetrics{}, Clock: w.clock,
		Power: newPower(w),
	}
}

// noMetrics is a fleet that has measured nothing.
type noMetrics struct{}

func (noMetrics) Samples(context.Context, ids.Node, time.Time, time.Time) ([]httpapi.Sample, error) {
	return nil, nil
}

// leased is Ada's active lease of one node with a partition, an attestation and a wipe certificate.
type leased struct {
	*world
	caller
	id         ids.Lease
	allocation ids.Allocation
}

func newLeased(t *testing.T) *leased {
	t.Helper()
	m := &matrix{world: newWorld(t)}
	l := &leased{world: m.world, caller: m.logIn(0), allocation: ids.Make[ids.Allocation]()}
	_, id, _ := m.lease(0)
	l.id = ids.MustParse[ids.LeaseKind](id)
	fabric, node, leaf, port := ids.Make[ids.Fabric](), ids.Make[ids.Node](), ids.Make[ids.Switch](), ids.Make[ids.HCAPort]()
	partition, org := ids.Make[ids.Partition](), l.seeded[0].Org
	l.run(`INSERT INTO fabric (id, site_id, name, created_at) SELECT $1, site_id, 'ib0', now() FROM lease WHERE id = $2`, fabric, l.id)
	l.run(`UPDATE lease SET fabric_id = $1, state = 'active', start_at = '2026-03-01T11:00:00Z', active_at = '2026-03-01T11:00:00Z' WHERE id = $2`, fabric, l.id)
	l.run(`UPDATE lease_segment SET start_at = '2026-03-01T11:00:00Z' WHERE lease_id = $1`, l.id)
	l.run(`INSERT INTO switch (id, fabric_id, guid, name, ports) VALUES ($1, $2, '0x0000000000000001', 'leaf-0', 40)`, leaf, fabric)
	l.run(`INSERT INTO node (id, site_id, fabric_id, name, state, slots, created_at) SELECT $1, site_id, $2, 'n0', 'available', 64, now() FROM lease WHERE id = $3`, node, fabric, l.id)
	l.run(`INSERT INTO gpu (id, node_id, bay, uuid, vendor, model, memory_bytes, pci_address) VALUES ($1, $2, 0, 'GPU-0', 'nvidia', 'H100', 1, 'p')`, ids.Make[ids.GPU](), node)
	l.run(`INSERT INTO hca_port (id, node_id, fabric_id, device, port, node_guid, guid, switch_id) VALUES ($1, $2, $3, 'mlx5_0', 1, '0x00000000000000aa', '0x00000000000000ab', $4)`,
		port, node, fabric, leaf)
	l.run(`INSERT INTO allocation (id, node_id, purpose, lease_id, slots, occupied, state, access, created_at)
		SELECT $1, $2, 'lease', id, '[0,64)', tstzrange(start_at, end_at), 'in_use', '{"host": "10.0.0.1", "port": 2222, "user": "lease", "host_keys": ["k"]}', now()
		FROM lease WHERE id = $3`, l.allocation, node, l.id)
	l.run(`INSERT INTO partition (id, org_id, fabric_id, lease_id, pkey, state, created_at, updated_at) VALUES ($1, $2, $3, $4, 18, 'verified', now(), now())`, partition, org, fabric, l.id)
	l.run(`INSERT INTO partition_member (partition_id, hca_port_id, allocation_id, org_id, joined_at) VALUES ($1, $2, $3, $4, now())`, partition, port, l.allocation, org)
	l.run(`INSERT INTO attestation (id, org_id, lease_id, partition_id, occasion, verdict, envelope, created_at)
		VALUES ($1, $2, $3, $4, 'before_active', 'isolated', '{"payloadType": "t", "payload": "cA==", "signatures": []}', now())`, ids.Make[ids.Attestation](), org, l.id, partition)
	require.NoError(t, l.db.WithinTx(t.Context(), func(ctx context.Context) error {
		return postgres.NewLeaseWork(l.db).InsertCertificate(ctx, delivery.Certificate{
			ID: ids.Make[ids.Wipe](), Org: org, Lease: l.id, Allocation: l.allocation, Node: node, Result: protocol.Wiped, CreatedAt: l.clock.Now(),
			Envelope: protocol.Envelope{PayloadType: "w", Payload: []byte("p"), Signatures: []protocol.Signature{{KeyID: "k", Sig: []byte("s")}}},
		})
	}))
	l.log(lease.EventBooked)
	return l
}

func (l *leased) run(sql string, args ...any) {
	l.t.Helper()
	_, err := l.database.Pool(l.t).Exec(context.WithoutCancel(l.t.Context()), sql, args...)
	require.NoError(l.t, err, sql)
}

// log appends an event.
func (l *leased) log(event lease.EventType) {
	l.t.Helper()
	require.NoError(l.t, l.db.WithinTx(context.WithoutCancel(l.t.Context()), func(ctx context.Context) error {
		_, err := postgres.NewLeases(l.db).AppendEvent(ctx, lease.Event{Lease: l.id, Type: event, At: l.clock.Now()})
		return err
	}))
}

func (l *leased) read(t *testing.T, path string) map[string]any {
	t.Helper()
	got := l.do(http.MethodGet, "/v1/leases/"+l.id.String()+path, nil)
	require.Equal(t, http.StatusOK, got.status, got.text())
	var body map[string]any
	require.NoError(t, json.Unmarshal([]byte(got.text()), &body))
	return body
}

func TestALeaseShowsWhatItsTenantNeeds(t *testing.T) {
	t.Parallel()
	l := newLeased(t)
	got := l.do(http.MethodGet, "/v1/leases/"+l.id.String(), nil)
	require.Equal(t, `"1"`, got.header.Get("ETag"))
	body := l.read(t, "")
	require.Equal(t, "active", body["state"])
	require.Equal(t, "ib0", body["fabric"])
	require.EqualValues(t, 1, body["last_event"])
	require.NotContains(t, body, "closed_at")

	node, _ := l.read(t, "/nodes")["items"].([]any)[0].(map[string]any)
	require.Equal(t, "n0", node["node"])
	require.Equal(t, "leaf-0", node["leaf"])
	require.Equal(t, "ssh -p 2222 lease@10.0.0.1", node["access"].(map[string]any)["command"])
	require.Equal(t, []any{map[string]any{"bay": float64(0), "model": "H100", "uuid": "GPU-0"}}, node["gpus"])

	isolation := l.read(t, "/isolation")
	require.Equal(t, true, isolation["applies"])
	require.Equal(t, "0x0012", isolation["pkey"])
	require.Equal(t, []any{map[string]any{"guid": "0x00000000000000ab", "node": "n0", "joined": true}}, isolation["ports"])
	require.Equal(t, "isolated", isolation["attestations"].([]any)[0].(map[string]any)["verdict"])

	certificate, _ := l.read(t, "/wipe-certificates")["items"].([]any)[0].(map[string]any)
	require.Equal(t, "n0", certificate["node"])
	require.Equal(t, "w", certificate["envelope"].(map[string]any)["payloadType"])

	usage := l.read(t, "/usage")
	require.Equal(t, []any{}, usage["lines"], "an empty list is a list")
	require.Equal(t, "USD", usage["forecast"].(map[string]any)["currency"])
	require.Len(t, l.read(t, "/events?after=0")["items"], 1)
	require.Empty(t, l.read(t, "/events?after=1")["items"])
}

func TestAccessIsShownWhileItLastsOnly(t *testing.T) {
	t.Parallel()
	l := newLeased(t)
	l.run("UPDATE allocation SET state = 'cleaning'")
	node, _ := l.read(t, "/nodes")["items"].([]any)[0].(map[string]any)
	require.NotContains(t, node, "access")
}

func TestAKeyOfOneProjectDoesNotFindAnothersLeases(t *testing.T) {
	t.Parallel()
	l := newLeased(t)
	project := l.do(http.MethodPost, "/v1/projects", map[string]any{"name": "other"}).member("id")
	key := l.do(http.MethodPost, "/v1/api-keys", map[string]any{"name": "k", "scopes": []string{"leases:read"}, "project_id": project})
	require.Equal(t, http.StatusCreated, key.status, key.text())
	program := l.nobody()
	program.bearer = key.member("secret")
	for _, path := range []string{"", "/nodes", "/events", "/usage", "/isolation", "/wipe-certificates"} {
		require.Equal(t, http.StatusNotFound, program.do(http.MethodGet, "/v1/leases/"+l.id.String()+path, nil).status, path)
	}
}

func TestALongPollAnswersWhenThereIsNews(t *testing.T) {
	t.Parallel()
	l := newLeased(t)
	require.EqualValues(t, 1, l.read(t, "?wait=30s&after_event=0")["last_event"], "news that are there are told at once")
	answered := make(chan any, 1)
	go func() {
		got := l.do(http.MethodGet, "/v1/leases/"+l.id.String()+"?wait=30s&after_event=1", nil)
		answered <- got.member("last_event")
	}()
	select {
	case early := <-answered:
		require.Fail(t, "answered without news", early)
	case <-time.After(200 * time.Millisecond):
	}
	l.log(lease.EventNotice)
	select {
	case <-answered:
	case <-time.After(15 * time.Second):
		require.Fail(t, "the news are not told")
	}
	require.EqualValues(t, 2, l.read(t, "")["last_event"])
	began := time.Now()
	require.EqualValues(t, 2, l.read(t, "?wait=1s&after_event=2")["last_event"], "without news it answers when the wait is over")
	require.GreaterOrEqual(t, time.Since(began), 900*time.Millisecond)
}

func TestEventsAreStreamedFromWhereTheClientWas(t *testing.T) {
	t.Parallel()
	l := newLeased(t)
	for range 3 {
		l.log(lease.EventNotice)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, l.server.URL+"/v1/leases/"+l.id.String()+"/events", nil)
	require.NoError(t, err)
	request.Header.Set("Accept", "text/event-stream")
	request.Header.Set("Authorization", "Bearer "+l.bearer)
	request.Header.Set("Last-Event-ID", "2")
	response, err := l.http.Do(request)
	require.NoError(t, err)
	defer response.Body.Close() //nolint:errcheck // a stream's end
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
	lines := bufio.NewScanner(response.Body)
	seen := func() string {
		for lines.Scan() {
			if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
				return id
			}
		}
		return ""
	}
	require.Equal(t, "3", seen())
	require.Equal(t, "4", seen())
	l.run("UPDATE lease SET state = 'closed' WHERE id = $1", l.id)
	l.log(lease.EventClosed)
	require.Equal(t, "5", seen())
	require.Empty(t, seen(), "after a final lease's last event the stream ends")
}

func TestAPeriodOfSamplesThatEndsBeforeItBeginsIsRefused(t *testing.T) {
	t.Parallel()
	l := newLeased(t)
	path := "/v1/leases/" + l.id.String() + "/metrics?from=2026-03-01T12:00:00Z&to="
	requireProblem(t, l.do(http.MethodGet, path+"2026-03-01T11:00:00Z", nil), http.StatusUnprocessableEntity, "invalid-period")
	require.Equal(t, http.StatusOK, l.do(http.MethodGet, path+"2026-03-01T12:00:01Z", nil).status)
}

func TestProofsAtWillAreBounded(t *testing.T) {
	t.Parallel()
	m := newMatrix(t, func(d *httpapi.Deps) {
		d.Areas.Leases.Proofs = ratelimit.New(d.RateLimits, d.Clock, ratelimit.Policy{Name: "proof", Requests: 2, Window: time.Hour})
	})
	proof := m.sales()["requestAttestation"]
	for i := range 2 {
		got := proof.who.do(http.MethodPost, proof.path, nil, proof.options("proof-"+strconv.Itoa(i))...)
		require.Equal(t, http.StatusAccepted, got.status, got.text())
	}
	got := proof.who.do(http.MethodPost, proof.path, nil, proof.options("proof-2")...)
	requireProblem(t, got, http.StatusTooManyRequests, "rate-limited")
	require.Equal(t, "1800", got.header.Get("Retry-After"))
}
