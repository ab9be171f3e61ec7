package httpapi_test

import (
	"maps"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/internal/httpapi"
)

// write is a request that succeeds, and one under the same key that differs from it.
type write struct {
	who         caller
	path        string
	body, other any
	ifMatch     string
}

// writes are one good request for every operation that takes an Idempotency-Key; the test fails for an operation without one.
func (m *matrix) writes() map[string]write {
	key := m.ada.do(http.MethodPost, "/v1/api-keys", map[string]any{"name": "k", "scopes": []string{"market:read"}}).member("id")
	sshKey := m.ada.do(http.MethodPost, "/v1/ssh-keys", map[string]any{"name": "k", "public_key": newPublicKey(m.t)}).member("id")
	node := m.site("writes").String()
	subnet := "/v1/admin/fabrics/" + m.subnet("subnet").String()
	scopes := []string{"market:read"}
	good := map[string]write{
		"deleteSession": {who: m.logIn(0), path: "/v1/sessions/current"},
		"createProject": {who: m.ada, path: "/v1/projects", body: map[string]any{"name": "a"}, other: map[string]any{"name": "b"}},
		"createAPIKey": {
			who: m.ada, path: "/v1/api-keys", body: map[string]any{"name": "a", "scopes": scopes}, other: map[string]any{"name": "b", "scopes": scopes},
		},
		"deleteAPIKey": {who: m.ada, path: "/v1/api-keys/" + key},
		"createSSHKey": {
			who: m.ada, path: "/v1/ssh-keys", body: map[string]any{"name": "a", "public_key": newPublicKey(m.t)},
			other: map[string]any{"name": "a", "public_key": newPublicKey(m.t)},
		},
		"deleteSSHKey": {who: m.ada, path: "/v1/ssh-keys/" + sshKey},
		"createTopUp":  {who: m.ada, path: "/v1/billing/top-ups", body: topUp(500, "pm_card_visa"), other: topUp(600, "pm_card_visa")},
		"adminCreateSite": {
			who: m.olga, path: "/v1/admin/sites",
			body:  map[string]any{"name": "s1", "region": "eu", "country": "DE", "provider_organization_id": m.seeded[2].Org.String()},
			other: map[string]any{"name": "s2", "region": "eu", "country": "DE", "provider_organization_id": m.seeded[2].Org.String()},
		},
		"adminCreateEnrollmentToken": {
			who: m.olga, path: "/v1/admin/enrollment-tokens", body: map[string]any{"site": "writes"}, other: map[string]any{"site": "writes", "max_uses": 9},
		},
		"adminSetNodeState": {
			who: m.olga, path: "/v1/admin/nodes/" + node + "/state", ifMatch: `"1"`,
			body: map[string]any{"state": "maintenance"}, other: map[string]any{"state": "quarantined", "reason": "x", "exit": "repair"},
		},
		"adminAuditFabric": {who: m.olga, path: subnet + "/audits"},
		"adminDismissDrift": {
			who: m.olga, path: subnet + "/drift-dismissals", body: map[string]any{"port_guid": "0x0000000000000007", "reason": "unplugged"},
			other: map[string]any{"port_guid": "", "reason": "unplugged"},
		},
		"adminOverridePosture": {
			who: m.olga, path: subnet + "/posture-override", body: map[string]any{"reason": "a lab"}, other: map[string]any{"reason": ""},
		},
		"adminSetPKeyRange": {
			who: m.olga, path: subnet + "/managed-pkeys", body: map[string]any{"low": "0x0001", "high": "0x0fff"},
			other: map[string]any{"low": "0x0001", "high": "0x00ff"},
		},
		"adminNameManagers": {
			who: m.olga, path: subnet + "/manager-ports", body: map[string]any{"port_guids": []string{"0x0000000000000009"}},
			other: map[string]any{"port_guids": []string{}},
		},
		"adminReservePKeys": {
			who: m.olga, path: subnet + "/reserved-pkeys", body: map[string]any{"pkeys": []string{"0x0001"}}, other: map[string]any{"pkeys": []string{}},
		},
	}
	maps.Copy(good, m.hooks())
	maps.Copy(good, m.people())
	maps.Copy(good, m.factors())
	good["adminImportTopology"] = m.topologyImport(subnet)
	good["adminSettleChanges"] = write{
		who: m.olga, path: "/v1/admin/nodes/" + m.site("settles").String() + "/changes", ifMatch: `"1"`,
		body: map[string]any{"decision": "accepted"}, other: map[string]any{"decision": "rejected"},
	}
	maps.Copy(good, m.sales())
	return good
}

func (w write) options(key string) []option {
	options := []option{withKey(key)}
	if w.ifMatch != "" {
		options = append(options, withHeader("If-Match", w.ifMatch))
	}
	return options
}

func TestEveryWriteHappensOnceUnderItsKey(t *testing.T) {
	t.Parallel()
	m := newMatrix(t)
	writes, checked := m.writes(), 0
	for _, op := range m.operations {
		if !op.Idempotent {
			continue
		}
		w, ok := writes[op.ID]
		require.True(t, ok, "%s has no good request in writes", op.ID)
		m.once(op, w)
		checked++
	}
	t.Logf("%d writes: replayed, under another body, with a stale ETag", checked)
}

// audited fails for a change that the audit log says nothing of, with who, what and which request.
func (m *matrix) audited(op httpapi.Operation, done answer) {
	var records int
	err := m.database.Pool(m.t).QueryRow(m.t.Context(), `SELECT count(*) FROM audit_event WHERE request_id = $1 AND org_id IS NOT NULL AND target <> ''
		AND (actor LIKE 'user\_%' OR actor LIKE 'key\_%')`, done.header.Get("X-Request-Id")).Scan(&records)
	require.NoError(m.t, err)
	assert.Positive(m.t, records, "%s writes no audit event", op.ID)
}

// once sends the write with a stale ETag, rightly, again, and changed.
func (m *matrix) once(op httpapi.Operation, w write) {
	key := "once-" + op.ID
	if op.IfMatch {
		got := w.who.do(op.Method, w.path, w.body, withKey(key), withHeader("If-Match", `"999"`))
		require.Equal(m.t, http.StatusPreconditionFailed, got.status, "%s: %s", op.ID, got.text())
	}
	first := w.who.do(op.Method, w.path, w.body, w.options(key)...)
	require.Less(m.t, first.status, 300, "%s: %s", op.ID, first.text())
	require.Empty(m.t, first.header.Get("Idempotency-Replayed"), op.ID)
	m.audited(op, first)

	again := w.who.do(op.Method, w.path, w.body, w.options(key)...)
	require.Equal(m.t, first.status, again.status, "%s: %s", op.ID, again.text())
	require.Equal(m.t, "true", again.header.Get("Idempotency-Replayed"), op.ID)
	require.Equal(m.t, first.header.Get("ETag"), again.header.Get("ETag"), op.ID)
	require.Equal(m.t, first.member("id"), again.member("id"), op.ID)

	changed, path := w.other, w.path
	if changed == nil {
		path = m.path(op) // no body to change: another target then
		if path == w.path {
			return
		}
	}
	requireProblem(m.t, w.who.do(op.Method, path, changed, w.options(key)...), http.StatusUnprocessableEntity, "idempotency-key-reused")
}
