// Package ratelimit bounds how often somebody may ask, over all replicas. The truth is one row a key in the database (GCRA: the
// theoretical arrival time of the next request); each replica draws a handful of requests at a time, so that most of them cost no look
// at the database. What a replica has drawn and not used within a second is lost, never counted twice.
package ratelimit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/leasehold/leasehold/backend/clock"
)

// Policy is Requests in each Window, all of which may come at once.
type Policy struct {
	Name     string // a token, for the RateLimit headers
	Requests int    // 0: no limit
	Window   time.Duration
}

// interval is the time after which one more request is allowed.
func (p Policy) interval() time.Duration { return p.Window / time.Duration(p.Requests) }

// Store keeps arrival times.
type Store interface {
	// Draw takes n requests at interval from key's bucket of burst requests, or none. It returns whether it took them, and the
	// bucket's theoretical arrival time after that.
	Draw(ctx context.Context, key string, n int, interval time.Duration, burst int, now time.Time) (bool, time.Time, error)
}

// Verdict is what a request is told.
type Verdict struct {
	Allowed    bool
	Remaining  int           // how many more could come now, at least
	Reset      time.Duration // until the bucket is full
	RetryAfter time.Duration // when refused
}

// Limiter applies one policy.
type Limiter struct {
	store  Store
	clock  clock.Clock
	policy Policy

	mu    sync.Mutex
	drawn map[string]*draw
}

// draw is what this replica has of a key.
type draw struct {
	left      int
	arrival   time.Time // of the bucket, as last seen
	staleAt   time.Time
	refusedTo time.Time // until then the answer is no, without asking
}

const (
	staleAfter = time.Second
	maxKeys    = 10_000
)

// New returns a limiter.
func New(store Store, clock clock.Clock, policy Policy) *Limiter {
	return &Limiter{store: store, clock: clock, policy: policy, drawn: map[string]*draw{}}
}

// Policy returns what it applies.
func (l *Limiter) Policy() Policy { return l.policy }

// Allow takes one request from the key's bucket.
func (l *Limiter) Allow(ctx context.Context, key string) (Verdict, error) {
	if l.policy.Requests == 0 {
		return Verdict{Allowed: true}, nil
	}
	now := l.clock.Now()
	if verdict, ok := l.local(key, now); ok {
		return verdict, nil
	}
	n := max(1, l.policy.Requests/20)
	ok, arrival, err := l.store.Draw(ctx, l.policy.Name+":"+key, n, l.policy.interval(), l.policy.Requests, now)
	if err == nil && !ok && n > 1 {
		n = 1
		ok, arrival, err = l.store.Draw(ctx, l.policy.Name+":"+key, n, l.policy.interval(), l.policy.Requests, now)
	}
	if err != nil {
		return Verdict{}, fmt.Errorf("draw from bucket: %w", err)
	}
	return l.keep(key, n, ok, arrival, now), nil
}

// local answers from what was drawn before.
func (l *Limiter) local(key string, now time.Time) (Verdict, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d, ok := l.drawn[key]
	switch {
	case !ok:
		return Verdict{}, false
	case now.Before(d.refusedTo):
		return l.verdict(d, false, now), true
	case d.left > 0 && now.Before(d.staleAt):
		d.left--
		return l.verdict(d, true, now), true
	default:
		return Verdict{}, false
	}
}

func (l *Limiter) keep(key string, n int, ok bool, arrival, now time.Time) Verdict {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.drawn) >= maxKeys {
		l.sweep(now)
	}
	d := &draw{arrival: arrival, staleAt: now.Add(staleAfter)}
	if ok {
		d.left = n - 1
		if before := l.drawn[key]; before != nil && now.Before(before.staleAt) {
			d.left += before.left
		}
	} else {
		d.refusedTo = l.retryAt(arrival)
	}
	l.drawn[key] = d
	return l.verdict(d, ok, now)
}

// retryAt is when one more request fits into the bucket.
func (l *Limiter) retryAt(arrival time.Time) time.Time {
	return arrival.Add(l.policy.interval()).Add(-l.policy.Window)
}

func (l *Limiter) verdict(d *draw, allowed bool, now time.Time) Verdict {
	free := int(now.Add(l.policy.Window).Sub(d.arrival) / l.policy.interval())
	v := Verdict{Allowed: allowed, Remaining: min(max(0, free)+d.left, l.policy.Requests), Reset: max(0, d.arrival.Sub(now))}
	if !allowed {
		v.Remaining, v.RetryAfter = 0, max(time.Second, l.retryAt(d.arrival).Sub(now))
	}
	return v
}

// sweep forgets what is of no use any more.
func (l *Limiter) sweep(now time.Time) {
	for key, d := range l.drawn {
		if !now.Before(d.staleAt) && !now.Before(d.refusedTo) {
			delete(l.drawn, key)
		}
	}
}
