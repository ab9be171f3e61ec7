package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi"
	"github.com/leasehold/leasehold/backend/internal/keys"
	"github.com/leasehold/leasehold/backend/internal/pgtest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/overview"
	"github.com/leasehold/leasehold/backend/tenant"
)

const password = "correct horse battery staple"

// world is an API on a database of its own, with two customers, the operator and two providers.
type world struct {
	t        *testing.T
	db       *postgres.DB
	database *pgtest.Database
	clock    *clock.Fake
	tenants  *tenant.Service
	server   *httptest.Server
	seeded   []tenant.Seeded // by the indices of emails
	logs     *bytes.Buffer
	strict   bool // admins need a second factor
}

// The people of a world, as indices of emails.
const (
	ada   = iota // a customer
	bob          // another customer
	olga         // the operator's
	greta        // a provider's
	hugo         // another provider's
)

func emails() []string {
	return []string{"ada@acme.test", "bob@bolt.test", "olga@operator.test", "greta@grid.test", "hugo@helio.test"}
}

func newWorld(t *testing.T, change ...func(*httpapi.Deps)) *world {
	t.Helper()
	return makeWorld(t, false, change...)
}

func makeWorld(t *testing.T, strict bool, change ...func(*httpapi.Deps)) *world {
	t.Helper()
	w := &world{t: t, strict: strict, database: pgtest.New(t), clock: clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)), logs: &bytes.Buffer{}}
	ctx := context.WithoutCancel(t.Context())
	var err error
	w.db, err = postgres.Open(ctx, w.database.URL, 16)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.db.Close()) })

	registry := postgres.NewSigningKeys(w.db)
	key, err := keys.Generate()
	require.NoError(t, err)
	require.NoError(t, key.Publish(ctx, registry, keys.Session, w.clock.Now()))
	w.tenants, err = tenant.New(w.db, postgres.NewTenants(w.db), keys.NewTokens(key, registry, w.clock),
		audit.New(postgres.NewAuditEvents(w.db), w.clock), w.clock, tenant.Options{Environment: "test", Vault: newVault(w), AdminsNeedSecondFactor: w.strict, Password: tenant.PasswordCost{MemoryKiB: 64, Passes: 1}})
	require.NoError(t, err)
	w.seeded, err = w.tenants.Bootstrap(ctx, []tenant.Seed{
		{Organization: "Acme", Kind: tenant.Customer, Email: emails()[0], Name: "Ada", Password: password},
		{Organization: "Bolt", Kind: tenant.Customer, Email: emails()[1], Name: "Bob", Password: password},
		{Organization: "Operator", Kind: tenant.Operator, Email: emails()[2], Name: "Olga", Password: password},
		{Organization: "Grid", Kind: tenant.Provider, Email: emails()[greta], Name: "Greta", Password: password},
		{Organization: "Helio", Kind: tenant.Provider, Email: emails()[hugo], Name: "Hugo", Password: password},
	})
	require.NoError(t, err)

	deps := httpapi.Deps{
		Areas: httpapi.Areas{
			Identity: httpapi.Identity{Tenants: w.tenants, Gateway: "test", Vault: newVault(w), PublicURL: "http://portal.test"},
			Admin: httpapi.Admin{
				Inventory: newInventory(w), Overview: overview.New(w.db, postgres.NewOverview(w.db), w.clock), Tenants: w.tenants,
				Enroller: fakeEnroller{}, Doctor: fakeDoctor{}, Audit: audit.New(postgres.NewAuditEvents(w.db), w.clock),
				Fabrics: newFabrics(w),
			},
			Market:   newMarket(w),
			Quotes:   httpapi.Quotes{Sales: newSales(w)},
			Leases:   newLeases(w),
			Billing:  newBilling(w),
			Events:   newEvents(w),
			AuditLog: httpapi.AuditLog{Events: audit.NewReader(w.db, postgres.NewAuditEvents(w.db))},
			System: httpapi.System{
				Keys: registry, Log: slog.New(slog.DiscardHandler),
				Checks: map[string]func(context.Context) error{"database": w.db.Ping, "migrations": w.db.CheckMigrations},
			},
		},
		Authenticator: w.tenants, Tx: w.db, Idempotency: postgres.NewIdempotency(w.db), RateLimits: postgres.NewRateLimits(w.db),
		Clock: w.clock, Log: slog.New(slog.NewJSONHandler(w.logs, nil)), Metrics: prometheus.NewRegistry(),
		Portal: fstest.MapFS{"index.html": {Data: []byte("<!doctype html><title>portal</title>")}, "assets/app-1.js": {Data: []byte("1")}},
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.logs.String())
		}
	})
	for _, f := range change {
		f(&deps)
	}
	handler, err := httpapi.New(ctx, deps)
	require.NoError(t, err)
	w.server = httptest.NewServer(handler)
	t.Cleanup(w.server.Close)
	return w
}

// caller is somebody with a credential; "" for nobody.
type caller struct {
	w      *world
	bearer string
	http   *http.Client
}

func (w *world) nobody() caller {
	jar, err := cookiejar.New(nil)
	require.NoError(w.t, err)
	return caller{w: w, http: &http.Client{Jar: jar, Timeout: 20 * time.Second}}
}

// logIn is the person with the index in emails.
func (w *world) logIn(person int) caller {
	w.t.Helper()
	c := w.nobody()
	got := c.do(http.MethodPost, "/v1/sessions", map[string]any{"email": emails()[person], "password": password})
	require.Equal(w.t, http.StatusCreated, got.status, got.text())
	c.bearer = got.member("access_token")
	return c
}

// answer is a response that was read.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) text() string { return string(a.body) }

func (a answer) member(name string) string {
	var members map[string]any
	if json.Unmarshal(a.body, &members) != nil {
		return ""
	}
	s, _ := members[name].(string)
	return s
}

// code is the problem's type without its prefix.
func (a answer) code() string { return strings.TrimPrefix(a.member("type"), "/problems/") }

type option func(*http.Request)

func withHeader(name, value string) option {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

// withKey sets the Idempotency-Key; "" takes away the one that do makes.
func withKey(key string) option {
	return func(r *http.Request) {
		r.Header.Del("Idempotency-Key")
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
	}
}

// do sends a request with a fresh Idempotency-Key where one is due; a body is a []byte as it is, or a value as JSON.
func (c caller) do(method, path string, body any, options ...option) answer {
	c.w.t.Helper()
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		reader = bytes.NewReader(b)
	default:
		raw, err := json.Marshal(b)
		require.NoError(c.w.t, err)
		reader = bytes.NewReader(raw)
	}
	request, err := http.NewRequestWithContext(c.w.t.Context(), method, c.w.server.URL+path, reader)
	require.NoError(c.w.t, err)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if method != http.MethodGet {
		request.Header.Set("Idempotency-Key", ids.Make[ids.Audit]().String())
	}
	if c.bearer != "" {
		request.Header.Set("Authorization", "Bearer "+c.bearer)
	}
	for _, o := range options {
		o(request)
	}
	response, err := c.http.Do(request)
	require.NoError(c.w.t, err)
	defer func() { require.NoError(c.w.t, response.Body.Close()) }()
	raw, err := io.ReadAll(response.Body)
	require.NoError(c.w.t, err)
	require.NoError(c.w.t, httpapi.CheckAnswer(request, response.StatusCode, response.Header, raw))
	return answer{status: response.StatusCode, header: response.Header, body: raw}
}

// requireProblem checks a refusal: status, code, and that it is a problem document with the request's id.
func requireProblem(t *testing.T, got answer, status int, code string) {
	t.Helper()
	require.Equal(t, status, got.status, got.text())
	require.Equal(t, "application/problem+json", got.header.Get("Content-Type"))
	require.Equal(t, code, got.code(), got.text())
	require.Equal(t, got.header.Get("X-Request-Id"), got.member("instance"))
}
