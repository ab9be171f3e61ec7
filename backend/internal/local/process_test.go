package local_test

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/internal/local"
)

// starterDir tells the test binary, run again by a test, that it is a starter to be killed, and where its child's directory is.
const starterDir = "LEASEHOLD_TEST_STARTER_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(starterDir); dir != "" {
		beKilled(dir)
	}
	os.Exit(m.Run())
}

// beKilled starts a child whose standard output is this process's, which ends for the test's reader only when both are dead.
func beKilled(dir string) {
	_, err := local.Start(context.Background(), local.Spec{
		Name: "child", Path: "/bin/sh", Args: []string{"-c", "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"},
		Stdout: os.Stdout, RemoveOnDeath: []string{dir},
	})
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error())
		os.Exit(1)
	}
	select {}
}

func TestAChildEndsWhenItsStarterIsKilled(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.Mkdir(dir, 0o700))
	starter := exec.CommandContext(t.Context(), os.Args[0])
	starter.Env = append(os.Environ(), starterDir+"="+dir)
	out, err := starter.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, starter.Start())
	reader := bufio.NewReader(out)
	line, err := reader.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "up\n", line)

	require.NoError(t, starter.Process.Kill())
	_, err = io.Copy(io.Discard, reader) // returns when the child, the pipe's last writer, is gone.
	require.NoError(t, err)
	require.Error(t, starter.Wait(), "it was killed")
	require.Eventually(t, func() bool {
		_, err := os.Stat(dir)
		return os.IsNotExist(err)
	}, 10*time.Second, 10*time.Millisecond, "the watchdog removes what the child left")
}

func TestAChildThatIgnoresTheSignalIsKilled(t *testing.T) {
	t.Parallel()
	reader, writer := io.Pipe()
	process, err := local.Start(t.Context(), local.Spec{
		Name: "stubborn", Path: "/bin/sh", Args: []string{"-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"},
		Stdout: writer, Grace: 200 * time.Millisecond,
	})
	require.NoError(t, err)
	line, err := bufio.NewReader(reader).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "up", strings.TrimSpace(line))
	require.ErrorContains(t, process.Stop(t.Context()), "was killed")
}

func TestALockKeepsASecondHolderAway(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := local.TryLock(path)
	require.NoError(t, err)
	_, err = local.TryLock(path)
	require.ErrorIs(t, err, local.ErrLocked)
	unlock()
	_, err = local.TryLock(path)
	require.NoError(t, err)
	// A lock is held also when nobody keeps the function that gives it back, as in `leasehold dev`: whatever was out of reach by now has been
	// swept when what is dropped here was.
	for range 2 {
		swept := make(chan struct{})
		runtime.AddCleanup(new([16]byte), func(done chan struct{}) { close(done) }, swept)
		require.Eventually(t, func() bool {
			runtime.GC()
			select {
			case <-swept:
				return true
			default:
				return false
			}
		}, 10*time.Second, time.Millisecond)
	}
	_, err = local.TryLock(path)
	require.ErrorIs(t, err, local.ErrLocked)
	path = filepath.Join(t.TempDir(), "lock")
	unlock, err = local.Lock(path)
	require.NoError(t, err)
	unlock()
}
