package httpapi_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/ssh"
)

func newPublicKey(t *testing.T) string {
	t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	key, err := ssh.NewPublicKey(public)
	require.NoError(t, err)
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))
}

func TestASessionBeginsIsRefreshedAndEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	me := ada.do(http.MethodGet, "/v1/me", nil)
	require.Equal(t, http.StatusOK, me.status, me.text())
	require.Contains(t, me.text(), `"ada@acme.test"`)
	require.Contains(t, me.text(), `"payment_gateway":"test"`)

	refreshed := ada.do(http.MethodPost, "/v1/sessions/refresh", nil)
	require.Equal(t, http.StatusCreated, refreshed.status, refreshed.text())
	cookie := refreshed.header.Get("Set-Cookie")
	for _, attribute := range []string{"HttpOnly", "SameSite=Strict", "Path=/v1/sessions"} {
		require.Contains(t, cookie, attribute)
	}
	ended := ada.do(http.MethodDelete, "/v1/sessions/current", nil)
	require.Equal(t, http.StatusNoContent, ended.status, ended.text())
	requireProblem(t, ada.do(http.MethodPost, "/v1/sessions/refresh", nil), http.StatusUnauthorized, "session-ended")
}

func TestAnAccessTokenExpires(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	w.clock.Advance(15*time.Minute + 10*time.Second)
	requireProblem(t, ada.do(http.MethodGet, "/v1/me", nil), http.StatusUnauthorized, "token-expired")
}

func TestARefreshTokenThatComesTwiceEndsTheSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	thief := w.nobody()
	in := thief.do(http.MethodPost, "/v1/sessions", map[string]any{"email": emails()[0], "password": password})
	stolen, _, _ := strings.Cut(in.header.Get("Set-Cookie"), ";")

	first := w.nobody().do(http.MethodPost, "/v1/sessions/refresh", nil, withHeader("Cookie", stolen))
	require.Equal(t, http.StatusCreated, first.status, first.text())
	w.clock.Advance(time.Minute) // later than another tab would come
	fresh, _, _ := strings.Cut(first.header.Get("Set-Cookie"), ";")
	requireProblem(t, w.nobody().do(http.MethodPost, "/v1/sessions/refresh", nil, withHeader("Cookie", stolen)), http.StatusUnauthorized, "session-ended")
	requireProblem(t, w.nobody().do(http.MethodPost, "/v1/sessions/refresh", nil, withHeader("Cookie", fresh)), http.StatusUnauthorized, "session-ended")
}

// cookieOf is the refresh cookie that an answer sets.
func cookieOf(got answer) option {
	cookie, _, _ := strings.Cut(got.header.Get("Set-Cookie"), ";")
	return withHeader("Cookie", cookie)
}

// TestTabsThatRefreshAtOnceAllStayLoggedIn has many trade one cookie at the same instant, and then each of the cookies that the browser may be
// left with.
func TestTabsThatRefreshAtOnceAllStayLoggedIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const tabs = 5
	refresh := func(cookie option) answer { return w.nobody().do(http.MethodPost, "/v1/sessions/refresh", nil, cookie) }
	for left := range tabs {
		in := w.nobody().do(http.MethodPost, "/v1/sessions", map[string]any{"email": emails()[0], "password": password})
		answers := make([]answer, tabs)
		var group sync.WaitGroup
		for i := range answers {
			group.Go(func() { answers[i] = refresh(cookieOf(in)) })
		}
		group.Wait()
		for _, got := range answers {
			require.Equal(t, http.StatusCreated, got.status, got.text())
		}
		w.clock.Advance(15 * time.Minute)
		next := refresh(cookieOf(answers[left]))
		require.Equal(t, http.StatusCreated, next.status, "the cookie of tab %d is what is left: %s", left, next.text())
		w.clock.Advance(15 * time.Minute)
		require.Equal(t, http.StatusCreated, refresh(cookieOf(next)).status)
	}
}

// TestAThiefWhoIsAsQuickAsATabIsFoundOutAtTheNextTrade: the thief has a token of its own, until the owner trades.
func TestAThiefWhoIsAsQuickAsATabIsFoundOutAtTheNextTrade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	refresh := func(cookie option) answer { return w.nobody().do(http.MethodPost, "/v1/sessions/refresh", nil, cookie) }
	in := w.nobody().do(http.MethodPost, "/v1/sessions", map[string]any{"email": emails()[0], "password": password})
	owner, thief := refresh(cookieOf(in)), refresh(cookieOf(in))
	require.Equal(t, http.StatusCreated, thief.status)
	w.clock.Advance(15 * time.Minute)
	owner = refresh(cookieOf(owner))
	require.Equal(t, http.StatusCreated, owner.status)
	w.clock.Advance(time.Minute)
	requireProblem(t, refresh(cookieOf(thief)), http.StatusUnauthorized, "session-ended")
	requireProblem(t, refresh(cookieOf(owner)), http.StatusUnauthorized, "session-ended")
}

func TestAnotherSiteCannotUseTheCookie(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	requireProblem(t, ada.do(http.MethodPost, "/v1/sessions/refresh", nil, withHeader("Sec-Fetch-Site", "cross-site")), http.StatusForbidden, "cross-origin")
	requireProblem(t, ada.do(http.MethodPost, "/v1/sessions/refresh", nil, withHeader("Origin", "https://elsewhere.test")), http.StatusForbidden, "cross-origin")
}

func TestAWrongPasswordAndAnUnknownAddressLookTheSame(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wrong := w.nobody().do(http.MethodPost, "/v1/sessions", map[string]any{"email": emails()[0], "password": "not the password"})
	unknown := w.nobody().do(http.MethodPost, "/v1/sessions", map[string]any{"email": "who@acme.test", "password": "not the password"})
	requireProblem(t, wrong, http.StatusUnauthorized, "wrong-credentials")
	requireProblem(t, unknown, http.StatusUnauthorized, "wrong-credentials")
	require.Equal(t, wrong.member("detail"), unknown.member("detail"))
	require.NotContains(t, w.logs.String(), "not the password")
	require.NotContains(t, w.logs.String(), password)
}

func TestAnAPIKeyActsWithinItsScopesUntilItIsRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	made := ada.do(http.MethodPost, "/v1/api-keys", map[string]any{"name": "ci", "scopes": []string{"identity:read"}})
	require.Equal(t, http.StatusCreated, made.status, made.text())
	require.True(t, strings.HasPrefix(made.member("secret"), "lh_test_"), made.text())
	program := w.nobody()
	program.bearer = made.member("secret")

	me := program.do(http.MethodGet, "/v1/me", nil)
	require.Equal(t, http.StatusOK, me.status, me.text())
	require.Equal(t, made.member("id"), me.member("actor"))
	require.Equal(t, http.StatusOK, program.do(http.MethodGet, "/v1/ssh-keys", nil).status)
	requireProblem(t, program.do(http.MethodPost, "/v1/ssh-keys", map[string]any{"name": "k", "public_key": newPublicKey(t)}), http.StatusForbidden, "scope")

	listed := ada.do(http.MethodGet, "/v1/api-keys", nil)
	require.Contains(t, listed.text(), `"last_used_at":"2026-03-01T12:00:00Z"`)
	require.NotContains(t, listed.text(), `"secret"`)

	typo := program
	typo.bearer = program.bearer[:len(program.bearer)-1] + "x"
	requireProblem(t, typo.do(http.MethodGet, "/v1/me", nil), http.StatusUnauthorized, "invalid-credential")

	revoked := ada.do(http.MethodDelete, "/v1/api-keys/"+made.member("id"), nil)
	require.Equal(t, http.StatusNoContent, revoked.status, revoked.text())
	requireProblem(t, program.do(http.MethodGet, "/v1/me", nil), http.StatusUnauthorized, "invalid-credential")
}

func TestAKeyCannotMakeAStrongerKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := w.logIn(0).do(http.MethodPost, "/v1/api-keys", map[string]any{"name": "ci", "scopes": []string{"identity:write"}})
	program := w.nobody()
	program.bearer = made.member("secret")
	requireProblem(t, program.do(http.MethodPost, "/v1/api-keys", map[string]any{"name": "more", "scopes": []string{"leases:write"}}),
		http.StatusForbidden, "beyond-your-rights")
	requireProblem(t, w.logIn(0).do(http.MethodPost, "/v1/api-keys", map[string]any{"name": "root", "scopes": []string{"admin:write"}}),
		http.StatusForbidden, "beyond-your-rights")
}

func TestAKeyOfOneProjectStaysInIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	own := ada.do(http.MethodPost, "/v1/projects", map[string]any{"name": "own"}).member("id")
	scopes := []string{"identity:read", "identity:write", "leases:read", "leases:write", "billing:read"}
	elsewhere := ada.do(http.MethodPost, "/v1/api-keys", map[string]any{"name": "elsewhere", "scopes": scopes})
	made := ada.do(http.MethodPost, "/v1/api-keys", map[string]any{"name": "limited", "scopes": scopes, "project_id": own})
	require.Equal(t, http.StatusCreated, made.status, made.text())
	program := w.nobody()
	program.bearer = made.member("secret")

	projects := program.do(http.MethodGet, "/v1/projects", nil)
	require.Contains(t, projects.text(), own)
	require.NotContains(t, projects.text(), `"default"`)
	require.NotContains(t, program.do(http.MethodGet, "/v1/api-keys", nil).text(), "elsewhere")
	requireProblem(t, program.do(http.MethodDelete, "/v1/api-keys/"+elsewhere.member("id"), nil), http.StatusNotFound, "not-found")
	requireProblem(t, program.do(http.MethodPost, "/v1/projects", map[string]any{"name": "more"}), http.StatusForbidden, "limited-to-project")
	requireProblem(t, program.do(http.MethodGet, "/v1/billing/balance", nil), http.StatusForbidden, "limited-to-project")

	child := program.do(http.MethodPost, "/v1/api-keys", map[string]any{"name": "child", "scopes": []string{"leases:read"}})
	require.Equal(t, own, child.member("project_id"), "the limit is passed on")
	quote, _, _ := w.lease(0) // in the default project
	requireProblem(t, program.do(http.MethodGet, "/v1/quotes/"+quote, nil), http.StatusNotFound, "quote-not-found")
	require.JSONEq(t, `{"items":[]}`, program.do(http.MethodGet, "/v1/quotes", nil).text())
	require.Contains(t, ada.do(http.MethodGet, "/v1/quotes", nil).text(), quote)
}

func TestAReplayNeverShowsASecretAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada, body := w.logIn(0), map[string]any{"name": "ci", "scopes": []string{"identity:read"}}
	first := ada.do(http.MethodPost, "/v1/api-keys", body, withKey("k1"))
	again := ada.do(http.MethodPost, "/v1/api-keys", body, withKey("k1"))
	require.NotEmpty(t, first.member("secret"))
	require.Equal(t, http.StatusCreated, again.status)
	require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
	require.Equal(t, first.member("id"), again.member("id"))
	require.NotContains(t, again.text(), "secret")
}

func TestAnSSHKeyIsKeptWithoutOptionsAndOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada, key := w.logIn(0), newPublicKey(t)
	made := ada.do(http.MethodPost, "/v1/ssh-keys", map[string]any{"name": "laptop", "public_key": `command="rm -rf /" ` + key + " ada@laptop"})
	require.Equal(t, http.StatusCreated, made.status, made.text())
	require.Equal(t, key, made.member("public_key"))
	require.True(t, strings.HasPrefix(made.member("fingerprint"), "SHA256:"))
	requireProblem(t, ada.do(http.MethodPost, "/v1/ssh-keys", map[string]any{"name": "again", "public_key": key}), http.StatusConflict, "ssh-key-exists")

	bob := w.logIn(1)
	requireProblem(t, bob.do(http.MethodDelete, "/v1/ssh-keys/"+made.member("id"), nil), http.StatusNotFound, "not-found")
	require.Equal(t, http.StatusCreated, bob.do(http.MethodPost, "/v1/ssh-keys", map[string]any{"name": "same", "public_key": key}).status)
	require.Equal(t, http.StatusNoContent, ada.do(http.MethodDelete, "/v1/ssh-keys/"+made.member("id"), nil).status)
}

func TestListsComeInPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	for _, name := range []string{"a", "b", "c"} {
		require.Equal(t, http.StatusCreated, ada.do(http.MethodPost, "/v1/projects", map[string]any{"name": name}).status)
	}
	var seen []string
	path := "/v1/projects?limit=3"
	for path != "" {
		page := ada.do(http.MethodGet, path, nil)
		require.Equal(t, http.StatusOK, page.status, page.text())
		for _, name := range []string{"default", "a", "b", "c"} {
			if strings.Contains(page.text(), `"name":"`+name+`"`) {
				seen = append(seen, name)
			}
		}
		path = ""
		if link := page.header.Get("Link"); link != "" {
			require.Contains(t, link, `rel="next"`)
			path = strings.TrimPrefix(strings.SplitN(link, ">", 2)[0], "<")
		}
	}
	require.Equal(t, []string{"default", "a", "b", "c"}, seen)
	requireProblem(t, ada.do(http.MethodGet, "/v1/projects?cursor=garbage", nil), http.StatusUnprocessableEntity, "invalid-cursor")
}
