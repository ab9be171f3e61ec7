package container

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// errTooLarge says that an archive holds more than is allowed.
var errTooLarge = errors.New("the image is larger than is allowed")

// maxEntries bounds an archive's files: a large distribution with CUDA has a quarter of a million.
const maxEntries = 4_000_000

// unpack writes an archive's files below dir. Names that lead out of dir, also by way of links in the archive, are refused by os.Root.
// Devices are left out: a container has those that it is given. So are extended attributes: file capabilities mean nothing to
// processes that may gain no privileges.
func unpack(r io.Reader, name, dir string, maxBytes int64) error {
	plain, end, err := decompress(bufio.NewReaderSize(r, 1<<20), name)
	if err != nil {
		return err
	}
	defer end()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // nothing hangs on it
	u := &unpacking{Root: root, left: maxBytes}
	for archive := tar.NewReader(plain); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return u.finish()
		}
		if err == nil {
			err = u.entry(header, archive)
		}
		if err != nil {
			return fmt.Errorf("unpack: %w", err)
		}
	}
}

func decompress(r io.Reader, name string) (io.Reader, func(), error) {
	switch path.Ext(name) {
	case ".gz":
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, nil, fmt.Errorf("unpack: %w", err)
		}
		return z, func() {}, nil
	case ".zst":
		z, err := zstd.NewReader(r, zstd.WithDecoderMaxMemory(256<<20), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, nil, fmt.Errorf("unpack: %w", err)
		}
		return z, z.Close, nil
	default:
		return r, func() {}, nil
	}
}

// unpacking is an archive being unpacked.
type unpacking struct {
	*os.Root

	left    int64 // bytes that may still come
	entries int
	dirs    []*tar.Header // their modes are set last, so that a read-only one can be filled
}

func (u *unpacking) entry(h *tar.Header, content io.Reader) error {
	if u.entries++; u.entries > maxEntries {
		return errTooLarge
	}
	name := path.Clean(strings.TrimLeft(h.Name, "/"))
	if !filepath.IsLocal(name) {
		return fmt.Errorf("%q leads out of the image", h.Name)
	}
	h.Name = name
	if name != "." {
		if err := u.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		u.dirs = append(u.dirs, h)
		return ignore(u.Mkdir(name, 0o700), name == "." || u.isDir(name))
	case tar.TypeReg:
		return u.file(h, content)
	case tar.TypeSymlink:
		if err := errors.Join(u.replace(name), u.Symlink(h.Linkname, name)); err != nil {
			return err
		}
		return u.Lchown(name, h.Uid, h.Gid)
	case tar.TypeLink:
		target := path.Clean(strings.TrimLeft(h.Linkname, "/"))
		return errors.Join(u.replace(name), u.Link(target, name))
	default:
		return nil
	}
}

func ignore(err error, known bool) error {
	if known {
		return nil
	}
	return err
}

func (u *unpacking) isDir(name string) bool {
	info, err := u.Lstat(name)
	return err == nil && info.IsDir()
}

// replace makes room: a later entry of the same name counts.
func (u *unpacking) replace(name string) error {
	err := u.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (u *unpacking) file(h *tar.Header, content io.Reader) error {
	if u.left -= h.Size; u.left < 0 {
		return errTooLarge
	}
	if err := u.replace(h.Name); err != nil {
		return err
	}
	f, err := u.OpenFile(h.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, content, h.Size)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return u.own(h)
}

// own gives owner first and mode then: a change of owner takes set-user-id away.
func (u *unpacking) own(h *tar.Header) error {
	mode := h.FileInfo().Mode()
	return errors.Join(
		u.Lchown(h.Name, h.Uid, h.Gid), u.Chmod(h.Name, mode.Perm()|mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky)),
		u.Chtimes(h.Name, h.ModTime, h.ModTime),
	)
}

func (u *unpacking) finish() error {
	for _, dir := range slices.Backward(u.dirs) {
		if !u.isDir(dir.Name) {
			continue // a later entry took its place
		}
		if err := u.own(dir); err != nil {
			return err
		}
	}
	return nil
}
