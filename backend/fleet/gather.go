package fleet

import (
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// tripSize bounds how many questions go together.
	tripSize = 500
	// tripsAtOnce bounds how many trips are under way; those who come meanwhile wait and go together.
	tripsAtOnce = 2
	// tripTimeout bounds one trip, since no single caller's context does.
	tripTimeout = 10 * time.Second
)

// gather lets concurrent callers share trips to the database. Nobody waits for company: a question goes at once while a trip is to
// be had, and so the busier it is, the larger the groups get.
type gather[Q, A any] struct {
	trip func(ctx context.Context, all []Q) ([]A, error)
	// keyOf tells what two questions of one trip must not share.
	keyOf func(Q) any

	mu       sync.Mutex
	waiting  []ticket[Q, A]
	underWay int
}

type ticket[Q, A any] struct {
	question Q
	answer   chan answer[A]
}

type answer[A any] struct {
	value A
	err   error
}

func newGather[Q, A any](trip func(ctx context.Context, all []Q) ([]A, error), keyOf func(Q) any) *gather[Q, A] {
	return &gather[Q, A]{trip: trip, keyOf: keyOf}
}

// ask returns trip's answer to q. When ctx ends first, q may have gone all the same.
func (g *gather[Q, A]) ask(ctx context.Context, q Q) (A, error) {
	t := ticket[Q, A]{question: q, answer: make(chan answer[A], 1)}
	g.mu.Lock()
	g.waiting = append(g.waiting, t)
	if g.underWay < tripsAtOnce {
		g.underWay++
		go g.drive(context.WithoutCancel(ctx))
	}
	g.mu.Unlock()
	select {
	case got := <-t.answer:
		return got.value, got.err
	case <-ctx.Done():
		var none A
		return none, ctx.Err()
	}
}

// drive goes until nobody waits.
func (g *gather[Q, A]) drive(ctx context.Context) {
	for {
		group := g.next()
		if len(group) == 0 {
			return
		}
		g.travel(ctx, group)
	}
}

// next takes the next group, in the order of arrival; a question whose key is in it already waits for the next one.
func (g *gather[Q, A]) next() []ticket[Q, A] {
	g.mu.Lock()
	defer g.mu.Unlock()
	taken := map[any]bool{}
	var group, left []ticket[Q, A]
	for _, t := range g.waiting {
		if key := g.keyOf(t.question); len(group) < tripSize && !taken[key] {
			taken[key] = true
			group = append(group, t)
		} else {
			left = append(left, t)
		}
	}
	if g.waiting = left; len(group) == 0 {
		g.underWay--
	}
	return group
}

func (g *gather[Q, A]) travel(ctx context.Context, group []ticket[Q, A]) {
	ctx, cancel := context.WithTimeout(ctx, tripTimeout)
	defer cancel()
	questions := make([]Q, len(group))
	for i, t := range group {
		questions[i] = t.question
	}
	answers, err := g.trip(ctx, questions)
	if err == nil && len(answers) != len(group) {
		err = fmt.Errorf("%d answers to %d questions", len(answers), len(group))
	}
	for i, t := range group {
		if err != nil {
			t.answer <- answer[A]{err: err}
		} else {
			t.answer <- answer[A]{value: answers[i]}
		}
	}
}
