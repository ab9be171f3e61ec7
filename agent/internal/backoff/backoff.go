// Package backoff spaces out retries: exponentially, with jitter, so that a thousand agents that lost the same server do not
// come back at the same instant.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Policy bounds the pauses. The zero value pauses between 250 ms and 30 s.
type Policy struct {
	Min, Max time.Duration
}

// Backoff counts the failures of one thing that is tried again and again. It is for one goroutine.
type Backoff struct {
	policy Policy
	failed int
}

// New starts counting.
func New(p Policy) *Backoff {
	if p.Min <= 0 {
		p.Min = 250 * time.Millisecond
	}
	if p.Max < p.Min {
		p.Max = max(30*time.Second, p.Min)
	}
	return &Backoff{policy: p}
}

// Reset is called after a success.
func (b *Backoff) Reset() { b.failed = 0 }

// Failures is how many times Pause was called since the last success.
func (b *Backoff) Failures() int { return b.failed }

// Pause waits before the next try, or until ctx ends or wake is received from (which may be nil). It returns ctx's error.
func (b *Backoff) Pause(ctx context.Context, wake <-chan struct{}) error {
	return Wait(ctx, b.next(), wake)
}

// next is between half of and the whole of Min·2ⁿ, and at most Max.
func (b *Backoff) next() time.Duration {
	ceiling := b.policy.Max
	if b.failed < 20 && b.policy.Min<<b.failed < ceiling {
		ceiling = b.policy.Min << b.failed
	}
	b.failed++
	return ceiling/2 + rand.N(ceiling/2+1) //nolint:gosec // jitter needs no secrecy
}

// Wait waits for d, for ctx or for wake (which may be nil), whichever comes first, and returns ctx's error.
func Wait(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-wake:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
