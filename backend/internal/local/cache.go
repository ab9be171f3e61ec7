// Package local starts what a single machine needs beside the backend itself: a private PostgreSQL (package postgres), a
// Temporal server (package temporal), and other children, all of which end when the process that started them ends,
// however it ends.
package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// CacheDir returns the directory that keeps what can be fetched or built again: database binaries, the Temporal server.
// It is $LEASEHOLD_CACHE, else leasehold under $XDG_CACHE_HOME, else ~/.cache/leasehold. It is made if missing.
func CacheDir() (string, error) {
	dir := os.Getenv("LEASEHOLD_CACHE")
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find cache directory: %w", err)
		}
		dir = filepath.Join(base, "leasehold")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find cache directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // programs, no secrets: other users may read them.
		return "", fmt.Errorf("make cache directory: %w", err)
	}
	return dir, nil
}

// ErrLocked is returned by TryLock when another process holds the lock.
var ErrLocked = errors.New("held by another process")

// Lock waits for the exclusive lock on the file at path, which is made if missing, and returns the function that gives
// it back. The kernel gives it back as well when the process ends, so a crash leaves no stale lock behind.
func Lock(path string) (unlock func(), err error) { return flock(path, syscall.LOCK_EX) }

// TryLock is Lock that does not wait: it returns ErrLocked when another process holds the lock.
func TryLock(path string) (unlock func(), err error) {
	return flock(path, syscall.LOCK_EX|syscall.LOCK_NB)
}

// held keeps the files of the locks that are held within reach: the garbage collector closes a file that is not, and a closed file
// gives its lock back, whether or not anybody still has the function that does so.
var held sync.Map //nolint:gochecknoglobals // locks are the process's, whoever took them

func flock(path string, how int) (func(), error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for {
		err = syscall.Flock(int(file.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, ErrLocked)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	held.Store(file, nil)
	return func() { held.Delete(file); _ = file.Close() }, nil
}
