package operation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/leasehold/leasehold/agent/internal/backoff"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Reporter carries progress and results to the control plane.
type Reporter interface {
	// Progress may fail; a newer progress or the result makes up for it.
	Progress(ctx context.Context, id string, p protocol.Progress) error
	// Result fails with an error that is ErrUnwanted when the control plane will never take it.
	Result(ctx context.Context, id string, r protocol.Result) error
}

// ErrUnwanted says that the control plane does not know the operation or refuses its result for good.
var ErrUnwanted = errors.New("the control plane does not want this result")

// Signer signs evidence.
type Signer interface {
	Sign(payloadType string, payload []byte) protocol.Envelope
}

// Config is what a runner is made of.
type Config struct {
	Dir      string // where the journal lies
	Handlers map[protocol.OperationKind]Handler
	Signer   Signer
	Reporter Reporter
	// Now is the control plane's time as far as this agent knows it: deadlines are its.
	Now func() time.Time
	Log *slog.Logger
	// Whole makes every operation cover the same, single scope: a fabric agent's operations are fenced by fabric.
	Whole bool
	Retry backoff.Policy // of reports

	open openFile
}

// Runner runs operations. Operations on slots that overlap run one after the other, others side by side.
type Runner struct {
	cfg  Config
	work sync.WaitGroup
	dead chan struct{} // closed when the journal can no longer be written
	kick chan struct{} // jobs or reports are to be started

	mu        sync.Mutex
	ledger    *ledger
	open      bool // Run is there to start work
	delivered bool // the control plane has spoken since the start: what it fenced meanwhile is known
	waiting   []*entry
	running   map[string]*job
	reporting map[string]*report
	unstarted []func(ctx context.Context) // jobs and reports that Run is to start
	broken    error
}

// job is an operation that a handler is working on.
type job struct {
	entry      *entry
	stop       chan struct{} // closed when it is superseded
	superseded string        // why it was stopped, if it was
}

// Open reads the journal. Nothing runs before Run.
func Open(cfg Config) (*Runner, error) {
	if cfg.open == nil {
		cfg.open = openAppend
	}
	l, err := openLedger(filepath.Join(cfg.Dir, "journal"), cfg.open, cfg.Whole)
	if err != nil {
		return nil, fmt.Errorf("open runner: %w", err)
	}
	return &Runner{
		cfg: cfg, ledger: l, dead: make(chan struct{}), kick: make(chan struct{}, 1), running: map[string]*job{}, reporting: map[string]*report{},
	}, nil
}

// Run reports what an earlier process left unreported, works on what is delivered until ctx ends, and waits for it to stop.
// What is unfinished then is resumed by the next process. It fails when the journal cannot be written any more: an agent that
// cannot remember must not act.
func (r *Runner) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.start()
	for ctx.Err() == nil {
		select {
		case <-r.kick:
			r.startWork(ctx)
		case <-r.dead:
			cancel()
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	r.open = false
	r.mu.Unlock()
	r.work.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.broken, r.ledger.journal.close())
}

func (r *Runner) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = true
	for _, id := range r.ledger.order {
		e := r.ledger.entries[id]
		switch {
		case e.result == nil:
			r.waiting = append(r.waiting, e)
		case !e.acked:
			r.report(e).finish(*e.result)
		}
	}
	r.schedule()
}

// Deliver takes what a poll returned, which may be nothing and may repeat. Work that an earlier process left unfinished is
// resumed by the first delivery and not before it: only then is known whether a higher epoch has taken its slots meanwhile.
// It returns how many of the operations were new.
func (r *Runner) Deliver(ops []protocol.Operation) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.open || r.broken != nil {
		return 0
	}
	fresh := 0
	for _, op := range ops {
		if e := r.ledger.entries[op.ID]; e != nil {
			r.repeat(e)
			continue
		}
		fresh++
		if err := r.accept(op); err != nil {
			r.fail(err)
			return fresh
		}
	}
	r.delivered = true
	r.schedule()
	return fresh
}

// repeat answers an operation that is delivered again: with its result, if it has one.
func (r *Runner) repeat(e *entry) {
	if e.result != nil && r.reporting[e.op.ID] == nil {
		r.report(e).finish(*e.result)
	}
}

func (r *Runner) accept(op protocol.Operation) error {
	now := r.cfg.Now()
	if refusal := r.refusal(op, now); refusal != nil {
		e, err := r.ledger.refuse(op, *refusal)
		if err == nil {
			r.report(e).finish(*e.result)
		}
		return err
	}
	e, err := r.ledger.begin(op, now)
	if err != nil {
		return err
	}
	r.supersede(op)
	r.waiting = append(r.waiting, e)
	return nil
}

// refusal is the result of an operation that must not start, nil for one that may.
func (r *Runner) refusal(op protocol.Operation, now time.Time) *protocol.Result {
	refuse := func(state protocol.ResultState, code, detail string, retryable bool) *protocol.Result {
		return &protocol.Result{
			State: state, StartedAt: now, FinishedAt: now, Fault: &protocol.Fault{Code: code, Detail: detail, Retryable: retryable},
		}
	}
	if err := checkSlots(op.Slots); err != nil {
		return refuse(protocol.Failed, "invalid-slots", err.Error(), false)
	}
	if allowed, why := r.ledger.allows(op); !allowed {
		return refuse(protocol.Fenced, "stale-epoch", why, false)
	}
	if r.cfg.Handlers[op.Kind] == nil {
		return refuse(protocol.Failed, "unsupported-operation", fmt.Sprintf("this agent has no handler for %q", op.Kind), false)
	}
	if !op.PickUpBy.IsZero() && now.After(op.PickUpBy) && r.ledger.entries[op.ID] == nil {
		return refuse(protocol.Failed, "picked-up-late", "it was to be picked up by "+op.PickUpBy.Format(time.RFC3339), true)
	}
	if !op.DoneBy.IsZero() && now.After(op.DoneBy) {
		return refuse(protocol.Failed, "deadline-passed", "it was to be done by "+op.DoneBy.Format(time.RFC3339), true)
	}
	return nil
}

// supersede stops what runs on op's slots with a lower epoch: the slots have gone to somebody else.
func (r *Runner) supersede(op protocol.Operation) {
	for _, j := range r.running {
		if j.superseded == "" && j.entry.op.Epoch < op.Epoch && r.overlap(j.entry.op, op) {
			j.superseded = fmt.Sprintf("stopped: epoch %d took these slots while this operation of epoch %d ran", op.Epoch, j.entry.op.Epoch)
			close(j.stop)
		}
	}
}

func (r *Runner) overlap(a, b protocol.Operation) bool {
	return r.ledger.scope(a).Overlaps(r.ledger.scope(b))
}

// schedule starts every waiting operation that no earlier one stands in the way of. The caller holds the lock.
func (r *Runner) schedule() {
	if !r.open || r.broken != nil {
		return
	}
	var blocked []*entry
	for _, e := range r.waiting {
		if (e.resumed && !r.delivered) || r.inTheWay(e, blocked) {
			blocked = append(blocked, e)
			continue
		}
		if err := r.launch(e); err != nil {
			r.fail(err)
			return
		}
	}
	r.waiting = blocked
}

func (r *Runner) inTheWay(e *entry, blocked []*entry) bool {
	for _, j := range r.running {
		if r.overlap(j.entry.op, e.op) {
			return true
		}
	}
	for _, b := range blocked {
		if r.overlap(b.op, e.op) {
			return true
		}
	}
	return false
}

func (r *Runner) launch(e *entry) error {
	// While it waited, its slots may have gone to a higher epoch, or its time may have run out.
	if refusal := r.refusal(e.op, r.cfg.Now()); refusal != nil {
		refusal.StartedAt = e.begunAt
		return r.conclude(e, *refusal)
	}
	j := &job{entry: e, stop: make(chan struct{})}
	r.running[e.op.ID] = j
	progress := r.report(e)
	r.spawn(func(ctx context.Context) { r.run(ctx, j, progress) })
	return nil
}

// spawn has Run start f with its context. The caller holds the lock.
func (r *Runner) spawn(f func(ctx context.Context)) {
	r.unstarted = append(r.unstarted, f)
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

func (r *Runner) startWork(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.unstarted {
		r.work.Go(func() { f(ctx) })
	}
	r.unstarted = nil
}

// until bounds an operation by its deadline, which is the control plane's time, and by stop. The zero time is no bound.
func (r *Runner) until(ctx context.Context, doneBy time.Time, stop <-chan struct{}) (context.Context, context.CancelFunc) {
	bounded, cancel := context.WithCancel(ctx)
	if !doneBy.IsZero() {
		cancel()
		bounded, cancel = context.WithTimeout(ctx, doneBy.Sub(r.cfg.Now()))
	}
	r.work.Go(func() {
		select {
		case <-stop:
			cancel()
		case <-bounded.Done():
		}
	})
	return bounded, cancel
}

func (r *Runner) run(lifetime context.Context, j *job, out *report) {
	ctx, cancel := r.until(lifetime, j.entry.op.DoneBy, j.stop)
	defer cancel()
	step := func(percent int, phase string) {
		out.progress(protocol.Progress{Percent: min(max(percent, 0), 100), Phase: phase, At: r.cfg.Now()})
	}
	step(0, "picked up")
	outcome, err := r.handle(ctx, j.entry.op, step)
	result := r.result(j.entry, outcome, err)

	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, j.entry.op.ID)
	switch {
	case lifetime.Err() != nil:
		return // this process is ending: the next one resumes the operation, whatever became of it here
	case j.superseded != "":
		result.State = protocol.Failed
		result.Fault = &protocol.Fault{Code: "superseded", Detail: j.superseded}
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && err != nil:
		result.Fault = &protocol.Fault{Code: "deadline-passed", Detail: "not done by " + j.entry.op.DoneBy.Format(time.RFC3339), Retryable: true}
	}
	if err := r.conclude(j.entry, result); err != nil {
		r.fail(err)
		return
	}
	r.schedule()
}

// handle calls the handler, and turns its panic into an error: one operation must not take the others down.
func (r *Runner) handle(ctx context.Context, op protocol.Operation, step func(int, string)) (out Outcome, err error) { //nolint:nonamedreturns // set by the deferred recover
	defer func() {
		if p := recover(); p != nil {
			r.cfg.Log.Error("operation handler panicked", "operation", op.ID, "kind", op.Kind, "panic", p)
			err = &Refusal{Code: "internal", Detail: fmt.Sprintf("handler of %s panicked: %v", op.Kind, p)}
		}
	}()
	return r.cfg.Handlers[op.Kind].Handle(ctx, op, step)
}

// conclude journals the result and has it reported. The caller holds the lock.
func (r *Runner) conclude(e *entry, result protocol.Result) error {
	if err := r.ledger.end(e, result); err != nil {
		return err
	}
	attributes := []any{"operation", e.op.ID, "kind", e.op.Kind, "lease", e.op.LeaseID, "epoch", e.op.Epoch, "state", result.State, "took", result.FinishedAt.Sub(e.begunAt)}
	if result.Fault != nil {
		attributes = append(attributes, "code", result.Fault.Code, "detail", result.Fault.Detail)
	}
	r.cfg.Log.Info("operation ended", attributes...)
	r.report(e).finish(result)
	return nil
}

// fail ends the runner: without a journal it must not act. The caller holds the lock.
func (r *Runner) fail(err error) {
	if r.broken == nil {
		r.broken = err
		close(r.dead)
	}
}

// Running returns the ids of the operations in hand.
func (r *Runner) Running() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for _, id := range r.ledger.order {
		if r.ledger.entries[id].result == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// Spooled returns how many results wait to be acknowledged.
func (r *Runner) Spooled() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	spooled := 0
	for _, e := range r.ledger.entries {
		if e.result != nil && !e.acked {
			spooled++
		}
	}
	return spooled
}
