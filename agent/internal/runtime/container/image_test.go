//go:build linux

package container

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
)

func archiveOf(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		content := []byte(h.Linkname)
		if h.Typeflag == tar.TypeReg {
			h.Size, h.Linkname = int64(len(content)), ""
		}
		h.Uid, h.Gid = os.Getuid(), os.Getgid()
		require.NoError(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			_, err := w.Write(content)
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

func file(name, content string, mode int64) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Linkname: content}
}

func link(name, target string, kind byte) tar.Header {
	return tar.Header{Name: name, Typeflag: kind, Mode: 0o777, Linkname: target}
}

// shelf is a directory of images.
func shelf(t *testing.T, name string, data []byte, sum string) *images {
	t.Helper()
	s := &images{dir: t.TempDir(), unpacked: filepath.Join(t.TempDir(), "images"), maxBytes: 1 << 20}
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, name), data, 0o644))
	if sum == "" {
		sum = fmt.Sprintf("%x  %s\n", sha256.Sum256(data), name)
	}
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, name+".sha256"), []byte(sum), 0o644))
	return s
}

func TestAnImageIsUnpackedOnceWithModesOwnersAndLinks(t *testing.T) {
	t.Parallel()
	plain := archiveOf(t,
		tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, tar.Header{Name: "./ro/", Typeflag: tar.TypeDir, Mode: 0o555}, file("./ro/inside", "x", 0o644),
		file("bin/sh", "shell", 0o4755), link("bin/ash", "sh", tar.TypeSymlink), link("bin/dash", "bin/sh", tar.TypeLink), file("bin/sh2", "old", 0o600),
		file("bin/sh2", "new", 0o600), link("lib", "usr/lib", tar.TypeSymlink), file("usr/lib/libc", "c", 0o644), tar.Header{Name: "dev/null", Typeflag: tar.TypeChar, Mode: 0o666},
	)
	var zipped, squeezed bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, err := z.Write(plain)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	s, err := zstd.NewWriter(&squeezed)
	require.NoError(t, err)
	_, err = s.Write(plain)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	for name, data := range map[string][]byte{"tiny.tar": plain, "tiny.tar.gz": zipped.Bytes(), "tiny.tar.zst": squeezed.Bytes()} {
		images := shelf(t, name, data, "")
		digest, dir, err := images.ready(t.Context(), "tiny")
		require.NoError(t, err, name)
		require.Equal(t, fmt.Sprintf("sha256:%x", sha256.Sum256(data)), digest)
		for path, want := range map[string]string{"bin/ash": "shell", "bin/dash": "shell", "bin/sh2": "new", "usr/lib/libc": "c", "ro/inside": "x"} {
			got, err := os.ReadFile(filepath.Join(dir, path))
			require.NoError(t, err)
			require.Equal(t, want, string(got), path)
		}
		info, err := os.Stat(filepath.Join(dir, "bin/sh"))
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o755)|fs.ModeSetuid, info.Mode())
		info, err = os.Stat(filepath.Join(dir, "ro"))
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o555), info.Mode().Perm())
		require.NoFileExists(t, filepath.Join(dir, "dev/null"))

		require.NoError(t, os.WriteFile(filepath.Join(images.dir, name), []byte("gone"), 0o644))
		_, again, err := images.ready(t.Context(), "tiny")
		require.NoError(t, err, "what is ready needs no archive")
		require.Equal(t, dir, again)
		require.NoError(t, os.Chmod(filepath.Join(dir, "ro"), 0o755)) //nolint:gosec // so that the test's directory can be removed
	}
}

func TestAnImageThatIsNotWhatItShouldBeIsNotUsed(t *testing.T) {
	t.Parallel()
	good := archiveOf(t, file("a", "x", 0o644))
	outside := t.TempDir()
	for name, c := range map[string]struct {
		data []byte
		sum  string
		says string
	}{
		"a wrong sum":            {good, fmt.Sprintf("%x", sha256.Sum256([]byte("other"))), "should have"},
		"more behind its end":    {append(bytes.Clone(good), "trailer"...), fmt.Sprintf("%x", sha256.Sum256(good)), "should have"},
		"no sum at all":          {good, "not a sum", "SHA-256"},
		"cut short":              {good[:300], "", "unpack"},
		"garbage":                {bytes.Repeat([]byte("garbage"), 300), "", "unpack"},
		"too large":              {archiveOf(t, file("big", string(make([]byte, 2<<20)), 0o644)), "", "larger"},
		"a path that climbs":     {archiveOf(t, file("../../evil", "x", 0o644)), "", "leads out"},
		"a link that climbs":     {archiveOf(t, link("way", "../../..", tar.TypeSymlink), file("way/evil", "x", 0o644)), "", "unpack"},
		"an absolute link":       {archiveOf(t, link("way", outside, tar.TypeSymlink), file("way/evil", "x", 0o644)), "", "unpack"},
		"a hard link outside":    {archiveOf(t, link("passwd", "../../../../etc/passwd", tar.TypeLink)), "", "unpack"},
		"a hard link by a link":  {archiveOf(t, link("way", "/etc", tar.TypeSymlink), link("passwd", "way/passwd", tar.TypeLink)), "", "unpack"},
		"a file as a directory":  {archiveOf(t, file("a", "x", 0o644), file("a/b", "x", 0o644)), "", "unpack"},
		"a directory in the way": {archiveOf(t, file("a/b", "x", 0o644), file("a", "x", 0o644)), "", "unpack"},
	} {
		images := shelf(t, "bad.tar", c.data, c.sum)
		_, _, err := images.ready(t.Context(), "bad")
		require.ErrorContains(t, err, c.says, name)
		left, err := filepath.Glob(filepath.Join(images.unpacked, "[^.]*"))
		require.NoError(t, err)
		require.Empty(t, left, "%s: nothing of it stays", name)
	}
	left, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Empty(t, left)
	images := shelf(t, "good.tar", good, "")
	for _, name := range []string{"good.tar", "no-such"} {
		_, _, err := images.ready(t.Context(), name)
		require.ErrorIs(t, err, ErrNoImage, name)
	}
	for _, name := range []string{"", "../good", "Good", "a/b", ".hidden", "good\n"} {
		_, _, err := images.ready(t.Context(), name)
		require.ErrorIs(t, err, ErrImageName, name)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = images.ready(done, "good")
	require.ErrorIs(t, err, context.Canceled)
	_, _, err = images.ready(t.Context(), "good")
	require.NoError(t, err)
}

func FuzzAnArchiveOfGarbageStaysInItsDirectory(f *testing.F) {
	f.Add(archiveOf(f, file("a", "x", 0o644), link("b", "a", tar.TypeLink)))
	f.Add(archiveOf(f, link("way", "../..", tar.TypeSymlink), file("way/evil", "x", 0o644)))
	f.Fuzz(func(t *testing.T, data []byte) {
		parent := t.TempDir()
		dir := filepath.Join(parent, "in")
		require.NoError(t, os.Mkdir(dir, 0o755))
		_ = unpack(bytes.NewReader(data), "x.tar", dir, 1<<16)
		entries, err := os.ReadDir(parent)
		require.NoError(t, err)
		require.Len(t, entries, 1)
	})
}
