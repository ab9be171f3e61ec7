package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnArchiveIsUnpackedAsItWasPacked(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("cpio"); err != nil {
		t.Skip("cpio is not installed (apt-get install cpio)")
	}
	files := []file{
		{name: "bin/sh", mode: typeLink | 0o777, data: []byte("busybox")},
		{name: "bin", mode: typeDir | 0o755},
		{name: "bin/busybox", mode: typeRegular | 0o755, data: []byte("odd")},
		{name: "empty", mode: typeRegular | 0o600},
	}
	var first, second bytes.Buffer
	require.NoError(t, writeCPIO(&first, files))
	files[0], files[2] = files[2], files[0]
	require.NoError(t, writeCPIO(&second, files))
	require.Equal(t, first.Bytes(), second.Bytes(), "the same files make the same bytes")
	dir := t.TempDir()
	unpack := exec.CommandContext(t.Context(), "cpio", "-idm", "--quiet", "--no-absolute-filenames")
	unpack.Dir, unpack.Stdin = dir, &first
	out, err := unpack.CombinedOutput()
	require.NoError(t, err, "%s", out)
	data, err := os.ReadFile(filepath.Join(dir, "bin/sh"))
	require.NoError(t, err)
	require.Equal(t, "odd", string(data))
	info, err := os.Stat(filepath.Join(dir, "empty"))
	require.NoError(t, err)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	require.Zero(t, info.ModTime().Unix())
}

func TestAFileThatIsThereTwiceIsRefused(t *testing.T) {
	t.Parallel()
	require.Error(t, writeCPIO(&bytes.Buffer{}, []file{{name: "a"}, {name: "b"}, {name: "a"}}))
}

// kernelRoot is where set-up unpacks Debian's kernel.
func kernelRoot(t *testing.T) string {
	t.Helper()
	root := filepath.Join(os.Getenv("LEASEHOLD_CACHE"), "kernel")
	if _, _, err := findKernel(root); err != nil {
		t.Skip("there is no kernel of Debian's (tools/setup qemu)")
	}
	return root
}

func TestModulesComeBehindWhatTheyNeed(t *testing.T) {
	t.Parallel()
	root := kernelRoot(t)
	_, version, err := findKernel(root)
	require.NoError(t, err)
	there, err := indexModules(filepath.Join(root, "lib/modules", version))
	require.NoError(t, err)
	order, err := there.loadOrder(strings.Split(defaultModules, ","))
	require.NoError(t, err)
	at := map[string]int{}
	for i, name := range order {
		at[name] = i
	}
	require.Greater(t, at["virtio_net"], at["net_failover"])
	require.Greater(t, at["virtio_net"], at["virtio_ring"])
	require.Greater(t, at["virtio_pci"], at["virtio"])
	_, err = there.loadOrder([]string{"no_such_module"})
	require.Error(t, err)
}

func TestTheSameInputsMakeTheSameServiceOS(t *testing.T) {
	t.Parallel()
	root := kernelRoot(t)
	busybox := filepath.Join(t.TempDir(), "busybox")
	require.NoError(t, os.WriteFile(busybox, []byte("a program"), 0o600))
	manifests := make([]string, 2)
	for i := range manifests {
		out := t.TempDir()
		require.NoError(t, build(options{kernelRoot: root, busybox: busybox, agent: busybox, out: out, modules: strings.Split(defaultModules, ",")}))
		data, err := os.ReadFile(filepath.Join(out, "manifest.json"))
		require.NoError(t, err)
		manifests[i] = string(data)
	}
	require.Equal(t, manifests[0], manifests[1])
}
