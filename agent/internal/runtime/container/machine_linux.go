package container

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/leasehold/leasehold/agent/internal/durable"
	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/protocol"
)

const (
	// hostShare is the part of cores and memory that the host keeps for itself: one sixteenth, and at least what follows.
	hostShare       = 16
	hostMemoryBytes = 512 << 20
	// scratchShare of the file system's size goes to tenants, in hundredths.
	scratchShare = 90
)

// ReadMachine reads the machine that this runs on, as root/sys and root/proc show it. scratch is the directory that tenants' disks will lie in.
func ReadMachine(root, scratch string, bays []int) (Machine, error) {
	m := Machine{Bays: bays}
	entries, err := filepath.Glob(filepath.Join(root, "sys/devices/system/node/node[0-9]*"))
	if err != nil {
		return m, fmt.Errorf("read machine: %w", err)
	}
	for _, dir := range entries {
		node, err := readNode(root, dir)
		if err != nil {
			return m, fmt.Errorf("read machine: %w", err)
		}
		if len(node.Cores) > 0 { // a node of memory only has nothing for a container to run on
			m.Nodes = append(m.Nodes, node)
		}
	}
	if len(m.Nodes) == 0 {
		return m, fmt.Errorf("read machine: %s shows no NUMA node with processors", root)
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(scratch, &fs); err != nil {
		return m, fmt.Errorf("read machine: size of %s: %w", scratch, err)
	}
	if m.Processes, err = processesOf(root); err != nil {
		return m, fmt.Errorf("read machine: %w", err)
	}
	m.ScratchBytes = int64(fs.Blocks) * int64(fs.Bsize) / 100 * scratchShare //nolint:gosec,unconvert // a disk of 2^63 bytes is not to be had; the width differs by architecture
	return m, nil
}

// processesOf is half of what the kernel can number or have.
func processesOf(root string) (int64, error) {
	least := int64(math.MaxInt64)
	for _, name := range []string{"pid_max", "threads-max"} {
		text, err := os.ReadFile(filepath.Join(root, "proc/sys/kernel", name))
		if err != nil {
			return 0, err
		}
		value, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", name, err)
		}
		least = min(least, value)
	}
	return least / 2, nil
}

func readNode(root, dir string) (NUMANode, error) {
	id, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), "node"))
	if err != nil {
		return NUMANode{}, fmt.Errorf("read %s: %w", dir, err)
	}
	list, err := os.ReadFile(filepath.Join(dir, "cpulist"))
	if err != nil {
		return NUMANode{}, err
	}
	cpus, err := parseList(string(list))
	if err != nil {
		return NUMANode{}, err
	}
	siblings := map[int][]int{}
	for _, cpu := range cpus {
		path := filepath.Join(root, "sys/devices/system/cpu", fmt.Sprintf("cpu%d", cpu), "topology/thread_siblings_list")
		if text, err := os.ReadFile(path); err == nil { // none: the processor is its own core
			if siblings[cpu], err = parseList(string(text)); err != nil {
				return NUMANode{}, err
			}
		} else {
			siblings[cpu] = nil
		}
	}
	memory, err := memoryOf(filepath.Join(dir, "meminfo"))
	cores := coresOf(siblings)
	return NUMANode{ID: id, Cores: cores[len(cores)/hostShare:], MemoryBytes: max(memory-max(memory/hostShare, hostMemoryBytes), 0)}, err
}

// memoryOf reads MemTotal of a node's meminfo: "Node 0 MemTotal:  24731176 kB".
func memoryOf(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if _, after, found := strings.Cut(line, "MemTotal:"); found {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(after), "kB")), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read %s: %w", path, err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("read %s: no MemTotal", path)
}

// BaysOf returns the NUMA node of each GPU by bay, and keeps it in dir: a GPU that fell off the bus moves no other's share.
func BaysOf(dir string, devices []protocol.GPU) ([]int, error) {
	path := filepath.Join(dir, "bays.json")
	var kept []int
	if _, err := durable.ReadJSON(path, &kept); err != nil {
		return nil, fmt.Errorf("read bays: %w", err)
	}
	if len(devices) < len(kept) {
		return kept, nil
	}
	bays := make([]int, 0, len(devices))
	for _, g := range gpu.SortByPCI(devices) {
		bays = append(bays, g.NUMANode)
	}
	if slices.Equal(bays, kept) {
		return bays, nil
	}
	if err := durable.WriteJSON(path, bays, 0o600); err != nil {
		return nil, fmt.Errorf("keep bays: %w", err)
	}
	return bays, nil
}
