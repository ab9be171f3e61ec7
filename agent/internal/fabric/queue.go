package fabric

import (
	"context"
	"fmt"
	"sync"

	"github.com/leasehold/leasehold/agent/internal/operation"
)

// Queue lets one Apply through at a time. Since each carries the whole set, only the newest of those that wait is worth doing:
// the manager is signalled once for all of them, and never while it is still at the last.
type Queue struct {
	mu      sync.Mutex
	arrived int64
	turn    chan struct{} // holds a token while somebody is at it
}

// NewQueue returns an idle queue.
func NewQueue() *Queue { return &Queue{turn: make(chan struct{}, 1)} }

// Do runs work in its turn, or fails with CodeSuperseded when a newer caller arrived meanwhile.
func (q *Queue) Do(ctx context.Context, work func(context.Context) error) error {
	ticket := q.arrive()
	select {
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
	case <-ctx.Done():
		return fmt.Errorf("wait for the fabric: %w", ctx.Err())
	}
	if ticket != q.newest() {
		return &operation.Refusal{Code: CodeSuperseded, Detail: "a newer set of partitions arrived", Retryable: true}
	}
	return work(ctx)
}

func (q *Queue) arrive() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.arrived++
	return q.arrived
}

func (q *Queue) newest() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.arrived
}
