package reconcile_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
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
	pageSize  int
}

func (w *world) Live(context.Context, time.Time) ([]ids.Lease, error) { return w.live, nil }
func (w *world) Left(context.Context) ([]ids.Lease, error)            { return w.left, nil }

func (w *world) Unsettled(context.Context) ([]ids.Fabric, error) { return w.unsettled, nil }

func (w *world) AuditsDue(context.Context, time.Time) ([]ids.Fabric, error) { return w.due, nil }

func (w *world) Reclaims(context.Context) ([]ids.Node, error) { return w.unclean, nil }

func (w *world) TryLock(context.Context, int64) (func(), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.taken {
		return nil, nil
	}
	return func() {}, nil
}

func (w *world) ExpireLate(context.Context, time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expired++
	return nil
}

func (w *world) CleanUpAfter(_ context.Context, lease ids.Lease) error {
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

func TestOnlyTheHolderOfTheLockReconciles(t *testing.T) {
	t.Parallel()
	w := &world{taken: true, pageSize: 1}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	r := newReconciler(w)
	go func() { ended <- r.Run(ctx) }()
	expired := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.expired > 0 && w.forgotten
	}
	require.Never(t, expired, 300*time.Millisecond, 50*time.Millisecond)
	w.mu.Lock()
	w.taken = false
	w.mu.Unlock()
	require.Eventually(t, expired, 10*time.Second, 20*time.Millisecond, "it takes over when the lock is free")
	cancel()
	require.NoError(t, <-ended)
}
