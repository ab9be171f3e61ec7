package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi"
)

// estate is a provider's site with a node on a fabric, all of which a lease has: allocation, operation and partition name its lease.
type estate struct {
	site   string
	node   ids.Node
	fabric ids.Fabric
	lease  string
}

// estate makes one for the organization of the person.
func (w *world) estate(person int, site string) estate {
	w.t.Helper()
	e := estate{site: site, node: w.siteOf(person, site), fabric: ids.Make[ids.Fabric]()}
	_, e.lease, _ = w.lease(person) // whose it is makes no difference to what a provider may see
	pool, ctx := w.database.Pool(w.t), w.t.Context()
	run := func(sql string, args ...any) {
		w.t.Helper()
		_, err := pool.Exec(ctx, sql, args...)
		require.NoError(w.t, err, sql)
	}
	var lease ids.Lease
	require.NoError(w.t, lease.UnmarshalText([]byte(e.lease)))
	trouble := "wipe failed: " + e.lease + " still runs something"
	run("INSERT INTO fabric (id, site_id, name, created_at) SELECT $1, site_id, $2, now() FROM node WHERE id = $3", e.fabric, "ib-"+site, e.node)
	run("UPDATE node SET fabric_id = $2, state_reason = $3 WHERE id = $1", e.node, e.fabric, trouble)
	run(`INSERT INTO allocation (id, node_id, purpose, lease_id, slots, occupied, state, reason, created_at)
		VALUES ($1, $2, 'lease', $3, '[0,64)', '[2026-01-01Z,2027-01-01Z)', 'in_use', $4, now())`, ids.Make[ids.Allocation](), e.node, lease, trouble)
	run(`INSERT INTO operation (id, lease_id, node_id, kind, dedup_key, epoch, spec, state, fault, pick_up_by, done_by, created_at)
		VALUES ($1, $2, $3, 'wipe', $4, 1, '{}', 'failed', jsonb_build_object('code', 'busy', 'detail', $5::text), now(), now(), now())`,
		ids.Make[ids.Operation](), lease, e.node, site, trouble)
	run(`INSERT INTO partition (id, org_id, fabric_id, lease_id, pkey, state, created_at, updated_at)
		SELECT $1, org_id, $2, id, 18, 'verified', now(), now() FROM lease WHERE id = $3`, ids.Make[ids.Partition](), e.fabric, lease)
	return e
}

// path is the operation's on this estate.
func (e estate) path(t *testing.T, op httpapi.Operation) string {
	t.Helper()
	path := strings.NewReplacer("{node_id}", e.node.String(), "{fabric_id}", e.fabric.String()).Replace(op.Path)
	require.NotContains(t, path, "{", op.ID)
	return path
}

// estates: what a provider reads has its own things in it, no other's, and nobody's lease.
func (m *matrix) estates(op httpapi.Operation) {
	if !op.Provider || op.Method != http.MethodGet {
		return
	}
	m.t.Helper()
	if m.grid.site == "" {
		m.grid = m.estate(greta, "grid1")
	}
	got := m.greta.do(op.Method, m.grid.path(m.t, op), nil)
	require.Equal(m.t, http.StatusOK, got.status, "%s: %s", op.ID, got.text())
	require.Contains(m.t, got.text(), "grid1", op.ID)
	for _, secret := range []string{"helio1", m.helio.node.String(), m.helio.fabric.String(), m.helio.lease, m.grid.lease, m.seeded[hugo].Org.String(), "lease_0"} {
		require.NotContains(m.t, got.text(), secret, "%s tells a provider what is not its business", op.ID)
	}
	m.cells["a provider sees its own only"]++

	all := m.olga.do(op.Method, m.helio.path(m.t, op), nil)
	require.Equal(m.t, http.StatusOK, all.status, "%s: %s", op.ID, all.text())
	require.Contains(m.t, all.text(), "helio1", op.ID)
}

func TestTheOperatorStillSeesWhoRentsWhat(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.estate(hugo, "helio1")
	for _, path := range []string{"/v1/admin/nodes/" + e.node.String(), "/v1/admin/fabrics/" + e.fabric.String()} {
		require.Contains(t, w.logIn(olga).do(http.MethodGet, path, nil).text(), `"lease_id":"`+e.lease+`"`)
	}
}

func TestAProviderTakesItsOwnNodeOffTheMarketAndHasItTestedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own, other := w.siteOf(greta, "grid1"), w.siteOf(hugo, "helio1")
	greta := w.logIn(greta)
	set := func(node ids.Node, version, state string) answer {
		body := map[string]any{"state": state, "reason": "a new fan"}
		if state == "quarantined" {
			body["exit"] = "repair"
		}
		return greta.do(http.MethodPut, "/v1/admin/nodes/"+node.String()+"/state", body, withHeader("If-Match", version))
	}
	requireProblem(t, set(other, `"1"`, "maintenance"), http.StatusNotFound, "node-not-found")
	requireProblem(t, set(own, `"1"`, "quarantined"), http.StatusForbidden, "operator-only")

	moved := set(own, `"1"`, "maintenance")
	require.Equal(t, http.StatusOK, moved.status, moved.text())
	require.Contains(t, moved.text(), `"state_reason":"a new fan"`)
	for _, state := range []string{"available", "retired", "quarantined"} {
		requireProblem(t, set(own, `"2"`, state), http.StatusForbidden, "operator-only")
	}
	tested := set(own, `"2"`, "verifying")
	require.Equal(t, http.StatusOK, tested.status, tested.text())
	require.Contains(t, tested.text(), `"state":"available"`, "nothing speaks against it")

	var who string
	require.NoError(t, w.database.Pool(t).QueryRow(t.Context(), "SELECT DISTINCT actor FROM audit_event WHERE action = 'node.state_set'").Scan(&who))
	require.Equal(t, w.seeded[3].User.String(), who)
}

func TestAProvidersKeyNeedsTheAdminScopeToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.siteOf(greta, "grid1")
	person := w.logIn(greta)
	program := func(scopes ...string) caller {
		made := person.do(http.MethodPost, "/v1/api-keys", map[string]any{"name": strings.Join(scopes, " "), "scopes": scopes})
		require.Equal(t, http.StatusCreated, made.status, made.text())
		c := w.nobody()
		c.bearer = made.member("secret")
		return c
	}
	requireProblem(t, program("market:read").do(http.MethodGet, "/v1/admin/nodes", nil), http.StatusForbidden, "scope")
	got := program("admin:read").do(http.MethodGet, "/v1/admin/nodes", nil)
	require.Equal(t, http.StatusOK, got.status, got.text())
	require.Contains(t, got.text(), "grid1-node-0")
}
