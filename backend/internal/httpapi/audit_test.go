package httpapi_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/internal/postgres"
)

type auditEvent struct {
	ID, Actor, Action, Target, Source string
	RequestID                         string `json:"request_id"`
	OrganizationID                    string `json:"organization_id"`
	After                             map[string]any
	Seq                               int64
	Hash                              string
}

func auditEvents(t *testing.T, got answer) []auditEvent {
	t.Helper()
	require.Equal(t, http.StatusOK, got.status, got.text())
	var list struct{ Items []auditEvent }
	require.NoError(t, json.Unmarshal(got.body, &list)) //nolint:musttag // names differ in their case only
	return list.Items
}

func (w *world) chainAudit() {
	w.t.Helper()
	require.NoError(w.t, audit.Chainer{Tx: w.db, Chains: postgres.NewAuditEvents(w.db)}.Chain(w.t.Context()))
}

func TestTheAuditLogIsFilteredAndShowsOnesOwnOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada, bob, olga := w.logIn(0), w.logIn(1), w.logIn(olga)
	made := ada.do(http.MethodPost, "/v1/api-keys", map[string]any{"name": "ci", "scopes": []string{"market:read"}})
	bob.do(http.MethodPost, "/v1/projects", map[string]any{"name": "theirs"})
	w.chainAudit()

	events := auditEvents(t, ada.do(http.MethodGet, "/v1/audit-events?action=api_key.created", nil))
	require.Len(t, events, 1)
	require.Equal(t, auditEvent{
		ID: events[0].ID, Actor: w.seeded[0].User.String(), Action: "api_key.created", Target: made.member("id"), Source: "127.0.0.1",
		RequestID: made.header.Get("X-Request-Id"), OrganizationID: w.seeded[0].Org.String(), After: events[0].After, Seq: events[0].Seq, Hash: events[0].Hash,
	}, events[0])
	require.Len(t, events[0].Hash, 64)
	for path, want := range map[string]int{
		"?action=api_key.": 1, "?action=project.created": 0, "?target=" + made.member("id"): 1, "?actor=" + w.seeded[0].User.String(): 2,
		"?request_id=" + made.header.Get("X-Request-Id"): 1, "?since=2030-01-01T00:00:00Z": 0, "?until=2020-01-01T00:00:00Z": 0,
	} {
		require.Len(t, auditEvents(t, ada.do(http.MethodGet, "/v1/audit-events"+path, nil)), want, path)
	}
	require.NotContains(t, ada.do(http.MethodGet, "/v1/audit-events", nil).text(), "theirs")
	require.Len(t, auditEvents(t, olga.do(http.MethodGet, "/v1/admin/audit-events?action=project.created", nil)), 1, "the operator sees everybody's")
	require.Empty(t, auditEvents(t, olga.do(http.MethodGet, "/v1/admin/audit-events?action=project.created&organization_id="+w.seeded[0].Org.String(), nil)))
	require.Empty(t, auditEvents(t, olga.do(http.MethodGet, "/v1/admin/audit-events?organization_id=platform", nil)))
	requireProblem(t, olga.do(http.MethodGet, "/v1/admin/audit-events?organization_id=x", nil), http.StatusUnprocessableEntity, "invalid-request")
}

func TestEveryLogInIsOnRecordAlsoThoseThatFail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	try := func(email, password string) {
		w.nobody().do(http.MethodPost, "/v1/sessions", map[string]any{"email": email, "password": password}, withHeader("User-Agent", "curl"))
	}
	try(emails()[0], "wrong")
	try("hunter2", "ada@acme.test")
	ada := w.logIn(0)
	require.Equal(t, http.StatusNoContent, ada.do(http.MethodDelete, "/v1/sessions/current", nil).status)
	var seen []string
	for _, e := range auditEvents(t, w.logIn(0).do(http.MethodGet, "/v1/audit-events?action=session.", nil)) {
		require.Equal(t, "127.0.0.1", e.Source)
		seen = append(seen, e.Action)
	}
	require.Equal(t, []string{"session.created", "session.deleted", "session.created", "session.refused"}, seen)

	nobody := w.logIn(olga).do(http.MethodGet, "/v1/admin/audit-events?organization_id=platform", nil)
	require.Len(t, auditEvents(t, nobody), 1)
	require.NotContains(t, nobody.text(), "hunter2", "people type their password where the address goes")
}

func TestAnExportIsAChainThatAnybodyCanCheck(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	for range 3 {
		ada.do(http.MethodPost, "/v1/ssh-keys", map[string]any{"name": "k", "public_key": newPublicKey(t)})
	}
	w.chainAudit()
	got := ada.do(http.MethodGet, "/v1/audit-events/export", nil)
	require.Equal(t, http.StatusOK, got.status)
	require.Equal(t, "application/x-ndjson", got.header.Get("Content-Type"))
	lines := bytes.Split(bytes.TrimSpace(got.body), []byte("\n"))
	require.Len(t, lines, 5, "the organization's making, a log-in, three keys")
	last := &audit.Link{}
	for _, line := range lines {
		link, err := audit.CheckLine(line, last)
		require.NoError(t, err)
		last = &link
	}
	later := ada.do(http.MethodGet, "/v1/audit-events/export?since="+w.clock.Now().Add(time.Second).Format(time.RFC3339), nil)
	require.Empty(t, later.text())
	chain := w.logIn(olga).do(http.MethodGet, "/v1/admin/audit-events/export?organization_id="+w.seeded[0].Org.String(), nil)
	require.Equal(t, got.text(), chain.text())
}

func TestTheAuditLogIsForAdmins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.database.Pool(t).Exec(t.Context(), "UPDATE membership SET role = 'member'")
	require.NoError(t, err)
	for _, path := range []string{"/v1/audit-events", "/v1/audit-events/export"} {
		requireProblem(t, w.logIn(0).do(http.MethodGet, path, nil), http.StatusForbidden, "role")
	}
}
