package ibsim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold/leasehold/agent/internal/smp"
)

// The simulator's control messages: magic, client, type, length (native-endian 32-bit words), 64 bytes of data.
const (
	controlMagic      = 0xdeadbeef
	controlSize       = 80
	controlData       = 16
	controlConnect    = 1
	controlDisconnect = 2
	connectSize       = 44 // id, queue pair, is-SM, 32 bytes of node name
	connectName       = 12
)

// The simulator's datagrams: destination and source LID and queue pair, status, context or length, then the MAD.
const (
	requestSize   = 288
	requestDLID   = 0
	requestSLID   = 4
	requestDQP    = 8
	requestStatus = 16
	requestLength = 24
	requestMAD    = 32
)

// clientNumber counts the clients that this process has opened: the simulator tells clients apart by such a number, which
// for its own library is the process id. Ours start far above any process id.
//
//nolint:gochecknoglobals // unique within the process by nature
var clientNumber atomic.Uint32

const firstClientNumber = 1 << 26

// Dial attaches to a simulator as the named node and returns a transport for datagrams from there. A simulator takes at most
// ten clients, OpenSM included; one that is not closed keeps its place for good.
func Dial(ctx context.Context, base, node string) (smp.Transport, error) {
	link, err := dial(ctx, base, node)
	if err != nil {
		return nil, fmt.Errorf("attach to simulator %s as %q: %w", base, node, err)
	}
	// The simulator says at once what it cannot deliver, so an attempt that times out was lost in a full queue.
	return smp.NewMux(link, framing{}, smp.MuxConfig{Timeout: 500 * time.Millisecond, Attempts: 3, Window: 8}), nil
}

// link is one client's pair of sockets.
type link struct {
	control net.Conn
	data    *os.File
	client  uint32
}

func dial(ctx context.Context, base, node string) (*link, error) {
	if len(node) > maxNameLength {
		return nil, fmt.Errorf("node name has %d bytes, at most %d", len(node), maxNameLength)
	}
	number := firstClientNumber + uint32(os.Getpid())<<8 + clientNumber.Add(1)%256 //nolint:gosec // a process id is positive and small
	dialer := net.Dialer{LocalAddr: abstract(fmt.Sprintf("%s:ctl%d", base, number))}
	control, err := dialer.DialContext(ctx, "unixgram", abstract(base+":ctl").Name)
	if err != nil {
		return nil, err
	}
	l := &link{control: control}
	// The data socket must be bound before the request: the simulator connects to it.
	fd, err := bindAbstract(fmt.Sprintf("%s:in%d", base, number))
	if err != nil {
		return nil, errors.Join(err, control.Close())
	}
	l.data = os.NewFile(uintptr(fd), base) //nolint:gosec // a file descriptor is not negative
	if err := l.connect(ctx, number, node); err != nil {
		return nil, errors.Join(err, control.Close(), l.data.Close())
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("@%s:out%d\x00", base, l.client)}); err != nil {
		return nil, errors.Join(fmt.Errorf("connect data socket: %w", err), l.Close()) //nolint:contextcheck // see Close
	}
	return l, nil
}

// abstract names a socket as the simulator does: its addresses include a trailing zero byte.
func abstract(name string) *net.UnixAddr {
	return &net.UnixAddr{Name: "@" + name + "\x00", Net: "unixgram"}
}

func bindAbstract(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open data socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + name + "\x00"}); err != nil {
		return -1, errors.Join(fmt.Errorf("bind data socket: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// connect asks for a place and learns its number.
func (l *link) connect(ctx context.Context, number uint32, node string) error {
	info := make([]byte, connectSize)
	binary.NativeEndian.PutUint32(info, number)
	copy(info[connectName:], node)
	answer, err := l.ask(ctx, controlConnect, info)
	if err != nil {
		return fmt.Errorf("ask for a place: %w", err)
	}
	l.client = binary.NativeEndian.Uint32(answer)
	return nil
}

// errRefused is the simulator's answer when the node is unknown or all places are taken.
var errRefused = errors.New("refused: unknown node, or no place left")

const controlTimeout = 5 * time.Second

func (l *link) ask(ctx context.Context, kind uint32, data []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	if deadline, ok := ctx.Deadline(); ok {
		if err := l.control.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	message := make([]byte, controlSize)
	binary.NativeEndian.PutUint32(message[0:], controlMagic)
	binary.NativeEndian.PutUint32(message[4:], l.client)
	binary.NativeEndian.PutUint32(message[8:], kind)
	binary.NativeEndian.PutUint32(message[12:], uint32(len(data))) //nolint:gosec // at most 64
	copy(message[controlData:], data)
	if _, err := l.control.Write(message); err != nil {
		return nil, err
	}
	if _, err := l.control.Read(message); err != nil {
		return nil, err
	}
	if binary.NativeEndian.Uint32(message[8:]) != kind {
		return nil, errRefused
	}
	return message[controlData:], nil
}

func (l *link) Read(b []byte) (int, error)  { return l.data.Read(b) }
func (l *link) Write(b []byte) (int, error) { return l.data.Write(b) }

// Close gives the place back. A simulator that is gone has no place to give back, which is no fault.
func (l *link) Close() error {
	_, _ = l.ask(context.Background(), controlDisconnect, nil) //nolint:forbidigo // closing must not depend on a caller's patience
	return errors.Join(l.control.Close(), l.data.Close())
}

// framing is the simulator's form of a datagram.
type framing struct{}

// networkOrder is a 16- or 32-bit number as the simulator keeps it: network byte order inside a native word.
func networkOrder16(v uint16) uint32 { return uint32(v>>8 | v<<8) }

// Wrap implements smp.Framing.
func (framing) Wrap(to smp.Address, request *smp.MAD) []byte {
	frame := make([]byte, requestSize)
	var source uint16 // 0: the simulator fills it in
	if to.LID == 0xffff {
		source = 0xffff
	}
	binary.NativeEndian.PutUint32(frame[requestDLID:], networkOrder16(to.LID))
	binary.NativeEndian.PutUint32(frame[requestSLID:], networkOrder16(source))
	binary.BigEndian.PutUint32(frame[requestDQP:], to.QPN)
	binary.BigEndian.PutUint64(frame[requestLength:], smp.MADSize)
	copy(frame[requestMAD:], request[:])
	return frame
}

// Unwrap implements smp.Framing.
func (framing) Unwrap(frame []byte) (smp.MAD, bool, error) {
	var mad smp.MAD
	if len(frame) != requestSize {
		return mad, false, fmt.Errorf("decode datagram: %d bytes, want %d", len(frame), requestSize)
	}
	copy(mad[:], frame[requestMAD:])
	return mad, binary.BigEndian.Uint32(frame[requestStatus:]) == 0, nil
}
