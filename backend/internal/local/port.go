package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// ErrPortTaken is returned by CheckPort for a port that another program listens on.
var ErrPortTaken = errors.New("port is taken")

// FreePort returns a TCP port on the loopback interface that nobody listened on a moment ago.
func FreePort(ctx context.Context) (int, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err := errors.Join(err, listener.Close()); err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	return strconv.Atoi(port)
}

// CheckPort tells whether a TCP port on the loopback interface can be listened on. It returns an ErrPortTaken that names
// the port when another program has it.
func CheckPort(ctx context.Context, port int) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w: 127.0.0.1:%d", ErrPortTaken, port)
	}
	if err != nil {
		return fmt.Errorf("check port %d: %w", port, err)
	}
	return listener.Close()
}
