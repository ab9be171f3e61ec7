package cli

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// door answers log-ins: the first of a kind is put off.
type door struct{ bodies []string }

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	d.bodies = append(d.bodies, r.URL.Path+" "+string(body))
	refuse := func(status int, kind string) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, `{"type": "/problems/`+kind+`", "title": "x", "status": 409}`)
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Path == "/v1/device-authorizations":
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"device_code": "dev", "user_code": "WDJB-MJHT", "verification_url_complete": "https://x.test/device?code=WDJB-MJHT"}`)
	case strings.HasSuffix(r.URL.Path, "/sessions") && strings.Contains(r.URL.Path, "device") && len(d.bodies) < 4:
		refuse(http.StatusConflict, "authorization-pending")
	case r.URL.Path == "/v1/sessions" && !strings.Contains(string(body), `"code"`):
		refuse(http.StatusUnauthorized, "second-factor-required")
	default:
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"access_token": "t", "me": {"organization": {"name": "Acme"}}}`)
	}
}

func logInAt(t *testing.T, in string, args ...string) (*door, string, error) {
	t.Helper()
	d := &door{}
	server := httptest.NewServer(d)
	t.Cleanup(server.Close)
	t.Setenv(envConfig, filepath.Join(t.TempDir(), "credentials.json"))
	root, out := newRoot(), &bytes.Buffer{}
	root.SetArgs(append([]string{"login", "--server", server.URL}, args...))
	root.SetOut(out)
	root.SetErr(out)
	root.SetIn(strings.NewReader(in))
	err := root.ExecuteContext(t.Context())
	return d, out.String(), err
}

func TestALogInAsksForTheCodeWhenOneIsNeeded(t *testing.T) { //nolint:paralleltest // the environment is the process's
	d, _, err := logInAt(t, "secret\n123456\n", "--email", "a@b.test")
	require.NoError(t, err)
	require.Len(t, d.bodies, 2)
	require.Contains(t, d.bodies[1], `"code":"123456"`)
	require.Contains(t, d.bodies[1], `"password":"secret"`)
}

func TestALogInWithoutAnAddressWaitsForABrowser(t *testing.T) { //nolint:paralleltest // as above
	d, words, err := logInAt(t, "")
	require.NoError(t, err)
	require.Len(t, d.bodies, 4, "started, put off twice, let in")
	require.Contains(t, words, "https://x.test/device?code=WDJB-MJHT")
	require.Contains(t, words, "Acme")
}
