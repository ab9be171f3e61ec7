package operation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/backoff"
	"github.com/leasehold/leasehold/agent/protocol"
)

const patience = 10 * time.Second

func noon() time.Time { return time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC) }

// controlPlane is a reporter that remembers what it was told.
type controlPlane struct {
	mu       sync.Mutex
	changed  chan struct{}
	progress map[string][]protocol.Progress
	results  map[string][]protocol.Result
	down     error
}

func newControlPlane() *controlPlane {
	return &controlPlane{changed: make(chan struct{}), progress: map[string][]protocol.Progress{}, results: map[string][]protocol.Result{}}
}

func (c *controlPlane) note(f func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.down != nil {
		return c.down
	}
	f()
	close(c.changed)
	c.changed = make(chan struct{})
	return nil
}

func (c *controlPlane) Progress(_ context.Context, id string, p protocol.Progress) error {
	return c.note(func() { c.progress[id] = append(c.progress[id], p) })
}

func (c *controlPlane) Result(_ context.Context, id string, r protocol.Result) error {
	return c.note(func() { c.results[id] = append(c.results[id], r) })
}

func (c *controlPlane) setDown(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = err
}

func (c *controlPlane) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		c.mu.Lock()
		ok, changed := done(), c.changed
		c.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timeout.C:
			require.FailNow(t, "waited in vain", what)
		}
	}
}

func (c *controlPlane) result(t *testing.T, id string) protocol.Result {
	t.Helper()
	c.await(t, "result of "+id, func() bool { return len(c.results[id]) > 0 })
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.results[id][len(c.results[id])-1]
}

type stamp struct{}

func (stamp) Sign(payloadType string, payload []byte) protocol.Envelope {
	return protocol.Envelope{PayloadType: payloadType, Payload: payload, Signatures: []protocol.Signature{{KeyID: "k", Sig: []byte("s")}}}
}

type handlerFunc func(ctx context.Context, op protocol.Operation, progress func(int, string)) (Outcome, error)

func (f handlerFunc) Handle(ctx context.Context, op protocol.Operation, progress func(int, string)) (Outcome, error) {
	return f(ctx, op, progress)
}

// desk is a runner under test: one directory, any number of processes one after the other.
type desk struct {
	t       *testing.T
	dir     string
	plane   *controlPlane
	now     time.Time
	whole   bool
	open    openFile
	handle  handlerFunc
	mu      sync.Mutex
	handled []string
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	return &desk{
		t: t, dir: t.TempDir(), plane: newControlPlane(), now: noon(),
		handle: func(context.Context, protocol.Operation, func(int, string)) (Outcome, error) {
			return Outcome{Evidence: protocol.RevokeEvidence{LoginRefused: true}}, nil
		},
	}
}

// process is one life of the agent.
type process struct {
	*Runner
	kill context.CancelFunc
	done chan error
}

func (d *desk) start() *process {
	d.t.Helper()
	count := handlerFunc(func(ctx context.Context, op protocol.Operation, step func(int, string)) (Outcome, error) {
		d.mu.Lock()
		d.handled = append(d.handled, op.ID)
		d.mu.Unlock()
		return d.handle(ctx, op, step)
	})
	r, err := Open(Config{
		Dir: d.dir, Signer: stamp{}, Reporter: d.plane, Now: func() time.Time { return d.now }, Log: slog.New(slog.DiscardHandler), Whole: d.whole,
		Handlers: map[protocol.OperationKind]Handler{protocol.Prepare: count, protocol.Grant: count, protocol.Revoke: count, protocol.Wipe: count},
		Retry:    backoff.Policy{Min: time.Millisecond, Max: 5 * time.Millisecond}, open: d.open,
	})
	require.NoError(d.t, err)
	ctx, cancel := context.WithCancel(d.t.Context())
	p := &process{Runner: r, kill: cancel, done: make(chan error, 1)}
	started := make(chan struct{})
	go func() {
		close(started)
		p.done <- r.Run(ctx)
	}()
	<-started
	d.awaitRunning(p)
	return p
}

// awaitRunning waits until Run has taken over, so that Deliver is heard.
func (d *desk) awaitRunning(p *process) {
	require.Eventually(d.t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.open || p.broken != nil
	}, patience, 100*time.Microsecond)
}

func (d *desk) stop(p *process) {
	d.t.Helper()
	p.kill()
	require.NoError(d.t, <-p.done)
}

func (d *desk) count(id string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, h := range d.handled {
		if h == id {
			n++
		}
	}
	return n
}

func (d *desk) acked(p *process) {
	d.t.Helper()
	require.Eventually(d.t, func() bool { return p.Spooled() == 0 && len(p.Running()) == 0 }, patience, time.Millisecond)
}

func op(id string, epoch int64, from, to int) protocol.Operation {
	return protocol.Operation{ID: id, Kind: protocol.Prepare, Epoch: epoch, Slots: protocol.Slots{From: from, To: to}, Spec: protocol.Raw(`{}`)}
}

func ops(ops ...protocol.Operation) []protocol.Operation { return ops }

func TestAnOperationIsPickedUpThenReportedWithItsEvidence(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	picked := make(chan struct{})
	d.handle = func(_ context.Context, _ protocol.Operation, step func(int, string)) (Outcome, error) {
		<-picked
		step(50, "half way")
		return Outcome{Evidence: protocol.WipeEvidence{Nonce: "n"}, PayloadType: protocol.PayloadWipeEvidence}, nil
	}
	p := d.start()
	defer d.stop(p)
	require.Equal(t, 1, p.Deliver(ops(op("a", 1, 0, 8))))
	d.plane.await(t, "pick-up", func() bool { return len(d.plane.progress["a"]) > 0 && d.plane.progress["a"][0].Percent == 0 })
	require.Equal(t, []string{"a"}, p.Running())
	close(picked)
	result := d.plane.result(t, "a")
	require.Equal(t, protocol.Succeeded, result.State)
	require.Nil(t, result.Fault)
	require.Equal(t, []byte(result.Evidence), result.Signed.Payload)
	require.Equal(t, protocol.PayloadWipeEvidence, result.Signed.PayloadType)
	d.acked(p)
}

func TestTheSameOperationDeliveredTwiceRunsOnceAndIsReportedAgain(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	p := d.start()
	p.Deliver(ops(op("a", 1, 0, 8), op("a", 1, 0, 8)))
	d.plane.result(t, "a")
	d.acked(p)
	require.Zero(t, p.Deliver(ops(op("a", 1, 0, 8))))
	d.plane.await(t, "second report", func() bool { return len(d.plane.results["a"]) == 2 })
	d.stop(p)

	p = d.start() // also across a restart
	defer d.stop(p)
	require.Zero(t, p.Deliver(ops(op("a", 1, 0, 8))))
	d.plane.await(t, "third report", func() bool { return len(d.plane.results["a"]) == 3 })
	require.Equal(t, 1, d.count("a"))
}

func TestAStaleEpochIsRefusedOnTheSlotsItTouchesOnlyAlsoAfterARestart(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	p := d.start()
	p.Deliver(ops(op("new", 5, 0, 8)))
	d.plane.result(t, "new")
	d.acked(p)
	d.stop(p)

	p = d.start()
	defer d.stop(p)
	p.Deliver(ops(op("stale", 4, 4, 12), op("neighbour", 1, 8, 16), op("same", 5, 0, 8)))
	stale := d.plane.result(t, "stale")
	require.Equal(t, protocol.Fenced, stale.State)
	require.Equal(t, "stale-epoch", stale.Fault.Code)
	require.Zero(t, d.count("stale"))
	require.Equal(t, protocol.Succeeded, d.plane.result(t, "neighbour").State)
	require.Equal(t, protocol.Succeeded, d.plane.result(t, "same").State)
}

func TestTheFenceSurvivesCompaction(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	l, err := openLedger(d.dir+"/journal", openAppend, false)
	require.NoError(t, err)
	for n := range 2 * compactAfter {
		e, err := l.begin(op(fmt.Sprint("op", n), int64(n+1), n%64, n%64+1), noon())
		require.NoError(t, err)
		require.NoError(t, l.end(e, protocol.Result{State: protocol.Succeeded}))
		require.NoError(t, l.ack(e, noon()))
	}
	want := l.fence.marks()
	require.Less(t, l.journal.records, 3*compactAfter, "the journal was never compacted")
	require.NoError(t, l.journal.close())

	l, err = openLedger(d.dir+"/journal", openAppend, false)
	require.NoError(t, err)
	require.Equal(t, want, l.fence.marks())
	require.Equal(t, keepFinished, len(l.entries)) //nolint:testifylint // Len would print every entry
	require.NoError(t, l.journal.close())
}

func TestAFabricAgentFencesTheWholeFabric(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.whole = true
	p := d.start()
	defer d.stop(p)
	p.Deliver(ops(op("new", 5, 0, 0)))
	d.plane.result(t, "new")
	p.Deliver(ops(op("stale", 4, 0, 0)))
	require.Equal(t, protocol.Fenced, d.plane.result(t, "stale").State)
}

func TestAHigherEpochStopsWhatRunsOnItsSlots(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.handle = func(ctx context.Context, op protocol.Operation, _ func(int, string)) (Outcome, error) {
		if op.ID != "old" {
			return Outcome{}, nil
		}
		<-ctx.Done()
		return Outcome{}, ctx.Err()
	}
	p := d.start()
	defer d.stop(p)
	p.Deliver(ops(op("old", 1, 0, 64)))
	d.plane.await(t, "pick-up", func() bool { return len(d.plane.progress["old"]) > 0 })
	p.Deliver(ops(op("new", 2, 0, 8)))
	require.Equal(t, protocol.Succeeded, d.plane.result(t, "new").State)
	require.Equal(t, "superseded", d.plane.result(t, "old").Fault.Code)
}

func TestOperationsOnOverlappingSlotsRunOneAfterTheOther(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var mu sync.Mutex
	inside := map[int]int{}
	worst := 0
	d.handle = func(_ context.Context, op protocol.Operation, _ func(int, string)) (Outcome, error) {
		mu.Lock()
		inside[op.Slots.From/8]++
		worst = max(worst, inside[op.Slots.From/8])
		mu.Unlock()
		defer func() {
			mu.Lock()
			inside[op.Slots.From/8]--
			mu.Unlock()
		}()
		return Outcome{}, nil
	}
	p := d.start()
	defer d.stop(p)
	var all []protocol.Operation
	for n := range 40 {
		all = append(all, op(fmt.Sprint("op", n), 1, n%4*8, n%4*8+8))
	}
	p.Deliver(all)
	for _, o := range all {
		require.Equal(t, protocol.Succeeded, d.plane.result(t, o.ID).State)
	}
	require.Equal(t, 1, worst)
}

func TestWhatWasStoppedMidwayIsResumedByTheFirstDeliveryUnlessItsSlotsAreGone(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("gone=%v", gone), func(t *testing.T) {
			t.Parallel()
			d := newDesk(t)
			entered := make(chan struct{})
			d.handle = func(ctx context.Context, _ protocol.Operation, _ func(int, string)) (Outcome, error) {
				close(entered)
				<-ctx.Done()
				return Outcome{}, ctx.Err()
			}
			p := d.start()
			p.Deliver(ops(op("a", 1, 0, 8)))
			<-entered
			d.stop(p)
			require.Empty(t, d.plane.results["a"])

			d.handle = func(context.Context, protocol.Operation, func(int, string)) (Outcome, error) { return Outcome{}, nil }
			p = d.start()
			defer d.stop(p)
			require.Equal(t, 1, d.count("a"), "resumed before the control plane has spoken")
			if gone {
				p.Deliver(ops(op("b", 2, 0, 64)))
				require.Equal(t, protocol.Fenced, d.plane.result(t, "a").State)
				require.Equal(t, 1, d.count("a"))
				return
			}
			p.Deliver(nil)
			require.Equal(t, protocol.Succeeded, d.plane.result(t, "a").State)
			require.Equal(t, 2, d.count("a"))
		})
	}
}

func TestResultsAreReportedUntilTheControlPlaneHasThemAlsoAfterARestart(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.plane.setDown(errors.New("no route to host"))
	p := d.start()
	p.Deliver(ops(op("a", 1, 0, 8)))
	require.Eventually(t, func() bool { return p.Spooled() == 1 }, patience, time.Millisecond)
	d.stop(p)

	d.plane.setDown(nil)
	p = d.start()
	defer d.stop(p)
	require.Equal(t, protocol.Succeeded, d.plane.result(t, "a").State)
	d.acked(p)
	require.Equal(t, 1, d.count("a"))
}

func TestAResultThatIsUnwantedIsNotReportedForever(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.plane.setDown(fmt.Errorf("404: %w", ErrUnwanted))
	p := d.start()
	defer d.stop(p)
	p.Deliver(ops(op("a", 1, 0, 8)))
	require.Eventually(t, func() bool { return d.count("a") == 1 }, patience, time.Millisecond)
	d.acked(p)
}

func TestWhatCannotOrMayNotStartIsRefusedWithItsReason(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.handle = func(_ context.Context, op protocol.Operation, _ func(int, string)) (Outcome, error) {
		switch op.ID {
		case "refused":
			return Outcome{Evidence: protocol.PrepareEvidence{Checks: []protocol.Check{}}}, &Refusal{Code: "gpu-missing", Detail: "7 of 8", Retryable: false}
		case "panics":
			return Outcome{Evidence: op.ID[100:]}, nil
		default:
			return Outcome{}, errors.New("disk full")
		}
	}
	p := d.start()
	defer d.stop(p)
	late, over, unknown := op("late", 1, 0, 8), op("over", 1, 0, 8), op("unknown", 1, 0, 8)
	late.PickUpBy, over.DoneBy, unknown.Kind = noon().Add(-time.Second), noon().Add(-time.Second), "dance"
	p.Deliver(ops(late, over, unknown, op("absurd", 1, 0, 1<<40), op("backwards", 1, 8, 0), op("refused", 1, 0, 8), op("panics", 1, 0, 8), op("fails", 1, 0, 8)))
	for id, code := range map[string]string{
		"late": "picked-up-late", "over": "deadline-passed", "unknown": "unsupported-operation", "absurd": "invalid-slots", "backwards": "invalid-slots",
		"refused": "gpu-missing", "panics": "internal", "fails": "failed",
	} {
		result := d.plane.result(t, id)
		require.Equal(t, protocol.Failed, result.State, id)
		require.Equal(t, code, result.Fault.Code, id)
	}
	require.JSONEq(t, `{"checks":[]}`, string(d.plane.result(t, "refused").Evidence))
	require.True(t, d.plane.result(t, "fails").Fault.Retryable)
	require.Zero(t, d.count("late")+d.count("over")+d.count("unknown")+d.count("absurd"))
}

func TestAnOperationIsStoppedAtItsDeadline(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.handle = func(ctx context.Context, _ protocol.Operation, _ func(int, string)) (Outcome, error) {
		<-ctx.Done()
		return Outcome{}, ctx.Err()
	}
	p := d.start()
	defer d.stop(p)
	o := op("a", 1, 0, 8)
	o.DoneBy = d.now.Add(20 * time.Millisecond)
	p.Deliver(ops(o))
	require.Equal(t, "deadline-passed", d.plane.result(t, "a").Fault.Code)
}

func TestProgressIsKeptWithinAHundredPercent(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	release := make(chan struct{})
	d.handle = func(_ context.Context, _ protocol.Operation, step func(int, string)) (Outcome, error) {
		step(250, "over")
		<-release
		return Outcome{}, nil
	}
	p := d.start()
	defer d.stop(p)
	p.Deliver(ops(op("a", 1, 0, 8)))
	d.plane.await(t, "progress", func() bool {
		all := d.plane.progress["a"]
		return len(all) > 0 && all[len(all)-1].Percent == 100
	})
	close(release)
	d.plane.result(t, "a")
}

func TestJournalRecordsAreReadableJSON(t *testing.T) {
	t.Parallel()
	line, err := encodeRecord(record{Type: recordAck, ID: "a"})
	require.NoError(t, err)
	require.True(t, json.Valid(line[9:]))
}
