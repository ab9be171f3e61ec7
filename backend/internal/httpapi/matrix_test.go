package httpapi_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi"
	"github.com/leasehold/leasehold/backend/tenant"
)

// matrix sends every operation of the contract through every mistake that it can be made with, and counts.
type matrix struct {
	*world
	operations []httpapi.Operation
	ada, olga  caller
	greta      caller // a provider's
	// foreign are Bolt's own things by path parameter; Ada must not find them.
	foreign map[string]string
	// helio is another provider's, which Greta must not find.
	helio estate
	grid  estate // Greta's own; made when it is first looked at
	cells map[string]int
}

func newMatrix(t *testing.T, change ...func(*httpapi.Deps)) *matrix {
	t.Helper()
	operations, err := httpapi.ContractOperations(t.Context())
	require.NoError(t, err)
	m := &matrix{world: newWorld(t, change...), operations: operations, cells: map[string]int{}}
	m.ada, m.olga, m.greta = m.logIn(ada), m.logIn(olga), m.logIn(greta)
	bob := m.logIn(bob)
	m.foreign = map[string]string{
		"api_key_id": bob.do(http.MethodPost, "/v1/api-keys", map[string]any{"name": "k", "scopes": []string{"market:read"}}).member("id"),
		"ssh_key_id": bob.do(http.MethodPost, "/v1/ssh-keys", map[string]any{"name": "k", "public_key": newPublicKey(t)}).member("id"),
		// Nobody's: nodes and fabrics belong to no organization.
		"node_id": ids.Make[ids.Node]().String(), "fabric_id": ids.Make[ids.Fabric]().String(),
		"allocation_id": ids.Make[ids.Allocation]().String(), "delivery_id": ids.Make[ids.Delivery]().String(),
		"user_code":           "BBBB-BBBB", // no organization's either
		"user_id":             m.seeded[1].User.String(),
		"group_id":            bob.do(http.MethodPost, "/v1/groups", map[string]any{"name": "g", "role": "viewer"}).member("id"),
		"service_account_id":  bob.do(http.MethodPost, "/v1/service-accounts", map[string]any{"name": "s", "role": "viewer"}).member("id"),
		"invitation_id":       bob.do(http.MethodPost, "/v1/invitations", map[string]any{"email": "x@bolt.test", "role": "viewer"}).member("id"),
		"webhook_endpoint_id": bob.do(http.MethodPost, "/v1/webhook-endpoints", map[string]any{"url": "https://bolt.test/"}).member("id"),
	}
	m.foreign["quote_id"], m.foreign["lease_id"], m.foreign["invoice_id"] = m.lease(1)
	m.helio = m.estate(hugo, "helio1")
	return m
}

// caller is somebody who may call the operation.
func (m *matrix) caller(op httpapi.Operation) caller {
	switch {
	case op.Public:
		return m.nobody()
	case op.Operator:
		return m.olga
	default:
		return m.ada
	}
}

// path fills the parameters in with Bolt's ids, or well-formed ones of nothing.
func (m *matrix) path(op httpapi.Operation) string {
	path := op.Path
	for name, id := range m.foreign {
		path = strings.ReplaceAll(path, "{"+name+"}", id)
	}
	require.NotContains(m.t, path, "{", op.ID)
	return path
}

// body is one for mistakes that are found before anybody looks at its members.
func (m *matrix) body(op httpapi.Operation) any {
	if op.HasBody {
		return map[string]any{}
	}
	return nil
}

func (m *matrix) cell(row string, op httpapi.Operation, got answer, status int, code string) {
	m.t.Helper()
	m.cells[row]++
	require.Equal(m.t, status, got.status, "%s: %s: %s", row, op.ID, got.text())
	require.Equal(m.t, "application/problem+json", got.header.Get("Content-Type"), "%s: %s", row, op.ID)
	if code != "" {
		require.Equal(m.t, code, got.code(), "%s: %s: %s", row, op.ID, got.text())
	}
	require.Equal(m.t, got.header.Get("X-Request-Id"), got.member("instance"), "%s: %s", row, op.ID)
}

func TestEveryRouteTimesEveryMistake(t *testing.T) {
	t.Parallel()
	m := newMatrix(t)
	for _, op := range m.operations {
		m.credentials(op)
		m.requests(op)
		m.preconditions(op)
		m.strangers(op)
		m.estates(op)
	}
	total := 0
	for row, n := range m.cells {
		total += n
		t.Logf("%-28s %3d routes", row, n)
	}
	t.Logf("%-28s %3d checks of %d routes", "all", total, len(m.operations))
}

// credentials: none, a wrong one, one of too little scope, one of the wrong kind of organization.
func (m *matrix) credentials(op httpapi.Operation) {
	if op.Public {
		return
	}
	nobody := m.nobody()
	m.cell("no credential", op, nobody.do(op.Method, m.path(op), m.body(op)), http.StatusUnauthorized, "unauthenticated")
	nobody.bearer = "eyJhbGciOiJub25lIn0.e30."
	m.cell("forged token", op, nobody.do(op.Method, m.path(op), m.body(op)), http.StatusUnauthorized, "invalid-credential")
	nobody.bearer = "lh_test_01h455vb4pex5vsknk084sn02q_x00000000"
	m.cell("forged API key", op, nobody.do(op.Method, m.path(op), m.body(op)), http.StatusUnauthorized, "invalid-credential")
	if op.Scope == "" {
		return
	}
	m.cell("wrong scope", op, m.keyWithout(op).do(op.Method, m.path(op), m.body(op)), http.StatusForbidden, "scope")
	if op.Operator {
		m.cell("not the operator", op, m.ada.do(op.Method, m.path(op), m.body(op)), http.StatusForbidden, "operator-only")
	}
	if op.Operator && !op.Provider {
		m.cell("a provider, not the operator", op, m.greta.do(op.Method, m.path(op), m.body(op)), http.StatusForbidden, "operator-only")
	}
}

// keyWithout is a program with every scope but the operation's.
func (m *matrix) keyWithout(op httpapi.Operation) caller {
	var scopes []string
	for _, scope := range tenant.AllScopes() {
		if scope != op.Scope && (op.Operator || !strings.HasPrefix(scope, "admin:")) {
			scopes = append(scopes, scope)
		}
	}
	made := m.caller(op).do(http.MethodPost, "/v1/api-keys", map[string]any{"name": "without " + op.Scope, "scopes": scopes})
	require.Equal(m.t, http.StatusCreated, made.status, made.text())
	program := m.nobody()
	program.bearer = made.member("secret")
	return program
}

// requests: too large, of another type, malformed, with what the contract does not know.
func (m *matrix) requests(op httpapi.Operation) {
	who, big := m.caller(op), bytes.Repeat([]byte(" "), int(op.MaxBody)+1)
	ready := func(r *http.Request) {
		if op.IfMatch {
			r.Header.Set("If-Match", `"1"`)
		}
		if op.ID == "receiveStripeWebhook" {
			r.Header.Set("Stripe-Signature", "t=1,v1=00")
		}
	}
	m.cell("oversized body", op, who.do(op.Method, m.path(op), big, ready), http.StatusRequestEntityTooLarge, "too-large")
	m.cell("unknown query parameter", op, who.do(op.Method, m.path(op)+"?colour=red", m.body(op), ready), http.StatusUnprocessableEntity, "invalid-request")
	if !op.HasBody {
		m.cell("unexpected body", op, who.do(op.Method, m.path(op), []byte("{}"), ready), http.StatusBadRequest, "unexpected-body")
		return
	}
	text := func(r *http.Request) { ready(r); r.Header.Set("Content-Type", "text/plain") }
	m.cell("wrong content type", op, who.do(op.Method, m.path(op), []byte("{}"), text), http.StatusUnsupportedMediaType, "unsupported-media-type")
	m.cell("malformed JSON", op, who.do(op.Method, m.path(op), []byte("{"), ready), http.StatusBadRequest, "malformed-json")
	if op.ID != "receiveStripeWebhook" { // it takes whatever Stripe sends
		got := who.do(op.Method, m.path(op), map[string]any{"no_such_field": "s3cret"}, ready)
		m.cell("unknown field", op, got, http.StatusUnprocessableEntity, "invalid-request")
		require.Contains(m.t, got.text(), `"pointer":"/no_such_field"`, op.ID)
		require.NotContains(m.t, got.text(), "s3cret", op.ID)
	}
}

// preconditions: a missing Idempotency-Key, a missing If-Match.
func (m *matrix) preconditions(op httpapi.Operation) {
	if op.Idempotent {
		ready := func(r *http.Request) {
			if op.IfMatch {
				r.Header.Set("If-Match", `"1"`)
			}
		}
		m.cell("no Idempotency-Key", op, m.caller(op).do(op.Method, m.path(op), m.body(op), ready, withKey("")), http.StatusBadRequest, "idempotency-key-required")
	}
	if op.IfMatch {
		for _, header := range []string{"*", `"1", "2"`, "1"} {
			got := m.caller(op).do(op.Method, m.path(op), m.body(op), withHeader("If-Match", header))
			m.cell("If-Match not one version", op, got, http.StatusBadRequest, "if-match-not-one-version")
		}
		m.cell("no If-Match", op, m.caller(op).do(op.Method, m.path(op), m.body(op)), http.StatusPreconditionRequired, "precondition-required")
	}
}

// strangers: another organization's id, one of nothing, one of another kind, and garbage are all not found.
func (m *matrix) strangers(op httpapi.Operation) {
	if !strings.Contains(op.Path, "{") {
		return
	}
	name := op.Path[strings.Index(op.Path, "{")+1 : strings.Index(op.Path, "}")]
	body := strangerBodies()[op.ID]
	for row, id := range map[string]string{
		"another organization's id": m.foreign[name], "an id of another kind": ids.Make[ids.Wipe]().String(), "a garbage id": "%27%3B--",
		"an id of nothing": ids.Make[ids.Wipe]().String(),
	} {
		if row == "an id of nothing" {
			prefix, _, _ := strings.Cut(m.foreign[name], "_")
			id = strings.Replace(id, "wipe_", prefix+"_", 1)
		}
		path := strings.Replace(op.Path, "{"+name+"}", id, 1)
		m.cell(row, op, m.caller(op).do(op.Method, path, body, withHeader("If-Match", `"1"`)), http.StatusNotFound, "")
	}
	if op.Provider {
		path := m.helio.path(m.t, op)
		m.cell("another provider's id", op, m.greta.do(op.Method, path, body, withHeader("If-Match", `"1"`)), http.StatusNotFound, "")
	}
}

// strangerBodies are valid bodies of the operations that have a body and an id in their path.
func strangerBodies() map[string]any {
	return map[string]any{
		"updateLease":         map[string]any{"name": "mine"},
		"setLeaseNodePower":   map[string]any{"action": "stop"},
		"extendLease":         map[string]any{"end": "2026-06-01T00:00:00Z"},
		"adminSetNodeState":   map[string]any{"state": "maintenance"},
		"adminSettleChanges":  map[string]any{"decision": "accepted"},
		"adminImportTopology": map[string]any{"source": oneSwitch, "digest": "sha256:" + strings.Repeat("0", 64)},

		"updateMember":              map[string]any{"role": "viewer"},
		"decideDeviceAuthorization": map[string]any{"approve": true},
		"updateGroup":               map[string]any{"name": "mine"},
		"updateServiceAccount":      map[string]any{"name": "mine"},
		"rotateAPIKey":              map[string]any{},
		"updateWebhookEndpoint":     map[string]any{"enabled": false},
		"rotateWebhookSecret":       map[string]any{},
		"replayWebhookDeliveries":   map[string]any{"since": "2026-03-01T00:00:00Z"},

		"adminDismissDrift":    map[string]any{"port_guid": "", "reason": "unplugged"},
		"adminOverridePosture": map[string]any{"reason": "a lab"},
		"adminNameManagers":    map[string]any{"port_guids": []string{}},
		"adminSetPKeyRange":    map[string]any{"low": "0x0001", "high": "0x0fff"},
		"adminReservePKeys":    map[string]any{"pkeys": []string{"0x0001"}},
	}
}

// lease makes a lease of the person's organization with its quote and a draft invoice, as rows.
func (w *world) lease(person int) (quote, lease, invoice string) {
	w.t.Helper()
	w.site(fmt.Sprintf("site%d", person))
	q, l, i := ids.Make[ids.Quote](), ids.Make[ids.Lease](), ids.Make[ids.Invoice]()
	itype, price := ids.Make[ids.Instance](), ids.Make[ids.Price]()
	org, project := w.seeded[person].Org, w.seeded[person].Project
	pool, ctx := w.database.Pool(w.t), w.t.Context()
	run := func(sql string, args ...any) {
		_, err := pool.Exec(ctx, sql, args...)
		require.NoError(w.t, err, sql)
	}
	run(`INSERT INTO instance_type (id, name, title, hardware, mode, slot_width, slot_stride, gpu_count, gpu_model, gpu_memory_bytes, rated_per,
			lead_seconds, turnaround_seconds, created_at)
		VALUES ($1, $2, 'x', 'h100-sxm-80gb.8', 'bare_metal', 64, 64, 8, 'H100', 1, 'gpu', 60, 60, now())`, itype, fmt.Sprintf("h100.%d", person))
	run(`INSERT INTO price_version (id, instance_type_id, site_id, currency, rate_micros, valid, min_duration_seconds, max_duration_seconds, created_at)
		SELECT $1, $2, id, 'USD', 2490000, '[2020-01-01,)', 60, 15552000, now() FROM site WHERE name = $3`, price, itype, fmt.Sprintf("site%d", person))
	run(`INSERT INTO quote (id, org_id, project_id, instance_type_id, site_id, price_version_id, class, instances, start_at, end_at, currency, rate_micros,
			tax_rate_bps, subtotal_minor, tax_minor, total_minor, terms, terms_digest, placement, expires_at, created_by, created_at)
		SELECT $1, $2, $3, $4, site_id, id, 'reserved', 1, '2026-04-01Z', '2026-04-02Z', 'USD', rate_micros, 0, 100, 0, 100,
			'{"rated_per": "gpu", "units_per_instance": 8, "failure_policy": "replace"}', '', '{}', '2026-04-01Z', 'test', now()
		FROM price_version WHERE id = $5`, q, org, project, itype, price)
	run(`INSERT INTO lease (id, org_id, project_id, name, quote_id, instance_type_id, site_id, class, instances, start_at, end_at, state, currency, created_by, created_at)
		SELECT $1, org_id, project_id, 'train', id, instance_type_id, site_id, class, 1, start_at, end_at, 'reserved', 'USD', 'test', now() FROM quote WHERE id = $2`, l, q)
	run(`INSERT INTO lease_segment (lease_id, seq, org_id, start_at, end_at, price_version_id, rate_micros, tax_rate_bps, terms, created_at)
		SELECT id, 1, org_id, start_at, end_at, $2, 2490000, 0, '{"rated_per": "gpu", "units_per_instance": 8}', now() FROM lease WHERE id = $1`, l, price)
	run(`INSERT INTO invoice (id, org_id, state, lease_id, period_start, period_end, currency, created_at)
		SELECT $1, org_id, 'draft', id, start_at, end_at, 'USD', now() FROM lease WHERE id = $2`, i, l)
	return q.String(), l.String(), i.String()
}
