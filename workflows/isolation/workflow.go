package isolation

import (
	"errors"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"
)

const (
	// fallback is how often a sweep in flight is looked at though nobody nudged; a lost nudge costs this much.
	fallback = 5 * time.Second
	// idle is how long the workflow stays for the next change before it ends: a signal is cheaper than a start.
	idle = time.Minute
	// roundsPerRun bounds a run's history.
	roundsPerRun = 200
)

// Isolate keeps one fabric's partitions at what the rows want, until nothing is pending for a while.
func Isolate(ctx workflow.Context, in Input) error {
	workflow.GetVersion(ctx, "isolation", workflow.DefaultVersion, Version)
	nudges := workflow.GetSignalChannel(ctx, NudgeSignal)
	for range roundsPerRun {
		for nudges.ReceiveAsync(nil) { // what they were about is seen by the look that follows
		}
		work, err := sweep(ctx, in)
		if err != nil {
			return err
		}
		if !sleep(ctx, nudges, work) {
			return nil
		}
	}
	return workflow.NewContinueAsNewError(ctx, WorkflowType, in)
}

func sweep(ctx workflow.Context, in Input) (Work, error) {
	var (
		work       Work
		activities *Activities // nil: a workflow uses the methods' names only
	)
	err := workflow.ExecuteLocalActivity(quick(ctx), activities.Sweep, in.Fabric).Get(ctx, &work)
	var application *temporal.ApplicationError
	if err == nil || errors.As(err, &application) && application.NonRetryable() {
		return work, err
	}
	workflow.GetLogger(ctx).Warn("a sweep has trouble and goes on patiently", "fabric", in.Fabric.String(), "error", err)
	err = workflow.ExecuteActivity(patient(ctx), activities.Sweep, in.Fabric).Get(ctx, &work)
	return work, err
}

// sleep waits for a nudge or the next deadline, and returns false when the workflow has been idle for long enough.
func sleep(ctx workflow.Context, nudges workflow.ReceiveChannel, work Work) bool {
	wait, waits := idle, work.InFlight
	if work.InFlight {
		wait = fallback
	}
	if !work.LookAt.IsZero() {
		waits = true
		wait = min(wait, max(work.LookAt.Sub(workflow.Now(ctx)), 50*time.Millisecond))
	}
	timerCtx, cancel := workflow.WithCancel(ctx)
	defer cancel()
	nudged := false
	selector := workflow.NewSelector(ctx)
	selector.AddReceive(nudges, func(c workflow.ReceiveChannel, _ bool) {
		c.Receive(ctx, nil)
		nudged = true
	})
	selector.AddFuture(workflow.NewTimer(timerCtx, wait), func(workflow.Future) {})
	selector.Select(ctx)
	return waits || nudged || nudges.Len() > 0
}

// quick is for one transaction within the workflow's own task.
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
