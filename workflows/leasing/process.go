package leasing

import (
	"errors"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// process is one run of the workflow. It has no state that the rows lack.
type process struct {
	lease  ids.Lease
	nudges workflow.ReceiveChannel
	began  time.Time
	// activities is nil: a workflow uses the methods' names only.
	activities *Activities
}

func newProcess(ctx workflow.Context, in Input) *process {
	return &process{lease: in.Lease, nudges: workflow.GetSignalChannel(ctx, NudgeSignal), began: workflow.Now(ctx)}
}

// look is one step's look at the rows; it does what is due and says how far things are.
type look func(ctx workflow.Context) (delivery.Progress, error)

// until looks until every step is done. Between looks it sleeps until somebody nudges, the rows' own deadline comes, or the
// fallback timer runs out. Looks of one call are taken in order; steps that were done are not looked at again.
//
// It returns errAgain when an earlier step has something new to do, and an *endedError when the lease must be released.
func (p *process) until(ctx workflow.Context, looks ...look) error {
	for {
		p.forgetNudges()
		pending := make([]look, 0, len(looks))
		next := workflow.Now(ctx).Add(fallbackWorking)
		for _, look := range looks {
			progress, err := look(ctx)
			switch {
			case err != nil:
				return err
			case progress.Ending != nil:
				return &endedError{*progress.Ending}
			case progress.Again:
				return errAgain
			case progress.Done:
			default:
				pending = append(pending, look)
				next = earliest(next, progress.LookAt)
			}
		}
		if looks = pending; len(looks) == 0 {
			return nil
		}
		p.sleep(ctx, next)
	}
}

// errAgain says that an earlier step has something new to do, e.g. a replacement node to prepare.
var errAgain = errors.New("look again from the first step")

// endedError says that the lease is to be released now.
type endedError struct{ ending delivery.Ending }

func (e *endedError) Error() string { return "lease ends: " + e.ending.Reason }

// sleep waits for a nudge, or until the instant.
func (p *process) sleep(ctx workflow.Context, until time.Time) {
	timerCtx, cancel := workflow.WithCancel(ctx)
	defer cancel()
	selector := workflow.NewSelector(ctx)
	selector.AddReceive(p.nudges, func(c workflow.ReceiveChannel, _ bool) { c.Receive(ctx, nil) })
	selector.AddFuture(workflow.NewTimer(timerCtx, max(until.Sub(workflow.Now(ctx)), minSleep)), func(workflow.Future) {})
	selector.Select(ctx)
}

// minSleep keeps a deadline in the past from becoming a busy loop.
const minSleep = 50 * time.Millisecond

// forgetNudges drops the nudges that came before: the look at the rows that follows sees what they were about.
func (p *process) forgetNudges() {
	for p.nudges.ReceiveAsync(nil) {
	}
}

// step makes a look of an activity.
func (p *process) step(activity any, args ...any) look {
	return func(ctx workflow.Context) (delivery.Progress, error) {
		var progress delivery.Progress
		err := p.do(ctx, &progress, activity, args...)
		return progress, err
	}
}

// do runs an activity within the workflow task, and when that fails for reasons that may pass, as a queued activity until it
// works. A refusal comes back at once.
func (p *process) do(ctx workflow.Context, result any, activity any, args ...any) error {
	args = append([]any{p.lease}, args...)
	err := workflow.ExecuteLocalActivity(quick(ctx), activity, args...).Get(ctx, result)
	if err == nil || refused(err) {
		return err
	}
	workflow.GetLogger(ctx).Warn("a step has trouble and goes on patiently", "lease", p.lease.String(), "error", err)
	return workflow.ExecuteActivity(patient(ctx), activity, args...).Get(ctx, result)
}

// refused reports whether err is a refusal by the domain, which no retry can heal.
func refused(err error) bool {
	var application *temporal.ApplicationError
	return errors.As(err, &application) && application.NonRetryable()
}

// refusedAs reports whether err is a refusal of that kind.
func refusedAs(err error, kind fault.Kind) bool {
	var application *temporal.ApplicationError
	return errors.As(err, &application) && application.NonRetryable() && application.Type() == string(kind)
}

// earliest returns the earlier of two instants; a zero one does not count.
func earliest(a, b time.Time) time.Time {
	if b.IsZero() || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}
