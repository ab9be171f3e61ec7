package smp

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// Framing turns a datagram into what the other side of a connection expects, and back.
type Framing interface {
	Wrap(to Address, request *MAD) []byte
	// Unwrap returns the datagram and whether it was delivered; if it was not, it is the request that came back.
	Unwrap(frame []byte) (answer MAD, delivered bool, err error)
}

// MuxConfig says how patient a Mux is.
type MuxConfig struct {
	Timeout  time.Duration // for one attempt
	Attempts int
	Window   int // requests under way at once
}

// Mux is a Transport over a connection that keeps message boundaries: it matches answers to requests, so that many callers
// share one connection, and sends again what got lost.
type Mux struct {
	conn    io.ReadWriteCloser
	framing Framing
	config  MuxConfig
	window  chan struct{}

	mu      sync.Mutex
	next    uint32
	pending map[uint32]chan answer
	closed  bool
	done    chan struct{}
}

type answer struct {
	mad       MAD
	delivered bool
}

// NewMux returns a transport that owns the connection.
func NewMux(conn io.ReadWriteCloser, framing Framing, config MuxConfig) *Mux {
	m := &Mux{
		conn: conn, framing: framing, config: config,
		window:  make(chan struct{}, config.Window),
		pending: map[uint32]chan answer{},
		done:    make(chan struct{}),
	}
	go m.receive()
	return m
}

// Exchange implements Transport.
func (m *Mux) Exchange(ctx context.Context, to Address, request MAD) (MAD, error) {
	select {
	case m.window <- struct{}{}:
		defer func() { <-m.window }()
	case <-ctx.Done():
		return MAD{}, ctx.Err()
	case <-m.done:
		return MAD{}, ErrClosed
	}
	tid, answers, err := m.expect()
	if err != nil {
		return MAD{}, err
	}
	defer m.forget(tid)
	request.SetTID(tid)
	for range m.config.Attempts {
		got, retry, err := m.attempt(ctx, m.framing.Wrap(to, &request), answers)
		if !retry {
			return got, err
		}
	}
	return MAD{}, ErrUnreachable
}

// attempt sends the frame once and waits for the answer.
func (m *Mux) attempt(ctx context.Context, frame []byte, answers <-chan answer) (got MAD, retry bool, err error) { //nolint:nonamedreturns // names say which is which
	if _, err := m.conn.Write(frame); err != nil {
		return MAD{}, false, fmt.Errorf("send MAD: %w", err)
	}
	timer := time.NewTimer(m.config.Timeout)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a.mad, !a.delivered, nil
	case <-timer.C:
		return MAD{}, true, nil
	case <-ctx.Done():
		return MAD{}, false, ctx.Err()
	case <-m.done:
		return MAD{}, false, ErrClosed
	}
}

func (m *Mux) expect() (uint32, <-chan answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return 0, nil, ErrClosed
	}
	m.next++
	answers := make(chan answer, m.config.Attempts) // room for late answers to earlier attempts
	m.pending[m.next] = answers
	return m.next, answers, nil
}

func (m *Mux) forget(tid uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pending, tid)
}

// receive hands answers out until the connection ends. Frames that nobody waits for (late answers, traps) are dropped.
func (m *Mux) receive() {
	defer close(m.done)
	frame := make([]byte, 1024)
	for {
		n, err := m.conn.Read(frame)
		if err != nil {
			return
		}
		mad, delivered, err := m.framing.Unwrap(frame[:n])
		if err != nil || (delivered && !mad.IsResponse()) {
			continue
		}
		m.mu.Lock()
		answers := m.pending[mad.TID()]
		m.mu.Unlock()
		select {
		case answers <- answer{mad, delivered}: // a nil channel never receives
		default:
		}
	}
}

// Close closes the connection and fails every exchange under way. It may be called more than once.
func (m *Mux) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	m.mu.Unlock()
	err := m.conn.Close()
	<-m.done
	return err
}
