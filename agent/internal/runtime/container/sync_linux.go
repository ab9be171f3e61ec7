package container

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// syncAll puts the file system that dir lies on onto its disk.
func syncAll(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(f.Fd())), f.Close())
}
