package operation

import (
	"context"
	"errors"
	"sync"

	"github.com/leasehold/leasehold/agent/internal/backoff"
	"github.com/leasehold/leasehold/agent/protocol"
)

// report sends one operation's progress and then its result, in this order and never at once. Progress that was overtaken by
// newer progress before it could be sent is left out.
type report struct {
	id   string
	wake chan struct{}

	mu     sync.Mutex
	latest *protocol.Progress
	result *protocol.Result
}

// report returns the operation's report, and has Run start one if there is none. The caller holds the runner's lock.
func (r *Runner) report(e *entry) *report {
	id := e.op.ID
	if out := r.reporting[id]; out != nil {
		return out
	}
	out := &report{id: id, wake: make(chan struct{}, 1)}
	r.reporting[id] = out
	r.spawn(func(ctx context.Context) {
		if r.send(ctx, out) {
			r.acknowledged(out.id)
		}
	})
	return out
}

func (o *report) progress(p protocol.Progress) {
	o.mu.Lock()
	o.latest = &p
	o.mu.Unlock()
	o.ring()
}

func (o *report) finish(result protocol.Result) {
	o.mu.Lock()
	o.result = &result
	o.mu.Unlock()
	o.ring()
}

func (o *report) ring() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// next returns what is to be sent now, the result before all else.
func (o *report) next() (*protocol.Progress, *protocol.Result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.latest, o.result
}

// sent forgets p unless a newer progress took its place.
func (o *report) sent(p *protocol.Progress) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.latest == p {
		o.latest = nil
	}
}

// send reports until the result is acknowledged or unwanted, and returns false when ctx ended before.
func (r *Runner) send(ctx context.Context, out *report) bool {
	retry := backoff.New(r.cfg.Retry)
	for {
		progress, result := out.next()
		var err error
		switch {
		case result != nil:
			err = r.cfg.Reporter.Result(ctx, out.id, *result)
			if errors.Is(err, ErrUnwanted) {
				r.cfg.Log.Warn("result was refused", "operation", out.id, "state", result.State, "error", err)
				return true
			}
			if err == nil {
				return true
			}
		case progress != nil:
			if err = r.cfg.Reporter.Progress(ctx, out.id, *progress); err == nil || errors.Is(err, ErrUnwanted) {
				out.sent(progress)
				err = nil
			}
		default:
			select {
			case <-out.wake:
			case <-ctx.Done():
				return false
			}
		}
		if err == nil {
			retry.Reset()
		} else if retry.Pause(ctx, out.wake) != nil {
			return false
		}
		if ctx.Err() != nil {
			return false
		}
	}
}

func (r *Runner) acknowledged(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.reporting, id)
	e := r.ledger.entries[id]
	if e == nil || e.acked || r.broken != nil {
		return
	}
	if err := r.ledger.ack(e, r.cfg.Now()); err != nil {
		r.fail(err)
	}
}
