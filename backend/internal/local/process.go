package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Spec says what to start and how to end it.
type Spec struct {
	Name string   // in messages
	Path string   // the program
	Args []string // without the program's own name
	Env  []string // "KEY=value", added to this process's environment
	Dir  string   // working directory; the empty string is this process's

	Stdout io.Writer // what it prints; nil prints to LogFile
	// LogFile is appended to with what the child prints. It is named in errors. The empty string throws the output away.
	LogFile string

	SysProcAttr *syscall.SysProcAttr // more for the kernel; the process group is set by Start
	StopSignal  syscall.Signal       // asks for an orderly end; default SIGTERM
	Grace       time.Duration        // from StopSignal to SIGKILL; default 10 s

	// RemoveOnDeath are directories that go when this process dies without having stopped the child.
	RemoveOnDeath []string
}

// A Process is a running child.
//
// It has a process group of its own, so that Ctrl-C at a terminal reaches only its starter, which then stops its children
// in order. A watchdog, which is a few lines of shell that read a pipe from the starter, ends the child when the starter is gone:
// also after SIGKILL, and whichever of the starter's threads made the child (which PR_SET_PDEATHSIG would depend on).
type Process struct {
	spec     Spec
	cmd      *exec.Cmd
	watchdog io.Closer
	done     chan struct{}
	err      error // readable once done is closed
}

// Start starts a child. The context only covers the start: the child lives until Stop, its own end, or this process's end.
func Start(ctx context.Context, spec Spec) (*Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	if spec.StopSignal == 0 {
		spec.StopSignal = syscall.SIGTERM
	}
	if spec.Grace == 0 {
		spec.Grace = 10 * time.Second
	}
	if _, err := exec.LookPath(spec.Path); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	// The child waits at a gate until its watchdog stands: were the starter killed in between, nobody would end the child.
	cmd := exec.Command("/bin/sh", append([]string{"-c", gate, spec.Path}, spec.Args...)...) //nolint:gosec,noctx // the caller's program, and it outlives the call.
	closed, open, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	defer closed.Close() //nolint:errcheck // the child has its own
	defer open.Close()   //nolint:errcheck // closing it unopened ends a child that still waits
	cmd.ExtraFiles = []*os.File{closed}
	cmd.Dir = spec.Dir
	cmd.Env = append(os.Environ(), spec.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if spec.SysProcAttr != nil {
		*cmd.SysProcAttr = *spec.SysProcAttr
	}
	cmd.SysProcAttr.Setpgid = true
	closeLog, err := connectOutput(cmd, spec)
	if err != nil {
		return nil, err
	}
	defer closeLog()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	process := &Process{spec: spec, cmd: cmd, done: make(chan struct{})}
	process.watchdog, err = startWatchdog(spec, cmd.Process.Pid)
	go process.reap()
	if err == nil {
		_, err = open.WriteString("go\n")
	}
	if err != nil {
		return nil, errors.Join(err, process.Stop(ctx))
	}
	return process, nil
}

// gate waits for a line on file 3, and becomes the program; without one, since the starter is gone, it ends.
const gate = `read -r go <&3 || exit 1; exec 3<&-; exec "$0" "$@"`

func connectOutput(cmd *exec.Cmd, spec Spec) (closeLog func(), err error) {
	if spec.Stdout != nil {
		cmd.Stdout = spec.Stdout
	}
	if spec.LogFile == "" {
		return func() {}, nil
	}
	log, err := os.OpenFile(spec.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", spec.Name, err)
	}
	if cmd.Stdout == nil {
		cmd.Stdout = log
	}
	cmd.Stderr = log
	return func() { _ = log.Close() }, nil
}

func (p *Process) reap() {
	p.err = p.cmd.Wait()
	if p.watchdog != nil {
		_ = p.watchdog.Close()
	}
	close(p.done)
}

// PID is the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended, for whatever reason.
func (p *Process) Done() <-chan struct{} { return p.done }

// Failure says how a child ended that nobody asked to end: its exit status and the end of its log.
// It must be called after Done is closed.
func (p *Process) Failure() error {
	status := "exit status 0"
	if p.err != nil {
		status = p.err.Error()
	}
	tail := logTail(p.spec.LogFile)
	if tail == "" {
		return fmt.Errorf("%s ended: %s", p.spec.Name, status)
	}
	return fmt.Errorf("%s ended: %s; the end of %s:\n%s", p.spec.Name, status, p.spec.LogFile, tail)
}

// Stop asks the child to end, waits, and kills its process group when the grace period or the context is over.
// It returns when the child is gone. Stopping a child that has ended is not an error, so it may be called twice.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.cmd.Process.Signal(p.spec.StopSignal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.spec.Name, err)
	}
	grace := time.NewTimer(p.spec.Grace)
	defer grace.Stop()
	select {
	case <-p.done:
		return nil
	case <-grace.C:
	case <-ctx.Done():
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
	return fmt.Errorf("stop %s: it did not end by itself and was killed", p.spec.Name)
}

// logTail returns the last lines of a log, at most 2 KiB.
func logTail(path string) string {
	const most = 2 << 10
	file, err := os.Open(path) //nolint:gosec // the log that this package wrote.
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }()
	if size, err := file.Seek(0, io.SeekEnd); err == nil {
		_, _ = file.Seek(max(0, size-most), io.SeekStart)
	}
	tail, _ := io.ReadAll(io.LimitReader(file, most))
	return strings.TrimSpace(string(tail))
}

// watch waits for a line or the end of its input. A line means that the child has ended and that its number may soon be somebody else's;
// the end without one means that the starter is dead. Arguments: pid, signal, grace in tenths of a second, directories.
const watch = `
read -r word && exit 0
pid=$1 signal=$2 left=$3
shift 3
kill -"$signal" "$pid" 2>/dev/null
while kill -0 "$pid" 2>/dev/null && [ "$left" -gt 0 ]; do sleep 0.1; left=$((left - 1)); done
kill -KILL -- "-$pid" 2>/dev/null
[ $# -eq 0 ] || rm -rf -- "$@"
`

// startWatchdog guards the child pid. Closing what it returns calls the guard off.
func startWatchdog(spec Spec, pid int) (io.Closer, error) {
	args := []string{
		"-c", watch, "leasehold-watchdog", strconv.Itoa(pid), strconv.Itoa(int(spec.StopSignal)),
		strconv.FormatInt(int64(spec.Grace/(100*time.Millisecond)), 10),
	}
	cmd := exec.Command("/bin/sh", append(args, spec.RemoveOnDeath...)...) //nolint:gosec,noctx // it must outlive us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Dir = "/"
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", spec.Name, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("watch %s: %w", spec.Name, err)
	}
	return &watchdog{cmd: cmd, input: input}, nil
}

type watchdog struct {
	cmd   *exec.Cmd
	input io.WriteCloser
}

// Close implements io.Closer.
func (w *watchdog) Close() error {
	_, err := io.WriteString(w.input, "over\n")
	return errors.Join(err, w.input.Close(), w.cmd.Wait())
}
