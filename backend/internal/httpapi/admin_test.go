package httpapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/doctor"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/inventory"
)

func newInventory(w *world) *inventory.Service {
	rows := postgres.NewInventory(w.db)
	return inventory.New(w.db, rows, rows, rows, w.clock)
}

type fakeEnroller struct{}

func (fakeEnroller) CreateToken(_ context.Context, _ ids.Site, _ int, ttl time.Duration) (ids.Enrollment, string, time.Time, error) {
	return ids.Make[ids.Enrollment](), "lhe_secret", time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).Add(ttl), nil
}

type fakeDoctor struct{ findings []doctor.Finding }

func (d fakeDoctor) Run(context.Context) ([]doctor.Finding, error) { return d.findings, nil }

// site makes a site of the operator's with one available node of eight GPUs, and returns the node.
func (w *world) site(name string) ids.Node {
	w.t.Helper()
	return w.siteOf(olga, name)
}

// siteOf is site for the organization of the person.
func (w *world) siteOf(person int, name string) ids.Node {
	w.t.Helper()
	pool, ctx := w.database.Pool(w.t), w.t.Context()
	site, node := ids.Make[ids.Site](), ids.Make[ids.Node]()
	_, err := pool.Exec(ctx, `INSERT INTO site (id, provider_org_id, name, region, country, created_at) VALUES ($1, $2, $3, 'eu', 'DE', now())`,
		site, w.seeded[person].Org, name)
	require.NoError(w.t, err)
	_, err = pool.Exec(ctx, `INSERT INTO node (id, site_id, name, hardware, mode, state, slots, created_at)
		VALUES ($1, $2, $3, 'h100-sxm-80gb.8', 'bare_metal', 'available', 64, now())`, node, site, name+"-node-0")
	require.NoError(w.t, err)
	return node
}

func TestTheOperatorMakesASiteAndACustomerCannot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	body := map[string]any{"name": "fra1", "region": "eu-central", "country": "DE", "provider_organization_id": w.seeded[2].Org.String()}
	requireProblem(t, w.logIn(0).do(http.MethodPost, "/v1/admin/sites", body), http.StatusForbidden, "operator-only")

	olga := w.logIn(2)
	made := olga.do(http.MethodPost, "/v1/admin/sites", body)
	require.Equal(t, http.StatusCreated, made.status, made.text())
	require.Contains(t, olga.do(http.MethodGet, "/v1/admin/sites", nil).text(), `"fra1"`)
	requireProblem(t, olga.do(http.MethodPost, "/v1/admin/sites", body), http.StatusConflict, "duplicate")

	body["name"], body["provider_organization_id"] = "fra2", w.seeded[0].Org.String()
	requireProblem(t, olga.do(http.MethodPost, "/v1/admin/sites", body), http.StatusUnprocessableEntity, "not-a-provider")
	var who string
	require.NoError(t, w.database.Pool(t).QueryRow(t.Context(), "SELECT actor FROM audit_event WHERE action = 'site.created'").Scan(&who))
	require.Equal(t, w.seeded[2].User.String(), who)
}

func TestAnEnrollmentTokenIsShownOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.site("fra1")
	olga, body := w.logIn(2), map[string]any{"site": "fra1", "max_uses": 3}
	made := olga.do(http.MethodPost, "/v1/admin/enrollment-tokens", body, withKey("k"))
	require.Equal(t, http.StatusCreated, made.status, made.text())
	require.Equal(t, "lhe_secret", made.member("token"))
	require.NotContains(t, olga.do(http.MethodPost, "/v1/admin/enrollment-tokens", body, withKey("k")).text(), "lhe_secret")
	requireProblem(t, olga.do(http.MethodPost, "/v1/admin/enrollment-tokens", map[string]any{"site": "nowhere"}), http.StatusUnprocessableEntity, "unknown-site")
}

func TestANodeIsMovedByWhoSawItsPresentVersion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	node := w.site("fra1")
	olga, path := w.logIn(2), "/v1/admin/nodes/"+node.String()
	seen := olga.do(http.MethodGet, path, nil)
	require.Equal(t, http.StatusOK, seen.status, seen.text())
	tag := seen.header.Get("ETag")
	require.Equal(t, `"1"`, tag)

	body := map[string]any{"state": "maintenance", "reason": "new fan"}
	requireProblem(t, olga.do(http.MethodPut, path+"/state", body), http.StatusPreconditionRequired, "precondition-required")
	moved := olga.do(http.MethodPut, path+"/state", body, withHeader("If-Match", tag))
	require.Equal(t, http.StatusOK, moved.status, moved.text())
	require.Equal(t, `"2"`, moved.header.Get("ETag"))
	require.Contains(t, moved.text(), `"state_reason":"new fan"`)
	requireProblem(t, olga.do(http.MethodPut, path+"/state", body, withHeader("If-Match", tag)), http.StatusPreconditionFailed, "stale")
	requireProblem(t, olga.do(http.MethodGet, "/v1/admin/nodes/"+ids.Make[ids.Node]().String(), nil), http.StatusNotFound, "node-not-found")
}

func TestNodesAreListedInPagesAndByWhatTheyAre(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{"a1", "b1", "c1"} {
		w.site(name)
	}
	olga := w.logIn(2)
	first := olga.do(http.MethodGet, "/v1/admin/nodes?limit=2", nil)
	require.Equal(t, http.StatusOK, first.status, first.text())
	require.Contains(t, first.text(), "b1-node-0")
	require.NotContains(t, first.text(), "c1-node-0")
	next := first.header.Get("Link")
	second := olga.do(http.MethodGet, next[1:len(next)-len(`>; rel="next"`)], nil)
	require.Contains(t, second.text(), "c1-node-0")
	require.Empty(t, second.header.Get("Link"))
	require.Contains(t, olga.do(http.MethodGet, "/v1/admin/nodes?site=b1", nil).text(), "b1-node-0")
	require.JSONEq(t, `{"items":[]}`, olga.do(http.MethodGet, "/v1/admin/nodes?site=none", nil).text())
	require.JSONEq(t, `{"items":[]}`, olga.do(http.MethodGet, "/v1/admin/nodes?state=quarantined", nil).text())
}

func TestCapacityCountsGPUs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	node := w.site("fra1")
	_, err := w.database.Pool(t).Exec(t.Context(), `INSERT INTO node_condition (node_id, name, class, onset, reported_at)
		VALUES ($1, 'xid', 'prevents_allocation', now(), now())`, node)
	require.NoError(t, err)
	got := w.logIn(2).do(http.MethodGet, "/v1/admin/capacity", nil)
	require.JSONEq(t, `{"items":[{"site":"fra1","hardware":"h100-sxm-80gb.8","delivered_gpus":8,"healthy_gpus":0,"reserved_gpus":0,"active_gpus":0}]}`, got.text())
}

func TestFabricsShowTopologyPartitionsAndDrift(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.site("fra1")
	fabric, ctx, pool := ids.Make[ids.Fabric](), t.Context(), w.database.Pool(t)
	_, err := pool.Exec(ctx, "INSERT INTO fabric (id, site_id, name, created_at) SELECT $1, id, 'ib0', now() FROM site", fabric)
	require.NoError(t, err)
	_, err = pool.Exec(ctx, "INSERT INTO drift (id, fabric_id, port_guid, what, onset) VALUES ($1, $2, '0x1', 'extra 0x8012', now())", ids.Make[ids.Drift](), fabric)
	require.NoError(t, err)
	olga := w.logIn(2)
	require.Contains(t, olga.do(http.MethodGet, "/v1/admin/fabrics", nil).text(), `"name":"ib0","partitions":0`)
	got := olga.do(http.MethodGet, "/v1/admin/fabrics/"+fabric.String(), nil)
	require.Equal(t, http.StatusOK, got.status, got.text())
	require.Contains(t, got.text(), "extra 0x8012")
	requireProblem(t, olga.do(http.MethodGet, "/v1/admin/fabrics/fabric_x", nil), http.StatusNotFound, "not-found")
}

func TestTheDoctorsReportListsEveryInvariant(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(d *httpapi.Deps) {
		d.Areas.Doctor = fakeDoctor{findings: []doctor.Finding{{Invariant: 4, Claim: "sums to zero", What: "txn_1", Found: "3"}}}
	})
	got := w.logIn(2).do(http.MethodGet, "/v1/admin/doctor", nil)
	var report struct {
		Healthy bool `json:"healthy"`
		Checks  []struct {
			Invariant int      `json:"invariant"`
			OK        bool     `json:"ok"`
			Findings  []string `json:"findings"`
		} `json:"checks"`
	}
	require.NoError(t, json.Unmarshal(got.body, &report))
	require.False(t, report.Healthy)
	require.Len(t, report.Checks, 9)
	for _, check := range report.Checks {
		require.Equal(t, check.Invariant != 4, check.OK)
	}
	require.Equal(t, []string{"sums to zero: txn_1: 3"}, report.Checks[3].Findings)
}

func TestTheOperatorListsOrganizations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got := w.logIn(2).do(http.MethodGet, "/v1/admin/organizations?limit=2", nil)
	require.Contains(t, got.text(), `"Bolt"`)
	require.NotEmpty(t, got.header.Get("Link"))
}
