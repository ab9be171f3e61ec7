package relay_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/outbox"
	"github.com/leasehold/leasehold/workflows/isolation"
	"github.com/leasehold/leasehold/workflows/leasing"
	"github.com/leasehold/leasehold/workflows/reclaim"
	"github.com/leasehold/leasehold/workflows/relay"
)

// box is an outbox in memory; a claim that is not done comes again at the next claim.
type box struct {
	mu       sync.Mutex
	messages []outbox.Message
	done     map[ids.Outbox]bool
}

func (b *box) put(topic, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.messages = append(b.messages, outbox.Message{ID: ids.Make[ids.Outbox](), Topic: topic, Key: key})
}

func (b *box) Claim(_ context.Context, topics []string, limit int, _ time.Time, _ time.Duration) ([]outbox.Message, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []outbox.Message
	for _, m := range b.messages {
		for _, topic := range topics {
			if m.Topic == topic && !b.done[m.ID] && len(found) < limit {
				found = append(found, m)
			}
		}
	}
	return found, nil
}

func (b *box) Done(_ context.Context, delivered []ids.Outbox, _ time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range delivered {
		b.done[id] = true
	}
	return nil
}

func (b *box) left() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.messages) - len(b.done)
}

type due struct{ leases []ids.Lease }

func (d due) Due(context.Context, time.Time, int) ([]ids.Lease, error) { return d.leases, nil }

// temporal notes what it was asked, and says so on a channel.
type temporal struct {
	mu     sync.Mutex
	broken bool
	asked  chan string
	queue  string
}

func (f *temporal) SignalWithStartWorkflow(_ context.Context, id, signal string, _ any, o client.StartWorkflowOptions, _ any, _ ...any) (client.WorkflowRun, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken {
		return nil, errors.New("temporal is away")
	}
	f.queue = o.TaskQueue
	f.asked <- id + " " + signal
	return nil, nil //nolint:nilnil // nobody looks at the run
}

func newRelay(t *testing.T) (*box, *temporal, chan struct{}, *relay.Relay) {
	t.Helper()
	b, f, wake := &box{done: map[ids.Outbox]bool{}}, &temporal{asked: make(chan string, 1000)}, make(chan struct{}, 1)
	return b, f, wake, &relay.Relay{
		Outbox: b, Leases: due{}, Temporal: f, TaskQueue: "q", Clock: clock.System{}, Log: slog.New(slog.DiscardHandler), Wake: wake,
	}
}

func start(t *testing.T, r *relay.Relay) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
}

func next(t *testing.T, f *temporal) string {
	t.Helper()
	select {
	case asked := <-f.asked:
		return asked
	case <-time.After(10 * time.Second):
		require.Fail(t, "nothing was signalled")
		return ""
	}
}

func TestANudgeReachesTheWorkflowThatWaits(t *testing.T) {
	t.Parallel()
	b, f, wake, r := newRelay(t)
	lease, fabric := ids.Make[ids.Lease](), ids.Make[ids.Fabric]()
	start(t, r)
	b.put(outbox.LeaseNudge, lease.String())
	wake <- struct{}{}
	require.Equal(t, leasing.WorkflowID(lease)+" "+leasing.NudgeSignal, next(t, f))
	require.Equal(t, "q", f.queue)
	b.put(outbox.FabricNudge, fabric.String())
	wake <- struct{}{}
	require.Equal(t, isolation.WorkflowID(fabric)+" "+isolation.NudgeSignal, next(t, f))
	node := ids.Make[ids.Node]()
	b.put(outbox.NodeNudge, node.String())
	wake <- struct{}{}
	require.Equal(t, reclaim.WorkflowID(node)+" "+reclaim.NudgeSignal, next(t, f))
	require.Eventually(t, func() bool { return b.left() == 0 }, 5*time.Second, time.Millisecond)
}

func TestManyNudgesForOneWorkflowAreOneSignal(t *testing.T) {
	t.Parallel()
	b, f, _, r := newRelay(t)
	lease := ids.Make[ids.Lease]()
	for range 64 {
		b.put(outbox.LeaseNudge, lease.String())
	}
	start(t, r)
	next(t, f)
	require.Eventually(t, func() bool { return b.left() == 0 }, 5*time.Second, time.Millisecond)
	require.Empty(t, f.asked)
}

func TestWhatCannotBeDeliveredIsTriedAgain(t *testing.T) {
	t.Parallel()
	b, f, wake, r := newRelay(t)
	f.broken = true
	b.put(outbox.LeaseNudge, ids.Make[ids.Lease]().String())
	start(t, r)
	wake <- struct{}{}
	f.mu.Lock()
	f.broken = false
	f.mu.Unlock()
	next(t, f)
	require.Eventually(t, func() bool { return b.left() == 0 }, 5*time.Second, time.Millisecond)
}

func TestANudgeIsFoundThoughNobodyWokeTheRelay(t *testing.T) {
	t.Parallel()
	b, f, _, r := newRelay(t)
	r.Wake = nil
	start(t, r)
	b.put(outbox.LeaseNudge, ids.Make[ids.Lease]().String())
	next(t, f)
}

func TestADueLeaseIsStartedOnce(t *testing.T) {
	t.Parallel()
	_, f, _, r := newRelay(t)
	lease := ids.Make[ids.Lease]()
	r.Leases = due{[]ids.Lease{lease}}
	r.Wake = nil
	start(t, r)
	require.Equal(t, leasing.WorkflowID(lease)+" "+leasing.NudgeSignal, next(t, f))
	select {
	case again := <-f.asked:
		require.Fail(t, "started again", again)
	case <-time.After(1500 * time.Millisecond): // more than one scan
	}
}

func TestOtherTopicsAreLeftToOthers(t *testing.T) {
	t.Parallel()
	b, f, _, r := newRelay(t)
	b.put(outbox.Notify, "org")
	b.put(outbox.LeaseNudge, ids.Make[ids.Lease]().String())
	start(t, r)
	next(t, f)
	require.Eventually(t, func() bool { return b.left() == 1 }, 5*time.Second, time.Millisecond)
}
