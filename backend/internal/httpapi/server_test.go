package httpapi_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/internal/httpapi"
	"github.com/leasehold/leasehold/backend/internal/ratelimit"
)

func TestSystemRoutesAnswerAnybody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nobody := w.nobody()
	nobody.do(http.MethodGet, "/healthz", nil)
	for path, want := range map[string]string{
		"/healthz": `"status":"ok"`, "/readyz": `"migrations":"ok"`, "/.well-known/jwks.json": `"kty":"OKP"`,
		"/.well-known/attestation-keys.json": `"keys":[]`, "/openapi.json": `"openapi":"3.0.3"`, "/docs": "createLease",
		"/metrics": "leasehold_http_request_duration_seconds",
	} {
		got := nobody.do(http.MethodGet, path, nil)
		require.Equal(t, http.StatusOK, got.status, "%s %s", path, got.text())
		require.Contains(t, got.text(), want, path)
		require.Equal(t, "nosniff", got.header.Get("X-Content-Type-Options"), path)
		require.Contains(t, got.header.Get("Content-Security-Policy"), "default-src 'none'", path)
	}
}

func TestTheDocumentationNeedsNoStyleInLine(t *testing.T) {
	t.Parallel()
	got := newWorld(t).nobody().do(http.MethodGet, "/docs", nil)
	require.NotContains(t, got.header.Get("Content-Security-Policy"), "unsafe")
	require.NotContains(t, got.text(), "style=")
	require.Equal(t, 1, strings.Count(got.text(), "<style"))
	_, rest, _ := strings.Cut(got.text(), "<style>")
	style, _, _ := strings.Cut(rest, "</style>")
	sum := sha256.Sum256([]byte(style))
	require.Contains(t, got.header.Get("Content-Security-Policy"), "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	require.Contains(t, got.text(), "admin:read, of the operator, or of a provider for its own sites")
}

func TestADatabaseThatIsGoneMakesItUnready(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.database.Pool(t).Exec(t.Context(), "DELETE FROM goose_db_version WHERE version_id > 1")
	require.NoError(t, err)
	got := w.nobody().do(http.MethodGet, "/readyz", nil)
	require.Equal(t, http.StatusServiceUnavailable, got.status)
	require.Contains(t, got.text(), `"migrations":"failed"`)
	require.NotContains(t, got.text(), "version", "why is for the log")
}

func TestThePortalHasItsPagesAndTheAPIItsProblems(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nobody := w.nobody()
	for _, path := range []string{"/", "/leases/lease_x", "/index.html"} {
		got := nobody.do(http.MethodGet, path, nil)
		require.Equal(t, http.StatusOK, got.status, path)
		require.Contains(t, got.text(), "<title>portal</title>", path)
		require.Contains(t, got.header.Get("Content-Security-Policy"), "script-src 'self';", path)
		require.NotContains(t, got.header.Get("Content-Security-Policy"), "unsafe", path)
		require.Equal(t, "no-cache", got.header.Get("Cache-Control"), path)
	}
	require.Contains(t, nobody.do(http.MethodGet, "/assets/app-1.js", nil).header.Get("Cache-Control"), "immutable")
	for _, path := range []string{"/v1/nothing", "/agent/v1/nothing", "/assets/missing.js", "/.well-known/x"} {
		requireProblem(t, nobody.do(http.MethodGet, path, nil), http.StatusNotFound, "not-found")
	}
	requireProblem(t, nobody.do(http.MethodPost, "/leases", nil), http.StatusNotFound, "not-found")
	wrong := nobody.do(http.MethodPut, "/v1/leases", nil)
	requireProblem(t, wrong, http.StatusMethodNotAllowed, "method-not-allowed")
	require.ElementsMatch(t, []string{"GET", "POST"}, strings.Split(wrong.header.Get("Allow"), ", "))
}

func TestFurtherPagesAreServedAndOnlyTheirOwnSiteMayPost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(d *httpapi.Deps) {
		d.Pages = map[string]http.Handler{"/test-gateway/3ds": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(r.Method + " " + r.URL.Path))
		})}
	})
	require.Equal(t, "GET /test-gateway/3ds/pi_1", w.nobody().do(http.MethodGet, "/test-gateway/3ds/pi_1", nil).text())
	require.Equal(t, "POST /test-gateway/3ds/pi_1", w.nobody().do(http.MethodPost, "/test-gateway/3ds/pi_1", nil).text())
	requireProblem(t, w.nobody().do(http.MethodPost, "/test-gateway/3ds/pi_1", nil, withHeader("Sec-Fetch-Site", "cross-site")),
		http.StatusForbidden, "cross-origin")
}

func TestDefectsNameThePlaceAndNeverTheValue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got := w.nobody().do(http.MethodPost, "/v1/sessions", map[string]any{"email": "a@b.c", "password": 12345678901, "s3cret": "hunter2"})
	requireProblem(t, got, http.StatusUnprocessableEntity, "invalid-request")
	require.Contains(t, got.text(), `"pointer":"/password"`)
	require.Contains(t, got.text(), `"pointer":"/s3cret"`)
	require.NotContains(t, got.text(), "hunter2")
	require.NotContains(t, got.text(), "12345678901")
	require.NotContains(t, w.logs.String(), "hunter2")

	long := w.nobody().do(http.MethodPost, "/v1/sessions", map[string]any{"email": "a@b.c", "password": strings.Repeat("hunter2", 200)})
	requireProblem(t, long, http.StatusUnprocessableEntity, "invalid-request")
	require.NotContains(t, long.text(), "hunter2")
}

func TestMalformedBodiesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	for body, code := range map[string]string{`{"name":`: "malformed-json", `{"name":"a"} {}`: "malformed-json", ``: "malformed-json", `[]`: "", `null`: "", `"x"`: ""} {
		got := ada.do(http.MethodPost, "/v1/projects", []byte(body))
		if code == "" {
			requireProblem(t, got, http.StatusUnprocessableEntity, "invalid-request")
		} else {
			requireProblem(t, got, http.StatusBadRequest, code)
		}
	}
	chunked := func(r *http.Request) { r.ContentLength = -1 }
	big := append(append([]byte(`{"name":"`), bytes.Repeat([]byte("x"), 1<<20)...), `"}`...)
	requireProblem(t, ada.do(http.MethodPost, "/v1/projects", big), http.StatusRequestEntityTooLarge, "too-large")
	requireProblem(t, ada.do(http.MethodPost, "/v1/projects", big, chunked), http.StatusRequestEntityTooLarge, "too-large")
}

func TestTooManyRequestsAreToldWhenToComeBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(d *httpapi.Deps) {
		d.Limits.Credential = ratelimit.Policy{Name: "credential", Requests: 3, Window: time.Minute}
	})
	ada := w.logIn(0)
	for range 3 {
		got := ada.do(http.MethodGet, "/v1/me", nil)
		require.Equal(t, http.StatusOK, got.status)
		require.Equal(t, `"credential";q=3;w=60`, got.header.Get("RateLimit-Policy"))
	}
	got := ada.do(http.MethodGet, "/v1/me", nil)
	requireProblem(t, got, http.StatusTooManyRequests, "rate-limited")
	require.Equal(t, "20", got.header.Get("Retry-After"))
	require.Equal(t, http.StatusOK, w.logIn(1).do(http.MethodGet, "/v1/me", nil).status, "others are not concerned")
	w.clock.Advance(20 * time.Second)
	require.Equal(t, http.StatusOK, ada.do(http.MethodGet, "/v1/me", nil).status)
}

func TestChangesAreInTheAuditLogWithWhoAndWhichRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	made := ada.do(http.MethodPost, "/v1/projects", map[string]any{"name": "a"})
	var actor, target, request string
	require.NoError(t, w.database.Pool(t).QueryRow(t.Context(),
		"SELECT actor, target, request_id FROM audit_event WHERE action = 'project.created' AND after->>'name' = 'a'").Scan(&actor, &target, &request))
	require.Equal(t, w.seeded[0].User.String(), actor)
	require.Equal(t, made.member("id"), target)
	require.Equal(t, made.header.Get("X-Request-Id"), request)

	w.nobody().do(http.MethodPost, "/v1/sessions", map[string]any{"email": emails()[0], "password": "wrong"})
	var created, refused int
	require.NoError(t, w.database.Pool(t).QueryRow(t.Context(),
		"SELECT count(*) FILTER (WHERE action = 'session.created'), count(*) FILTER (WHERE action = 'session.refused') FROM audit_event").Scan(&created, &refused))
	require.Equal(t, []int{1, 1}, []int{created, refused})
}

func TestReadOnlyRolesCannotWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.database.Pool(t).Exec(t.Context(), "UPDATE membership SET role = 'viewer'")
	require.NoError(t, err)
	ada := w.logIn(0)
	require.Equal(t, http.StatusOK, ada.do(http.MethodGet, "/v1/projects", nil).status)
	requireProblem(t, ada.do(http.MethodPost, "/v1/projects", map[string]any{"name": "a"}), http.StatusForbidden, "role")
}
