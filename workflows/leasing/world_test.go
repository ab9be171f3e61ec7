package leasing_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/workflows/leasing"
)

// world is one lease with all that its process touches: the real delivery service on rows in memory, scripted agents, and
// Temporal's test environment, whose clock jumps to whatever is next. A run that continues as new goes on in a new environment.
type world struct {
	mu       sync.Mutex
	rows     rows
	effects  []func()
	steps    map[ids.Operation]string
	issued   map[string]int // steps asked for, by name
	script   script
	verdicts map[delivery.Occasion]delivery.Verdict
	// nudges is how often each nudge arrives: 0 lost, 1, 2 doubled.
	nudges                int
	isolation             delivery.Isolation
	joinFails, leaveFails bool
	dirty                 []protocol.GUID // ports that are not clear, where not all are
	spares                int             // nodes that may replace failed ones
	wrap                  func(leasing.Delivery) leasing.Delivery

	env     *testsuite.TestWorkflowEnvironment
	clock   time.Time // between runs
	pending []*happening
	runs    int
	service *delivery.Service
}

// happening is something that the world does at an instant, also when another run goes on by then.
type happening struct {
	at   time.Time
	do   func()
	done bool
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // a constant in all but grammar

const (
	lead       = time.Minute
	turnaround = 2 * time.Minute
)

// newWorld has a lease of n nodes on a fabric, from noon for the duration; the clock stands at the beginning of its lead.
func newWorld(n int, duration time.Duration) *world {
	w := &world{
		steps: map[ids.Operation]string{}, issued: map[string]int{}, script: script{}, verdicts: map[delivery.Occasion]delivery.Verdict{},
		nudges: 1, isolation: delivery.NoPartition, clock: noon.Add(-lead),
	}
	l := lease.Lease{
		ID: ids.Make[ids.Lease](), Org: ids.Make[ids.Org](), Fabric: ids.Make[ids.Fabric](), State: lease.Reserved, Instances: n,
		Start: noon, End: noon.Add(duration), FailurePolicy: lease.Replace, Image: "ubuntu", Version: 1,
	}
	w.rows = rows{lease: l, quarantined: map[ids.Node]string{}}
	for k := range n {
		w.hold(k)
	}
	w.service = delivery.New(delivery.Deps{
		DB: w, Leases: leaseRows{w}, Allocations: allocationRows{w}, Work: workRows{w}, Agents: agents{w}, Fabric: subnet{w},
		Billing: bill{w}, Placement: placement{w}, Outbox: outboxRows{w}, Signer: noKey{}, Clock: worldClock{w},
	})
	return w
}

// hold gives the lease one more node, as its k-th instance.
func (w *world) hold(k int) ids.Allocation {
	n := len(w.rows.instances)
	id := ids.Make[ids.Allocation]()
	w.rows.instances = append(w.rows.instances, delivery.Instance{
		Allocation: lease.Allocation{
			ID: id, Node: ids.Make[ids.Node](), Lease: w.rows.lease.ID, Ordinal: k, Slots: lease.Slots{From: 0, To: 64},
			Occupied: lease.Window{Start: noon.Add(-lead), End: w.rows.lease.End.Add(turnaround)}, State: lease.Held,
		},
		NodeName: fmt.Sprintf("n%d", n), Mode: "bare_metal", WholeNode: true, Ports: []protocol.GUID{protocol.GUID(n + 1)},
	})
	return id
}

type worldClock struct{ w *world }

func (c worldClock) Now() time.Time { return c.w.now() }

func (w *world) now() time.Time {
	if w.env == nil {
		return w.clock
	}
	return w.env.Now().UTC().Truncate(time.Microsecond)
}

// later lets something happen after d.
func (w *world) later(d time.Duration, do func()) { w.at(w.now().Add(d), do) }

func (w *world) at(at time.Time, do func()) {
	h := &happening{at: at, do: do}
	w.pending = append(w.pending, h)
	if w.env != nil {
		w.schedule(h)
	}
}

func (w *world) schedule(h *happening) {
	w.env.RegisterDelayedCallback(func() {
		if !h.done {
			h.done = true
			h.do()
		}
	}, max(h.at.Sub(w.now()), 0))
}

// nudge signals the workflow as the relay would.
func (w *world) nudge() {
	for range w.nudges {
		w.env.SignalWorkflow(leasing.NudgeSignal, nil)
	}
}

// change alters the lease's row as a request would, and nudges.
func (w *world) change(fn func(l *lease.Lease)) {
	w.mu.Lock()
	fn(&w.rows.lease)
	w.mu.Unlock()
	w.nudge()
}

// wantProof asks for a proof of isolation as a request would.
func (w *world) wantProof(number string) {
	w.mu.Lock()
	e := lease.Event{Seq: int64(len(w.rows.events) + 1), Lease: w.rows.lease.ID, Type: lease.EventAttestAsked, At: w.now(), Data: map[string]any{"request": number}}
	w.rows.events = append(w.rows.events, e)
	w.mu.Unlock()
	w.nudge()
}

// run lets the workflow run, from run to run, until it completes; and starts it again, as the reconciler would, while the lease is
// not at its end.
func (w *world) run(t *testing.T) {
	t.Helper()
	for !w.rows.lease.Final() {
		require.Less(t, w.runs, 60, "the lease gets nowhere: %s, %s", w.rows.lease.State, w.rows.lease.Reason)
		w.once(t)
	}
}

func (w *world) once(t *testing.T) {
	t.Helper()
	w.runs++
	suite := testsuite.WorkflowTestSuite{}
	suite.SetLogger(quietLogger{})
	env := suite.NewTestWorkflowEnvironment()
	env.SetStartTime(w.clock)
	env.SetTestTimeout(20 * time.Second)
	env.RegisterWorkflowWithOptions(leasing.Lease, workflow.RegisterOptions{Name: leasing.WorkflowType})
	var target leasing.Delivery = w.service
	if w.wrap != nil {
		target = w.wrap(target)
	}
	env.RegisterActivityWithOptions(&leasing.Activities{Delivery: target}, activity.RegisterOptions{})
	w.env = env
	for _, h := range w.pending {
		if !h.done {
			w.schedule(h)
		}
	}
	env.ExecuteWorkflow(leasing.WorkflowType, leasing.Input{Lease: w.rows.lease.ID})
	require.True(t, env.IsWorkflowCompleted())
	w.clock = env.Now().UTC()
	w.env = nil
	var again *workflow.ContinueAsNewError
	if err := env.GetWorkflowError(); err != nil && !errors.As(err, &again) {
		require.NoError(t, err)
	}
}

// requireNothingHeld is the claim of every saga test: whatever happened, no slot stays taken in silence, and the books are closed.
func (w *world) requireNothingHeld(t *testing.T) {
	t.Helper()
	require.Equal(t, lease.Closed, w.rows.lease.State)
	require.Equal(t, 1, w.rows.settled, "the books are closed once")
	for _, i := range w.rows.instances {
		switch i.State {
		case lease.Released:
			require.True(t, i.Epoch == 0 || w.certificate(i.ID) == protocol.Wiped, "%s was given back without a clean wipe", i.NodeName)
		case lease.Quarantined:
			require.NotEmpty(t, i.Reason)
			require.NotEmpty(t, w.rows.quarantined[i.Node], "%s's node is still on the market", i.NodeName)
		case lease.Held, lease.Preparing, lease.InUse, lease.Cleaning:
			require.Fail(t, "held", "%s is still %s", i.NodeName, i.State)
		}
	}
}

func (w *world) certificate(id ids.Allocation) protocol.WipeStatus {
	for _, c := range w.rows.certificates {
		if c.Allocation == id {
			return c.Result
		}
	}
	return ""
}

// log returns the types of the lease's events in order.
func (w *world) log() []lease.EventType {
	var types []lease.EventType
	for _, e := range w.rows.events {
		types = append(types, e.Type)
	}
	return types
}

func (w *world) count(event lease.EventType) int {
	n := 0
	for _, e := range w.log() {
		if e == event {
			n++
		}
	}
	return n
}

type quietLogger struct{}

func (quietLogger) Debug(string, ...any) {}
func (quietLogger) Info(string, ...any)  {}
func (quietLogger) Warn(string, ...any)  {}
func (quietLogger) Error(string, ...any) {}
