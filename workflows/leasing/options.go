package leasing

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"
)

// How often a sleeping workflow looks at the rows though nobody nudged it. A lost nudge costs this much.
const (
	fallbackWorking = 10 * time.Second // nodes are being prepared or cleaned
	fallbackServing = 5 * time.Minute  // thousands of leases may be active at once
)

const (
	// soon is how far ahead a reserved lease is waited for; one that is due later is only rows, and a scan starts it.
	soon = 2 * time.Minute
	// runFor is how long one run lasts before it continues as new, so that old histories do not block deployments.
	runFor = 24 * time.Hour
	// proveAgain is the pause between two rounds of witnesses.
	proveAgain = 2 * time.Second
	// accrueEvery is how often usage is captured from the hold.
	accrueEvery = time.Hour
)

// notices are how long before its end a lease's people are told.
func notices() []time.Duration {
	return []time.Duration{24 * time.Hour, 4 * time.Hour, time.Hour, 15 * time.Minute}
}

// quick is for one transaction within the workflow's own task: no queue, no further task. What fails thrice goes on patiently.
func quick(ctx workflow.Context) workflow.Context {
	return workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		StartToCloseTimeout: 5 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval: 20 * time.Millisecond, BackoffCoefficient: 4, MaximumInterval: 500 * time.Millisecond, MaximumAttempts: 3,
		},
	})
}

// patient is for the same transaction when the database has trouble: it is tried until it works, and while it does not,
// everybody sees the pending activity with its last error.
func patient(ctx workflow.Context) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: 30 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{
			InitialInterval: 500 * time.Millisecond, BackoffCoefficient: 2, MaximumInterval: 30 * time.Second,
		},
	})
}

// bestEffort is for what a later run of the same work makes up for: it must not hold up the lease's end.
func bestEffort(ctx workflow.Context) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout:    30 * time.Second,
		ScheduleToCloseTimeout: time.Minute,
		RetryPolicy:            &temporal.RetryPolicy{InitialInterval: 500 * time.Millisecond, BackoffCoefficient: 2, MaximumAttempts: 5},
	})
}
