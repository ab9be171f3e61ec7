package imaging

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Device is a block device, or a file that stands for one.
type Device struct {
	f     *os.File
	size  int64
	block bool
}

// OpenDevice opens a block device for itself alone: one that is mounted is refused.
func OpenDevice(path string) (*Device, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		return nil, fmt.Errorf("open disk: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open disk: %w", err), f.Close())
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("size disk: %w", err), f.Close())
	}
	return &Device{f: f, size: size, block: info.Mode()&fs.ModeDevice != 0}, nil
}

// Size implements Disk.
func (d *Device) Size() int64 { return d.size }

// Sync implements Disk, and lets the kernel see the new partitions.
func (d *Device) Sync() error { return d.f.Sync() }

// Close closes the device.
func (d *Device) Close() error { return d.f.Close() }

// ReadAt implements io.ReaderAt.
func (d *Device) ReadAt(p []byte, at int64) (int, error) { return d.f.ReadAt(p, at) }

// WriteAt implements io.WriterAt.
func (d *Device) WriteAt(p []byte, at int64) (int, error) { return d.f.WriteAt(p, at) }

// Zero implements Disk: by the drive's own command where it has one.
func (d *Device) Zero(at, length int64) error {
	if d.block && at%sectorBytes == 0 && length%sectorBytes == 0 {
		span := [2]uint64{uint64(at), uint64(length)}                                                             //nolint:gosec // both are positive
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, d.f.Fd(), unix.BLKZEROOUT, uintptr(unsafe.Pointer(&span[0]))) //nolint:gosec // the kernel's interface
		if errno == 0 {
			return nil
		}
	}
	zeros := make([]byte, min(length, chunkBytes))
	for done := int64(0); done < length; done += int64(len(zeros)) {
		if _, err := d.f.WriteAt(zeros[:min(int64(len(zeros)), length-done)], at+done); err != nil {
			return err
		}
	}
	return nil
}
