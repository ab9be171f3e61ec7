// Package host reads what a Linux machine says of itself under /proc and /sys, but for GPUs and adapters.
package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/leasehold/leasehold/agent/protocol"
)

// sectorBytes is what /sys/block counts sizes in, whatever the device's own sectors are.
const sectorBytes = 512

// Machine is a machine whose files lie below Root; "/" for the one that this runs on.
type Machine struct{ Root string }

func (m Machine) text(elements ...string) string {
	data, err := os.ReadFile(filepath.Join(append([]string{m.Root}, elements...)...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// BootID is the kernel's id of this boot.
func (m Machine) BootID() (string, error) {
	id := m.text("proc/sys/kernel/random/boot_id")
	if id == "" {
		return "", errors.New("read boot id: the kernel shows none")
	}
	return id, nil
}

// Hostname is the kernel's.
func (m Machine) Hostname() string { return m.text("proc/sys/kernel/hostname") }

// Serial is the chassis', "" when it cannot be read, e.g. without root.
func (m Machine) Serial() string {
	if serial := m.text("sys/class/dmi/id/chassis_serial"); serial != "" {
		return serial
	}
	return m.text("sys/class/dmi/id/product_serial")
}

// UptimeMillis is how long the machine has run; it only grows within a boot.
func (m Machine) UptimeMillis() int64 {
	seconds, _, _ := strings.Cut(m.text("proc/uptime"), " ")
	v, err := strconv.ParseFloat(seconds, 64)
	if err != nil {
		return 0
	}
	return int64(v * 1000)
}

// Inventory reads what does not need a driver. What cannot be read is unknown.
func (m Machine) Inventory(context.Context) (protocol.NodeInventory, error) {
	disks, err := m.disks()
	if err != nil {
		return protocol.NodeInventory{}, err
	}
	model, cores := m.cpu()
	return protocol.NodeInventory{
		Hostname: m.Hostname(), Serial: m.Serial(), Manufacturer: m.text("sys/class/dmi/id/sys_vendor"), Product: m.text("sys/class/dmi/id/product_name"),
		CPUModel: model, CPUCores: cores, MemoryBytes: m.memory(), Kernel: m.text("proc/sys/kernel/osrelease"),
		GPUs: []protocol.GPU{}, HCAs: []protocol.HCA{}, Disks: disks,
	}, nil
}

// cpu returns the model and the number of cores, hyper-threads not counted.
func (m Machine) cpu() (string, int) {
	model, processors, socket := "", 0, ""
	cores := map[string]bool{}
	for line := range strings.Lines(m.text("proc/cpuinfo")) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "processor":
			processors++
		case "model name":
			model = value
		case "physical id":
			socket = value
		case "core id":
			cores[socket+"/"+value] = true
		}
	}
	if len(cores) == 0 {
		return model, processors
	}
	return model, len(cores)
}

func (m Machine) memory() int64 {
	for line := range strings.Lines(m.text("proc/meminfo")) {
		if kib, found := strings.CutPrefix(line, "MemTotal:"); found {
			v, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(kib), " kB"), 10, 64)
			if err != nil {
				return 0
			}
			return v * 1024
		}
	}
	return 0
}

// disks lists what a tenant of the whole machine could write to: not what is virtual, removable or read-only.
func (m Machine) disks() ([]protocol.Disk, error) {
	disks := []protocol.Disk{}
	entries, err := os.ReadDir(filepath.Join(m.Root, "sys/block"))
	if errors.Is(err, fs.ErrNotExist) {
		return disks, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list disks: %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		dir := filepath.Join("sys/block", name)
		if m.text(dir, "removable") == "1" || m.text(dir, "ro") == "1" {
			continue
		}
		if _, err := os.Stat(filepath.Join(m.Root, dir, "device")); err != nil {
			continue // loop, ram, dm and such have no device
		}
		sectors, err := strconv.ParseInt(m.text(dir, "size"), 10, 64)
		if err != nil || sectors == 0 {
			continue
		}
		disks = append(disks, protocol.Disk{
			Name: name, Model: m.text(dir, "device/model"), Serial: m.text(dir, "device/serial"), Firmware: firstOf(m.text(dir, "device/firmware_rev"), m.text(dir, "device/rev")),
			SizeBytes: sectors * sectorBytes,
		})
	}
	return disks, nil
}

func firstOf(candidates ...string) string {
	for _, c := range candidates {
		if c != "" {
			return c
		}
	}
	return ""
}
