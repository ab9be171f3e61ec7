package httpapi_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (w *world) startDevice() answer {
	w.t.Helper()
	got := w.nobody().do(http.MethodPost, "/v1/device-authorizations", map[string]any{"client": "leasehold on laptop"})
	require.Equal(w.t, http.StatusCreated, got.status, got.text())
	return got
}

func (w *world) claimDevice(code string) answer {
	return w.nobody().do(http.MethodPost, "/v1/device-authorizations/sessions", map[string]any{"device_code": code})
}

func TestAProgramLogsInOnceSomebodyHasApproved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	started, ada := w.startDevice(), w.logIn(0)
	require.Regexp(t, `^[BCDFGHJKLMNPQRSTVWXZ]{4}-[BCDFGHJKLMNPQRSTVWXZ]{4}$`, started.member("user_code"))
	code, path := started.member("device_code"), "/v1/device-authorizations/"+started.member("user_code")
	requireProblem(t, w.claimDevice(code), http.StatusConflict, "authorization-pending")
	soon := w.claimDevice(code)
	requireProblem(t, soon, http.StatusTooManyRequests, "slow-down")
	require.Equal(t, "5", soon.header.Get("Retry-After"))
	asks := ada.do(http.MethodGet, path, nil)
	require.Equal(t, []string{"leasehold on laptop", "127.0.0.1"}, []string{asks.member("client"), asks.member("source")})
	require.Equal(t, http.StatusNoContent, ada.do(http.MethodPost, path+"/decision", map[string]any{"approve": true}).status)
	requireProblem(t, w.logIn(1).do(http.MethodPost, path+"/decision", map[string]any{"approve": true}), http.StatusNotFound, "device-code-not-found")

	// Two who have the device code get one session.
	answers := make([]answer, 2)
	var group sync.WaitGroup
	for i := range answers {
		group.Go(func() { answers[i] = w.claimDevice(code) })
	}
	group.Wait()
	won := answers[0]
	if won.status != http.StatusCreated {
		won = answers[1]
	}
	require.ElementsMatch(t, []int{http.StatusCreated, http.StatusGone}, []int{answers[0].status, answers[1].status})
	program := w.nobody()
	program.bearer = won.member("access_token")
	require.Equal(t, w.seeded[0].User.String(), program.do(http.MethodGet, "/v1/me", nil).member("actor"))
	require.Equal(t, http.StatusCreated, w.nobody().do(http.MethodPost, "/v1/sessions/refresh", nil, cookieOf(won)).status)
}

func TestARefusedOrLateProgramGetsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada, refused, late := w.logIn(0), w.startDevice(), w.startDevice()
	require.Equal(t, http.StatusNoContent, ada.do(http.MethodPost, "/v1/device-authorizations/"+refused.member("user_code")+"/decision", map[string]any{"approve": false}).status)
	requireProblem(t, w.claimDevice(refused.member("device_code")), http.StatusForbidden, "access-denied")
	w.clock.Advance(10 * time.Minute)
	requireProblem(t, ada.do(http.MethodGet, "/v1/device-authorizations/"+late.member("user_code"), nil), http.StatusNotFound, "device-code-not-found")
	requireProblem(t, w.claimDevice(late.member("device_code")), http.StatusGone, "device-code-expired")
	requireProblem(t, w.claimDevice("lhdev_none"), http.StatusGone, "device-code-expired")
	key := ada.do(http.MethodPost, "/v1/api-keys", map[string]any{"name": "k", "scopes": []string{"identity:write"}})
	program := w.nobody()
	program.bearer = key.member("secret")
	path := "/v1/device-authorizations/" + w.startDevice().member("user_code")
	requireProblem(t, program.do(http.MethodPost, path+"/decision", map[string]any{"approve": true}), http.StatusConflict, "not-a-session")
}
