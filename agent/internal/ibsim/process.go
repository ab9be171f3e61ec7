package ibsim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// child is a process that does not outlive this one.
type child struct {
	cmd    *exec.Cmd
	output *transcript
	stdin  io.WriteCloser
	done   chan struct{} // closed when it has ended
	err    error         // how; read after done
}

// startChild starts the command with its output kept. The kernel kills the child when the thread that started it ends, so one
// goroutine keeps its thread until the child is gone. If keepStdin is set, the child's input stays open until stop.
func startChild(cmd *exec.Cmd, log io.Writer, keepStdin bool) (*child, error) {
	c := &child{cmd: cmd, output: newTranscript(log), done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = c.output, c.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	if keepStdin {
		stdin, err := cmd.StdinPipe()
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
		}
		c.stdin = stdin
	}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		c.err = cmd.Wait()
		c.output.end()
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return c, nil
}

// waitFor waits until the output after the mark contains the text. It fails when the child ends first.
func (c *child) waitFor(ctx context.Context, from mark, text string) error {
	if err := c.output.waitFor(ctx, from, text); err != nil {
		return fmt.Errorf("wait for %q of %s: %w; its last words: %s", text, c.cmd.Path, err, c.output.tail(400))
	}
	return nil
}

// stop asks the child to end, insists after a while, and returns when it is gone.
func (c *child) stop(patience time.Duration) {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
		c.kill()
	}
	if c.stdin != nil {
		_ = c.stdin.Close()
	}
}

// kill ends the child without asking.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	<-c.done
}

func (c *child) running() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// errEnded is what a wait gets when the child has ended.
var errEnded = errors.New("the process ended")

// mark is a position in a transcript.
type mark int

// transcript keeps what a child says (the last part of it), passes it on to a log, and lets others wait for words.
type transcript struct {
	log io.Writer

	mu      sync.Mutex
	kept    []byte
	dropped int // bytes that came before kept
	news    chan struct{}
	over    bool
}

const transcriptKept = 1 << 20

func newTranscript(log io.Writer) *transcript {
	return &transcript{log: log, news: make(chan struct{})}
}

// Write implements io.Writer.
func (t *transcript) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b...)
	if extra := len(t.kept) - transcriptKept; extra > 0 {
		t.kept = append(t.kept[:0], t.kept[extra:]...)
		t.dropped += extra
	}
	close(t.news)
	t.news = make(chan struct{})
	_, _ = t.log.Write(b) // a full disk must not stop the subnet manager
	return len(b), nil
}

func (t *transcript) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	close(t.news)
	t.news = make(chan struct{})
}

// now returns the position after the last byte.
func (t *transcript) now() mark {
	t.mu.Lock()
	defer t.mu.Unlock()
	return mark(t.dropped + len(t.kept))
}

func (t *transcript) since(from mark) []byte {
	at := int(from) - t.dropped
	return t.kept[min(max(at, 0), len(t.kept)):]
}

func (t *transcript) waitFor(ctx context.Context, from mark, text string) error {
	for {
		t.mu.Lock()
		found, over, news := bytes.Contains(t.since(from), []byte(text)), t.over, t.news
		t.mu.Unlock()
		switch {
		case found:
			return nil
		case over:
			return errEnded
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// count tells how often the text came after the mark.
func (t *transcript) count(from mark, text string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Count(t.since(from), []byte(text))
}

func (t *transcript) tail(most int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.kept[max(0, len(t.kept)-most):]))
}

// logFile opens a log in the directory.
func logFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600) //nolint:gosec // the caller's own directory
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return f, nil
}
