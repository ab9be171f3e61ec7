package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/leasehold/leasehold/agent/internal/durable"
	"github.com/leasehold/leasehold/agent/protocol"
)

// A place's disk is a file with a file system in it, of exactly the size that the place is worth and with all its blocks reserved: a tenant
// who fills it is in nobody's way, and nobody can take what it has not used yet.

// makeScratch makes the file, whole or not at all. One that is there is kept.
func makeScratch(ctx context.Context, path string, size int64) error {
	if exists(path) {
		return nil
	}
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("make scratch: %w", err)
	}
	file, err := os.OpenFile(fresh, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("make scratch: %w", err)
	}
	if err := unix.Fallocate(int(file.Fd()), 0, 0, size); err != nil {
		return fmt.Errorf("make scratch: reserve %d bytes: %w", size, errors.Join(err, file.Close(), os.Remove(fresh)))
	}
	// nodiscard: discarding would give the reserved blocks back. Reserved for root: nothing, the tenant's root is nobody here.
	out, err := exec.CommandContext(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1", fresh).CombinedOutput() //nolint:gosec // the path is ours
	if err != nil {
		return fmt.Errorf("make scratch: mkfs.ext4: %w: %s", errors.Join(err, file.Close(), os.Remove(fresh)), firstLine(string(out)))
	}
	if err := errors.Join(file.Sync(), file.Close(), os.Rename(fresh, path)); err != nil {
		return fmt.Errorf("make scratch: %w", err)
	}
	return durable.SyncDir(filepath.Dir(path))
}

// attach makes a block device of the file. It goes by itself with its last user; the file that is returned is one, until it is closed.
func attach(path string) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("attach scratch: %w", err)
	}
	defer control.Close() //nolint:errcheck // nothing hangs on it
	backing, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("attach scratch: %w", err)
	}
	defer backing.Close() //nolint:errcheck // the device holds it
	for {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("attach scratch: %w", err)
		}
		device, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", number), os.O_RDWR, 0)
		if err != nil {
			return nil, fmt.Errorf("attach scratch: %w", err)
		}
		config := unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO}} //nolint:gosec // a descriptor is small
		copy(config.Info.File_name[:len(config.Info.File_name)-1], path)
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			return device, nil
		}
		if err = errors.Join(err, device.Close()); !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("attach scratch: %w", err)
		}
	}
}

// attached reports whether a block device still is made of the file.
func attached(path string) (bool, error) {
	devices, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return false, fmt.Errorf("list loop devices: %w", err)
	}
	for _, name := range devices {
		file, err := os.ReadFile(name)
		if err == nil && strings.TrimSuffix(strings.TrimSpace(string(file)), " (deleted)") == path {
			return true, nil
		}
	}
	return false, nil
}

const (
	eraseChunk = 4 << 20
	blockBytes = 4096
	// scratchSamples is how many of the blocks that were written are read back.
	scratchSamples = 256
)

// extent is a part of a file that was written: [from, to).
type extent struct{ from, to int64 }

// written lists what was ever written to the file. What was only reserved reads as zeros and was nobody's.
func written(file *os.File) ([]extent, error) {
	if err := file.Sync(); err != nil {
		return nil, err
	}
	var found []extent
	for at := int64(0); ; {
		from, err := unix.Seek(int(file.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return found, nil
		}
		if err != nil {
			return nil, err
		}
		to, err := unix.Seek(int(file.Fd()), from, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		found = append(found, extent{from, to})
		at = to
	}
}

// inPlace lists the file systems that write over a block where it lies. On others an overwritten block's old content stays.
func inPlace(kind int64) string {
	return map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs"}[kind]
}

// eraseScratch overwrites every block of the file that was ever written, reads samples of them back from the disk, and removes it.
func (d *Driver) eraseScratch(ctx context.Context, path string, step func(percent int, phase string)) (protocol.DeviceWipe, error) {
	row := protocol.DeviceWipe{
		Kind: "scratch", Identity: filepath.Base(filepath.Dir(path)), Capability: "overwrite in place", Method: "every block that was written is overwritten with zeros; samples of them are read back from the disk",
		Status: protocol.Wiped, StartedAt: d.cfg.Now(),
	}
	err := d.erase(ctx, path, &row, step)
	row.FinishedAt = d.cfg.Now()
	if err != nil {
		row.Status, row.Detail = protocol.WipeFailed, err.Error()
	}
	return row, ctx.Err()
}

func (d *Driver) erase(ctx context.Context, path string, row *protocol.DeviceWipe, step func(int, string)) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		row.Method, row.ReadBackSamples = "nothing is there", 1
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // what was written was synced
	var below unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &below); err != nil {
		return err
	}
	if inPlace(int64(below.Type)) == "" { //nolint:unconvert // its width differs by architecture
		row.Capability = fmt.Sprintf("the file system below (%#x) may keep what is overwritten", below.Type)
		row.Status = protocol.WipeUnsupported
		return nil
	}
	extents, err := written(file)
	if err != nil {
		return err
	}
	if err := overwrite(ctx, file, extents, step); err != nil {
		return err
	}
	if err := readBack(file, extents, row); err != nil {
		return err
	}
	if row.ReadBackDirty > 0 {
		return fmt.Errorf("%d of %d blocks still hold data", row.ReadBackDirty, row.ReadBackSamples)
	}
	return errors.Join(os.Remove(path), durable.SyncDir(filepath.Dir(path)))
}

func overwrite(ctx context.Context, file *os.File, extents []extent, step func(int, string)) error {
	zeros := make([]byte, eraseChunk)
	total, done := int64(1), int64(0)
	for _, e := range extents {
		total += e.to - e.from
	}
	for _, e := range extents {
		for at := e.from; at < e.to; {
			if err := ctx.Err(); err != nil {
				return err
			}
			n, err := file.WriteAt(zeros[:min(int64(len(zeros)), e.to-at)], at)
			if err != nil {
				return err
			}
			at, done = at+int64(n), done+int64(n)
			step(20+int(35*done/total), "scratch") // of the whole wipe
		}
	}
	return file.Sync()
}

// readBack reads from the disk itself: what the kernel remembers of the file is dropped first.
func readBack(file *os.File, extents []extent, row *protocol.DeviceWipe) error {
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return err
	}
	block := make([]byte, blockBytes)
	for _, at := range sampled(extents) {
		n, err := file.ReadAt(block, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		row.ReadBackSamples++
		for _, b := range block[:n] {
			if b != 0 {
				row.ReadBackDirty++
				break
			}
		}
	}
	if len(extents) == 0 {
		row.ReadBackSamples = 1 // that nothing was written is what was looked at
	}
	return nil
}

// sampled chooses blocks: the first of each extent as far as that goes, then any.
func sampled(extents []extent) []int64 {
	var blocks []int64
	var all int64
	for _, e := range extents {
		all += (e.to - e.from) / blockBytes
		if len(blocks) < scratchSamples/2 {
			blocks = append(blocks, e.from)
		}
	}
	for len(blocks) < scratchSamples && all > 0 {
		n := rand.Int64N(all) //nolint:gosec // a sample needs no secrecy
		for _, e := range extents {
			if here := (e.to - e.from) / blockBytes; n >= here {
				n -= here
				continue
			}
			blocks = append(blocks, e.from+n*blockBytes)
			break
		}
	}
	return blocks
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
