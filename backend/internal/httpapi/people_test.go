package httpapi_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// people are good writes about members, groups and programs.
func (m *matrix) people() map[string]write {
	made := func(path string, body map[string]any) string {
		got := m.ada.do(http.MethodPost, path, body)
		require.Equal(m.t, http.StatusCreated, got.status, got.text())
		return path + "/" + got.member("id")
	}
	role := func(role string) map[string]any { return map[string]any{"role": role} }
	named := func(name string) map[string]any { return map[string]any{"name": name, "role": "viewer"} }
	key := made("/v1/api-keys", map[string]any{"name": "k", "scopes": []string{"market:read"}})
	return map[string]write{
		"updateMember":         {who: m.ada, path: "/v1/members/" + m.join(m.world, 0, "m1@acme.test", "member"), ifMatch: `"1"`, body: role("viewer"), other: role("billing")},
		"deleteMember":         {who: m.ada, path: "/v1/members/" + m.join(m.world, 0, "m2@acme.test", "member")},
		"createInvitation":     {who: m.ada, path: "/v1/invitations", body: map[string]any{"email": "a@a.test", "role": "viewer"}, other: map[string]any{"email": "b@a.test", "role": "viewer"}},
		"deleteInvitation":     {who: m.ada, path: made("/v1/invitations", map[string]any{"email": "c@a.test", "role": "viewer"})},
		"createGroup":          {who: m.ada, path: "/v1/groups", body: named("a"), other: named("b")},
		"updateGroup":          {who: m.ada, path: made("/v1/groups", named("c")), ifMatch: `"1"`, body: map[string]any{"name": "d"}, other: map[string]any{"name": "e"}},
		"deleteGroup":          {who: m.ada, path: made("/v1/groups", named("f"))},
		"createServiceAccount": {who: m.ada, path: "/v1/service-accounts", body: named("a"), other: named("b")},
		"updateServiceAccount": {
			who: m.ada, path: made("/v1/service-accounts", named("c")), ifMatch: `"1"`, body: map[string]any{"enabled": false}, other: map[string]any{"enabled": true},
		},
		"deleteServiceAccount": {who: m.ada, path: made("/v1/service-accounts", named("d"))},
		"rotateAPIKey":         {who: m.ada, path: key + "/rotations", body: map[string]any{}, other: map[string]any{"overlap_seconds": 5}},
	}
}

// join has somebody new join the organization of the person, and returns their id.
func (*matrix) join(w *world, person int, email, role string) string {
	return w.join(person, email, role)
}

func (w *world) join(person int, email, role string) string {
	w.t.Helper()
	owner := w.logIn(person)
	invited := owner.do(http.MethodPost, "/v1/invitations", map[string]any{"email": email, "role": role})
	require.Equal(w.t, http.StatusCreated, invited.status, invited.text())
	joined := w.nobody().do(http.MethodPost, "/v1/invitations/acceptances", map[string]any{"token": invited.member("token"), "name": "New", "password": password})
	require.Equal(w.t, http.StatusCreated, joined.status, joined.text())
	return w.as(email).do(http.MethodGet, "/v1/me", nil).member("actor")
}

// as is a person by address.
func (w *world) as(email string) caller {
	w.t.Helper()
	c := w.nobody()
	got := c.do(http.MethodPost, "/v1/sessions", map[string]any{"email": email, "password": password})
	require.Equal(w.t, http.StatusCreated, got.status, got.text())
	c.bearer = got.member("access_token")
	return c
}

func TestAnInvitationIsForOnePersonAndOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	invited := ada.do(http.MethodPost, "/v1/invitations", map[string]any{"email": " Eve@Acme.test", "role": "member"})
	require.Equal(t, "eve@acme.test", invited.member("email"))
	requireProblem(t, ada.do(http.MethodPost, "/v1/invitations", map[string]any{"email": "eve@acme.test", "role": "viewer"}), http.StatusConflict, "invitation-open")
	require.NotContains(t, ada.do(http.MethodGet, "/v1/invitations", nil).text(), "lhinv_")
	accept := func(token, password string) answer {
		return w.nobody().do(http.MethodPost, "/v1/invitations/acceptances", map[string]any{"token": token, "password": password})
	}
	require.Equal(t, http.StatusUnprocessableEntity, accept(invited.member("token"), "short").status)
	requireProblem(t, accept("lhinv_wrong", password), http.StatusNotFound, "invitation-not-found")
	// Many accept at once: one account, one membership.
	var group sync.WaitGroup
	statuses := make([]int, 4)
	for i := range statuses {
		group.Go(func() { statuses[i] = accept(invited.member("token"), password).status })
	}
	group.Wait()
	won := 0
	for _, status := range statuses {
		if status == http.StatusCreated {
			won++
		}
	}
	require.Equal(t, 1, won, statuses)
	requireProblem(t, accept(invited.member("token"), password), http.StatusNotFound, "invitation-not-found")
	eve := w.as("eve@acme.test")
	require.Equal(t, "member", eve.do(http.MethodGet, "/v1/me", nil).member("role"))
	require.Contains(t, ada.do(http.MethodGet, "/v1/members", nil).text(), "eve@acme.test")
	requireProblem(t, eve.do(http.MethodPost, "/v1/invitations", map[string]any{"email": "x@acme.test", "role": "viewer"}), http.StatusForbidden, "role")

	late := ada.do(http.MethodPost, "/v1/invitations", map[string]any{"email": "late@acme.test", "role": "member"})
	w.clock.Advance(7 * 24 * time.Hour)
	requireProblem(t, accept(late.member("token"), password), http.StatusNotFound, "invitation-not-found")
}

func TestSomebodyWithAnAccountJoinsWithItsPasswordOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	token := w.logIn(0).do(http.MethodPost, "/v1/invitations", map[string]any{"email": emails()[1], "role": "viewer"}).member("token")
	wrong := w.nobody().do(http.MethodPost, "/v1/invitations/acceptances", map[string]any{"token": token, "password": "not the right password"})
	requireProblem(t, wrong, http.StatusUnauthorized, "wrong-credentials")
	right := w.nobody().do(http.MethodPost, "/v1/invitations/acceptances", map[string]any{"token": token, "password": password})
	require.Equal(t, http.StatusCreated, right.status, right.text())
	bob := w.nobody()
	in := bob.do(http.MethodPost, "/v1/sessions", map[string]any{"email": emails()[1], "password": password, "organization_id": w.seeded[0].Org.String()})
	require.Equal(t, http.StatusCreated, in.status, in.text())
}

func TestNobodyMakesAnybodyStrongerThanThemselves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	admin := w.join(0, "admin@acme.test", "admin")
	c := w.as("admin@acme.test")
	requireProblem(t, c.do(http.MethodPost, "/v1/invitations", map[string]any{"email": "x@acme.test", "role": "owner"}), http.StatusForbidden, "beyond-your-rights")
	requireProblem(t, c.do(http.MethodPatch, "/v1/members/"+admin, map[string]any{"role": "owner"}, withHeader("If-Match", `"1"`)), http.StatusForbidden, "beyond-your-rights")
	owner := "/v1/members/" + w.seeded[0].User.String()
	requireProblem(t, c.do(http.MethodPatch, owner, map[string]any{"role": "viewer"}, withHeader("If-Match", `"1"`)), http.StatusForbidden, "beyond-your-rights")
	requireProblem(t, c.do(http.MethodDelete, owner, nil), http.StatusForbidden, "beyond-your-rights")
	requireProblem(t, c.do(http.MethodPost, "/v1/groups", map[string]any{"name": "g", "role": "owner", "user_ids": []string{admin}}), http.StatusForbidden, "beyond-your-rights")
	requireProblem(t, c.do(http.MethodPost, "/v1/service-accounts", map[string]any{"name": "s", "role": "owner"}), http.StatusForbidden, "beyond-your-rights")
}

func TestTheLastOwnerStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada, self := w.logIn(0), "/v1/members/"+w.seeded[0].User.String()
	requireProblem(t, ada.do(http.MethodDelete, self, nil), http.StatusConflict, "last-owner")
	requireProblem(t, ada.do(http.MethodPatch, self, map[string]any{"role": "admin"}, withHeader("If-Match", `"1"`)), http.StatusConflict, "last-owner")
	// Two owners who take each other out at once leave one.
	second := w.join(0, "second@acme.test", "owner")
	two := w.as("second@acme.test")
	statuses := make([]int, 2)
	var group sync.WaitGroup
	group.Go(func() { statuses[0] = ada.do(http.MethodDelete, "/v1/members/"+second, nil).status })
	group.Go(func() { statuses[1] = two.do(http.MethodDelete, self, nil).status })
	group.Wait()
	require.Contains(t, statuses, http.StatusNoContent)
	require.NotEqual(t, statuses[0], statuses[1])
}

func TestWhoIsRemovedIsOutWithinSecondsEverywhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	user := w.join(0, "eve@acme.test", "member")
	eve := w.as("eve@acme.test")
	key := eve.do(http.MethodPost, "/v1/api-keys", map[string]any{"name": "k", "scopes": []string{"identity:read"}})
	program := w.nobody()
	program.bearer = key.member("secret")
	require.Equal(t, http.StatusOK, program.do(http.MethodGet, "/v1/projects", nil).status)
	require.Equal(t, http.StatusNoContent, w.logIn(0).do(http.MethodDelete, "/v1/members/"+user, nil).status)
	requireProblem(t, program.do(http.MethodGet, "/v1/projects", nil), http.StatusUnauthorized, "invalid-credential")
	requireProblem(t, eve.do(http.MethodPost, "/v1/sessions/refresh", nil), http.StatusUnauthorized, "session-ended")
	w.clock.Advance(10 * time.Second)
	requireProblem(t, eve.do(http.MethodGet, "/v1/projects", nil), http.StatusUnauthorized, "session-ended")
	requireProblem(t, w.logIn(0).do(http.MethodDelete, "/v1/members/"+user, nil), http.StatusNotFound, "not-found")
}

func TestALostRoleIsLostWithinSeconds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	user := w.join(0, "eve@acme.test", "admin")
	eve := w.as("eve@acme.test")
	require.Equal(t, http.StatusOK, eve.do(http.MethodGet, "/v1/audit-events", nil).status)
	changed := w.logIn(0).do(http.MethodPatch, "/v1/members/"+user, map[string]any{"role": "viewer"}, withHeader("If-Match", `"1"`))
	require.Equal(t, http.StatusOK, changed.status, changed.text())
	w.clock.Advance(10 * time.Second)
	requireProblem(t, eve.do(http.MethodGet, "/v1/audit-events", nil), http.StatusForbidden, "role")
}

func TestAGroupGivesItsRoleAndTakesItBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	user := w.join(0, "eve@acme.test", "viewer")
	ada, eve := w.logIn(0), w.as("eve@acme.test")
	project := map[string]any{"name": "eves"}
	requireProblem(t, eve.do(http.MethodPost, "/v1/projects", project), http.StatusForbidden, "role")
	group := ada.do(http.MethodPost, "/v1/groups", map[string]any{"name": "builders", "role": "admin", "user_ids": []string{user}})
	require.Equal(t, http.StatusCreated, group.status, group.text())
	requireProblem(t, ada.do(http.MethodPost, "/v1/groups", map[string]any{"name": "strangers", "role": "viewer", "user_ids": []string{w.seeded[1].User.String()}}),
		http.StatusUnprocessableEntity, "invalid-request")
	w.clock.Advance(10 * time.Second)
	require.Equal(t, http.StatusCreated, eve.do(http.MethodPost, "/v1/projects", project).status)
	emptied := ada.do(http.MethodPatch, "/v1/groups/"+group.member("id"), map[string]any{"user_ids": []string{}}, withHeader("If-Match", `"1"`))
	require.Equal(t, http.StatusOK, emptied.status, emptied.text())
	w.clock.Advance(10 * time.Second)
	requireProblem(t, eve.do(http.MethodPost, "/v1/projects", map[string]any{"name": "more"}), http.StatusForbidden, "role")
}

func TestAServiceAccountOutlivesItsMakerAndEndsInTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	admin := w.join(0, "admin@acme.test", "admin")
	c := w.as("admin@acme.test")
	account := c.do(http.MethodPost, "/v1/service-accounts", map[string]any{"name": "ci", "role": "member", "expires_at": w.clock.Now().Add(time.Hour)})
	require.Equal(t, http.StatusCreated, account.status, account.text())
	key := func(scope string) answer {
		return c.do(http.MethodPost, "/v1/api-keys", map[string]any{"name": "ci", "scopes": []string{scope}, "service_account_id": account.member("id")})
	}
	requireProblem(t, key("audit:read"), http.StatusForbidden, "beyond-its-rights")
	made := key("identity:read")
	require.Equal(t, http.StatusCreated, made.status, made.text())
	program := w.nobody()
	program.bearer = made.member("secret")
	require.Equal(t, http.StatusNoContent, w.logIn(0).do(http.MethodDelete, "/v1/members/"+admin, nil).status)
	me := program.do(http.MethodGet, "/v1/me", nil)
	require.Equal(t, http.StatusOK, me.status, me.text())
	require.Equal(t, "member", me.member("role"))

	path, ada := "/v1/service-accounts/"+account.member("id"), w.logIn(0)
	off := ada.do(http.MethodPatch, path, map[string]any{"enabled": false}, withHeader("If-Match", `"1"`))
	require.Equal(t, http.StatusOK, off.status, off.text())
	requireProblem(t, program.do(http.MethodGet, "/v1/me", nil), http.StatusUnauthorized, "invalid-credential")
	require.Equal(t, http.StatusOK, ada.do(http.MethodPatch, path, map[string]any{"enabled": true}, withHeader("If-Match", `"2"`)).status)
	require.Equal(t, http.StatusOK, program.do(http.MethodGet, "/v1/me", nil).status)
	w.clock.Advance(time.Hour)
	requireProblem(t, program.do(http.MethodGet, "/v1/me", nil), http.StatusUnauthorized, "invalid-credential")
}

func TestAKeyIsRotatedWithAnOverlapAndUsedFromItsNetworksOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	issue := func(networks ...string) (answer, caller) {
		made := ada.do(http.MethodPost, "/v1/api-keys", map[string]any{"name": "k", "scopes": []string{"identity:read"}, "allowed_networks": networks})
		c := w.nobody()
		c.bearer = made.member("secret")
		return made, c
	}
	status := func(c caller) int { return c.do(http.MethodGet, "/v1/projects", nil).status }
	made, old := issue("127.0.0.0/8")
	require.Equal(t, http.StatusOK, status(old))
	require.True(t, strings.HasPrefix(old.bearer, made.member("prefix")))
	rotated := ada.do(http.MethodPost, "/v1/api-keys/"+made.member("id")+"/rotations", map[string]any{"overlap_seconds": 60})
	require.Equal(t, http.StatusCreated, rotated.status, rotated.text())
	fresh := w.nobody()
	fresh.bearer = rotated.member("secret")
	require.Equal(t, []int{http.StatusOK, http.StatusOK}, []int{status(old), status(fresh)})
	w.clock.Advance(time.Minute)
	require.Equal(t, []int{http.StatusUnauthorized, http.StatusOK}, []int{status(old), status(fresh)})
	ada = w.logIn(0)
	leaked := ada.do(http.MethodPost, "/v1/api-keys/"+made.member("id")+"/rotations", map[string]any{"overlap_seconds": 0})
	require.Equal(t, http.StatusCreated, leaked.status)
	require.Equal(t, http.StatusUnauthorized, status(fresh))

	_, elsewhere := issue("192.0.2.0/24", "2001:db8::1")
	requireProblem(t, elsewhere.do(http.MethodGet, "/v1/projects", nil), http.StatusUnauthorized, "network-not-allowed")
	bad, _ := issue("not-a-network")
	requireProblem(t, bad, http.StatusUnprocessableEntity, "invalid-request")
}
