package leasing_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/workflows/leasing"
)

// meddler stands between the process and delivery, and spoils calls of one name.
type meddler struct {
	leasing.Delivery
	mu     sync.Mutex
	calls  map[string]int
	meddle func(name string, call int, do func() error) error
}

func newMeddler(d leasing.Delivery, meddle func(name string, call int, do func() error) error) *meddler {
	return &meddler{Delivery: d, calls: map[string]int{}, meddle: meddle}
}

func (m *meddler) call(name string, do func() error) error {
	m.mu.Lock()
	m.calls[name]++
	n := m.calls[name]
	m.mu.Unlock()
	return m.meddle(name, n, do)
}

func (m *meddler) progress(name string, do func() (delivery.Progress, error)) (delivery.Progress, error) {
	var p delivery.Progress
	err := m.call(name, func() error {
		var err error
		p, err = do()
		return err
	})
	return p, err
}

func (m *meddler) Load(ctx context.Context, l ids.Lease) (delivery.Standing, error) {
	var s delivery.Standing
	err := m.call("Load", func() error {
		var err error
		s, err = m.Delivery.Load(ctx, l)
		return err
	})
	return s, err
}

func (m *meddler) HandOver(ctx context.Context, l ids.Lease) (delivery.Progress, error) {
	return m.progress("HandOver", func() (delivery.Progress, error) { return m.Delivery.HandOver(ctx, l) })
}

func (m *meddler) Prepare(ctx context.Context, l ids.Lease) (delivery.Progress, error) {
	return m.progress("Prepare", func() (delivery.Progress, error) { return m.Delivery.Prepare(ctx, l) })
}

func (m *meddler) Isolate(ctx context.Context, l ids.Lease) (delivery.Progress, error) {
	return m.progress("Isolate", func() (delivery.Progress, error) { return m.Delivery.Isolate(ctx, l) })
}

func (m *meddler) Witness(ctx context.Context, l ids.Lease, o delivery.Occasion) (delivery.Progress, error) {
	return m.progress("Witness "+string(o), func() (delivery.Progress, error) { return m.Delivery.Witness(ctx, l, o) })
}

func (m *meddler) Attest(ctx context.Context, l ids.Lease, o delivery.Occasion) (delivery.Progress, error) {
	return m.progress("Attest "+string(o), func() (delivery.Progress, error) { return m.Delivery.Attest(ctx, l, o) })
}

func (m *meddler) Grant(ctx context.Context, l ids.Lease) (delivery.Progress, error) {
	return m.progress("Grant", func() (delivery.Progress, error) { return m.Delivery.Grant(ctx, l) })
}

func (m *meddler) Activate(ctx context.Context, l ids.Lease) (delivery.Progress, error) {
	return m.progress("Activate", func() (delivery.Progress, error) { return m.Delivery.Activate(ctx, l) })
}

func (m *meddler) Revoke(ctx context.Context, l ids.Lease) (delivery.Progress, error) {
	return m.progress("Revoke", func() (delivery.Progress, error) { return m.Delivery.Revoke(ctx, l) })
}

func (m *meddler) Leave(ctx context.Context, l ids.Lease) (delivery.Progress, error) {
	return m.progress("Leave", func() (delivery.Progress, error) { return m.Delivery.Leave(ctx, l) })
}

func (m *meddler) Wipe(ctx context.Context, l ids.Lease) (delivery.Progress, error) {
	return m.progress("Wipe", func() (delivery.Progress, error) { return m.Delivery.Wipe(ctx, l) })
}

func (m *meddler) AttestOnDemand(ctx context.Context, l ids.Lease) (delivery.Progress, error) {
	return m.progress("AttestOnDemand", func() (delivery.Progress, error) { return m.Delivery.AttestOnDemand(ctx, l) })
}

func (m *meddler) Notify(ctx context.Context, l ids.Lease, d time.Duration) error {
	return m.call("Notify", func() error { return m.Delivery.Notify(ctx, l, d) })
}

func (m *meddler) Accrue(ctx context.Context, l ids.Lease, at time.Time) error {
	return m.call("Accrue", func() error { return m.Delivery.Accrue(ctx, l, at) })
}

func (m *meddler) Release(ctx context.Context, l ids.Lease, e delivery.Ending) error {
	return m.call("Release", func() error { return m.Delivery.Release(ctx, l, e) })
}

func (m *meddler) Quarantine(ctx context.Context, l ids.Lease, reason string) error {
	return m.call("Quarantine", func() error { return m.Delivery.Quarantine(ctx, l, reason) })
}

func (m *meddler) Settle(ctx context.Context, l ids.Lease) error {
	return m.call("Settle", func() error { return m.Delivery.Settle(ctx, l) })
}

// activities names every step of the process; way says on which way it lies.
func activities() map[string]way {
	return map[string]way{
		"Load": always, "HandOver": there, "Prepare": there, "Isolate": there, "Witness before_active": there, "Attest before_active": there,
		"Grant": there, "Activate": there, "AttestOnDemand": beside, "Notify": beside, "Accrue": beside, "Release": always, "Revoke": back, "Leave": back,
		"Witness after_release": back, "Attest after_release": back, "Wipe": back, "Settle": always,
	}
}

type way int

const (
	there  way = iota // to a running lease
	back              // from it
	beside            // must not hold it up
	always            // nothing goes on without it
)

// newSaga is a world in which every step of the process comes by.
func newSaga() *world {
	w := newWorld(3, 3*time.Hour)
	w.at(noon.Add(20*time.Minute), func() { w.wantProof("1") })
	return w
}

func TestEveryActivityMayFailBeforeOrAfterItsCommit(t *testing.T) {
	t.Parallel()
	for name := range activities() {
		for _, after := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newSaga()
				var met atomic.Int64
				w.wrap = func(d leasing.Delivery) leasing.Delivery {
					return newMeddler(d, func(called string, _ int, do func() error) error {
						if called != name {
							return do()
						}
						if met.Add(1)%5 == 0 { // four failures are more than the quick attempts
							return do()
						}
						if after {
							if err := do(); err != nil {
								return err
							}
						}
						return fault.New(fault.Unavailable, "database-unavailable", "the database does not answer")
					})
				}
				w.run(t)
				w.requireNothingHeld(t)
				require.GreaterOrEqual(t, met.Load(), int64(5), "the step is part of the process")
				require.Equal(t, lease.Completed, w.rows.lease.Outcome, w.rows.lease.Reason)
				require.Empty(t, w.rows.quarantined)
				require.Len(t, w.rows.certificates, 3)
			})
		}
	}
}

func TestEveryActivityMayRunTwice(t *testing.T) {
	t.Parallel()
	for name := range activities() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plain := newSaga()
			plain.run(t)
			w := newSaga()
			w.wrap = func(d leasing.Delivery) leasing.Delivery {
				return newMeddler(d, func(called string, _ int, do func() error) error {
					err := do()
					if called == name && err == nil {
						// The first answer got lost. The second may be that the lease has moved on by itself.
						if err = do(); fault.CodeOf(err) == "lease-state" {
							err = nil
						}
					}
					return err
				})
			}
			w.run(t)
			w.requireNothingHeld(t)
			require.Equal(t, plain.log(), w.log())
			require.Equal(t, plain.issued, w.issued, "no node was asked twice")
			require.Equal(t, plain.rows.lease.ActiveAt, w.rows.lease.ActiveAt)
		})
	}
}

func TestARefusedActivityLeavesNothingHeld(t *testing.T) {
	t.Parallel()
	for name, which := range activities() {
		if which == always {
			continue // nothing can be decided without them: they are tried until they work, visibly
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSaga()
			w.wrap = func(d leasing.Delivery) leasing.Delivery {
				return newMeddler(d, func(called string, _ int, do func() error) error {
					if called == name {
						return fault.New(fault.Invalid, "broken", "this step is broken")
					}
					return do()
				})
			}
			w.run(t)
			w.requireNothingHeld(t)
			switch which {
			case there:
				require.Equal(t, lease.FailedOutcome, w.rows.lease.Outcome)
				require.Contains(t, w.rows.lease.Reason, "this step is broken")
				require.Zero(t, w.count(lease.EventActive), "not delivered is not billed")
			case back:
				require.Equal(t, lease.Completed, w.rows.lease.Outcome)
				require.Len(t, w.rows.quarantined, 3, "what cannot be cleaned is never given back")
			case beside, always:
				require.Equal(t, lease.Completed, w.rows.lease.Outcome)
				require.Empty(t, w.rows.quarantined)
			}
		})
	}
}

// TestAWorkerMayDieAtEveryStep starts the workflow anew, as the reconciler does, after each number of completed steps.
func TestAWorkerMayDieAtEveryStep(t *testing.T) {
	t.Parallel()
	for k := 1; k <= 40; k++ {
		w := newWorld(2, 2*time.Hour)
		var steps atomic.Int64
		w.wrap = func(d leasing.Delivery) leasing.Delivery {
			return newMeddler(d, func(_ string, _ int, do func() error) error {
				if steps.Add(1) == int64(k) {
					err := do()
					if err == nil {
						// A refusal that is not a fault of the step ends the run: what it knew is gone.
						err = fault.New(fault.Conflict, "worker-died", "the worker died")
					}
					return err
				}
				return do()
			})
		}
		w.run(t)
		w.requireNothingHeld(t)
		require.Equal(t, lease.Completed, w.rows.lease.Outcome, "died after step %d: %s", k, w.rows.lease.Reason)
		require.Empty(t, w.rows.quarantined, "died after step %d", k)
	}
}

func TestAnUndoStepThatFailsForeverEndsInQuarantineAndStopsAsking(t *testing.T) {
	t.Parallel()
	for _, kind := range []protocol.OperationKind{protocol.Revoke, protocol.Wipe} {
		w := newWorld(1, time.Hour)
		w.script[on(kind, 0)] = failsAlways
		w.run(t)
		w.requireNothingHeld(t)
		require.Equal(t, 6, w.issued[string(kind)])
		require.Equal(t, lease.Quarantined, w.rows.instances[0].State)
	}
}
