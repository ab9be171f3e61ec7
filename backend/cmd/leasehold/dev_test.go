package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/internal/cli"
)

func TestAgentsStayOnLoopbackWhereverTheAPIListens(t *testing.T) {
	t.Parallel()
	for address, open := range map[string]bool{"127.0.0.1:0": false, "[::1]:0": false, "0.0.0.0:0": true, ":0": true} {
		d, err := openDoors(t.Context(), address)
		require.NoError(t, err, address)
		require.Equal(t, open, d.open(), address)
		require.Equal(t, open, d.warning() != "", "%s: others are told of only when they can come in", address)

		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })} //nolint:gosec // a test
		go func() { served <- d.serve(ctx, server) }()
		for _, at := range []string{d.url(), d.agentsURL()} {
			parsed, err := url.Parse(at)
			require.NoError(t, err)
			require.True(t, net.ParseIP(parsed.Hostname()).IsLoopback(), "%s: %s", address, at)
			require.Equal(t, "here", get(t, at))
		}
		cancel()
		require.NoError(t, <-served, address)
	}
}

func get(t *testing.T, at string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close() //nolint:errcheck // read-only
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}

func TestFlagsThatNameAChoiceRefuseOtherWordsBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	for _, line := range [][]string{{"dev", "--fabric", "ethernet"}, {"dev", "--speed", "warp"}, {"demo", "--fabric", ""}} {
		dir := filepath.Join(t.TempDir(), "data")
		root := command()
		root.SetArgs(append(line, "--data-dir", dir))
		err := root.ExecuteContext(t.Context())
		require.ErrorContains(t, err, "want ", line)
		require.Equal(t, cli.ExitUsage, cli.ExitStatus(err), line)
		require.NoDirExists(t, dir)
	}
}

func TestAnAddressThatIsTakenSaysWhatToDo(t *testing.T) {
	t.Parallel()
	d, err := openDoors(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(d.close)
	_, err = openDoors(t.Context(), d.front.Addr().String())
	require.ErrorContains(t, err, "--listen 127.0.0.1:8090")
}

// TestHoldDataDir is no test of its own: it is the other process of the test below, since a lock keeps out other processes only.
func TestHoldDataDir(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("LEASEHOLD_TEST_HOLD")
	if dir == "" {
		return
	}
	release, err := claimDataDir(dir, time.Now())
	require.NoError(t, err)
	defer release()
	require.NoError(t, claim{PID: os.Getpid(), URL: "http://127.0.0.1:4711", Since: time.Now()}.write(dir))
	_, err = io.WriteString(os.Stdout, "held\n")
	require.NoError(t, err)
	_, _ = io.ReadAll(os.Stdin) // until the parent lets go, or is gone
}

func TestASecondInstanceOnTheSameDataIsToldWhoIsThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHoldDataDir$") //nolint:gosec // this very test
	other.Env = append(os.Environ(), "LEASEHOLD_TEST_HOLD="+dir)
	letGo, err := other.StdinPipe()
	require.NoError(t, err)
	said, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	_, err = io.ReadFull(said, make([]byte, len("held\n")))
	require.NoError(t, err)

	_, err = claimDataDir(dir, time.Now())
	require.ErrorContains(t, err, "an instance runs already on "+dir)
	for _, want := range []string{"process " + strconv.Itoa(other.Process.Pid), "http://127.0.0.1:4711", "--data-dir " + dir + "-2", "--listen "} {
		require.Contains(t, err.Error(), want)
	}
	require.NoError(t, letGo.Close())
	_, _ = io.ReadAll(said)
	require.NoError(t, other.Wait())

	release, err := claimDataDir(dir, time.Now())
	require.NoError(t, err, "its lock ended with it")
	release()
	require.NoFileExists(t, filepath.Join(dir, claimFile))
}
