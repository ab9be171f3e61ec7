package opensm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// minimumAge is how old an OpenSM must be to be signalled. Within about 5 ms of its start a SIGHUP kills it.
const minimumAge = 100 * time.Millisecond

// ticksPerSecond is the kernel's unit of process times as user space sees them (USER_HZ): 100 on every Linux architecture
// that Go runs on.
const ticksPerSecond = 100

// processAge returns how long ago a process was started; long ago, when that cannot be told.
func processAge(pid int) time.Duration {
	const unknown = time.Hour
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return unknown
	}
	// The second field is the name in brackets and may hold anything; the start time is the 20th after it.
	_, rest, found := bytes.Cut(stat, []byte(") "))
	fields := bytes.Fields(rest)
	const startField = 19
	if !found || len(fields) <= startField {
		return unknown
	}
	started, err := strconv.ParseInt(string(fields[startField]), 10, 64)
	if err != nil {
		return unknown
	}
	uptime, err := os.ReadFile("/proc/uptime")
	if err != nil || len(bytes.Fields(uptime)) == 0 {
		return unknown
	}
	up, err := strconv.ParseFloat(string(bytes.Fields(uptime)[0]), 64)
	if err != nil {
		return unknown
	}
	return time.Duration(up*float64(time.Second)) - time.Duration(started)*(time.Second/ticksPerSecond)
}

// PIDFile is an OpenSM that somebody else runs, found by its pid file.
type PIDFile string

// PID implements Manager.
func (p PIDFile) PID(context.Context) (int, error) {
	text, err := os.ReadFile(string(p))
	if err != nil {
		return 0, fmt.Errorf("find OpenSM: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid < 2 {
		return 0, fmt.Errorf("find OpenSM: %q is no process id", strings.TrimSpace(string(text)))
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return 0, fmt.Errorf("find OpenSM: %w", err)
	}
	if got := strings.TrimSpace(string(name)); got != "opensm" {
		return 0, fmt.Errorf("find OpenSM: process %d is %q", pid, got)
	}
	return pid, nil
}

// Hangup implements Manager.
func (p PIDFile) Hangup(ctx context.Context) error {
	pid, err := p.PID(ctx)
	if err != nil {
		return err
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("signal OpenSM: %w", err)
	}
	return errors.Join(process.Signal(syscall.SIGHUP), process.Release())
}
