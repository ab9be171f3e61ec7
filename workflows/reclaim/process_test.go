package reclaim_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/workflows/reclaim"
)

// meddler stands between the process and delivery, and spoils calls of one name.
type meddler struct {
	reclaim.Reclaim
	mu     sync.Mutex
	calls  map[string]int
	meddle func(name string, call int, do func() error) error
}

func (m *meddler) progress(name string, do func() (delivery.Progress, error)) (p delivery.Progress, err error) {
	m.mu.Lock()
	m.calls[name]++
	n := m.calls[name]
	m.mu.Unlock()
	err = m.meddle(name, n, func() error {
		var err error
		p, err = do()
		return err
	})
	return p, err
}

func (m *meddler) Begin(ctx context.Context, n ids.Node) (delivery.Progress, error) {
	return m.progress("Begin", func() (delivery.Progress, error) { return m.Reclaim.Begin(ctx, n) })
}

func (m *meddler) Revoke(ctx context.Context, n ids.Node) (delivery.Progress, error) {
	return m.progress("Revoke", func() (delivery.Progress, error) { return m.Reclaim.Revoke(ctx, n) })
}

func (m *meddler) Clear(ctx context.Context, n ids.Node) (delivery.Progress, error) {
	return m.progress("Clear", func() (delivery.Progress, error) { return m.Reclaim.Clear(ctx, n) })
}

func (m *meddler) Observe(ctx context.Context, n ids.Node) (delivery.Progress, error) {
	return m.progress("Observe", func() (delivery.Progress, error) { return m.Reclaim.Observe(ctx, n) })
}

func (m *meddler) Wipe(ctx context.Context, n ids.Node) (delivery.Progress, error) {
	return m.progress("Wipe", func() (delivery.Progress, error) { return m.Reclaim.Wipe(ctx, n) })
}

func (m *meddler) Conclude(ctx context.Context, n ids.Node, trouble string) (delivery.Progress, error) {
	return m.progress("Conclude", func() (delivery.Progress, error) { return m.Reclaim.Conclude(ctx, n, trouble) })
}

func steps() []string { return []string{"Begin", "Revoke", "Clear", "Observe", "Wipe", "Conclude"} }

// spoil has meddle stand in for calls of one name.
func (w *world) spoil(name string, meddle func(call int, do func() error) error) {
	w.wrap = func(r reclaim.Reclaim) reclaim.Reclaim {
		return &meddler{Reclaim: r, calls: map[string]int{}, meddle: func(n string, call int, do func() error) error {
			if n != name {
				return do()
			}
			return meddle(call, do)
		}}
	}
}

// requireClean is the claim of every way that ends well: each slot is given back once, with one certificate of a clean wipe under an
// epoch above the old ones, the node is on the market, and the leases are as they were.
func (w *world) requireClean(t *testing.T, before rows) {
	t.Helper()
	require.Equal(t, "available", w.rows.state, w.rows.reason)
	require.Len(t, w.rows.certificates, len(w.rows.instances))
	for _, i := range w.rows.instances {
		require.Equal(t, lease.Released, i.State)
		require.Empty(t, i.Reason, "a reason would stand for the certificate")
		require.Greater(t, i.Epoch, int64(oldEpoch))
		require.Equal(t, 1, w.certificates(i.ID, protocol.Wiped))
	}
	require.Equal(t, before.leases, w.rows.leases)
	for _, e := range w.rows.events {
		require.Equal(t, lease.EventNodeWiped, e.Type)
	}
}

func (w *world) certificates(id ids.Allocation, result protocol.WipeStatus) int {
	n := 0
	for _, c := range w.rows.certificates {
		if c.Allocation == id && c.Result == result {
			n++
		}
	}
	return n
}

// requireQuarantined is the claim of every way that does not: nothing is given back, the node is off the market with the reason, and
// the operator was told.
func (w *world) requireQuarantined(t *testing.T, why string) {
	t.Helper()
	require.Equal(t, "quarantined", w.rows.state)
	require.Contains(t, w.rows.reason, why)
	for _, i := range w.rows.instances {
		require.Equal(t, lease.Quarantined, i.State)
		require.NotEmpty(t, i.Reason)
	}
	require.Contains(t, w.rows.outbox, "notify operator")
}

// asked counts the operations of a step.
func (w *world) asked(step string) int {
	n := 0
	for _, o := range w.rows.operations {
		if len(w.steps[o.ID]) > len(step) && w.steps[o.ID][:len(step)] == step {
			n++
		}
	}
	return n
}

func TestANodeIsCleanedAgainAndComesToTheMarket(t *testing.T) {
	t.Parallel()
	for _, leases := range []int{1, 4} {
		for _, nudges := range []int{0, 1, 2} {
			w := newWorld(leases)
			w.nudges = nudges
			before := w.rows.copy()
			w.run(t)
			w.requireClean(t, before)
			for _, step := range []string{"reclaim-revoke", "reclaim-observe", "reclaim-wipe"} {
				require.Equal(t, leases, w.asked(step), "%s with %d nudges", step, nudges)
			}
			require.Len(t, w.rows.left, leases, "each lease leaves its partition, whoever forgot that")
			require.Contains(t, w.rows.outbox, "fabric.nudge "+w.fabric.String(), "a fresh sweep helps")
		}
	}
}

func TestEveryStepMayFailBeforeItCommitsAfterItAndRunTwice(t *testing.T) {
	t.Parallel()
	away := fault.New(fault.Unavailable, "database-unavailable", "the database does not answer")
	for how, meddle := range map[string]func(call int, do func() error) error{
		"before it commits": func(call int, do func() error) error {
			if call <= 5 { // more than the quick attempts
				return away
			}
			return do()
		},
		"after it committed": func(call int, do func() error) error {
			if err := do(); err != nil || call > 5 {
				return err
			}
			return away
		},
		"runs twice": func(_ int, do func() error) error {
			if err := do(); err != nil {
				return err
			}
			return do()
		},
	} {
		for _, step := range steps() {
			t.Run(step+" "+how, func(t *testing.T) {
				t.Parallel()
				w := newWorld(2)
				before := w.rows.copy()
				w.spoil(step, meddle)
				w.run(t)
				w.requireClean(t, before)
				require.Equal(t, 2, w.asked("reclaim-wipe"))
			})
		}
	}
}

func TestAProcessThatIsLostAtAnyInstantIsTakenUp(t *testing.T) {
	t.Parallel()
	for lost := 100 * time.Millisecond; lost < 4*time.Second; lost += 300 * time.Millisecond {
		t.Run(lost.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(2)
			before := w.rows.copy()
			w.once(t, lost)
			w.run(t)
			w.requireClean(t, before)
			require.Equal(t, 2, w.asked("reclaim-wipe"))
		})
	}
}

func TestARefusedStepQuarantinesTheNode(t *testing.T) {
	t.Parallel()
	for _, step := range steps()[1:5] {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w := newWorld(2)
			w.spoil(step, func(int, func() error) error { return fault.New(fault.Invalid, "nonsense", "that makes no sense") })
			w.run(t)
			w.requireQuarantined(t, "that makes no sense")
		})
	}
}

func TestWhatAnAgentCannotShowIsQuarantinedAgain(t *testing.T) {
	t.Parallel()
	for _, kind := range []protocol.OperationKind{protocol.Revoke, protocol.ObservePKeys, protocol.Wipe} {
		for how, verdict := range map[string]verdict{"fails": failsAlways, "is silent": silent, "lies": lies} {
			t.Run(fmt.Sprint(kind, " ", how), func(t *testing.T) {
				t.Parallel()
				w := newWorld(1)
				w.script[kind] = verdict
				w.run(t)
				why := map[string]string{"fails": "the disk is busy", "is silent": "did not pick the work up", "lies": ""}[how]
				if kind == protocol.ObservePKeys && verdict == lies {
					why = "holds 0x8007, which it should not"
				}
				w.requireQuarantined(t, why)
				if kind == protocol.Wipe {
					require.Len(t, w.rows.certificates, 1, "a wipe that did not work is certified as well")
					require.NotEqual(t, protocol.Wiped, w.rows.certificates[0].Result)
				}
			})
		}
	}
}

func TestAFailureThatPassesIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, kind := range []protocol.OperationKind{protocol.Revoke, protocol.ObservePKeys, protocol.Wipe} {
		w := newWorld(2)
		before := w.rows.copy()
		w.script[kind] = failsOnce
		w.run(t)
		w.requireClean(t, before)
	}
}

func TestPortsAreWaitedForAndGivenUpInTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(1)
	before := w.rows.copy()
	w.uncleared = []protocol.GUID{1}
	w.later(2*time.Minute, func() {
		require.Contains(t, w.rows.reason, "its ports must be seen clear", "the node says what it waits for")
		require.Zero(t, w.asked("reclaim-wipe"))
		w.uncleared = nil
	})
	w.run(t)
	w.requireClean(t, before)

	w = newWorld(1)
	w.uncleared = []protocol.GUID{1}
	w.run(t)
	w.requireQuarantined(t, "its ports were not seen clear")
	require.InDelta(t, 10*time.Minute, w.clock.Sub(noon), float64(time.Minute))

	w = newWorld(1)
	before = w.rows.copy()
	w.uncleared = []protocol.GUID{99} // another node's of the same lease
	w.run(t)
	w.requireClean(t, before)
}

func TestANodeThatIsMovedOnGoesNoFurther(t *testing.T) {
	t.Parallel()
	w := newWorld(2)
	w.later(2500*time.Millisecond, func() { w.rows.state, w.rows.reason = "maintenance", "new fans" }) // while the wipe is under way
	w.run(t)
	require.Equal(t, 2, w.asked("reclaim-wipe"))
	require.Equal(t, "maintenance", w.rows.state, "where the node is, somebody has decided")
	for _, i := range w.rows.instances {
		require.Equal(t, lease.Quarantined, i.State)
		require.Contains(t, i.Reason, "moved on")
	}
	require.Less(t, w.clock.Sub(noon), 10*time.Second)

	before := w.rows.copy()
	w.rows.state, w.rows.events = "verifying", nil // and tested again
	w.run(t)
	w.requireClean(t, before)
}

func TestOneThatFailsKeepsTheOthersFromTheMarketToo(t *testing.T) {
	t.Parallel()
	w := newWorld(2)
	w.uncleared = []protocol.GUID{1}
	w.run(t)
	w.requireQuarantined(t, "its ports were not seen clear")
	require.Zero(t, w.asked("reclaim-wipe"))
}

func TestSlotsOfALeaseThatIsNotOverAreItsOwnAffair(t *testing.T) {
	t.Parallel()
	w := newWorld(1)
	id := w.rows.instances[0].Lease
	l := w.rows.leases[id]
	l.State = lease.Releasing
	w.rows.leases[id] = l
	w.later(time.Minute, func() {
		require.Equal(t, lease.Quarantined, w.rows.instances[0].State)
		require.Empty(t, w.rows.operations)
		l.State = lease.Closed
		w.rows.leases[id] = l
	})
	w.run(t)
	require.Equal(t, "available", w.rows.state)
	require.Equal(t, 1, w.certificates(w.rows.instances[0].ID, protocol.Wiped))
}

func TestANodeOnWhichNothingWasLeftIsLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(1)
	w.rows.instances = slices.Delete(w.rows.instances, 0, 1)
	w.rows.state = "maintenance"
	w.run(t)
	require.Equal(t, "maintenance", w.rows.state)
	require.Empty(t, w.rows.operations)
}

func TestWritingOffGivesBackWithTheReasonAndWithoutAWipe(t *testing.T) {
	t.Parallel()
	w := newWorld(2)
	off := func(reason string) error {
		return w.WithinTx(t.Context(), func(ctx context.Context) error { return w.reclaim.WriteOff(ctx, w.node, reason) })
	}
	require.Equal(t, "retire-reason", fault.CodeOf(off("")))
	require.NoError(t, off("its mainboard burnt; scrapped"))
	for _, i := range w.rows.instances {
		require.Equal(t, lease.Released, i.State)
		require.Equal(t, noon, i.ReleasedAt)
		require.Equal(t, "its mainboard burnt; scrapped", i.Reason)
	}
	require.Len(t, w.rows.events, 2)
	require.Equal(t, lease.EventNodeWrittenOff, w.rows.events[0].Type)
	require.Equal(t, []string{"audit allocation.written_off", "audit allocation.written_off"}, w.rows.outbox)
	require.Empty(t, w.rows.certificates)
	require.Len(t, w.rows.left, 2)
	require.NoError(t, off(""), "again changes nothing, and needs nothing")
}
