package durable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// ErrLocked says that another process has the directory.
var ErrLocked = errors.New("another process uses this directory")

// Lock is a process's claim to a directory. It ends with the process, however that ends.
type Lock struct{ file *os.File }

// LockDir claims dir, which is made if need be. ErrLocked.
func LockDir(dir string) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, ErrLocked), file.Close())
	}
	return &Lock{file: file}, nil
}

// Unlock gives the directory up.
func (l *Lock) Unlock() error { return l.file.Close() }
