package leasing

import (
	"errors"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/lease"
)

// Lease carries one lease through the phase that its row is in, and continues as new for the next, until nothing is left to do.
// It starts from the row alone, so it may be started again at any point of a lease's life.
func Lease(ctx workflow.Context, in Input) error {
	workflow.GetVersion(ctx, "leasing", workflow.DefaultVersion, Version)
	p := newProcess(ctx, in)
	for {
		finished, err := p.phase(ctx)
		switch {
		case refusedAs(err, fault.NotFound):
			return err // there is no such lease: nobody waits for this workflow
		case refused(err):
			// The row is not what this run took it for. Whoever changed it has decided; look again, but not at once for ever.
			workflow.GetLogger(ctx).Warn("a step was refused", "lease", in.Lease.String(), "error", err)
			p.sleep(ctx, workflow.Now(ctx).Add(fallbackWorking))
		case err != nil:
			return err
		case finished && !p.nudged():
			return nil
		}
		if !finished {
			return workflow.NewContinueAsNewError(ctx, WorkflowType, in)
		}
	}
}

// nudged reports whether somebody wants another look, and forgets it.
func (p *process) nudged() bool {
	nudged := p.nudges.Len() > 0
	p.forgetNudges()
	return nudged
}

// phase does what the lease's state asks for, and returns true when nothing is left to do for this workflow.
func (p *process) phase(ctx workflow.Context) (bool, error) {
	p.forgetNudges()
	standing, err := p.load(ctx)
	if err != nil {
		return false, err
	}
	switch standing.State {
	case lease.Reserved:
		if standing.Begin.Sub(workflow.Now(ctx)) > soon {
			return true, nil // only rows until then; the scan starts a workflow when it is due
		}
		return false, p.provision(ctx, standing)
	case lease.Provisioning:
		return false, p.provision(ctx, standing)
	case lease.Active:
		return false, p.serve(ctx)
	case lease.Releasing:
		return false, p.release(ctx)
	case lease.Closed, lease.Cancelled:
		return true, nil
	default:
		return false, temporal.NewNonRetryableApplicationError("unknown state "+string(standing.State), string(fault.Internal), nil)
	}
}

func (p *process) load(ctx workflow.Context) (delivery.Standing, error) {
	var standing delivery.Standing
	err := p.do(ctx, &standing, p.activities.Load)
	return standing, err
}

// provision takes the lease from its rows to a tenant who can log in, and starts the clock. What cannot be delivered is
// released: everything that was touched is cleaned, and nothing is billed.
func (p *process) provision(ctx workflow.Context, standing delivery.Standing) error {
	err := p.deliver(ctx)
	var ended *endedError
	switch {
	case errors.Is(err, errAgain):
		return nil // the next run starts from the first step
	case errors.As(err, &ended):
		return p.do(ctx, nil, p.activities.Release, ended.ending)
	case refused(err) && (!refusedAs(err, fault.Conflict) || !workflow.Now(ctx).Before(standing.End)):
		return p.do(ctx, nil, p.activities.Release, delivery.Ending{Outcome: lease.FailedOutcome, Reason: reasonOf(err)})
	default:
		return err
	}
}

// deliver is the way to a running lease. The partition is joined after the nodes' preparation, whose preflight demands that their ports
// carry nobody's key, and while the service OS still runs. (The two were done at once, and a node that was late or came back after a
// crash then found the lease's own key and refused.) Nobody is let in before the start, nor before both witnesses agree.
func (p *process) deliver(ctx workflow.Context) error {
	if err := p.until(ctx, p.step(p.activities.HandOver)); err != nil {
		return err
	}
	if err := p.until(ctx, p.step(p.activities.Prepare)); err != nil {
		return err
	}
	if err := p.until(ctx, p.step(p.activities.Isolate)); err != nil {
		return err
	}
	if err := p.prove(ctx, delivery.BeforeActive); err != nil {
		return err
	}
	if err := p.until(ctx, p.step(p.activities.Grant)); err != nil {
		return err
	}
	return p.until(ctx, p.step(p.activities.Activate))
}

// prove has the second witness read its tables and compares it with the first, in as many rounds as delivery asks for.
func (p *process) prove(ctx workflow.Context, occasion delivery.Occasion) error {
	for {
		if err := p.until(ctx, p.step(p.activities.Witness, occasion)); err != nil {
			return err
		}
		err := p.until(ctx, p.step(p.activities.Attest, occasion))
		if !errors.Is(err, errAgain) {
			return err
		}
		p.sleep(ctx, workflow.Now(ctx).Add(proveAgain))
	}
}

// serve watches over an active lease until its end, which may move either way.
func (p *process) serve(ctx workflow.Context) error {
	for {
		p.forgetNudges()
		standing, err := p.load(ctx)
		if err != nil || standing.State != lease.Active {
			return err
		}
		if !workflow.Now(ctx).Before(standing.End) {
			return p.do(ctx, nil, p.activities.Release, delivery.Ending{})
		}
		// Access lasts as long as the lease: after an extension the nodes are told the new end.
		access, err := p.step(p.activities.Grant)(ctx)
		if err != nil {
			return err
		}
		next, err := p.attestIfAsked(ctx, standing, access.LookAt)
		if err != nil || p.isOld(ctx) {
			return err
		}
		if err := p.keepAgenda(ctx, standing, next); err != nil {
			return err
		}
	}
}

// attestIfAsked answers whoever waits for a proof of isolation, and returns when to look again, if that is before next. A proof that cannot be
// had does not hold up the lease's end: the next look tries again.
func (p *process) attestIfAsked(ctx workflow.Context, standing delivery.Standing, next time.Time) (time.Time, error) {
	if !standing.AttestAsked {
		return next, nil
	}
	var progress delivery.Progress
	err := workflow.ExecuteActivity(bestEffort(ctx), p.activities.AttestOnDemand, p.lease).Get(ctx, &progress)
	if err != nil && !temporal.IsCanceledError(err) {
		workflow.GetLogger(ctx).Error("a proof of isolation is left for later", "lease", p.lease.String(), "error", err)
		return next, nil
	}
	if next.IsZero() {
		return progress.LookAt, err
	}
	return earliest(next, progress.LookAt), err
}

// keepAgenda sleeps until the next thing that time asks for, or a nudge, and does what is due.
func (p *process) keepAgenda(ctx workflow.Context, standing delivery.Standing, work time.Time) error {
	now := workflow.Now(ctx)
	notice, remaining := nextNotice(standing.End, now)
	accrual := nextAccrual(standing.ActiveAt, now)
	next := now.Add(fallbackServing)
	for _, at := range []time.Time{standing.End, notice, accrual, work} {
		next = earliest(next, at)
	}
	p.sleep(ctx, next)
	if now = workflow.Now(ctx); !notice.IsZero() && !now.Before(notice) {
		if err := p.try(ctx, p.activities.Notify, remaining); err != nil {
			return err
		}
	}
	if !now.Before(accrual) && accrual.Before(standing.End) {
		return p.try(ctx, p.activities.Accrue, accrual)
	}
	return nil
}

// try runs what must not hold up the lease: a later run of the same work makes up for it.
func (p *process) try(ctx workflow.Context, activity any, args ...any) error {
	err := workflow.ExecuteActivity(bestEffort(ctx), activity, append([]any{p.lease}, args...)...).Get(ctx, nil)
	if err != nil && !temporal.IsCanceledError(err) {
		workflow.GetLogger(ctx).Error("left for later", "lease", p.lease.String(), "error", err)
		return nil
	}
	return err
}

func (p *process) isOld(ctx workflow.Context) bool {
	return workflow.Now(ctx).Sub(p.began) >= runFor || workflow.GetInfo(ctx).GetContinueAsNewSuggested()
}

// nextNotice returns when the next notice before the end is due, and how long is left then; the zero instant for none.
func nextNotice(end, now time.Time) (time.Time, time.Duration) {
	for _, remaining := range notices() {
		if at := end.Add(-remaining); at.After(now) {
			return at, remaining
		}
	}
	return time.Time{}, 0
}

// nextAccrual returns the next full accrual period after the lease became active.
func nextAccrual(activeAt, now time.Time) time.Time {
	periods := int64(max(now.Sub(activeAt), 0) / accrueEvery)
	return activeAt.Add(time.Duration(periods+1) * accrueEvery)
}

// release takes back what was given, in the order in which nothing leaks: people out, partition empty, disks clean. Each step
// ends with every node clean or quarantined; then the books are closed.
func (p *process) release(ctx workflow.Context) error {
	steps := []func() error{
		func() error { return p.until(ctx, p.step(p.activities.Revoke)) },
		func() error { return p.until(ctx, p.step(p.activities.Leave)) },
		func() error { return p.prove(ctx, delivery.AfterRelease) },
		func() error { return p.until(ctx, p.step(p.activities.Wipe)) },
	}
	for _, step := range steps {
		err := p.orQuarantine(ctx, step())
		if errors.Is(err, errAgain) {
			return nil // somebody has moved the lease on; the next run sees where it is
		}
		if err != nil {
			return err
		}
	}
	return p.do(ctx, nil, p.activities.Settle)
}

// orQuarantine gives up cleaning the lease's nodes when a step back is refused as such. They stay off the market, with the reason.
func (p *process) orQuarantine(ctx workflow.Context, err error) error {
	if !refused(err) || refusedAs(err, fault.Conflict) || refusedAs(err, fault.NotFound) {
		return err
	}
	return p.do(ctx, nil, p.activities.Quarantine, reasonOf(err))
}

// reasonOf returns the refusal's own words.
func reasonOf(err error) string {
	var application *temporal.ApplicationError
	if errors.As(err, &application) {
		return application.Message()
	}
	return err.Error()
}
