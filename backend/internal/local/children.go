package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Children are the parts of one running instance, in the order in which they were started. When one part fails, Failed
// tells; Stop ends all of them, the last one first, so that no part outlives what it stands on. The zero value is ready.
type Children struct {
	mu      sync.Mutex
	parts   []part
	once    sync.Once
	failed  chan error
	stopped bool
}

type part struct {
	name string
	stop func(context.Context) error
}

// Add takes charge of a part that runs already and is ended by stop.
func (c *Children) Add(name string, stop func(context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parts = append(c.parts, part{name: name, stop: stop})
}

// AddProcess takes charge of a child process. Its end before Stop counts as a failure.
func (c *Children) AddProcess(process *Process) {
	c.Add(process.spec.Name, process.Stop)
	go func() {
		<-process.Done()
		c.fail(process.Failure())
	}()
}

// Go runs a part in this process. Its context ends when the part's turn to stop has come; a return before that counts
// as a failure, also without an error.
func (c *Children) Go(ctx context.Context, name string, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() {
		err := run(ctx)
		if ctx.Err() == nil {
			c.fail(fmt.Errorf("%s ended: %w", name, orEarly(err)))
		}
		done <- err
	}()
	c.Add(name, func(stopping context.Context) error {
		cancel()
		select {
		case err := <-done:
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		case <-stopping.Done():
			return stopping.Err()
		}
	})
}

var errEarly = errors.New("it returned before it was asked to")

func orEarly(err error) error {
	if err == nil {
		return errEarly
	}
	return err
}

// Failed delivers the first failure of a part. Nothing more is delivered once Stop has begun.
func (c *Children) Failed() <-chan error { return c.failures() }

func (c *Children) failures() chan error {
	c.once.Do(func() { c.failed = make(chan error, 1) })
	return c.failed
}

func (c *Children) fail(err error) {
	failed := c.failures()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return
	}
	select {
	case failed <- err:
	default: // an earlier failure is the one to report.
	}
}

// Stop ends every part, the last one first, each before the next, and joins their errors. It may be called twice.
func (c *Children) Stop(ctx context.Context) error {
	c.mu.Lock()
	parts := c.parts
	c.parts, c.stopped = nil, true
	c.mu.Unlock()
	var errs []error
	for _, part := range slices.Backward(parts) {
		if err := part.stop(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", part.name, err))
		}
	}
	return errors.Join(errs...)
}
