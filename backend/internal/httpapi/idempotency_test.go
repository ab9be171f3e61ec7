package httpapi_test

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func countProjects(w *world, name string) int {
	pool := w.database.Pool(w.t)
	var n int
	require.NoError(w.t, pool.QueryRow(w.t.Context(), "SELECT count(*) FROM project WHERE name = $1", name).Scan(&n))
	return n
}

func TestOneKeyHasOneEffectHoweverOftenAndHoweverConcurrentlyItIsSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	var (
		wait  sync.WaitGroup
		mu    sync.Mutex
		seen  = map[int]int{}
		first = map[string]bool{}
	)
	for range 32 {
		wait.Go(func() {
			got := ada.do(http.MethodPost, "/v1/projects", map[string]any{"name": "once"}, withKey("same"))
			mu.Lock()
			defer mu.Unlock()
			seen[got.status]++
			if got.status == http.StatusCreated {
				first[got.member("id")] = true
			} else {
				requireProblem(t, got, http.StatusConflict, "idempotency-key-in-use")
			}
		})
	}
	wait.Wait()
	require.Len(t, first, 1, "everybody is told of the same project")
	require.Equal(t, 32, seen[http.StatusCreated]+seen[http.StatusConflict])
	require.Equal(t, 1, countProjects(w, "once"))
}

func TestAKeyIsForOneRequestOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	require.Equal(t, http.StatusCreated, ada.do(http.MethodPost, "/v1/projects", map[string]any{"name": "a"}, withKey("k")).status)
	requireProblem(t, ada.do(http.MethodPost, "/v1/projects", map[string]any{"name": "b"}, withKey("k")), http.StatusUnprocessableEntity, "idempotency-key-reused")
	requireProblem(t, ada.do(http.MethodPost, "/v1/ssh-keys", map[string]any{"name": "b", "public_key": newPublicKey(t)}, withKey("k")),
		http.StatusUnprocessableEntity, "idempotency-key-reused")
	require.Zero(t, countProjects(w, "b"))

	bob := w.logIn(1)
	require.Equal(t, http.StatusCreated, bob.do(http.MethodPost, "/v1/projects", map[string]any{"name": "b"}, withKey("k")).status, "keys are each caller's own")
}

func TestARefusalIsNotKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	body := map[string]any{"name": "default"}
	requireProblem(t, ada.do(http.MethodPost, "/v1/projects", body, withKey("k")), http.StatusConflict, "project-exists")
	_, err := w.database.Pool(t).Exec(t.Context(), "UPDATE project SET name = 'renamed'")
	require.NoError(t, err)
	require.Equal(t, http.StatusCreated, ada.do(http.MethodPost, "/v1/projects", body, withKey("k")).status)
}

func TestAKeyIsRequiredAndHasALimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	body := map[string]any{"name": "a"}
	requireProblem(t, ada.do(http.MethodPost, "/v1/projects", body, withKey("")), http.StatusBadRequest, "idempotency-key-required")
	requireProblem(t, ada.do(http.MethodPost, "/v1/projects", body, withKey(strings.Repeat("k", 256))), http.StatusBadRequest, "idempotency-key-required")
	require.Zero(t, countProjects(w, "a"))
}
