package temporal_test

import (
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/internal/local/postgres"
	"github.com/leasehold/leasehold/backend/internal/local/temporal"
)

func TestTemporalRunsOnThePrivatePostgreSQLAndStartsAgain(t *testing.T) {
	t.Setenv("TEMPORAL_ADDRESS", "")
	database, err := postgres.Start(t.Context(), postgres.Options{Throwaway: true})
	require.NoError(t, err)
	stopAtEnd(t, database.Stop)
	options := temporal.Options{DatabaseURL: database.URL("temporal"), DataDir: t.TempDir(), Progress: func(line string) { t.Log(line) }}

	first, err := temporal.Start(t.Context(), options)
	require.NoError(t, err)
	stopAtEnd(t, first.Stop)
	requireServed(t, first.UI())
	requireNamespace(t, database.URL("temporal"), "default")
	require.NoError(t, first.Stop(t.Context()))

	second, err := temporal.Start(t.Context(), options)
	require.NoError(t, err)
	require.NoError(t, second.Stop(t.Context()))
}

func TestAnUnreachableServerOfOthersIsNamed(t *testing.T) {
	t.Setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := temporal.Start(ctx, temporal.Options{DataDir: t.TempDir()})
	require.ErrorContains(t, err, "TEMPORAL_ADDRESS=127.0.0.1:1")
}

func stopAtEnd(t *testing.T, stop func(context.Context) error) {
	t.Helper()
	t.Cleanup(func() { _ = stop(context.WithoutCancel(t.Context())) })
}

func requireServed(t *testing.T, address string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		reply, err := http.DefaultClient.Do(request)
		if err != nil {
			return false
		}
		defer func() { _ = reply.Body.Close() }()
		page, err := io.ReadAll(reply.Body)
		return err == nil && reply.StatusCode == http.StatusOK && len(page) > 0
	}, 10*time.Second, 50*time.Millisecond)
}

func requireNamespace(t *testing.T, address, name string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	require.NoError(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	var found bool
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM namespaces WHERE name = $1)", name).Scan(&found))
	require.True(t, found)
}
