package container

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// claimAs is a driver that starts.
func claimAs(t *testing.T, run, name, dir string, slots int) (users, error) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(run, name), 0o755))
	require.NoError(t, os.MkdirAll(dir, 0o755))
	return claimUsers(filepath.Join(run, name), dir, slots)
}

func TestNoTwoDriversOfAMachineHaveAUserInCommon(t *testing.T) {
	t.Parallel()
	run, state := t.TempDir(), t.TempDir()
	dir := func(name string) string { return filepath.Join(state, name) }
	a, err := claimAs(t, run, "a", dir("a"), 128)
	require.NoError(t, err)
	require.Equal(t, users{Dir: dir("a"), First: firstUID, Count: 128 << 16}, a)
	b, err := claimAs(t, run, "b", dir("b"), 16)
	require.NoError(t, err)
	require.Equal(t, a.First+a.Count, b.First)
	again, err := claimAs(t, run, "b", dir("b"), 16)
	require.NoError(t, err)
	require.Equal(t, b, again)

	_, err = claimAs(t, run, "a", dir("c"), 16)
	require.ErrorContains(t, err, dir("a"), "a name is one driver's")
	_, err = claimAs(t, run, "b", dir("b"), 128)
	require.ErrorContains(t, err, "too few")

	// The machine was started anew, and somebody else came first.
	require.NoError(t, os.RemoveAll(filepath.Join(run, "a")))
	c, err := claimAs(t, run, "c", dir("c"), 16)
	require.NoError(t, err)
	require.Equal(t, uint32(firstUID), c.First)
	_, err = claimAs(t, run, "a", dir("a"), 128)
	require.ErrorContains(t, err, dir("c"), "files are owned by these users; they cannot be others now")

	// A directory that is gone claims nothing.
	require.NoError(t, os.RemoveAll(dir("c")))
	back, err := claimAs(t, run, "a", dir("a"), 128)
	require.NoError(t, err)
	require.Equal(t, a, back)
	_, err = claimAs(t, run, "d", dir("d"), 1<<13)
	require.ErrorContains(t, err, "none are left")
}
