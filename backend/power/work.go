package power

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

const (
	// claimFor is how long a worker that is gone keeps others from a machine; it claims anew three times as often.
	claimFor = 30 * time.Second
	// atOnce bounds how many machines one worker switches at the same time.
	atOnce = 64
)

// Run does power operations until ctx ends. Several workers share them: a machine is one worker's at a time, and what one leaves unfinished
// another begins anew. Trouble is logged and tried again.
func (s *Service) Run(ctx context.Context) error {
	var busy sync.Map // nodes
	var work sync.WaitGroup
	defer work.Wait()
	places := make(chan struct{}, atOnce)
	tick := time.NewTicker(s.Pace.LookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		jobs, err := s.jobs(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.Log.WarnContext(ctx, "power operations cannot be read", "error", err)
			}
			continue
		}
		for _, job := range jobs {
			if _, taken := busy.LoadOrStore(job.Node, true); taken {
				continue
			}
			work.Go(func() {
				defer busy.Delete(job.Node)
				places <- struct{}{}
				defer func() { <-places }()
				s.do(ctx, job)
			})
		}
	}
}

func (s *Service) jobs(ctx context.Context) ([]Job, error) {
	var jobs []Job
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		jobs, err = s.Work.Jobs(ctx)
		return err
	})
	return jobs, err
}

// do does one operation, if no other worker has its machine, and notes how it ended.
func (s *Service) do(ctx context.Context, job Job) {
	log := s.Log.With("node", job.Node.String(), "operation", job.ID.String(), "goal", string(job.Order.Goal))
	claimed, err := s.claim(ctx, job.Node)
	if err != nil || !claimed {
		if err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "a machine cannot be claimed", "error", err)
		}
		return
	}
	defer s.unclaim(ctx, job.Node)
	// Whoever had the machine between our look at the list and the claim may have done it: nobody's machine is switched twice.
	if over, err := s.over(ctx, job.ID); err != nil || over {
		if err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "a power operation cannot be read", "error", err)
		}
		return
	}
	bounded, cancel := context.WithTimeout(ctx, job.DoneBy.Sub(s.Clock.Now()))
	defer cancel()
	go s.keepClaim(bounded, job.Node, cancel)
	evidence, err := s.perform(bounded, job)
	if ctx.Err() != nil {
		return // this worker stops: the next one begins anew
	}
	evidence.Goal = job.Order.Goal
	failure := faultOf(err)
	log.InfoContext(ctx, "power operation ended", "state", string(evidence.State), "error", err)
	err = s.Tx.WithinTx(ctx, func(ctx context.Context) error { return s.Work.Finish(ctx, job.ID, evidence, failure) })
	if err != nil {
		log.WarnContext(ctx, "the end of a power operation cannot be noted", "error", err)
	}
}

func (s *Service) over(ctx context.Context, id ids.Operation) (bool, error) {
	var over bool
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		over, _, err = s.Work.Outcome(ctx, id)
		return err
	})
	return over, err
}

func (s *Service) claim(ctx context.Context, node ids.Node) (bool, error) {
	var claimed bool
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		now := s.Clock.Now()
		claimed, err = s.Machines.Claim(ctx, node, s.Worker, now, now.Add(claimFor))
		return err
	})
	return claimed, err
}

func (s *Service) unclaim(ctx context.Context, node ids.Node) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimFor)
	defer cancel()
	if err := s.Tx.WithinTx(ctx, func(ctx context.Context) error { return s.Machines.Unclaim(ctx, node, s.Worker) }); err != nil {
		s.Log.WarnContext(ctx, "a machine stays claimed for a while", "node", node.String(), "error", err)
	}
}

// keepClaim claims anew until ctx ends, and ends the work when that does not succeed: another worker may have begun.
func (s *Service) keepClaim(ctx context.Context, node ids.Node, lost context.CancelFunc) {
	tick := time.NewTicker(claimFor / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if claimed, err := s.claim(ctx, node); ctx.Err() == nil && (err != nil || !claimed) {
			lost()
			return
		}
	}
}

// Codes of failures.
const (
	CodeOverTaken = "overtaken"    // the machine is in other hands by now
	CodeNoAgent   = "no-service"   // the machine has power and its service OS did not come
	CodeNoCall    = "no-call"      // the tenant's system did not phone home
	CodeNoMachine = "no-machine"   // the node has no BMC that we know
	CodeFailed    = "power-failed" // something else
)

// faultOf says why, for whoever ordered it. What a BMC refuses, or what does not come in time, may come at another try.
func faultOf(err error) *protocol.Fault {
	if err == nil {
		return nil
	}
	code := fault.CodeOf(err)
	if code == "" {
		code = CodeFailed
	}
	var known *fault.Fault
	detail := "its power could not be switched"
	if errors.As(err, &known) {
		detail = known.Detail
	}
	return &protocol.Fault{Code: code, Detail: detail, Retryable: code != CodeOverTaken && code != CodeNoMachine}
}

// perform brings the goal about.
func (s *Service) perform(ctx context.Context, job Job) (Evidence, error) {
	m, stands, err := s.look(ctx, job)
	if err != nil {
		return Evidence{State: Unknown}, err
	}
	if !stands {
		return Evidence{State: Unknown}, fault.New(fault.Conflict, CodeOverTaken, "the machine is in other hands by now")
	}
	c, err := s.dial(ctx, m)
	if err != nil {
		return Evidence{State: Unknown}, err
	}
	defer s.hangUp(ctx, c)
	run := run{Service: s, job: job, machine: m, bmc: c}
	evidence, err := run.goal(ctx)
	if err != nil {
		evidence.State, evidence.Events = run.autopsy(ctx)
	}
	return evidence, err
}

func (s *Service) look(ctx context.Context, job Job) (Machine, bool, error) {
	var m Machine
	stands := false
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		if m, err = s.Machines.Machine(ctx, job.Node); err != nil {
			return err
		}
		stands, err = s.Machines.Stands(ctx, job.Allocation, job.Epoch, job.Order.Goal.Wish())
		if err != nil || !stands {
			return err
		}
		return s.Work.Advance(ctx, job.ID, 0, "power")
	})
	if fault.Is(err, fault.NotFound) {
		return m, false, fault.New(fault.Conflict, CodeNoMachine, "the node has no BMC that we know")
	}
	return m, stands, err
}

// hangUpWithin bounds a log-out, which must happen also when the time for the rest is over: places for sessions are few.
const hangUpWithin = 10 * time.Second

func (s *Service) hangUp(ctx context.Context, c Controller) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hangUpWithin)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		s.Log.DebugContext(ctx, "a BMC's session was left open", "error", err)
	}
}

// within runs fn in a transaction.
func (s *Service) within(ctx context.Context, what string, fn func(ctx context.Context) error) error {
	if err := s.Tx.WithinTx(ctx, fn); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
