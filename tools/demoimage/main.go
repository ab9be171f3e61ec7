// Command demoimage builds the disk image that `make demo NODES=qemu` leases a machine with: a small Debian with cloud-init and SSH, which
// boots by BIOS from an NVMe drive. It is for demonstrations and tests; a site registers images of its own.
//
// It needs root, mmdebstrap, mke2fs and grub-mkimage (tools/setup qemu), and nothing of the running system is touched.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	out := flag.String("out", "", "the image's file")
	flag.Parse()
	if err := build(context.Background(), *out); err != nil {
		fmt.Fprintln(os.Stderr, "demoimage:", err)
		os.Exit(1)
	}
}

// packages are what the image has beside Debian's minimum.
const packages = "systemd-sysv,udev,dbus,openssh-server,cloud-init,linux-image-cloud-amd64,iproute2,sudo,netbase"

// filesBytes is the size of the root file system.
const filesBytes = 640 << 20

func build(ctx context.Context, out string) error {
	work, err := os.MkdirTemp(filepath.Dir(out), ".demoimage-")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer os.RemoveAll(work) //nolint:errcheck // temporary
	root := filepath.Join(work, "root")
	if err := bootstrap(ctx, root); err != nil {
		return err
	}
	kernel, err := furnish(root)
	if err != nil {
		return err
	}
	files := filepath.Join(work, "files")
	if err := run(ctx, "mke2fs", "-q", "-t", "ext4", "-L", "root", "-d", root, files, fmt.Sprint(filesBytes>>20)+"M"); err != nil {
		return err
	}
	core := filepath.Join(work, "core.img")
	if err := makeGRUB(ctx, work, core, kernel); err != nil {
		return err
	}
	made := filepath.Join(work, "image")
	if err := assemble(made, files, core); err != nil {
		return fmt.Errorf("put the image together: %w", err)
	}
	return os.Rename(made, out)
}

func bootstrap(ctx context.Context, root string) error {
	return run(ctx, "mmdebstrap", "--quiet", "--variant=minbase", "--include="+packages,
		"--dpkgopt=path-exclude=/usr/share/{doc,locale,man,info}/*", "--customize-hook=chroot \"$1\" passwd -q -l root", "bookworm", root)
}

// settings are the image's own, beside what a seed says. Keys of one kind are enough, and the locale is there without being made.
const settings = `# Where leased machines are told who they are.
datasource_list: [NoCloud, None]
ssh_genkeytypes: [ed25519]
locale: C.UTF-8
manage_etc_hosts: localhost
apt_preserve_sources_list: true
`

// furnish makes the system one that each machine it boots on may call its own. It returns the kernel's version.
func furnish(root string) (string, error) {
	var errs []error
	write := func(path, text string) {
		path = filepath.Join(root, path)
		errs = append(errs, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)) //nolint:gosec // as these files are on any system
	}
	write("etc/cloud/cloud.cfg.d/90_leasehold.cfg", settings)
	write("etc/fstab", "/dev/root / ext4 defaults 0 1\n")
	write("etc/machine-id", "")
	write("etc/hostname", "leased\n")
	keys, err := filepath.Glob(filepath.Join(root, "etc/ssh/ssh_host_*"))
	errs = append(errs, err)
	for _, path := range append(keys, filepath.Join(root, "var/cache/apt"), filepath.Join(root, "var/lib/apt/lists"), filepath.Join(root, "usr/share/doc")) {
		errs = append(errs, os.RemoveAll(path))
	}
	wants := filepath.Join(root, "etc/systemd/system/multi-user.target.wants")
	errs = append(errs, os.MkdirAll(wants, 0o755)) //nolint:gosec // as on any system
	link := filepath.Join(wants, "systemd-networkd.service")
	if err := os.Symlink("/lib/systemd/system/systemd-networkd.service", link); !errors.Is(err, os.ErrExist) {
		errs = append(errs, err)
	}
	// The kernel has what it needs to find its root: an initial RAM disk would only take time.
	initial, err := filepath.Glob(filepath.Join(root, "boot/initrd*"))
	errs = append(errs, err)
	for _, path := range initial {
		errs = append(errs, os.Remove(path))
	}
	kernels, err := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	errs = append(errs, err)
	if len(kernels) == 0 {
		return "", errors.Join(append(errs, errors.New("the image has no kernel"))...)
	}
	return strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-"), errors.Join(errs...)
}

// run runs a program, and shows what it said when it fails.
func run(ctx context.Context, program string, args ...string) error {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput() //nolint:gosec // our own arguments
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", program, err, out)
	}
	return nil
}
