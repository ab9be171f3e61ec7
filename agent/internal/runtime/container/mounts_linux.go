package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// A place's mounts are made in a mount namespace that only its container's processes are in. So they are not in the host's table, no other
// process can hold them, and they go when the last process of the container does, however that ends.

// privately runs fn on a thread with a mount namespace of its own, which ends with it. What fn starts is in the namespace too.
func privately(fn func() error) error {
	return onOwnThread(func() error {
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
		}
		if err != nil {
			return fmt.Errorf("make mount namespace: %w", err)
		}
		return fn()
	})
}

// onOwnThread runs fn on a thread that ends with it, so that fn may put it where no other code should run. A process's first thread never
// ends, and is passed over.
func onOwnThread(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			result <- onOwnThread(fn) // on another, since this one is taken
			runtime.UnlockOSThread()
			return
		}
		result <- fn() // and never unlocked: a locked thread ends with its goroutine
	}()
	return <-result
}

// mounted is where a place's file systems are, within its mount namespace.
type mounted struct {
	root string // the container's: the image with the tenant's changes over it
	data string // what it finds as /scratch
}

// mount makes a place's file systems. seed fills the tenant's layer when it is new.
func (d *Driver) mount(ctx context.Context, p place, seed func(layer string) error) (mounted, error) {
	base := filepath.Join(d.cfg.Run, d.id(p)) // below directories that the container's root may pass through, unlike those of the state
	image, scratch, root := filepath.Join(base, "image"), filepath.Join(base, "scratch"), filepath.Join(base, "root")
	m := mounted{root: root, data: filepath.Join(scratch, "data")}
	tree, err := d.shiftedImage(ctx, p)
	if err != nil {
		return m, err
	}
	defer tree.Close() //nolint:errcheck // the mount stays
	// The root is made on the host, too, and stays empty there: runc starts its commands for a container from a directory of that name.
	if err := os.MkdirAll(root, 0o711); err != nil { //nolint:gosec // the container's root passes through
		return m, fmt.Errorf("make mount point: %w", err)
	}
	if err := unix.Mount("tmpfs", base, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=711,size=1m"); err != nil {
		return m, fmt.Errorf("mount %s: %w", base, err)
	}
	for _, dir := range []string{image, scratch, root} {
		if err := os.Mkdir(dir, 0o711); err != nil { //nolint:gosec // the container's root passes through
			return m, fmt.Errorf("make mount point: %w", err)
		}
	}
	if err := unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, image, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return m, fmt.Errorf("mount image: %w", err)
	}
	if err := mountScratch(d.scratchOf(p), scratch); err != nil {
		return m, err
	}
	if err := d.layers(p, scratch, seed); err != nil {
		return m, err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", image, filepath.Join(scratch, "upper"), filepath.Join(scratch, "work"))
	if err := unix.Mount("overlay", root, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return m, fmt.Errorf("mount root file system: %w", err)
	}
	return m, nil
}

// removeMountPoints removes what mount left on the host: empty directories.
func (d *Driver) removeMountPoints(p place) error {
	base := filepath.Join(d.cfg.Run, d.id(p))
	for _, dir := range []string{filepath.Join(base, "root"), base} {
		if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove mount point: %w", err)
		}
	}
	return nil
}

func mountScratch(file, at string) error {
	device, err := attach(file)
	if err != nil {
		return err
	}
	defer device.Close() //nolint:errcheck // the mount holds it
	if err := unix.Mount(device.Name(), at, "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, ""); err != nil {
		return fmt.Errorf("mount scratch: %w", err)
	}
	return nil
}

// layers makes the directories of a new scratch file system. The tenant sees upper through the overlay and data as /scratch, never the
// directory that they lie in, so that what is there is what was made here.
func (d *Driver) layers(p place, scratch string, seed func(layer string) error) error {
	owner := int(d.uidOf(p))
	work, data, upper, fresh := filepath.Join(scratch, "work"), filepath.Join(scratch, "data"), filepath.Join(scratch, "upper"), filepath.Join(scratch, "upper.new")
	if exists(upper) {
		return nil
	}
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("make layers: %w", err)
	}
	for _, dir := range []string{work, data, fresh} {
		if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as a root directory is
			return fmt.Errorf("make layers: %w", err)
		}
		if err := os.Chown(dir, owner, owner); err != nil {
			return fmt.Errorf("make layers: %w", err)
		}
	}
	if err := seed(fresh); err != nil {
		return fmt.Errorf("make layers: %w", err)
	}
	if err := errors.Join(syncAll(scratch), os.Rename(fresh, upper), syncAll(scratch)); err != nil {
		return fmt.Errorf("make layers: %w", err)
	}
	return nil
}

// shiftedImage returns a read-only view of the image in which its users are the place's: 0 is the place's first, and so on.
func (d *Driver) shiftedImage(ctx context.Context, p place) (*os.File, error) {
	users, err := d.userNamespace(ctx, p)
	if err != nil {
		return nil, err
	}
	defer users.Close() //nolint:errcheck // nothing hangs on it
	fd, err := unix.OpenTree(unix.AT_FDCWD, d.images.of(p.Image), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open image: %w", err)
	}
	tree := os.NewFile(uintptr(fd), "image")
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID, Userns_fd: uint64(users.Fd())}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return nil, fmt.Errorf("map the image's users: %w", errors.Join(err, tree.Close()))
	}
	return tree, nil
}

// userNamespace returns a handle of a user namespace with the place's users. Only a process can bring one about; it ends at once.
func (d *Driver) userNamespace(ctx context.Context, p place) (*os.File, error) {
	mapping := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(d.uidOf(p)), Size: uidsPerPlace}}
	cmd := exec.CommandContext(ctx, d.cfg.Init, "-P") //nolint:gosec // the operator names the program
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: mapping, GidMappings: mapping, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("make user namespace: %w", err)
	}
	file, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	if killed := cmd.Process.Kill(); err == nil {
		err = killed
	}
	_ = cmd.Wait() //nolint:errcheck // it was killed
	if err != nil {
		return nil, fmt.Errorf("make user namespace: %w", err)
	}
	return file, nil
}
