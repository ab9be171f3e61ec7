package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/creack/pty"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/leasehold/leasehold/agent/internal/access"
)

const (
	// statusFailed is the exit status of a session that could not begin, as ssh itself has it.
	statusFailed = 255
	// lingerFor is how long a session waits for output after its command has ended: something may still hold its streams.
	lingerFor = 2 * time.Second
)

// errClosed says that nobody is to be in a place now.
var errClosed = errors.New("the place is not open")

// find returns the open place of a tenancy's name.
func (d *Driver) find(name string) (place, error) {
	firsts, err := d.places()
	if err != nil {
		return place{}, err
	}
	for _, first := range firsts {
		if p, found, err := d.known(first); err == nil && found && p.Name == name && p.Open {
			return p, nil
		}
	}
	return place{}, errClosed
}

// enterable returns a place whose container runs, which it sees to.
func (d *Driver) enterable(ctx context.Context, name string) (place, error) {
	p, err := d.find(name)
	if err != nil {
		return p, err
	}
	defer d.lock(p.Slots.From)()
	if p, err = d.find(name); err != nil { // it may have been closed while we waited
		return p, err
	}
	return p, d.ensure(ctx, p)
}

// Serve implements access.Sessions.
func (d *Driver) Serve(ctx context.Context, name string, s access.Session) int {
	p, err := d.enterable(ctx, name)
	if err == nil {
		var status int
		if status, err = d.exec(ctx, p, s); err == nil {
			return status
		}
	}
	if ctx.Err() == nil {
		d.cfg.Log.Error("session did not begin", "place", name, "error", err)
		fmt.Fprintln(s.Err, "this session could not begin; the operator can see why")
	}
	return statusFailed
}

// argsOf is what runs in the container. The shell is the image's own: bash if it has it.
func argsOf(s access.Session) []string {
	switch {
	case s.SFTP:
		return []string{"/bin/sh", "-c", `for s in /usr/lib/openssh/sftp-server /usr/libexec/openssh/sftp-server /usr/lib/ssh/sftp-server; do [ -x "$s" ] && exec "$s"; done; echo "this image has no sftp-server" >&2; exit 127`}
	case s.Command != "":
		return []string{"/bin/sh", "-c", s.Command}
	default:
		return []string{"/bin/sh", "-c", `command -v bash >/dev/null && exec bash -l; exec sh -l`}
	}
}

func (d *Driver) exec(ctx context.Context, p place, s access.Session) (int, error) {
	file, err := d.processFile(p, s)
	if err != nil {
		return 0, err
	}
	defer os.Remove(file) //nolint:errcheck // a left-over is in nobody's way
	args := []string{"exec", "--process", file}
	cmd := d.oci.command(ctx, append(args, d.id(p))...)
	cmd.SysProcAttr = nil // a session may outlive the thread that began it
	cmd.WaitDelay = lingerFor
	if s.Terminal != nil {
		err = onTerminal(cmd, s)
	} else {
		err = onStreams(cmd, s)
	}
	var failed *exec.ExitError
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return 0, nil
	case errors.As(err, &failed) && failed.ExitCode() >= 0:
		return failed.ExitCode(), nil
	default:
		return 0, fmt.Errorf("run in container: %w", err)
	}
}

// processFile describes a process like the container's own, with other arguments.
func (d *Driver) processFile(p place, s access.Session) (string, error) {
	data, err := os.ReadFile(filepath.Join(d.bundleOf(p), "config.json"))
	if err != nil {
		return "", fmt.Errorf("read container: %w", err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return "", fmt.Errorf("read container: %w", err)
	}
	process := spec.Process
	process.Args, process.Terminal = argsOf(s), s.Terminal != nil
	if s.Terminal != nil {
		process.Env = withEnv(process.Env, map[string]string{"TERM": terminalName(s.Terminal.Name)})
		process.ConsoleSize = &specs.Box{Height: uint(max(s.Terminal.Size.Rows, 0)), Width: uint(max(s.Terminal.Size.Columns, 0))} //nolint:gosec // not negative
	}
	if data, err = json.Marshal(process); err != nil {
		return "", fmt.Errorf("encode process: %w", err)
	}
	f, err := os.CreateTemp(d.bundleOf(p), "process-*.json")
	if err != nil {
		return "", fmt.Errorf("write process: %w", err)
	}
	if _, err = f.Write(data); err != nil {
		return "", fmt.Errorf("write process: %w", errors.Join(err, f.Close(), os.Remove(f.Name())))
	}
	return f.Name(), f.Close()
}

// terminalName takes what a client calls its terminal, or nothing of it.
func terminalName(name string) string {
	if name == "" || len(name) > 64 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-+._") != "" {
		return "dumb"
	}
	return name
}

func onStreams(cmd *exec.Cmd, s access.Session) error {
	cmd.Stdout, cmd.Stderr = s.Out, s.Err
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { // its own: a command that has ended need not read what still comes
		_, _ = io.Copy(in, s.In) //nolint:errcheck // the command may not want it
		_ = in.Close()           //nolint:errcheck // it may be closed already
	}()
	return cmd.Wait()
}

func onTerminal(cmd *exec.Cmd, s access.Session) error {
	terminal, err := pty.StartWithSize(cmd, sizeOf(s.Terminal.Size))
	if err != nil {
		return err
	}
	defer terminal.Close() //nolint:errcheck // nothing hangs on it
	go func() {
		for size := range s.Terminal.Resizes {
			_ = pty.Setsize(terminal, sizeOf(size)) //nolint:errcheck // a strange size is the client's affair
		}
	}()
	go func() {
		_, _ = io.Copy(terminal, s.In) //nolint:errcheck // the command may not want it
	}()
	said := make(chan struct{})
	go func() {
		defer close(said)
		_, _ = io.Copy(s.Out, terminal) //nolint:errcheck // it ends with an error when the command does
	}()
	err = cmd.Wait()
	select {
	case <-said:
	case <-timer(lingerFor):
	}
	return err
}

func timer(d time.Duration) <-chan time.Time { return time.NewTimer(d).C }

func sizeOf(s access.Size) *pty.Winsize {
	return &pty.Winsize{Rows: uint16(min(max(s.Rows, 1), 1000)), Cols: uint16(min(max(s.Columns, 1), 1000))} //nolint:gosec // bounded
}

// dialWithin bounds a connection to a place's own loopback interface, which answers at once or not at all.
const dialWithin = 5 * time.Second

// Dial implements access.Machine.
func (d *Driver) Dial(ctx context.Context, name string, port int) (net.Conn, error) {
	p, err := d.enterable(ctx, name)
	if err != nil {
		return nil, err
	}
	is, err := d.oci.state(ctx, d.id(p))
	if err != nil || is.PID == 0 {
		return nil, errors.Join(errClosed, err)
	}
	space, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", is.PID))
	if err != nil {
		return nil, fmt.Errorf("find network of %s: %w", name, err)
	}
	defer space.Close() //nolint:errcheck // nothing hangs on it
	var conn net.Conn
	err = onOwnThread(func() error {
		err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			conn, err = dialHere(port)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("dial port %d of %s: %w", port, name, err)
	}
	return conn, nil
}

// dialHere connects within the network of the thread that it runs on.
func dialHere(port int) (net.Conn, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "forwarded")
	defer file.Close() //nolint:errcheck // the connection has a descriptor of its own
	patience := unix.NsecToTimeval(int64(dialWithin))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience); err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return nil, err
	}
	return net.FileConn(file)
}
