// Command serviceos builds the service OS, which machines that are leased whole boot from the network: Debian's kernel, and an initramfs of a
// static busybox, the kernel modules that a network needs, and the agent. The same inputs make the same bytes.
package main

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// options are what it is built of.
type options struct {
	kernelRoot, busybox, agent, ca, out string
	modules                             []string
}

// defaultModules are those that virtual machines need; what drives NVMe is in Debian's kernel. For real machines name their network
// cards' drivers, and use the kernel that has them (linux-image-amd64 instead of linux-image-cloud-amd64).
const defaultModules = "virtio_pci,virtio_net,qemu_fw_cfg"

func main() {
	var o options
	var modules string
	flag.StringVar(&o.kernelRoot, "kernel", "", "directory into which Debian's linux-image package was unpacked")
	flag.StringVar(&o.busybox, "busybox", "", "busybox-static's program")
	flag.StringVar(&o.agent, "agent", "", "leasehold-agent, built with CGO_ENABLED=0")
	flag.StringVar(&o.ca, "ca-file", "", "PEM file with the authority of the control plane's certificate, if it is a private one")
	flag.StringVar(&modules, "modules", defaultModules, "kernel modules to load, besides those that they need")
	flag.StringVar(&o.out, "out", "", "directory for vmlinuz, initramfs.gz and manifest.json")
	flag.Parse()
	o.modules = strings.Split(modules, ",")
	if err := build(o); err != nil {
		fmt.Fprintln(os.Stderr, "serviceos:", err)
		os.Exit(1)
	}
}

// manifest says what was built.
type manifest struct {
	KernelVersion string            `json:"kernel_version"`
	SHA256        map[string]string `json:"sha256"` // by file name
}

func build(o options) error {
	if err := os.MkdirAll(o.out, 0o755); err != nil { //nolint:gosec // it is served to everybody
		return err
	}
	kernel, version, err := findKernel(o.kernelRoot)
	if err != nil {
		return err
	}
	files, err := contents(o, version)
	if err != nil {
		return err
	}
	if err := writeInitramfs(filepath.Join(o.out, "initramfs.gz"), files); err != nil {
		return fmt.Errorf("write initramfs: %w", err)
	}
	if err := copyFile(filepath.Join(o.out, "vmlinuz"), kernel); err != nil {
		return fmt.Errorf("copy kernel: %w", err)
	}
	m := manifest{KernelVersion: version, SHA256: map[string]string{}}
	for _, name := range []string{"vmlinuz", "initramfs.gz"} {
		if m.SHA256[name], err = sum(filepath.Join(o.out, name)); err != nil {
			return err
		}
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, "manifest.json"), append(data, '\n'), 0o644) //nolint:gosec // it is served to everybody
}

// findKernel returns the one kernel below the directory, and its version.
func findKernel(root string) (string, string, error) {
	found, err := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	if err != nil || len(found) == 0 {
		return "", "", fmt.Errorf("there is no kernel in %s", filepath.Join(root, "boot"))
	}
	newest := found[len(found)-1]
	return newest, strings.TrimPrefix(filepath.Base(newest), "vmlinuz-"), nil
}

func writeInitramfs(path string, files []file) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	// No name and no time in the header: the same inputs make the same bytes.
	packed, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return errors.Join(writeCPIO(packed, files), packed.Close(), f.Close())
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func sum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // only read
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
