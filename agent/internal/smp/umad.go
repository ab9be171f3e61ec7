package smp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's interface to management datagrams: struct ib_user_mad_hdr and the ioctls of <rdma/ib_user_mad.h>, ABI version 5,
// with the P_Key index enabled. Words are native-endian but for addresses.
const (
	umadHeaderSize   = 64
	umadAgent        = 0
	umadStatus       = 4
	umadTimeout      = 8  // milliseconds, for one try
	umadRetries      = 12 // tries after the first, by the kernel
	umadLength       = 16
	umadQPN          = 20 // big-endian, as QKey and LID
	umadQKey         = 24
	umadLID          = 28
	umadRegistration = 28 // sizeof(struct ib_user_mad_reg_req)

	umadEnablePKey    = 0x1b03     // _IO(0x1b, 3)
	umadRegisterAgent = 0xc01c1b01 // _IOWR(0x1b, 1, struct ib_user_mad_reg_req), on amd64 and arm64
)

const (
	umadTryMs   = 200
	umadTries   = 3
	umadWindow  = 32
	umadMinimum = umadHeaderSize + 24 // a request that timed out comes back as its MAD header only
)

// OpenUmad opens one of the kernel's MAD devices, e.g. "/dev/infiniband/umad0"; root may, or a member of its group. It asks the
// kernel for two agents, for directed-route SMPs and for subnet administration.
//
// NOT TRIED ON HARDWARE. It is written to the kernel's documented interface, and tested against a stand-in that speaks it.
func OpenUmad(device string) (Transport, error) {
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", device, err)
	}
	framing, err := registerAgents(fd)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", device, err), unix.Close(fd))
	}
	return newUmad(os.NewFile(uintptr(fd), device), framing), nil //nolint:gosec // a file descriptor is not negative
}

// newUmad leaves repeating to the kernel, which does it without waking us.
func newUmad(device *os.File, framing umadFraming) *Mux {
	return NewMux(device, framing, MuxConfig{Timeout: umadTries*umadTryMs*time.Millisecond + time.Second, Attempts: 1, Window: umadWindow})
}

func registerAgents(fd int) (umadFraming, error) {
	if err := ioctl(fd, umadEnablePKey, nil); err != nil {
		return umadFraming{}, fmt.Errorf("enable P_Key index: %w", err)
	}
	smi, err := registerAgent(fd, classSubnDirected, subnVersion, 0)
	if err != nil {
		return umadFraming{}, fmt.Errorf("register for subnet management: %w", err)
	}
	sa, err := registerAgent(fd, classSubnAdm, subnAdmVersion, gsiQPN)
	if err != nil {
		return umadFraming{}, fmt.Errorf("register for subnet administration: %w", err)
	}
	return umadFraming{smiAgent: smi, saAgent: sa}, nil
}

// registerAgent fills struct ib_user_mad_reg_req: id, 128 bits of unsolicited methods (none), queue pair, class, version, OUI,
// RMPP version (none: every answer that we ask for is one datagram).
func registerAgent(fd int, class, version, qpn byte) (uint32, error) {
	var request [umadRegistration]byte
	request[20], request[21], request[22] = qpn, class, version
	if err := ioctl(fd, umadRegisterAgent, request[:]); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint32(request[:]), nil
}

func ioctl(fd int, request uintptr, argument []byte) error {
	var pointer unsafe.Pointer
	if len(argument) > 0 {
		pointer = unsafe.Pointer(&argument[0]) //nolint:gosec // as ioctl(2) wants it
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(pointer)); errno != 0 { //nolint:gosec // as ioctl(2) wants it
		return errno
	}
	return nil
}

// umadFraming puts the kernel's header before a datagram.
type umadFraming struct{ smiAgent, saAgent uint32 }

// Wrap implements Framing.
func (f umadFraming) Wrap(to Address, request *MAD) []byte {
	frame := make([]byte, umadHeaderSize+MADSize)
	agent := f.smiAgent
	if request.Class() == classSubnAdm {
		agent = f.saAgent
	}
	binary.NativeEndian.PutUint32(frame[umadAgent:], agent)
	binary.NativeEndian.PutUint32(frame[umadTimeout:], umadTryMs)
	binary.NativeEndian.PutUint32(frame[umadRetries:], umadTries-1)
	binary.NativeEndian.PutUint32(frame[umadLength:], uint32(len(frame))) //nolint:gosec // 320
	binary.BigEndian.PutUint32(frame[umadQPN:], to.QPN)
	binary.BigEndian.PutUint32(frame[umadQKey:], to.QKey)
	binary.BigEndian.PutUint16(frame[umadLID:], to.LID)
	copy(frame[umadHeaderSize:], request[:])
	return frame
}

// Unwrap implements Framing.
func (umadFraming) Unwrap(frame []byte) (MAD, bool, error) {
	var mad MAD
	if len(frame) < umadMinimum {
		return mad, false, fmt.Errorf("decode datagram: %d bytes, at least %d", len(frame), umadMinimum)
	}
	copy(mad[:], frame[umadHeaderSize:])
	return mad, binary.NativeEndian.Uint32(frame[umadStatus:]) == 0, nil
}
