package nvme

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// passThrough is the kernel's struct nvme_passthru_cmd (include/uapi/linux/nvme_ioctl.h).
type passThrough struct {
	opcode, flags       uint8
	_                   uint16
	namespace           uint32
	cdw2, cdw3          uint32
	metadata, address   uint64
	metadataLen, length uint32
	cdw10, cdw11        uint32
	cdw12, cdw13        uint32
	cdw14, cdw15        uint32
	timeoutMillis       uint32
	result              uint32
}

// ioctlAdmin is NVME_IOCTL_ADMIN_CMD, _IOWR('N', 0x41, struct nvme_passthru_cmd).
const ioctlAdmin = 0xC0484E41

// Device is a drive of this machine, by its controller's character device.
type Device struct {
	root       string
	name       string // nvme0
	namespaces []uint32
	blocks     map[uint32]string
}

var _ Drive = (*Device)(nil)

// List finds the drives below root ("/" for this machine's). Drives that hang on a network are none of ours.
func List(root string) ([]*Device, error) {
	controllers, err := filepath.Glob(filepath.Join(root, "sys/class/nvme/nvme*"))
	if err != nil {
		return nil, fmt.Errorf("list NVMe drives: %w", err)
	}
	var found []*Device
	for _, c := range controllers {
		if transport, err := os.ReadFile(filepath.Join(c, "transport")); err == nil && strings.TrimSpace(string(transport)) != "pcie" {
			continue
		}
		d := &Device{root: root, name: filepath.Base(c), blocks: map[uint32]string{}}
		if err := d.findNamespaces(); err != nil {
			return nil, err
		}
		found = append(found, d)
	}
	return found, nil
}

// Name is the controller's in /dev, e.g. nvme0.
func (d *Device) Name() string { return d.name }

func (d *Device) findNamespaces() error {
	entries, err := os.ReadDir(filepath.Join(d.root, "sys/block"))
	if err != nil {
		return fmt.Errorf("list namespaces of %s: %w", d.name, err)
	}
	// With multipathing on, a namespace's block device is named after its subsystem: nvme0n1 all the same, of the same number.
	own := regexp.MustCompile("^" + d.name + `n\d+$`)
	for _, e := range entries {
		if !own.MatchString(e.Name()) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(d.root, "sys/block", e.Name(), "nsid"))
		if err != nil {
			return fmt.Errorf("read number of namespace %s: %w", e.Name(), err)
		}
		id, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 32)
		if err != nil {
			return fmt.Errorf("read number of namespace %s: %w", e.Name(), err)
		}
		d.namespaces = append(d.namespaces, uint32(id))
		d.blocks[uint32(id)] = e.Name()
	}
	return nil
}

// Namespaces implements Drive.
func (d *Device) Namespaces() []uint32 { return d.namespaces }

// Do implements Admin.
func (d *Device) Do(_ context.Context, c Command) error {
	f, err := os.OpenFile(filepath.Join(d.root, "dev", d.name), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open controller: %w", err)
	}
	defer f.Close()                                                                                                                                   //nolint:errcheck // nothing is written through it
	raw := passThrough{opcode: c.Opcode, namespace: c.Namespace, cdw10: c.CDW10, cdw11: c.CDW11, timeoutMillis: uint32(c.Timeout / time.Millisecond)} //nolint:gosec // at most hours
	if len(c.Data) > 0 {
		raw.address, raw.length = uint64(uintptr(unsafe.Pointer(&c.Data[0]))), uint32(len(c.Data)) //nolint:gosec // the kernel fills it
	}
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), ioctlAdmin, uintptr(unsafe.Pointer(&raw))) //nolint:gosec // the kernel's interface
	runtime.KeepAlive(c.Data)
	switch {
	case errno != 0:
		return fmt.Errorf("admin command %#02x: %w", c.Opcode, errno)
	case status != 0:
		return &StatusError{Status: uint16(status)} //nolint:gosec // 15 bits
	default:
		return nil
	}
}

// Open implements Drive.
func (d *Device) Open(namespace uint32) (Blocks, error) {
	return OpenBlocks(filepath.Join(d.root, "dev", d.blocks[namespace]))
}

// File is a block device that is opened past the kernel's cache.
type File struct {
	f    *os.File
	size int64
}

// OpenBlocks opens a block device.
func OpenBlocks(path string) (*File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT|unix.O_EXCL, 0)
	if err != nil {
		return nil, fmt.Errorf("open drive: %w", err)
	}
	size, err := f.Seek(0, 2)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("size drive: %w", err), f.Close())
	}
	return &File{f: f, size: size}, nil
}

// Size implements Medium.
func (f *File) Size() int64 { return f.size }

// Close closes the device.
func (f *File) Close() error { return f.f.Close() }

// Flush implements Medium. Reading is direct, so there is nothing to forget but what the kernel itself may have read.
func (f *File) Flush() error {
	if err := f.f.Sync(); err != nil {
		return err
	}
	return unix.IoctlSetInt(int(f.f.Fd()), unix.BLKFLSBUF, 0)
}

// ReadAt implements io.ReaderAt, through memory that is aligned as direct input wants it.
func (f *File) ReadAt(p []byte, at int64) (int, error) {
	buffer := aligned(len(p))
	n, err := f.f.ReadAt(buffer, at)
	return copy(p, buffer[:n]), err
}

// WriteAt implements io.WriterAt.
func (f *File) WriteAt(p []byte, at int64) (int, error) {
	buffer := aligned(len(p))
	copy(buffer, p)
	return f.f.WriteAt(buffer, at)
}

// aligned returns memory at a multiple of a block.
func aligned(size int) []byte {
	raw := make([]byte, size+blockBytes)
	skip := blockBytes - int(uintptr(unsafe.Pointer(&raw[0]))%blockBytes) //nolint:gosec // its address is what matters
	return raw[skip : skip+size : skip+size]
}
