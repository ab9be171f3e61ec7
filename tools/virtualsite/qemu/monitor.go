package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// monitor is a connection to QEMU's machine protocol (QMP).
type monitor struct {
	connection net.Conn
	replies    chan reply
	mu         sync.Mutex // one command at a time

	rebootMu sync.Mutex
	reboot   bool // the guest wanted to start again
}

// reply is what QMP says: an answer or an event.
type reply struct {
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
	Event string `json:"event"`
	Data  struct {
		Reason string `json:"reason"`
	} `json:"data"`
}

// connect waits for the socket and agrees on the protocol. It gives up when the process has ended.
func connect(ctx context.Context, socket string, ended <-chan struct{}) (*monitor, error) {
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var dialer net.Dialer
	for {
		connection, err := dialer.DialContext(ctx, "unix", socket)
		if err == nil {
			m := &monitor{connection: connection, replies: make(chan reply, 8)}
			go m.read()
			return m, m.execute(ctx, "qmp_capabilities")
		}
		select {
		case <-tick.C:
		case <-ended:
			return nil, errors.New("QEMU has ended")
		case <-ctx.Done():
			return nil, fmt.Errorf("QEMU's monitor is not there: %w", err)
		}
	}
}

func (m *monitor) read() {
	defer close(m.replies)
	defer m.connection.Close() //nolint:errcheck // nothing is written that could be lost
	lines := bufio.NewScanner(m.connection)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r reply
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			continue
		}
		switch {
		case r.Event == "SHUTDOWN" && r.Data.Reason == "guest-reset":
			m.rebootMu.Lock()
			m.reboot = true
			m.rebootMu.Unlock()
		case r.Return != nil || r.Error != nil:
			m.replies <- r
		}
	}
}

func (m *monitor) wantsReboot() bool {
	m.rebootMu.Lock()
	defer m.rebootMu.Unlock()
	return m.reboot
}

func (m *monitor) execute(ctx context.Context, command string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, err := json.Marshal(map[string]string{"execute": command})
	if err != nil {
		return fmt.Errorf("encode %s: %w", command, err)
	}
	if _, err := m.connection.Write(append(data, '\n')); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	select {
	case r, open := <-m.replies:
		switch {
		case !open:
			return fmt.Errorf("%s: %w", command, errOff)
		case r.Error != nil:
			return fmt.Errorf("%s: %s", command, r.Error.Desc)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
