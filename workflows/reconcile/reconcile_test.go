package reconcile_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	commonpb "go.temporal.io/api/common/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/workflows/isolation"
	"github.com/leasehold/leasehold/workflows/leasing"
	"github.com/leasehold/leasehold/workflows/reclaim"
	"github.com/leasehold/leasehold/workflows/reconcile"
)

// world is what the rows say, what Temporal runs, and what was done about the difference.
type world struct {
	mu        sync.Mutex
	live      []ids.Lease
	left      []ids.Lease
	unsettled []ids.Fabric
	due       []ids.Fabric
	unclean   []ids.Node
	running   []ids.Lease
	nudged    map[string]int
	cleaned   []ids.Lease
	expired   int
	forgotten bool
	taken     bool // somebody else has the lock
	locked    int  // how often it was taken
	lost      error
	bad       string // what of this name fails
	pageSize  int
}

func (w *world) Live(context.Context, time.Time) ([]ids.Lease, error) { return w.live, nil }
func (w *world) Left(context.Context) ([]ids.Lease, error)            { return w.left, nil }

func (w *world) Unsettled(context.Context) ([]ids.Fabric, error) { return w.unsettled, nil }

func (w *world) AuditsDue(context.Context, time.Time) ([]ids.Fabric, error) { return w.due, nil }

func (w *world) Reclaims(context.Context) ([]ids.Node, error) { return w.unclean, nil }

func (w *world) TryLock(context.Context, int64) (func(context.Context) error, func(), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.taken {
		return nil, nil, nil
	}
	w.locked++
	held := func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.lost
	}
	return held, func() {}, nil
}

func (w *world) ExpireLate(context.Context, time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expired++
	return nil
}

func (w *world) CleanUpAfter(_ context.Context, lease ids.Lease) error {
	if lease.String() == w.bad {
		return errors.New("no")
	}
	w.cleaned = append(w.cleaned, lease)
	return nil
}

func (w *world) Forget(context.Context, time.Time) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgotten = true
	return 0, nil
}

func (w *world) SignalWithStartWorkflow(_ context.Context, id, _ string, _ any, _ client.StartWorkflowOptions, _ any, _ ...any) (client.WorkflowRun, error) {
	if w.bad != "" && strings.Contains(id, w.bad) {
		return nil, errors.New("no")
	}
	w.nudged[id]++
	return nil, nil //nolint:nilnil // nobody looks at the run
}

// ListWorkflow pages through what runs; the token is the next index.
func (w *world) ListWorkflow(_ context.Context, r *workflowservice.ListWorkflowExecutionsRequest) (*workflowservice.ListWorkflowExecutionsResponse, error) {
	from := 0
	if len(r.GetNextPageToken()) > 0 {
		from = int(r.GetNextPageToken()[0])
	}
	to := min(from+w.pageSize, len(w.running))
	page := &workflowservice.ListWorkflowExecutionsResponse{}
	for _, lease := range w.running[from:to] {
		page.Executions = append(page.Executions, &workflowpb.WorkflowExecutionInfo{
			Execution: &commonpb.WorkflowExecution{WorkflowId: leasing.WorkflowID(lease)},
		})
	}
	if to < len(w.running) {
		page.NextPageToken = []byte{byte(to)}
	}
	return page, nil
}

func newReconciler(w *world) *reconcile.Reconciler {
	w.nudged = map[string]int{}
	return &reconcile.Reconciler{
		Rows: w, Locker: w, Fleet: w, Delivery: w, Outbox: w, Temporal: w, TaskQueue: "q", Clock: clock.System{}, Log: slog.New(slog.DiscardHandler),
	}
}

func makeLeases(n int) []ids.Lease {
	leases := make([]ids.Lease, n)
	for i := range leases {
		leases[i] = ids.Make[ids.Lease]()
	}
	return leases
}

func TestALeaseUnderWayWithoutAWorkflowGetsOne(t *testing.T) {
	t.Parallel()
	leases := makeLeases(5)
	w := &world{live: leases, running: leases[:3], pageSize: 2}
	require.NoError(t, newReconciler(w).Compare(t.Context()))
	require.Equal(t, map[string]int{leasing.WorkflowID(leases[3]): 1, leasing.WorkflowID(leases[4]): 1}, w.nudged)
}

func TestAWorkflowWhoseLeaseIsOverIsMadeToLook(t *testing.T) {
	t.Parallel()
	leases := makeLeases(3)
	w := &world{live: leases[:2], running: leases, pageSize: 10}
	require.NoError(t, newReconciler(w).Compare(t.Context()))
	require.Equal(t, map[string]int{leasing.WorkflowID(leases[2]): 1}, w.nudged)
}

func TestAFabricWithSomethingToDoIsWoken(t *testing.T) {
	t.Parallel()
	both, audited := ids.Make[ids.Fabric](), ids.Make[ids.Fabric]()
	w := &world{unsettled: []ids.Fabric{both}, due: []ids.Fabric{audited, both}}
	require.NoError(t, newReconciler(w).WakeFabrics(t.Context()))
	require.Equal(t, map[string]int{isolation.WorkflowID(both): 1, isolation.WorkflowID(audited): 1}, w.nudged)
}

func TestANodeThatWaitsToBeCleanedAgainIsWoken(t *testing.T) {
	t.Parallel()
	w := &world{unclean: []ids.Node{ids.Make[ids.Node]()}}
	require.NoError(t, newReconciler(w).WakeNodes(t.Context()))
	require.Equal(t, map[string]int{reclaim.WorkflowID(w.unclean[0]): 1}, w.nudged)
}

func TestWhatFinalLeasesLeftBehindIsCleanedUp(t *testing.T) {
	t.Parallel()
	w := &world{left: makeLeases(2)}
	require.NoError(t, newReconciler(w).CleanUp(t.Context()))
	require.Equal(t, w.left, w.cleaned)
}

func TestOneThatFailsHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	leases := makeLeases(3)
	w := &world{live: leases, left: leases, bad: leases[0].String(), pageSize: 1}
	require.ErrorContains(t, newReconciler(w).Compare(t.Context()), leases[0].String())
	require.Equal(t, map[string]int{leasing.WorkflowID(leases[1]): 1, leasing.WorkflowID(leases[2]): 1}, w.nudged)
	require.ErrorContains(t, newReconciler(w).CleanUp(t.Context()), leases[0].String())
	require.Equal(t, leases[1:], w.cleaned)
}

// running runs a reconciler in a bubble whose time passes when everybody waits.
func running(t *testing.T, w *world, then func(t *testing.T, done func() bool)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- newReconciler(w).Run(ctx) }()
		then(t, func() bool {
			<-time.After(3 * time.Second) // the bubble's
			synctest.Wait()
			w.mu.Lock()
			defer w.mu.Unlock()
			did := w.expired > 0
			w.expired = 0
			return did
		})
		cancel()
		require.NoError(t, <-ended)
	})
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func TestOnlyTheHolderOfTheLockReconciles(t *testing.T) {
	t.Parallel()
	w := &world{taken: true, pageSize: 1}
	running(t, w, func(t *testing.T, done func() bool) {
		t.Helper()
		require.False(t, done())
		w.set(func() { w.taken = false })
		require.True(t, done(), "it takes over when the lock is free")
	})
	require.True(t, w.forgotten)
}

func TestALostLockIsTakenAgainBeforeAnythingElse(t *testing.T) {
	t.Parallel()
	w := &world{pageSize: 1}
	running(t, w, func(t *testing.T, done func() bool) {
		t.Helper()
		require.True(t, done())
		w.set(func() { w.lost, w.taken = errors.New("the session is gone"), true })
		require.False(t, done(), "somebody else has it by now")
		w.set(func() { w.lost, w.taken = nil, false })
		require.True(t, done())
		require.Equal(t, 2, w.locked)
	})
}
