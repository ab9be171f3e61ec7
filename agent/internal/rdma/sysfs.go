package rdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Root is where the kernel shows adapters.
const Root = "/sys/class/infiniband"

// infiniBand is the kernel's word for a port that is on a subnet.
const infiniBand = "InfiniBand"

// Sysfs reads adapters as the kernel shows them.
type Sysfs struct {
	root string
	now  func() time.Time

	mu    sync.Mutex
	down  map[string]time.Time // ports that are not active, since when, by device/port
	meter map[string]reading   // the last reading of each port
	drops map[string][]time.Time
	last  map[string]uint64 // link_downed as last seen
}

// NewSysfs returns a driver that reads below root; Root on a real machine.
func NewSysfs(root string, now func() time.Time) *Sysfs {
	return &Sysfs{root: root, now: now, down: map[string]time.Time{}, meter: map[string]reading{}, drops: map[string][]time.Time{}, last: map[string]uint64{}}
}

// Inventory implements Driver. A machine without the directory has no adapters. What a driver does not show is unknown.
func (s *Sysfs) Inventory(ctx context.Context) ([]protocol.HCA, error) {
	entries, err := os.ReadDir(s.root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list adapters: %w", err)
	}
	var hcas []protocol.HCA
	for _, entry := range entries {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("list adapters: %w", ctx.Err())
		}
		if hca, ok := s.adapter(entry.Name()); ok {
			hcas = append(hcas, hca)
		}
	}
	return hcas, nil
}

func (s *Sysfs) adapter(device string) (protocol.HCA, bool) {
	dir := filepath.Join(s.root, device)
	numbers, err := os.ReadDir(filepath.Join(dir, "ports"))
	if err != nil {
		return protocol.HCA{}, false // not an adapter
	}
	hca := protocol.HCA{
		Device: device, NodeGUID: parseGUID(text(dir, "node_guid")), BoardID: text(dir, "board_id"), Firmware: text(dir, "fw_ver"),
		PCIAddress: pciAddress(dir), NUMANode: number(text(dir, "device", "numa_node"), -1), Ports: []protocol.HCAPort{},
	}
	for _, entry := range numbers {
		if n, err := strconv.Atoi(entry.Name()); err == nil {
			hca.Ports = append(hca.Ports, port(filepath.Join(dir, "ports", entry.Name()), n))
		}
	}
	slices.SortFunc(hca.Ports, func(a, b protocol.HCAPort) int { return a.Number - b.Number })
	return hca, true
}

func port(dir string, n int) protocol.HCAPort {
	rate, width := parseRate(text(dir, "rate"))
	return protocol.HCAPort{
		Number: n, GUID: parseGID(text(dir, "gids", "0")), LinkLayer: text(dir, "link_layer"), State: afterColon(text(dir, "state")),
		PhysicalState: afterColon(text(dir, "phys_state")), RateGbps: rate, Width: width,
		LID: number(text(dir, "lid"), 0), SMLID: number(text(dir, "sm_lid"), 0),
	}
}

// text reads a small file, "" when it cannot be read.
func text(elements ...string) string {
	data, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(data))
}

// number reads decimal, or hex with 0x.
func number(s string, otherwise int) int {
	v, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		return otherwise
	}
	return int(v)
}

// afterColon turns "4: ACTIVE" into "ACTIVE".
func afterColon(s string) string {
	_, word, found := strings.Cut(s, ":")
	if !found {
		return s
	}
	return strings.TrimSpace(word)
}

// parseRate reads "400 Gb/sec (4X NDR)". The kernel writes 2.5 and such for the oldest rates; those are rounded down.
func parseRate(s string) (int, string) {
	gbps, rest, _ := strings.Cut(s, " ")
	whole, _, _ := strings.Cut(gbps, ".")
	rate, err := strconv.Atoi(whole)
	if err != nil {
		return 0, ""
	}
	_, width, found := strings.Cut(rest, "(")
	if !found {
		return rate, ""
	}
	width, _, _ = strings.Cut(width, " ")
	return rate, strings.TrimSuffix(width, ")")
}

// parseGUID reads "0002:c903:0030:0010", 0 for anything else.
func parseGUID(s string) protocol.GUID {
	groups := strings.Split(s, ":")
	if len(groups) != 4 {
		return 0
	}
	var guid uint64
	for _, group := range groups {
		v, err := strconv.ParseUint(group, 16, 16)
		if err != nil || len(group) != 4 {
			return 0
		}
		guid = guid<<16 | v
	}
	return protocol.GUID(guid)
}

// parseGID returns the port GUID in a GID: its low half.
func parseGID(s string) protocol.GUID {
	groups := strings.Split(s, ":")
	if len(groups) != 8 {
		return 0
	}
	return parseGUID(strings.Join(groups[4:], ":"))
}

// pciAddress is where the device link of an adapter leads.
func pciAddress(dir string) string {
	target, err := os.Readlink(filepath.Join(dir, "device"))
	if err != nil {
		return ""
	}
	return strings.ToLower(filepath.Base(target))
}

// PKeys implements Driver.
func (s *Sysfs) PKeys(ctx context.Context, guid protocol.GUID) (protocol.PortTable, error) {
	hcas, err := s.Inventory(ctx)
	if err != nil {
		return protocol.PortTable{}, fmt.Errorf("read P_Keys of %v: %w", guid, err)
	}
	for _, hca := range hcas {
		for _, p := range hca.Ports {
			if p.GUID == guid && guid != 0 {
				return s.table(hca.Device, p), nil
			}
		}
	}
	return protocol.PortTable{}, fmt.Errorf("read P_Keys of %v: %w", guid, ErrNotFound)
}

// table reads a whole table or none of it: one entry that cannot be read could be the one that matters.
func (s *Sysfs) table(device string, p protocol.HCAPort) protocol.PortTable {
	dir := filepath.Join(s.root, device, "ports", strconv.Itoa(p.Number), "pkeys")
	table := protocol.PortTable{GUID: p.GUID, Keys: []protocol.PKey{}, Source: "sysfs", Detail: device + "/" + strconv.Itoa(p.Number)}
	keys, err := readTable(dir)
	if err != nil {
		table.Detail += ": " + err.Error()
		return table
	}
	table.Readable, table.Keys = true, trim(keys)
	return table
}

func readTable(dir string) ([]protocol.PKey, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list table: %w", err)
	}
	keys := make([]protocol.PKey, len(entries))
	seen := 0
	for _, entry := range entries {
		index, err := strconv.Atoi(entry.Name())
		if err != nil || index < 0 || index >= len(keys) {
			return nil, fmt.Errorf("entry %q is not one of 0 to %d", entry.Name(), len(keys)-1)
		}
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("read entry: %w", err)
		}
		if err := keys[index].UnmarshalText(bytes.TrimSpace(data)); err != nil {
			return nil, fmt.Errorf("entry %d: %w", index, err)
		}
		seen++
	}
	if seen == 0 {
		return nil, errors.New("the table has no entry")
	}
	return keys, nil
}
