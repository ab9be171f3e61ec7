package reclaim_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/workflows/reclaim"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // a constant in all but grammar

const (
	agentTakes = time.Second
	expiresIn  = 61 * time.Second
	oldEpoch   = 7
)

// verdict is how the node's agent answers a kind of operation; zero: it does the work.
type verdict int

const (
	works verdict = iota
	failsOnce
	failsAlways
	silent // never answers: the operation expires
	lies   // reports success with evidence that does not show it
)

// rows is what the database would hold; a transaction that fails leaves it as it was.
type rows struct {
	state, reason string // of the node
	leases        map[ids.Lease]lease.Lease
	instances     []delivery.Instance
	events        []lease.Event
	operations    []delivery.Operation
	epoch         int64
	certificates  []delivery.Certificate
	outbox        []string
	left          []ids.Lease // asked to leave their partitions
}

func (r *rows) copy() rows {
	c := *r
	c.leases, c.instances, c.events, c.operations = maps.Clone(r.leases), slices.Clone(r.instances), slices.Clone(r.events), slices.Clone(r.operations)
	c.certificates, c.outbox, c.left = slices.Clone(r.certificates), slices.Clone(r.outbox), slices.Clone(r.left)
	return c
}

// world is one node with what leases left on it: the real delivery code on rows in memory, a scripted agent, and Temporal's test
// environment, whose clock jumps to whatever is next.
type world struct {
	mu      sync.Mutex
	rows    rows
	effects []func()
	node    ids.Node
	fabric  ids.Fabric
	steps   map[ids.Operation]string
	script  map[protocol.OperationKind]verdict
	// nudges is how often each nudge arrives: 0 lost, 1, 2 doubled.
	nudges    int
	uncleared []protocol.GUID
	wrap      func(reclaim.Reclaim) reclaim.Reclaim

	env     *testsuite.TestWorkflowEnvironment
	clock   time.Time // between runs
	pending []*happening
	reclaim *delivery.Reclaim
}

// happening is something that the world does at an instant, also when another run goes on by then.
type happening struct {
	at   time.Time
	do   func()
	done bool
}

// newWorld has a node that is tested again, with the slots of n leases in quarantine: of one lease the whole node.
func newWorld(n int) *world {
	w := &world{
		node: ids.Make[ids.Node](), fabric: ids.Make[ids.Fabric](), steps: map[ids.Operation]string{}, script: map[protocol.OperationKind]verdict{}, nudges: 1, clock: noon,
	}
	w.rows = rows{state: "verifying", leases: map[ids.Lease]lease.Lease{}, epoch: oldEpoch}
	for k := range n {
		l := lease.Lease{ID: ids.Make[ids.Lease](), Org: ids.Make[ids.Org](), Fabric: w.fabric, State: lease.Closed, Outcome: lease.Completed, Version: 3, ReleasedAt: noon.Add(-100 * time.Hour)}
		w.rows.leases[l.ID] = l
		width := 64 / n
		w.rows.instances = append(w.rows.instances, delivery.Instance{
			Allocation: lease.Allocation{
				ID: ids.Make[ids.Allocation](), Node: w.node, Lease: l.ID, Slots: lease.Slots{From: k * width, To: (k + 1) * width}, State: lease.Quarantined,
				Reason: "wipe failed: the disk is busy", Epoch: oldEpoch,
			},
			NodeName: "n0", Ports: []protocol.GUID{protocol.GUID(k + 1)}, WholeNode: n == 1, //nolint:gosec // small
		})
	}
	service := delivery.New(delivery.Deps{
		DB: w, Leases: leaseRows{w}, Allocations: allocationRows{w}, Work: workRows{world: w}, Agents: agents{w}, Fabric: subnet{world: w}, Outbox: outboxRows{w},
		Signer: noKey{}, Clock: worldClock{w},
	})
	w.reclaim = delivery.NewReclaim(service, delivery.ReclaimDeps{Rows: w, Nodes: w, Ports: w, Audit: w})
	return w
}

type worldClock struct{ w *world }

func (c worldClock) Now() time.Time { return c.w.now() }

func (w *world) now() time.Time {
	if w.env == nil {
		return w.clock
	}
	return w.env.Now().UTC().Truncate(time.Microsecond)
}

func (w *world) later(d time.Duration, do func()) {
	h := &happening{at: w.now().Add(d), do: do}
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

func (w *world) nudge() {
	for range w.nudges {
		w.env.SignalWorkflow(reclaim.NudgeSignal, nil)
	}
}

// run lets the workflow run until it has nothing to do, from run to run where it continues as new.
func (w *world) run(t *testing.T) {
	t.Helper()
	for runs := 0; w.once(t, 0); runs++ {
		require.Less(t, runs, 60, "it gets nowhere: %s, %s", w.rows.state, w.rows.reason)
	}
}

// once is one run, which is lost after a while unless that is zero; it returns true when there is to be another one.
func (w *world) once(t *testing.T, lost time.Duration) bool {
	t.Helper()
	suite := testsuite.WorkflowTestSuite{}
	suite.SetLogger(quietLogger{})
	env := suite.NewTestWorkflowEnvironment()
	env.SetStartTime(w.clock)
	env.SetTestTimeout(20 * time.Second)
	env.RegisterWorkflowWithOptions(reclaim.Node, workflow.RegisterOptions{Name: reclaim.WorkflowType})
	var target reclaim.Reclaim = w.reclaim
	if w.wrap != nil {
		target = w.wrap(target)
	}
	env.RegisterActivityWithOptions(&reclaim.Activities{Reclaim: target}, activity.RegisterOptions{})
	w.env = env
	for _, h := range w.pending {
		if !h.done {
			w.schedule(h)
		}
	}
	if lost > 0 {
		env.RegisterDelayedCallback(env.CancelWorkflow, lost)
	}
	env.ExecuteWorkflow(reclaim.WorkflowType, reclaim.Input{Node: w.node})
	require.True(t, env.IsWorkflowCompleted())
	w.clock = env.Now().UTC()
	w.env = nil
	err := env.GetWorkflowError()
	var again *workflow.ContinueAsNewError
	if errors.As(err, &again) || lost > 0 && temporal.IsCanceledError(err) {
		return true
	}
	require.NoError(t, err)
	return false
}

// WithinTx implements delivery.Transactor: transactions run one after the other, and roll back.
func (w *world) WithinTx(ctx context.Context, fn func(ctx context.Context) error) error {
	if ctx.Value(inside{}) != nil {
		return fn(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	before, effects := w.rows.copy(), len(w.effects)
	if err := fn(context.WithValue(ctx, inside{}, true)); err != nil {
		w.rows, w.effects = before, w.effects[:effects]
		return err
	}
	for _, effect := range w.effects {
		effect()
	}
	w.effects = nil
	return nil
}

type inside struct{}

// Leftovers implements delivery.ReclaimRows.
func (w *world) Leftovers(ctx context.Context, _ ids.Node) (found []ids.Lease, err error) {
	err = w.WithinTx(ctx, func(context.Context) error {
		for _, i := range w.rows.instances {
			if (i.State == lease.Quarantined || i.State == lease.Cleaning) && !slices.Contains(found, i.Lease) {
				found = append(found, i.Lease)
			}
		}
		return nil
	})
	return found, err
}

// Verifying implements delivery.ReclaimRows.
func (w *world) Verifying(context.Context, ids.Node) (bool, error) {
	return w.rows.state == "verifying", nil
}

// Verify implements delivery.Nodes.
func (w *world) Verify(ctx context.Context, _ ids.Node) (verifying bool, err error) {
	err = w.WithinTx(ctx, func(context.Context) error {
		if w.rows.state != "verifying" {
			return nil
		}
		w.rows.reason = ""
		for _, i := range w.rows.instances {
			if i.State != lease.Released {
				w.rows.reason = string(i.State) + ": " + i.Reason
			}
		}
		if w.rows.reason == "" {
			w.rows.state = "available"
		}
		verifying = w.rows.state == "verifying"
		return nil
	})
	return verifying, err
}

// Vacancy implements delivery.Ports.
func (w *world) Vacancy(context.Context, ids.Fabric) (func(ids.Node, json.RawMessage, json.RawMessage) string, error) {
	return func(_ ids.Node, _, answer json.RawMessage) string {
		if string(answer) == `{}` {
			return ""
		}
		return "port 0x1 holds 0x8007, which it should not"
	}, nil
}

// Record implements delivery.Audit.
func (w *world) Record(_ context.Context, action, _ string, _, _ any) error {
	w.rows.outbox = append(w.rows.outbox, "audit "+action)
	return nil
}

type leaseRows struct{ *world }

func (l leaseRows) Get(_ context.Context, id ids.Lease) (lease.Lease, error) {
	found, ok := l.rows.leases[id]
	if !ok {
		return lease.Lease{}, fault.New(fault.NotFound, "lease-not-found", "there is no such lease")
	}
	return found, nil
}

func (l leaseRows) GetForUpdate(ctx context.Context, id ids.Lease) (lease.Lease, error) {
	return l.Get(ctx, id)
}

func (l leaseRows) Update(_ context.Context, changed lease.Lease) error {
	l.rows.leases[changed.ID] = changed
	return nil
}

func (l leaseRows) AppendEvent(_ context.Context, e lease.Event) (lease.Event, error) {
	l.rows.events = append(l.rows.events, e)
	return e, nil
}

func (leaseRows) SSHKeys(context.Context, ids.Lease) ([]lease.SSHKey, error) { return nil, nil }

type allocationRows struct{ *world }

func (a allocationRows) Update(_ context.Context, changed lease.Allocation) error {
	for i := range a.rows.instances {
		if a.rows.instances[i].ID == changed.ID {
			a.rows.instances[i].Allocation = changed
			return nil
		}
	}
	return fault.New(fault.NotFound, "allocation-not-found", "there is no such allocation")
}

func (a allocationRows) NextEpoch(context.Context) (int64, error) {
	a.rows.epoch++
	return a.rows.epoch, nil
}

// workRows leaves out what a lease's own way needs.
type workRows struct {
	delivery.Work
	*world
}

func (w workRows) Instances(_ context.Context, id ids.Lease) (live []delivery.Instance, err error) {
	for _, i := range w.rows.instances {
		if i.Lease == id && i.State != lease.Released {
			live = append(live, i)
		}
	}
	return live, nil
}

func (workRows) Waiters(context.Context, lease.Allocation) ([]ids.Lease, error) { return nil, nil }

func (w workRows) Operations(_ context.Context, id ids.Lease, step string) (found []delivery.Operation, err error) {
	for _, o := range w.rows.operations {
		if w.steps[o.ID] == step+id.String() {
			found = append(found, o)
		}
	}
	return found, nil
}

func (w workRows) InsertCertificate(_ context.Context, c delivery.Certificate) error {
	w.rows.certificates = append(w.rows.certificates, c)
	return nil
}

func (workRows) Silent(context.Context, []ids.Node, time.Time) (map[ids.Node]time.Time, error) {
	return nil, nil
}

func (w workRows) QuarantineNode(_ context.Context, _ ids.Node, reason string) error {
	w.rows.state, w.rows.reason = "quarantined", reason
	return nil
}

func (workRows) Announce(context.Context, ids.Lease) error { return nil }

// subnet leaves out what a lease's own way needs.
type subnet struct {
	delivery.Fabric
	*world
}

func (s subnet) Leave(_ context.Context, id ids.Lease) error {
	s.rows.left = append(s.rows.left, id)
	return nil
}

func (s subnet) Uncleared(context.Context, ids.Lease) ([]protocol.GUID, error) {
	return s.uncleared, nil
}

type outboxRows struct{ *world }

func (o outboxRows) Put(_ context.Context, topic, key string, _ any, _ time.Time) error {
	o.rows.outbox = append(o.rows.outbox, topic+" "+key)
	return nil
}

type noKey struct{}

func (noKey) Sign(_ context.Context, payloadType string, payload []byte) (protocol.Envelope, error) {
	return protocol.Envelope{PayloadType: payloadType, Payload: payload}, nil
}

type agents struct{ *world }

// Issue implements delivery.Agents: the agent answers a second later.
func (a agents) Issue(_ context.Context, step delivery.Step, orders []delivery.Order, limits delivery.Limits) error {
	for _, o := range orders {
		if step.Node != a.node || o.Epoch <= oldEpoch {
			return fault.New(fault.Invalid, "order", "it must be the node's step, above all earlier epochs")
		}
		spec, err := json.Marshal(o.Spec)
		if err != nil {
			return err
		}
		op := delivery.Operation{
			ID: ids.Make[ids.Operation](), Attempt: step.Attempt, Allocation: o.Allocation, Node: o.Node, Epoch: o.Epoch, State: delivery.Queued, Spec: spec,
			DoneBy: a.now().Add(limits.DoneWithin),
		}
		a.rows.operations = append(a.rows.operations, op)
		a.steps[op.ID] = step.Kind + step.Lease.String()
		how := a.script[o.Kind]
		delay := agentTakes
		if how == silent {
			delay = expiresIn
		}
		a.effects = append(a.effects, func() {
			a.later(delay, func() {
				a.mu.Lock()
				a.answer(op.ID, o, how)
				a.mu.Unlock()
				a.nudge()
			})
		})
	}
	return nil
}

func (w *world) answer(id ids.Operation, order delivery.Order, how verdict) {
	at := slices.IndexFunc(w.rows.operations, func(o delivery.Operation) bool { return o.ID == id })
	o := &w.rows.operations[at]
	o.FinishedAt, o.State = w.now(), delivery.Succeeded
	switch {
	case how == silent:
		o.State, o.Fault = delivery.Expired, &protocol.Fault{Code: protocol.FaultNotPickedUp, Detail: "its agent did not pick the work up in time", Retryable: true}
	case how == failsAlways, how == failsOnce && o.Attempt == 1:
		o.State, o.Fault = delivery.Failed, &protocol.Fault{Code: "busy", Detail: "the disk is busy", Retryable: true}
	default:
		o.Evidence = evidence(*o, order, how == lies)
		o.Signed = &protocol.Envelope{Payload: o.Evidence}
	}
}

func evidence(o delivery.Operation, order delivery.Order, lies bool) json.RawMessage {
	var body any = struct{}{}
	switch order.Kind { //nolint:exhaustive // no others are asked for
	case protocol.Revoke:
		body = protocol.RevokeEvidence{LoginRefused: !lies}
	case protocol.ObservePKeys:
		if lies {
			body = "a key"
		}
	case protocol.Wipe:
		var spec protocol.WipeSpec
		_ = json.Unmarshal(o.Spec, &spec)
		status := protocol.Wiped
		if lies {
			status = protocol.WipeUnsupported
		}
		body = protocol.WipeEvidence{
			LeaseID: spec.LeaseID, NodeID: o.Node.String(), Nonce: spec.Nonce, Slots: protocol.Slots(order.Slots),
			Devices: []protocol.DeviceWipe{{Kind: "nvme", Identity: "S1", Status: status, ReadBackSamples: 16}},
		}
	}
	raw, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Errorf("encode evidence: %w", err))
	}
	return raw
}

type quietLogger struct{}

func (quietLogger) Debug(string, ...any) {}
func (quietLogger) Info(string, ...any)  {}
func (quietLogger) Warn(string, ...any)  {}
func (quietLogger) Error(string, ...any) {}

func (workRows) Watched(context.Context, time.Time) ([]ids.Lease, error) { return nil, nil }

func (workRows) Troubles(context.Context, []ids.Node) ([]delivery.Trouble, error) { return nil, nil }
