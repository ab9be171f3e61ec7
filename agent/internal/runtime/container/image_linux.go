package container

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/leasehold/leasehold/agent/internal/durable"
)

// ErrNoImage says that an image is not in the directory, or is not what its checksum says, and ErrImageName that no image could be called that.
var (
	ErrNoImage   = errors.New("no such image")
	ErrImageName = errors.New("not an image's name")
)

// images are the root file systems that containers are made of. An image NAME is NAME.tar, NAME.tar.gz or NAME.tar.zst in one directory,
// beside it NAME.tar….sha256 in sha256sum's form. It is unpacked once, checked, and from then on only read: every tenant's changes lie in
// a layer of the tenant's own.
type images struct {
	dir      string // where the operator puts them
	unpacked string // where they lie ready, by digest
	maxBytes int64

	mu sync.Mutex // one is unpacked at a time
}

// ready returns the digest of an image and the directory in which it lies unpacked.
func (s *images) ready(ctx context.Context, name string) (digest, dir string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	archive, want, err := s.find(name)
	if err != nil {
		return "", "", err
	}
	dir = s.of(want)
	if _, err := os.Stat(dir); err == nil {
		return want, dir, nil
	}
	if err := s.unpack(ctx, archive, want, dir); err != nil {
		return "", "", fmt.Errorf("unpack image %s: %w", name, err)
	}
	return want, dir, nil
}

// of returns where an image of a digest lies.
func (s *images) of(digest string) string {
	return filepath.Join(s.unpacked, strings.TrimPrefix(digest, "sha256:"))
}

// find returns an image's archive and the digest that it must have.
func (s *images) find(name string) (archive, digest string, err error) {
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`).MatchString(name) {
		return "", "", fmt.Errorf("image %q: %w", name, ErrImageName)
	}
	for _, suffix := range []string{".tar", ".tar.gz", ".tar.zst"} {
		archive = filepath.Join(s.dir, name+suffix)
		sum, err := os.ReadFile(archive + ".sha256")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", "", fmt.Errorf("read checksum of image %s: %w", name, err)
		}
		first, _, _ := strings.Cut(strings.TrimSpace(string(sum)), " ")
		if raw, err := hex.DecodeString(first); err != nil || len(raw) != sha256.Size {
			return "", "", fmt.Errorf("image %s: its .sha256 does not begin with a SHA-256: %w", name, ErrNoImage)
		}
		return archive, "sha256:" + strings.ToLower(first), nil
	}
	return "", "", fmt.Errorf("image %s is not in %s, or has no .sha256 beside it: %w", name, s.dir, ErrNoImage)
}

// unpack makes dir of an archive, whole or not at all.
func (s *images) unpack(ctx context.Context, archive, want, dir string) (err error) {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it was only read
	lock, err := s.lock()
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // the lock goes with it
	if exists(dir) {
		return nil // another driver was faster
	}
	fresh := dir + ".new"
	if err := errors.Join(os.RemoveAll(fresh), os.Mkdir(fresh, 0o755)); err != nil { //nolint:gosec // it becomes the root directory of containers
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(fresh))
		}
	}()
	// The sum is of all bytes of the file, also of those that the archive's reader has no use for.
	sum := sha256.New()
	whole := io.TeeReader(&untilDone{ctx: ctx, Reader: file}, sum)
	if err := unpack(whole, archive, fresh, s.maxBytes); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, whole); err != nil {
		return err
	}
	if got := digestOf(sum); got != want {
		return fmt.Errorf("%s has %s and should have %s: %w", filepath.Base(archive), got, want, ErrNoImage)
	}
	if err := syncAll(fresh); err != nil {
		return err
	}
	return errors.Join(os.Rename(fresh, dir), durable.SyncDir(s.unpacked))
}

// lock keeps other drivers, which may share the directory, from unpacking at the same time.
func (s *images) lock() (*os.File, error) {
	if err := os.MkdirAll(s.unpacked, 0o700); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(s.unpacked, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func digestOf(sum hash.Hash) string { return "sha256:" + hex.EncodeToString(sum.Sum(nil)) }

// untilDone reads until its context ends.
type untilDone struct {
	io.Reader

	ctx context.Context //nolint:containedctx // a reader lasts as long as its call
}

// Read implements io.Reader.
func (r *untilDone) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}
