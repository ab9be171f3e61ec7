// Package smp reads what InfiniBand ports really hold: it encodes and decodes management datagrams (MADs), sends subnet
// management packets along directed routes, and asks the subnet administrator for paths.
//
// Layouts and numbers are those of the InfiniBand Architecture Specification, volume 1: chapter 13 (MAD header), 14 (subnet
// management) and 15 (subnet administration). Everything on the wire is big-endian.
//
// A Transport carries the datagrams. There are two: ibsim's sockets (package ibsim), on which this package is tested, and the
// kernel's /dev/infiniband/umad* (OpenUmad), which follows the kernel's documented interface and was not tried on hardware.
package smp

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// MADSize is the size of every management datagram, in bytes.
const MADSize = 256

// MAD is one management datagram.
type MAD [MADSize]byte

// Management classes.
const (
	classSubnLID      = 0x01 // subnet management, LID-routed
	classSubnDirected = 0x81 // subnet management, directed route
	classSubnAdm      = 0x03 // subnet administration
)

// Methods.
const (
	methodGet      = 0x01
	methodSet      = 0x02
	responseBit    = 0x80
	directionBit   = 0x8000 // of a directed-route SMP's status: set on the way back
	permissiveLID  = 0xffff
	baseVersion    = 1
	subnVersion    = 1
	subnAdmVersion = 2
)

// Attributes.
const (
	attrNodeDescription = 0x10
	attrNodeInfo        = 0x11
	attrSwitchInfo      = 0x12
	attrPortInfo        = 0x15
	attrPKeyTable       = 0x16
	attrPathRecord      = 0x35
)

// Offsets into a MAD.
const (
	offBaseVersion  = 0
	offClass        = 1
	offClassVersion = 2
	offMethod       = 3
	offStatus       = 4
	offHopCount     = 7
	offTID          = 8
	offAttribute    = 16
	offModifier     = 20
	offMKey         = 24
	offDrSLID       = 32
	offDrDLID       = 34
	offSubnData     = 64
	subnDataSize    = 64
	offInitialPath  = 128
	offSAAttrOffset = 44
	offSACompMask   = 48
	offSAData       = 56
)

// MaxHops is how long a directed route can be.
const MaxHops = 63

// Path is a directed route: the output port to take at each hop, beginning at the local port. An empty path is the local node.
type Path []byte

// String writes the path as infiniband-diags do: "0,1,5".
func (p Path) String() string {
	var s strings.Builder
	s.WriteByte('0')
	for _, port := range p {
		fmt.Fprintf(&s, ",%d", port)
	}
	return s.String()
}

// Then returns the path with one more hop; the receiver is not changed.
func (p Path) Then(port byte) Path {
	next := make(Path, len(p)+1)
	copy(next, p)
	next[len(p)] = port
	return next
}

// Parent returns the path without its last hop. The local node is its own parent.
func (p Path) Parent() Path {
	if len(p) == 0 {
		return p
	}
	return p[:len(p)-1]
}

// TID returns the part of the transaction id that belongs to the sender: the low 32 bits. The simulator and the kernel both
// put a number of their own into the high 32 bits.
func (m *MAD) TID() uint32 { return binary.BigEndian.Uint32(m[offTID+4:]) }

// SetTID sets the sender's part of the transaction id.
func (m *MAD) SetTID(tid uint32) { binary.BigEndian.PutUint64(m[offTID:], uint64(tid)) }

// IsResponse reports whether the datagram answers another.
func (m *MAD) IsResponse() bool { return m[offMethod]&responseBit != 0 }

// Class returns the management class.
func (m *MAD) Class() byte { return m[offClass] }

// Status returns the status without the direction bit.
func (m *MAD) Status() uint16 { return binary.BigEndian.Uint16(m[offStatus:]) &^ directionBit }

func (m *MAD) subnData() []byte { return m[offSubnData : offSubnData+subnDataSize] }

// newDirected builds a directed-route SMP.
func newDirected(method byte, path Path, attribute uint16, modifier uint32, mkey uint64) (MAD, error) {
	var m MAD
	if len(path) > MaxHops {
		return m, fmt.Errorf("build SMP: %d hops, at most %d", len(path), MaxHops)
	}
	m[offBaseVersion], m[offClass], m[offClassVersion], m[offMethod] = baseVersion, classSubnDirected, subnVersion, method
	m[offHopCount] = byte(len(path)) //nolint:gosec // checked above
	binary.BigEndian.PutUint16(m[offAttribute:], attribute)
	binary.BigEndian.PutUint32(m[offModifier:], modifier)
	binary.BigEndian.PutUint64(m[offMKey:], mkey)
	binary.BigEndian.PutUint16(m[offDrSLID:], permissiveLID)
	binary.BigEndian.PutUint16(m[offDrDLID:], permissiveLID)
	copy(m[offInitialPath+1:], path)
	return m, nil
}
