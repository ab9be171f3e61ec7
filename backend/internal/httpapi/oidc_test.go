package httpapi_test

import (
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"

	"github.com/leasehold/leasehold/backend/internal/httpapi"
	"github.com/leasehold/leasehold/backend/internal/oidc"
)

// directory is who the identity provider knows.
type directory map[string]*storage.User

func (d directory) GetUserByID(id string) *storage.User { return d[id] }
func (d directory) GetUserByUsername(name string) *storage.User {
	for _, user := range d {
		if user.Username == name {
			return user
		}
	}
	return nil
}
func (directory) ExampleClientID() string { return "service" }

// oidcWorld is a world with a real OpenID provider on loopback, and browsers that go through it.
type oidcWorld struct {
	*world
	provider *httptest.Server
	people   directory
}

func newOIDCWorld(t *testing.T) *oidcWorld {
	t.Helper()
	w := &oidcWorld{people: directory{
		"id1": {ID: "id1", Username: "ada", Password: "verysecure", Email: "Ada@acme.test", EmailVerified: true},
		"id2": {ID: "id2", Username: "mallory", Password: "verysecure", Email: emails()[1], EmailVerified: false},
		"id3": {ID: "id3", Username: "stranger", Password: "verysecure", Email: "who@else.test", EmailVerified: true},
	}}
	w.provider = httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(w.provider.Close)
	w.world = newWorld(t, func(d *httpapi.Deps) {
		d.Areas.OIDC = oidc.New(oidc.Config{Issuer: w.provider.URL, ClientID: "web", ClientSecret: "s3cret", RedirectURL: "http://portal.test/v1/sessions/oidc/callback"})
	})
	clients := map[string]*storage.Client{"web": storage.WebClient("web", "s3cret", "http://portal.test/v1/sessions/oidc/callback")}
	w.provider.Config.Handler = exampleop.SetupServer(w.provider.URL, storage.NewStorageWithClients(w.people, clients), nil, false)
	return w
}

// browser keeps cookies and follows redirects where the test says.
func (w *oidcWorld) browser() *http.Client {
	jar, err := cookiejar.New(nil)
	require.NoError(w.t, err)
	return &http.Client{Jar: jar, Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// visit is a page that a browser was at.
type visit struct {
	status int
	header http.Header
	at     *url.URL
}

// next is where the page sends the browser.
func (v visit) next(t *testing.T) *url.URL {
	t.Helper()
	next, err := v.at.Parse(v.header.Get("Location"))
	require.NoError(t, err)
	return next
}

func (w *oidcWorld) visited(got *http.Response, err error) visit {
	w.t.Helper()
	require.NoError(w.t, err)
	require.NoError(w.t, got.Body.Close())
	return visit{got.StatusCode, got.Header, got.Request.URL}
}

func (w *oidcWorld) get(b *http.Client, address string) visit {
	w.t.Helper()
	return w.visited(b.Get(address))
}

// signIn goes to the provider, types name and password there, and returns the address with which it sends the browser back.
func (w *oidcWorld) signIn(b *http.Client, user, next string) string {
	w.t.Helper()
	begun := w.get(b, w.server.URL+"/v1/sessions/oidc?next="+url.QueryEscape(next))
	require.Equal(w.t, http.StatusFound, begun.status)
	to := begun.header.Get("Location")
	require.Contains(w.t, to, "code_challenge_method=S256")
	login := w.get(b, to).next(w.t)
	at := w.visited(b.PostForm(w.provider.URL+login.Path, url.Values{"username": {user}, "password": {"verysecure"}, "id": {login.Query().Get("authRequestID")}}))
	for range 3 {
		back := at.next(w.t)
		if back.Host == "portal.test" {
			return w.server.URL + back.RequestURI()
		}
		at = w.get(b, back.String())
	}
	require.Fail(w.t, "the provider did not send the browser back")
	return ""
}

func TestALogInAtARealIdentityProvider(t *testing.T) {
	t.Parallel()
	w := newOIDCWorld(t)
	require.JSONEq(t, `{"password": true, "oidc": true}`, w.nobody().do(http.MethodGet, "/v1/log-in-methods", nil).text())
	for range 2 { // the second time by what was linked
		b := w.browser()
		back := w.signIn(b, "ada", "/leases?state=active")
		in := w.get(b, back)
		require.Equal(t, http.StatusFound, in.status)
		require.Equal(t, "/leases?state=active", in.header.Get("Location"))
		refreshed := w.visited(b.Post(w.server.URL+"/v1/sessions/refresh", "", nil))
		require.Equal(t, http.StatusCreated, refreshed.status, "the cookie is a session's")
		again := w.get(b, back)
		require.Contains(t, again.header.Get("Location"), "/login?problem=identity-not-proved", "a code is good once")
		w.people["id1"].Email = "renamed@acme.test"
	}
	var linked int
	require.NoError(t, w.database.Pool(t).QueryRow(t.Context(), "SELECT count(*) FROM audit_event WHERE action = 'identity.linked'").Scan(&linked))
	require.Equal(t, 1, linked)
}

func TestAnAddressThatNobodyVerifiedFindsNoAccount(t *testing.T) {
	t.Parallel()
	w := newOIDCWorld(t)
	for _, user := range []string{"mallory", "stranger"} {
		b := w.browser()
		in := w.get(b, w.signIn(b, user, "/"))
		require.Equal(t, "/login?problem=no-account", in.header.Get("Location"), user)
		require.Empty(t, in.header.Get("Set-Cookie"))
	}
}

func TestALogInThatAnotherBrowserBeganIsRefused(t *testing.T) {
	t.Parallel()
	w := newOIDCWorld(t)
	mallory, victim := w.browser(), w.browser()
	back := w.signIn(mallory, "ada", "/")
	require.Equal(t, "/login?problem=log-in-expired", w.get(victim, back).header.Get("Location"), "no cookie of the log-in")
	w.signIn(victim, "ada", "/")
	require.Equal(t, "/login?problem=log-in-expired", w.get(victim, back).header.Get("Location"), "the state of another log-in")
	own := w.signIn(victim, "ada", "/")
	w.clock.Advance(10 * time.Minute)
	require.Equal(t, "/login?problem=log-in-expired", w.get(victim, own).header.Get("Location"), "too late")
}

func TestAfterALogInNobodyIsSentElsewhere(t *testing.T) {
	t.Parallel()
	w := newOIDCWorld(t)
	for _, next := range []string{"https://elsewhere.test", "//elsewhere.test", `/\elsewhere.test`, "javascript:alert(1)", ""} {
		b := w.browser()
		require.Equal(t, "/", w.get(b, w.signIn(b, "ada", next)).header.Get("Location"), next)
	}
}

func TestAProviderThatIsAwayIsNoReasonToFail(t *testing.T) {
	t.Parallel()
	w := newOIDCWorld(t)
	w.provider.Close()
	got := w.nobody().do(http.MethodGet, "/v1/sessions/oidc", nil)
	require.Equal(t, http.StatusServiceUnavailable, got.status, got.text())
	require.True(t, strings.HasSuffix(got.code(), "identity-provider-unavailable"))
	w.logIn(0) // by password
}
