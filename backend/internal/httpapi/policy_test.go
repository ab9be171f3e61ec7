package httpapi_test

import (
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// app is an authenticator app, by RFC 6238 and not by our code.
type app struct{ secret []byte }

func (a app) code(at time.Time) string {
	mac := hmac.New(sha1.New, a.secret)
	_ = binary.Write(mac, binary.BigEndian, at.Unix()/30)
	sum := mac.Sum(nil)
	o := sum[19] & 15
	n := (uint32(sum[o]&0x7f) << 24) | uint32(sum[o+1])<<16 | uint32(sum[o+2])<<8 | uint32(sum[o+3])
	return fmt.Sprintf("%06d", n%1000000)
}

func TestTheAppIsWhatTheRFCHas(t *testing.T) {
	t.Parallel()
	require.Equal(t, "287082", app{[]byte("12345678901234567890")}.code(time.Unix(59, 0)), "RFC 6238, appendix B, its last six digits")
	require.Equal(t, "005924", app{[]byte("12345678901234567890")}.code(time.Unix(1234567890, 0)))
}

// begin begins a second factor.
func (c caller) begin() app {
	c.w.t.Helper()
	got := c.do(http.MethodPost, "/v1/me/second-factor", nil)
	require.Equal(c.w.t, http.StatusCreated, got.status, got.text())
	secret, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(got.member("secret"))
	require.NoError(c.w.t, err)
	require.Contains(c.w.t, got.member("otpauth_url"), "secret="+got.member("secret"))
	return app{secret}
}

// confirm confirms it, and returns the recovery codes.
func (c caller) confirm(code string) []string {
	c.w.t.Helper()
	got := c.do(http.MethodPost, "/v1/me/second-factor/confirmation", map[string]any{"code": code})
	require.Equal(c.w.t, http.StatusCreated, got.status, got.text())
	var answer struct {
		Codes []string `json:"recovery_codes"`
	}
	require.NoError(c.w.t, json.Unmarshal(got.body, &answer))
	require.Len(c.w.t, answer.Codes, 10)
	return answer.Codes
}

// factors are good writes about second factors and policies.
func (m *matrix) factors() map[string]write {
	fresh := func(email string) caller {
		m.world.join(0, email, "member")
		return m.as(email)
	}
	removing, confirming := fresh("f2@acme.test"), fresh("f3@acme.test")
	codes := removing.confirm(removing.begin().code(m.clock.Now()))
	return map[string]write{
		"beginSecondFactor": {who: fresh("f1@acme.test"), path: "/v1/me/second-factor"},
		"confirmSecondFactor": {
			who: confirming, path: "/v1/me/second-factor/confirmation", body: map[string]any{"code": confirming.begin().code(m.clock.Now())},
			other: map[string]any{"code": "000000"},
		},
		"removeSecondFactor":        {who: removing, path: "/v1/me/second-factor/removal", body: map[string]any{"code": codes[0]}, other: map[string]any{"code": codes[1]}},
		"decideDeviceAuthorization": {who: m.ada, path: "/v1/device-authorizations/" + m.startDevice().member("user_code") + "/decision", body: map[string]any{"approve": true}, other: map[string]any{"approve": false}},
		"setPolicy":                 {who: m.ada, path: "/v1/organization/policy", ifMatch: `"1"`, body: map[string]any{}, other: map[string]any{"max_key_seconds": 5}},
	}
}

func (w *world) logInWith(email, code string) (caller, answer) {
	c, body := w.nobody(), map[string]any{"email": email, "password": password}
	if code != "" {
		body["code"] = code
	}
	got := c.do(http.MethodPost, "/v1/sessions", body)
	c.bearer = got.member("access_token")
	return c, got
}

func TestASecondFactorIsAskedForAndEachCodeIsGoodOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	phone := ada.begin()
	require.Equal(t, http.StatusCreated, w.logIn(0).do(http.MethodPost, "/v1/projects", map[string]any{"name": "x"}).status, "of no effect until it is confirmed")
	requireProblem(t, ada.do(http.MethodPost, "/v1/me/second-factor/confirmation", map[string]any{"code": "000000"}), http.StatusUnauthorized, "wrong-code")
	recovery := ada.confirm(phone.code(w.clock.Now()))
	requireProblem(t, ada.do(http.MethodPost, "/v1/me/second-factor", nil), http.StatusConflict, "second-factor-exists")

	refused := func(code, want string) {
		_, got := w.logInWith(emails()[0], code)
		requireProblem(t, got, http.StatusUnauthorized, want)
	}
	refused("", "second-factor-required")
	refused(phone.code(w.clock.Now()), "wrong-code") // the one that confirmed it
	w.clock.Advance(time.Minute)
	_, got := w.logInWith(emails()[0], phone.code(w.clock.Now()))
	require.Equal(t, http.StatusCreated, got.status, got.text())
	require.Contains(t, got.text(), `"second_factor":true`)
	refused(phone.code(w.clock.Now()), "wrong-code")
	refused(phone.code(w.clock.Now().Add(-time.Hour)), "wrong-code")
	refused("aaaaaaaa-bbbbbbbb", "wrong-code")

	_, got = w.logInWith(emails()[0], recovery[3])
	require.Equal(t, http.StatusCreated, got.status, got.text())
	refused(recovery[3], "wrong-code")
	wrong := w.nobody().do(http.MethodPost, "/v1/sessions", map[string]any{"email": emails()[0], "password": "not the password", "code": recovery[4]})
	requireProblem(t, wrong, http.StatusUnauthorized, "wrong-credentials")
	c, got := w.logInWith(emails()[0], recovery[4])
	require.Equal(t, http.StatusCreated, got.status, "a code beside a wrong password is not used up")
	require.Equal(t, http.StatusNoContent, c.do(http.MethodPost, "/v1/me/second-factor/removal", map[string]any{"code": recovery[5]}).status)
	_, got = w.logInWith(emails()[0], "")
	require.Equal(t, http.StatusCreated, got.status)
	var secrets int
	require.NoError(t, w.database.Pool(t).QueryRow(t.Context(), "SELECT count(*) FROM audit_event WHERE action LIKE 'second_factor.%'").Scan(&secrets))
	require.Equal(t, 3, secrets)
}

func TestAnAdminWithoutASecondFactorCanOnlySetOneUp(t *testing.T) {
	t.Parallel()
	w := makeWorld(t, true)
	ada := w.logIn(0)
	requireProblem(t, ada.do(http.MethodGet, "/v1/projects", nil), http.StatusForbidden, "second-factor-missing")
	require.Contains(t, ada.do(http.MethodGet, "/v1/me", nil).text(), `"second_factor_missing":true`)
	phone := ada.begin()
	ada.confirm(phone.code(w.clock.Now()))
	require.Equal(t, http.StatusOK, ada.do(http.MethodGet, "/v1/projects", nil).status, "at once")
	refreshed := ada.do(http.MethodPost, "/v1/sessions/refresh", nil)
	require.Contains(t, refreshed.text(), `"second_factor_missing":false`)
}

func (c caller) setPolicy(version string, policy map[string]any) answer {
	return c.do(http.MethodPut, "/v1/organization/policy", policy, withHeader("If-Match", version))
}

func TestAPolicyOfSecondFactorsHoldsForEverybodyAndLocksNobodyOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.join(0, "eve@acme.test", "viewer")
	eve := w.as("eve@acme.test")
	required := map[string]any{"require_second_factor": true}
	requireProblem(t, w.logIn(0).setPolicy(`"1"`, required), http.StatusConflict, "second-factor-missing")
	ada := w.logIn(0)
	ada.confirm(ada.begin().code(w.clock.Now()))
	set := ada.setPolicy(`"1"`, required)
	require.Equal(t, http.StatusOK, set.status, set.text())
	w.clock.Advance(10 * time.Second)
	requireProblem(t, eve.do(http.MethodGet, "/v1/projects", nil), http.StatusForbidden, "second-factor-missing")
	require.Equal(t, http.StatusOK, w.logIn(1).do(http.MethodGet, "/v1/projects", nil).status, "others are not concerned")
}

func TestAPolicyOfAPIKeysHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	require.Equal(t, http.StatusOK, ada.setPolicy(`"1"`, map[string]any{"max_key_seconds": 3600}).status)
	key := func(end any) answer {
		body := map[string]any{"name": "k", "scopes": []string{"market:read"}}
		if end != nil {
			body["expires_at"] = end
		}
		return ada.do(http.MethodPost, "/v1/api-keys", body)
	}
	requireProblem(t, key(nil), http.StatusForbidden, "organization-policy")
	requireProblem(t, key(w.clock.Now().Add(2*time.Hour)), http.StatusForbidden, "organization-policy")
	require.Equal(t, http.StatusCreated, key(w.clock.Now().Add(time.Hour)).status)
}
