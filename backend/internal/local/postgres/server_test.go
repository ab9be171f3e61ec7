package postgres_test

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/internal/local"
	"github.com/leasehold/leasehold/backend/internal/local/postgres"
)

// start runs a durable server in dir; the test stops it.
func start(t *testing.T, dir string) *postgres.Server {
	t.Helper()
	server, err := postgres.Start(t.Context(), postgres.Options{DataDir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Stop(context.WithoutCancel(t.Context())) })
	return server
}

func exec(t *testing.T, address, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), sql)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
}

func TestAServerKeepsItsDataFromStartToStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := start(t, dir)
	require.NoError(t, first.EnsureDatabase(t.Context(), "leasehold"))
	require.NoError(t, first.EnsureDatabase(t.Context(), "leasehold"), "a database that exists is fine")
	exec(t, first.URL("leasehold"), "CREATE EXTENSION btree_gist; CREATE TABLE kept ()")
	require.NoError(t, first.Stop(t.Context()))

	second := start(t, dir)
	exec(t, second.URL("leasehold"), "SELECT FROM kept")
}

func TestTwoServersOnTheSameDataAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	running := start(t, dir)
	_, err := postgres.Start(t.Context(), postgres.Options{DataDir: dir})
	require.ErrorIs(t, err, local.ErrLocked)
	exec(t, running.URL("postgres"), "SELECT 1")
}

func TestATakenPortIsNamed(t *testing.T) {
	t.Parallel()
	running := start(t, t.TempDir())
	address, err := url.Parse(running.URL("postgres"))
	require.NoError(t, err)
	port, err := strconv.Atoi(address.Port())
	require.NoError(t, err)
	_, err = postgres.Start(t.Context(), postgres.Options{DataDir: t.TempDir(), Port: port})
	require.ErrorIs(t, err, local.ErrPortTaken)
	require.ErrorContains(t, err, address.Port())
}

func TestAServerStartsAfterACrashAndAReusedProcessNumber(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	crashed := start(t, dir)
	require.NoError(t, syscall.Kill(crashed.Process().PID(), syscall.SIGKILL))
	<-crashed.Process().Done()
	require.NoError(t, crashed.Stop(t.Context()))
	file := filepath.Join(dir, "cluster", "postmaster.pid")
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(raw), "\n")
	require.NoError(t, os.WriteFile(file, []byte(strconv.Itoa(os.Getpid())+"\n"+rest), 0o600))

	restarted := start(t, dir)
	exec(t, restarted.URL("postgres"), "SELECT 1")
}

func TestAWrongPasswordIsRefused(t *testing.T) {
	t.Parallel()
	server := start(t, t.TempDir())
	address, err := url.Parse(server.URL("postgres"))
	require.NoError(t, err)
	address.User = url.UserPassword(address.User.Username(), "guess")
	_, err = pgx.Connect(t.Context(), address.String())
	require.ErrorContains(t, err, "password authentication failed")
}

func TestAThrowawayLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "thrown")
	server, err := postgres.Start(t.Context(), postgres.Options{DataDir: dir, Throwaway: true})
	require.NoError(t, err)
	exec(t, server.URL("postgres"), "SELECT 1")
	require.NoError(t, server.Stop(t.Context()))
	require.NoDirExists(t, dir)
}
