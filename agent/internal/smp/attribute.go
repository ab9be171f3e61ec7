package smp

import (
	"encoding/binary"
	"strings"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Node types.
const (
	NodeCA     = 1 // a channel adapter: an HCA
	NodeSwitch = 2
)

// Port states.
const (
	StateDown   = 1
	StateInit   = 2
	StateArmed  = 3
	StateActive = 4
)

// NodeInfo says what answered. PortGUID and LocalPort are those of the port through which the request came in.
type NodeInfo struct {
	Type      byte
	Ports     int
	GUID      protocol.GUID
	PortGUID  protocol.GUID
	PKeyCap   int // entries of the P_Key table of a CA's port, or of a switch's port 0
	LocalPort int
}

func decodeNodeInfo(b []byte) NodeInfo {
	return NodeInfo{
		Type:      b[2],
		Ports:     int(b[3]),
		GUID:      protocol.GUID(binary.BigEndian.Uint64(b[12:])),
		PortGUID:  protocol.GUID(binary.BigEndian.Uint64(b[20:])),
		PKeyCap:   int(binary.BigEndian.Uint16(b[28:])),
		LocalPort: int(b[36]),
	}
}

// PortInfo is the state of one port.
type PortInfo struct {
	LID      int
	SMLID    int
	State    byte
	RateGbps int
	Width    string // e.g. "4X"
}

func decodePortInfo(b []byte) PortInfo {
	lanes := lanesOf(b[31])
	return PortInfo{
		LID:      int(binary.BigEndian.Uint16(b[16:])),
		SMLID:    int(binary.BigEndian.Uint16(b[18:])),
		State:    b[32] & 0x0f,
		RateGbps: lanes.count * laneMbps(b[35]>>4, b[62]>>4) / 1000,
		Width:    lanes.name,
	}
}

type lanes struct {
	count int
	name  string
}

// lanesOf decodes LinkWidthActive.
func lanesOf(width byte) lanes {
	switch width {
	case 1:
		return lanes{1, "1X"}
	case 2:
		return lanes{4, "4X"}
	case 4:
		return lanes{8, "8X"}
	case 8:
		return lanes{12, "12X"}
	case 16:
		return lanes{2, "2X"}
	default:
		return lanes{0, ""}
	}
}

// laneMbps decodes LinkSpeedExtActive, and LinkSpeedActive where there is no extended speed. Rates are the nominal ones that
// people use (EDR 25, HDR 50, NDR 100 Gb/s a lane).
func laneMbps(active, extended byte) int {
	switch extended {
	case 1:
		return 14_000 // FDR
	case 2:
		return 25_000 // EDR
	case 4:
		return 50_000 // HDR
	case 8:
		return 100_000 // NDR
	}
	switch active {
	case 1:
		return 2_500
	case 2:
		return 5_000
	case 4:
		return 10_000
	default:
		return 0
	}
}

// SwitchInfo is what we need of a switch's own attribute.
type SwitchInfo struct {
	PKeyCap int // entries of the P_Key table of an external port; 0: the switch cannot enforce partitions
}

func decodeSwitchInfo(b []byte) SwitchInfo {
	return SwitchInfo{PKeyCap: int(binary.BigEndian.Uint16(b[14:]))}
}

func decodeDescription(b []byte) string { return strings.TrimRight(string(b), "\x00 ") }

// pkeysPerBlock is how many entries one SMP carries.
const pkeysPerBlock = 32

func decodePKeyBlock(b []byte) []protocol.PKey {
	keys := make([]protocol.PKey, pkeysPerBlock)
	for i := range keys {
		keys[i] = protocol.PKey(binary.BigEndian.Uint16(b[2*i:]))
	}
	return keys
}

func encodePKeyBlock(b []byte, keys []protocol.PKey) {
	for i, key := range keys {
		binary.BigEndian.PutUint16(b[2*i:], uint16(key))
	}
}

// pkeyBlocks is how many SMPs a table of so many entries takes.
func pkeyBlocks(entries int) int { return (entries + pkeysPerBlock - 1) / pkeysPerBlock }

// trimKeys cuts trailing empty entries; those in the middle stay, so that indexes are the table's.
func trimKeys(keys []protocol.PKey) []protocol.PKey {
	for len(keys) > 0 && keys[len(keys)-1] == 0 {
		keys = keys[:len(keys)-1]
	}
	return keys
}
