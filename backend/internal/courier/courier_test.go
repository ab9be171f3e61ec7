package courier_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/internal/courier"
	"github.com/leasehold/leasehold/backend/webhook"
)

const (
	secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	older  = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
)

func post(url string) webhook.Post {
	return webhook.Post{URL: url, ID: "evt_1", At: time.Now(), Body: []byte(`{"type":"lease.active"}`), Secrets: []string{secret, older}}
}

func TestWhatIsSentVerifiesWithBothSecretsByTheStandardsOwnLibrary(t *testing.T) {
	t.Parallel()
	verified := make(chan error, 2)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		for _, s := range []string{secret, older} {
			hook, err := standardwebhooks.NewWebhook(s)
			if err == nil {
				err = hook.Verify(body, r.Header)
			}
			verified <- err
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, "thanks\x00\xff")
	}))
	t.Cleanup(server.Close)
	answer, err := courier.New(clock.System{}, true).Send(t.Context(), post(server.URL))
	require.NoError(t, err)
	require.Equal(t, webhook.Answer{Status: http.StatusAccepted, Body: "thanks\ufffd\ufffd"}, answer)
	require.NoError(t, <-verified)
	require.NoError(t, <-verified)
}

func TestNothingIsSentToThisMachineWhateverItIsCalled(t *testing.T) {
	t.Parallel()
	var called atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called.Add(1) }))
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0", "127.1", "2130706433", "0x7f000001", "[64:ff9b::7f00:1]"} {
		_, err := courier.New(clock.System{}, false).Send(t.Context(), post("http://"+host+":"+port))
		require.Error(t, err, host)
		require.Regexp(t, `^(the address is not a public address|the name cannot be resolved)$`, err.Error(), host)
		require.NotContains(t, err.Error(), "127.", host)
	}
	require.Zero(t, called.Load())
}

func TestARedirectIsAnAnswerAndNotFollowed(t *testing.T) {
	t.Parallel()
	var followed atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			followed.Store(true)
			return
		}
		http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
	}))
	t.Cleanup(server.Close)
	answer, err := courier.New(clock.System{}, true).Send(t.Context(), post(server.URL))
	require.NoError(t, err)
	require.Equal(t, http.StatusTemporaryRedirect, answer.Status)
	require.False(t, followed.Load())
}

func TestAnEndlessAnswerIsCutOff(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat("x", 4096)); err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	answer, err := courier.New(clock.System{}, true).Send(t.Context(), post(server.URL))
	require.NoError(t, err)
	require.Len(t, answer.Body, 2048+len("…"))
}

func TestRetryAfterIsReadInBothFormsWhereItHasAMeaning(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		status int
		header string
		want   time.Duration
	}{
		{503, "120", 2 * time.Minute},
		{429, now.Add(time.Hour).Format(http.TimeFormat), time.Hour},
		{500, "120", 0},
		{503, "soon", 0},
		{503, "-5", 0},
		{503, now.Add(-time.Hour).Format(http.TimeFormat), 0},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", c.header)
			w.WriteHeader(c.status)
		}))
		answer, err := courier.New(clock.NewFake(now), true).Send(t.Context(), post(server.URL))
		server.Close()
		require.NoError(t, err)
		require.Equal(t, c.want, answer.RetryAfter, c.header)
	}
}

func TestAFailureTellsItsKindAndNothingOfOurNetwork(t *testing.T) {
	t.Parallel()
	tls := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(tls.Close)
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	for url, want := range map[string]string{
		tls.URL: "the certificate is not trusted", closed.URL: "the connection was refused", "http://no-such-host.invalid": "the name cannot be resolved",
	} {
		_, err := courier.New(clock.System{}, true).Send(t.Context(), post(url))
		require.EqualError(t, err, want)
	}
}
