package reclaim

import (
	"errors"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

const (
	// fallback is how often the rows are looked at though nobody nudged; a lost nudge costs this much.
	fallback = 10 * time.Second
	// minSleep keeps a deadline in the past from becoming a busy loop.
	minSleep = 50 * time.Millisecond
	// roundsPerRun bounds a run's history.
	roundsPerRun = 20
)

// Node cleans what leases left on one node, in the order in which nothing leaks: people out, ports clear, disks clean. It starts from
// the rows alone, so it may be started again at any point, and ends when nothing is left to do for now.
func Node(ctx workflow.Context, in Input) error {
	workflow.GetVersion(ctx, "reclaim", workflow.DefaultVersion, Version)
	p := &process{node: in.Node, nudges: workflow.GetSignalChannel(ctx, NudgeSignal)}
	for range roundsPerRun {
		p.forgetNudges()
		trouble, err := p.clean(ctx)
		if errors.Is(err, errOld) {
			break
		}
		if err != nil {
			return err
		}
		progress, err := p.do(ctx, p.activities.ConcludeReclaim, trouble)
		if err != nil {
			return err
		}
		if progress.Done && p.nudges.Len() == 0 {
			return nil
		}
		if !progress.Done {
			p.sleep(ctx, progress.LookAt)
		}
	}
	return workflow.NewContinueAsNewError(ctx, WorkflowType, in)
}

// process is one run of the workflow. It has no state that the rows lack.
type process struct {
	node   ids.Node
	nudges workflow.ReceiveChannel
	// activities is nil: a workflow uses the methods' names only.
	activities *Activities
}

// errOld says that the run's history has grown long: the next one begins with the first step, and passes those that are done.
var errOld = errors.New("continue as new")

// clean takes one step after the other, until all are done or the node was moved on. It returns why a step was refused as such.
func (p *process) clean(ctx workflow.Context) (trouble string, err error) {
	steps := []any{
		p.activities.BeginReclaim, p.activities.RevokeAgain, p.activities.AwaitClear, p.activities.ObserveAgain, p.activities.WipeAgain,
	}
	for _, step := range steps {
		again, err := p.until(ctx, step)
		var application *temporal.ApplicationError
		switch {
		case errors.As(err, &application) && application.NonRetryable() && application.Type() != string(fault.NotFound):
			workflow.GetLogger(ctx).Error("a step was refused", "node", p.node.String(), "error", err)
			return application.Message(), nil
		case err != nil || again:
			return "", err
		}
	}
	return "", nil
}

// until looks at a step until it is done. Between looks it sleeps until somebody nudges, the rows' own deadline comes, or the fallback
// timer runs out. It returns true when the node was moved on.
func (p *process) until(ctx workflow.Context, step any) (bool, error) {
	for {
		p.forgetNudges()
		progress, err := p.do(ctx, step)
		if err != nil || progress.Again || progress.Done {
			return progress.Again, err
		}
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			return false, errOld
		}
		p.sleep(ctx, progress.LookAt)
	}
}

// sleep waits for a nudge, or until the instant; until the fallback's when that is sooner, or there is none.
func (p *process) sleep(ctx workflow.Context, until time.Time) {
	wait := fallback
	if !until.IsZero() {
		wait = min(wait, max(until.Sub(workflow.Now(ctx)), minSleep))
	}
	timerCtx, cancel := workflow.WithCancel(ctx)
	defer cancel()
	selector := workflow.NewSelector(ctx)
	selector.AddReceive(p.nudges, func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, nil) })
	selector.AddFuture(workflow.NewTimer(timerCtx, wait), func(workflow.Future) {})
	selector.Select(ctx)
}

// forgetNudges drops the nudges that came before: the look at the rows that follows sees what they were about.
func (p *process) forgetNudges() {
	for p.nudges.ReceiveAsync(nil) {
	}
}

// do runs an activity within the workflow task, and when that fails for reasons that may pass, as a queued activity until it works. A
// refusal comes back at once.
func (p *process) do(ctx workflow.Context, activity any, args ...any) (delivery.Progress, error) {
	var progress delivery.Progress
	args = append([]any{p.node}, args...)
	err := workflow.ExecuteLocalActivity(quick(ctx), activity, args...).Get(ctx, &progress)
	var application *temporal.ApplicationError
	if err == nil || errors.As(err, &application) && application.NonRetryable() {
		return progress, err
	}
	workflow.GetLogger(ctx).Warn("a step has trouble and goes on patiently", "node", p.node.String(), "error", err)
	err = workflow.ExecuteActivity(patient(ctx), activity, args...).Get(ctx, &progress)
	return progress, err
}

// quick is for short transactions within the workflow's own task.
func quick(ctx workflow.Context) workflow.Context {
	return workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		StartToCloseTimeout: 5 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval: 20 * time.Millisecond, BackoffCoefficient: 4, MaximumInterval: 500 * time.Millisecond, MaximumAttempts: 3,
		},
	})
}

// patient tries the same until it works, for everybody to see.
func patient(ctx workflow.Context) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: 30 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval: 500 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 30 * time.Second,
		},
	})
}
