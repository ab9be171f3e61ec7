package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
)

// feed answers as a server whose log-in has run out, that is away once, and that then has two events.
type feed struct {
	mu    sync.Mutex
	asked []string
}

func (f *feed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.asked = append(f.asked, r.URL.Query().Get("after"))
	n := len(f.asked)
	f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	event := func(sequence int, kind string) string {
		return fmt.Sprintf(`{"id": "evt_%d", "type": %q, "version": 1, "sequence": %d, "timestamp": "2026-03-01T12:00:00Z", "data": {"a": 1}}`, sequence, kind, sequence)
	}
	switch n {
	case 1:
		_, _ = io.WriteString(w, `{"items": [], "last_sequence": 7}`)
	case 2:
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, `{"type": "/problems/database-unavailable", "title": "x", "status": 503}`)
	case 3:
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"type": "/problems/token-expired", "title": "x", "status": 401}`)
	case 4:
		_, _ = io.WriteString(w, `{"items": [`+event(8, "lease.active")+`,`+event(9, "node.wiped")+`,`+event(10, "lease.closed")+`], "last_sequence": 10}`)
	default:
		<-r.Context().Done()
	}
}

func TestListenForwardsWhatHappensFromNowOnAndLosesNothing(t *testing.T) { //nolint:paralleltest // the environment is the process's
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	source, got, verified := &feed{}, make(chan string, 10), make(chan error, 10)
	server := httptest.NewServer(source)
	t.Cleanup(server.Close)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		hook, err := standardwebhooks.NewWebhook(secret)
		if err == nil {
			err = hook.Verify(body, r.Header)
		}
		verified <- err
		got <- r.Header.Get("Webhook-Id") + " " + string(body)
	}))
	t.Cleanup(receiver.Close)
	t.Setenv(envServer, server.URL)
	t.Setenv(envAPIKey, "lh_test")
	t.Setenv(envWebhookSecret, secret)
	t.Setenv(envConfig, filepath.Join(t.TempDir(), "credentials.json"))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out, words strings.Builder
	l := listener{types: []string{"lease.*"}, forward: receiver.URL, idle: time.Millisecond, after: -1, print: printer{out: &out, err: &words, json: true}}
	require.NoError(t, l.prepare())
	ended := make(chan error, 1)
	go func() { ended <- l.run(ctx) }()
	for _, id := range []string{"evt_8 ", "evt_10 "} {
		require.NoError(t, <-verified)
		require.True(t, strings.HasPrefix(<-got, id))
	}
	require.Eventually(t, func() bool { source.mu.Lock(); defer source.mu.Unlock(); return len(source.asked) == 5 }, 10*time.Second, time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, []string{"-1", "7", "7", "7", "10"}, source.asked)
	require.Equal(t, 2, strings.Count(out.String(), "\n"))
}
