// Package reconcile compares what the rows say with what runs, and repairs or quarantines what does not fit: every lease that is
// under way has a live workflow, every live workflow has such a lease, nothing that was asked of an agent waits for ever, no fabric
// is left with partitions half made, no node waits in vain to be cleaned again, and no slot stays taken by a lease that is over. It is a plain loop outside the workflows, so that it works when they do not.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"go.temporal.io/api/workflowservice/v1"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/workflows/leasing"
	"github.com/leasehold/leasehold/workflows/relay"
)

const (
	expireEvery  = time.Second
	compareEvery = 15 * time.Second
	forgetEvery  = 10 * time.Minute
	forgetAfter  = 24 * time.Hour
	// lockKey names the database lock under which one worker of all reconciles.
	lockKey = 0x1ea5e401d
)

// Rows is what the database says.
type Rows interface {
	// Live lists the leases that must have a workflow.
	Live(ctx context.Context, now time.Time) ([]ids.Lease, error)
	// Left lists final leases that still have slots.
	Left(ctx context.Context) ([]ids.Lease, error)
	// Unsettled lists fabrics whose partitions are not all where they should stay.
	Unsettled(ctx context.Context) ([]ids.Fabric, error)
	// AuditsDue lists fabrics whose ports are to be read again, or that have drift to be repaired.
	AuditsDue(ctx context.Context, now time.Time) ([]ids.Fabric, error)
	// Reclaims lists nodes that are being verified and must be cleaned again first.
	Reclaims(ctx context.Context) ([]ids.Node, error)
}

// Locker lets one of many work.
type Locker interface {
	// TryLock returns what tells whether the lock is held still, by an error when it is lost, and what gives it back; both nil when somebody
	// else has it.
	TryLock(ctx context.Context, key int64) (held func(context.Context) error, unlock func(), err error)
}

// Fleet ends operations whose deadline is over.
type Fleet interface {
	ExpireLate(ctx context.Context, now time.Time) error
}

// Delivery quarantines what a final lease left behind.
type Delivery interface {
	CleanUpAfter(ctx context.Context, lease ids.Lease) error
}

// Outbox forgets what was delivered long ago.
type Outbox interface {
	Forget(ctx context.Context, deliveredBefore time.Time) (int64, error)
}

// Temporal is the part of its client that is used.
type Temporal interface {
	relay.Signaller
	ListWorkflow(ctx context.Context, request *workflowservice.ListWorkflowExecutionsRequest) (*workflowservice.ListWorkflowExecutionsResponse, error)
}

// Reconciler compares and repairs.
type Reconciler struct {
	Rows      Rows
	Locker    Locker
	Fleet     Fleet
	Delivery  Delivery
	Outbox    Outbox
	Temporal  Temporal
	TaskQueue string
	Clock     clock.Clock
	Log       *slog.Logger
}

// Run reconciles until ctx ends, while it has the lock. Trouble is logged and tried again.
func (r *Reconciler) Run(ctx context.Context) error {
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	lock := held{locker: r.Locker, log: r.Log}
	defer lock.giveBack()
	var compared, forgot time.Time
	for {
		if lock.have(ctx) {
			r.round(ctx, &compared, &forgot)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// held is the lock under which one worker of all reconciles. It may be lost at any time, with the session that has it: then somebody else may
// have it already. Two that reconcile at once do no harm, but for ever they must not.
type held struct {
	locker Locker
	log    *slog.Logger
	check  func(context.Context) error
	unlock func()
}

// have takes the lock unless it is held, and reports whether it is.
func (h *held) have(ctx context.Context) bool {
	if h.unlock != nil {
		err := h.check(ctx)
		if err == nil {
			return true
		}
		h.log.WarnContext(ctx, "the reconciler has lost its lock", "error", err)
		h.giveBack()
	}
	var err error
	if h.check, h.unlock, err = h.locker.TryLock(ctx, lockKey); err != nil && ctx.Err() == nil {
		h.log.WarnContext(ctx, "reconciler has no lock", "error", err)
	}
	return h.unlock != nil
}

func (h *held) giveBack() {
	if h.unlock != nil {
		h.unlock()
	}
	h.check, h.unlock = nil, nil
}

func (r *Reconciler) round(ctx context.Context, compared, forgot *time.Time) {
	now := r.Clock.Now()
	r.attempt(ctx, "expire late operations", func() error { return r.Fleet.ExpireLate(ctx, now) })
	if now.Sub(*compared) >= compareEvery {
		*compared = now
		r.attempt(ctx, "compare leases with workflows", func() error { return r.Compare(ctx) })
		r.attempt(ctx, "wake fabrics", func() error { return r.WakeFabrics(ctx) })
		r.attempt(ctx, "wake nodes", func() error { return r.WakeNodes(ctx) })
		r.attempt(ctx, "clean up after final leases", func() error { return r.CleanUp(ctx) })
	}
	if now.Sub(*forgot) >= forgetEvery {
		*forgot = now
		r.attempt(ctx, "forget delivered messages", func() error {
			_, err := r.Outbox.Forget(ctx, now.Add(-forgetAfter))
			return err
		})
	}
}

func (r *Reconciler) attempt(ctx context.Context, what string, do func() error) {
	if err := do(); err != nil && ctx.Err() == nil {
		r.Log.ErrorContext(ctx, "the reconciler failed", "at", what, "error", err)
	}
}

// Compare starts a workflow for every live lease without one, and nudges every workflow whose lease is not live, which then looks at
// the row and ends.
func (r *Reconciler) Compare(ctx context.Context) error {
	running, err := r.Running(ctx) // first: a lease that begins in between is live and runs, or is started twice, which is harmless
	if err != nil {
		return err
	}
	live, err := r.Rows.Live(ctx, r.Clock.Now())
	if err != nil {
		return err
	}
	var odd []ids.Lease
	for _, lease := range live {
		if running[lease] {
			delete(running, lease)
			continue
		}
		r.Log.WarnContext(ctx, "a lease under way has no workflow: starting it", "lease", lease.String())
		odd = append(odd, lease)
	}
	for orphan := range running {
		r.Log.InfoContext(ctx, "a workflow's lease is not under way: having it look", "lease", orphan.String())
		odd = append(odd, orphan)
	}
	return all(odd, func(lease ids.Lease) error { return relay.NudgeLease(ctx, r.Temporal, r.TaskQueue, lease) })
}

// all does it for every one, whatever happens with the others, and returns all errors.
func all[T fmt.Stringer](things []T, do func(T) error) error {
	var errs []error
	for _, thing := range things {
		if err := do(thing); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", thing, err))
		}
	}
	return errors.Join(errs...)
}

// Running lists the leases whose workflow runs, as Temporal's visibility shows it, which may be some seconds old.
func (r *Reconciler) Running(ctx context.Context) (map[ids.Lease]bool, error) {
	found := map[ids.Lease]bool{}
	request := &workflowservice.ListWorkflowExecutionsRequest{
		PageSize: 1000, Query: fmt.Sprintf("WorkflowType = '%s' AND ExecutionStatus = 'Running'", leasing.WorkflowType),
	}
	for {
		page, err := r.Temporal.ListWorkflow(ctx, request)
		if err != nil {
			return nil, fmt.Errorf("list workflows: %w", err)
		}
		for _, execution := range page.GetExecutions() {
			name := strings.TrimPrefix(execution.GetExecution().GetWorkflowId(), leasing.WorkflowID(ids.Lease{}))
			if lease, err := ids.Read[ids.Lease](name); err == nil {
				found[lease] = true
			}
		}
		if request.NextPageToken = page.GetNextPageToken(); len(request.NextPageToken) == 0 {
			return found, nil
		}
	}
}

// WakeFabrics nudges every fabric that has something to do or is to be audited, so that a lost workflow of one costs seconds. The others look
// and sleep on.
func (r *Reconciler) WakeFabrics(ctx context.Context) error {
	unsettled, err := r.Rows.Unsettled(ctx)
	if err != nil {
		return err
	}
	due, err := r.Rows.AuditsDue(ctx, r.Clock.Now())
	if err != nil {
		return err
	}
	var wake []ids.Fabric
	for _, fabric := range slices.Concat(unsettled, due) {
		if !slices.Contains(wake, fabric) {
			wake = append(wake, fabric)
		}
	}
	return all(wake, func(fabric ids.Fabric) error { return relay.NudgeFabric(ctx, r.Temporal, r.TaskQueue, fabric) })
}

// WakeNodes nudges every node that is tested again while something on it is not clean, so that a lost workflow of one costs seconds.
func (r *Reconciler) WakeNodes(ctx context.Context) error {
	nodes, err := r.Rows.Reclaims(ctx)
	if err != nil {
		return err
	}
	return all(nodes, func(node ids.Node) error { return relay.NudgeNode(ctx, r.Temporal, r.TaskQueue, node) })
}

// CleanUp sees to slots that final leases still have.
func (r *Reconciler) CleanUp(ctx context.Context) error {
	left, err := r.Rows.Left(ctx)
	if err != nil {
		return err
	}
	return all(left, func(lease ids.Lease) error {
		r.Log.WarnContext(ctx, "a final lease still has slots", "lease", lease.String())
		return r.Delivery.CleanUpAfter(ctx, lease)
	})
}
