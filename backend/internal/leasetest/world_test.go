package leasetest

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/local/temporal"
	"github.com/leasehold/leasehold/backend/internal/markettest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/outbox"
	"github.com/leasehold/leasehold/workflows"
	"github.com/leasehold/leasehold/workflows/reconcile"
	"github.com/leasehold/leasehold/workflows/relay"
)

// world is one market with its workers.
type world struct {
	*markettest.Market
	db       *postgres.DB
	leases   *postgres.Leases
	work     *postgres.LeaseWork
	box      *postgres.Outbox
	temporal client.Client
	deps     workflows.Deps
	customer markettest.Customer
	kind     ids.Instance
	nodes    []ids.Node

	mu        sync.Mutex
	isolation map[ids.Lease]delivery.Isolation
	sweeping  bool
	answered  bool
	sweeps    int
}

// startTemporal starts a server of the test's own, on the test's database server.
func startTemporal(t *testing.T, database string) client.Client {
	t.Helper()
	address, err := url.Parse(database)
	require.NoError(t, err)
	address.Path = "/temporal" + strings.ReplaceAll(address.Path[1:], "-", "_")
	server, err := temporal.Start(t.Context(), temporal.Options{DatabaseURL: address.String(), DataDir: t.TempDir(), Progress: func(s string) { t.Log(s) }})
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Stop(context.WithoutCancel(t.Context())) })
	c, err := client.DialContext(t.Context(), client.Options{
		HostPort: server.Address(), Logger: log.NewStructuredLogger(slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))),
	})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func newWorld(t *testing.T, nodes int) *world {
	t.Helper()
	m := markettest.New(t)
	db, err := postgres.Open(t.Context(), m.URL, 20)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	w := &world{
		Market: m, db: db, leases: postgres.NewLeases(db), work: postgres.NewLeaseWork(db), box: postgres.NewOutbox(db),
		temporal: startTemporal(t, m.URL), customer: m.Customer(t, "Acme"), isolation: map[ids.Lease]delivery.Isolation{},
		kind: m.InstanceType(t, "h100-sxm.8x.ndr", "h100-sxm-80gb.8", "bare_metal", 8), nodes: m.Nodes(t, "h100", "h100-sxm-80gb.8", "bare_metal", nodes, 4),
	}
	service := delivery.New(delivery.Deps{
		DB: db, Leases: w.leases, Allocations: postgres.NewAllocations(db), Work: w.work, Agents: agents{w}, Fabric: subnet{w}, Billing: free{},
		Outbox: w.box, Signer: noKey{}, Clock: clock.System{},
	})
	w.deps = workflows.Deps{Delivery: service, Fabric: sweeper{w}}
	for i, node := range w.nodes {
		m.Exec(t, `INSERT INTO agent (id, kind, site_id, node_id, public_key, created_at) VALUES ($1, 'node', $2, $3, $4, now())`,
			ids.FromUUID[ids.LeaseKind](node.UUID()), m.Site, node, []byte(strings.Repeat(string(rune('a'+i)), 32)))
	}
	return w
}

// startWorker runs a worker and a relay until the function that it returns is called, or the test ends.
func (w *world) startWorker(t *testing.T) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	worker := workflows.NewWorker(w.temporal, w.deps)
	require.NoError(t, worker.Start())
	var loops sync.WaitGroup
	r := &relay.Relay{
		Outbox: w.box, Leases: w.work, Temporal: w.temporal, TaskQueue: workflows.TaskQueue, Clock: clock.System{},
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Wake: w.listen(ctx, t, &loops),
	}
	loops.Go(func() { _ = r.Run(ctx) })
	stop := sync.OnceFunc(func() {
		cancel()
		worker.Stop()
		loops.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// listen wakes the relay when messages were announced.
func (w *world) listen(ctx context.Context, t *testing.T, loops *sync.WaitGroup) <-chan struct{} {
	t.Helper()
	listener, err := w.Pool.Acquire(ctx)
	require.NoError(t, err)
	_, err = listener.Exec(ctx, "LISTEN "+outbox.Channel)
	require.NoError(t, err)
	wake := make(chan struct{}, 1)
	loops.Go(func() {
		defer listener.Release()
		for {
			if _, err := listener.Conn().WaitForNotification(ctx); err != nil {
				return
			}
			select {
			case wake <- struct{}{}:
			default:
			}
		}
	})
	return wake
}

func (w *world) reconciler(t *testing.T) *reconcile.Reconciler {
	t.Helper()
	return &reconcile.Reconciler{
		Rows: w.work, Locker: w.db, Delivery: w.deps.Delivery.(*delivery.Service), Outbox: w.box, Temporal: w.temporal, TaskQueue: workflows.TaskQueue,
		Clock: clock.System{}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

// book adds a lease of all nodes, as an on-demand booking would: its slots are held as of now.
func (w *world) book(t *testing.T, start time.Time, duration time.Duration) ids.Lease {
	t.Helper()
	id := w.Lease(t, w.customer, w.kind, start, start.Add(duration))
	w.Exec(t, "UPDATE lease SET instances = $2 WHERE id = $1", id, len(w.nodes))
	now := time.Now().UTC().Truncate(time.Microsecond)
	for i, node := range w.nodes {
		a := lease.Allocation{
			ID: ids.Make[ids.Allocation](), Node: node, Lease: id, Ordinal: i, Slots: lease.Slots{From: 0, To: 64}, State: lease.Held, CreatedAt: now,
			Occupied: lease.Window{Start: now, End: start.Add(duration + time.Minute)},
		}
		w.within(t, func(ctx context.Context) error { return postgres.NewAllocations(w.db).Insert(ctx, a) })
	}
	w.nudge(t.Context(), outbox.LeaseNudge, id.String())
	return id
}

func (w *world) within(t *testing.T, fn func(ctx context.Context) error) {
	t.Helper()
	require.NoError(t, w.db.WithinTx(context.WithoutCancel(t.Context()), fn))
}

func (w *world) nudge(ctx context.Context, topic, key string) {
	_ = w.db.WithinTx(ctx, func(ctx context.Context) error { return w.box.Put(ctx, topic, key, nil, time.Now()) })
}

func (w *world) read(t *testing.T, id ids.Lease) (l lease.Lease) {
	t.Helper()
	w.within(t, func(ctx context.Context) error {
		var err error
		l, err = w.leases.Get(ctx, id)
		return err
	})
	return l
}

// await waits until the lease is in the state.
func (w *world) await(t *testing.T, id ids.Lease, state lease.State) lease.Lease {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		l := w.read(t, id)
		if l.State == state {
			return l
		}
		if time.Now().After(deadline) || l.Final() {
			w.tell(t, id)
			require.Fail(t, "wrong state", "the lease is %s, not %s: %s", l.State, state, l.Reason)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// agents answer at once, in another transaction, as real ones do.
type agents struct{ *world }

func (a agents) Issue(ctx context.Context, step delivery.Step, orders []delivery.Order, limits delivery.Limits) error {
	id := ids.Make[ids.Step]()
	if _, err := a.Pool.Exec(ctx, `INSERT INTO step (id, lease_id, kind, attempt, remaining, created_at) VALUES ($1, $2, $3, $4, $5, now())`,
		id, step.Lease, step.Kind, step.Attempt, len(orders)); err != nil {
		return err
	}
	for _, o := range orders {
		spec, err := json.Marshal(o.Spec)
		if err != nil {
			return err
		}
		if _, err := a.Pool.Exec(ctx, `INSERT INTO operation (id, agent_id, step_id, lease_id, allocation_id, node_id, kind, dedup_key, epoch, spec, pick_up_by, done_by, created_at)
			VALUES ($1::uuid, $2, $3, $4, $5, $6, $7, $1::uuid::text, $8, $9, now() + $10::int * interval '1 second', now() + $11::int * interval '1 second', now())`,
			ids.Make[ids.Operation](), o.Node, id, step.Lease, o.Allocation, o.Node, string(o.Kind), o.Epoch, spec,
			int(limits.PickUpWithin.Seconds()), int(limits.DoneWithin.Seconds())); err != nil {
			return err
		}
	}
	go a.answer(id, step.Lease)
	return nil
}

// answer runs outside the transaction that asked, hence without its context.
func (a agents) answer(step ids.Step, lease ids.Lease) {
	ctx := context.Background()
	_, _ = a.Pool.Exec(ctx, `
		UPDATE operation SET state = 'succeeded', finished_at = now(), evidence = CASE kind
			WHEN 'grant' THEN '{"host": "127.0.0.1", "port": 22, "user": "lease", "host_keys": []}'
			WHEN 'revoke' THEN '{"login_refused": true}'
			WHEN 'wipe' THEN jsonb_build_object('lease_id', spec->>'lease_id', 'nonce', spec->>'nonce', 'node_id', '', 'slots', '{"from": 0, "to": 64}'::jsonb,
				'devices', '[{"kind": "nvme", "identity": "S1", "status": "wiped"}]'::jsonb)
			ELSE '{}' END
		WHERE step_id = $1`, step)
	for _, node := range a.nodes {
		_, _ = a.Pool.Exec(ctx, `UPDATE operation SET evidence = jsonb_set(evidence, '{node_id}', to_jsonb($3::text)) WHERE step_id = $1 AND node_id = $2 AND kind = 'wipe'`,
			step, node, node.String())
	}
	_, _ = a.Pool.Exec(ctx, "UPDATE step SET remaining = 0, finished_at = now() WHERE id = $1", step)
	a.nudge(ctx, outbox.LeaseNudge, lease.String())
}

// subnet is the fabric as leases see it.
type subnet struct{ *world }

func (s subnet) Join(ctx context.Context, id ids.Lease) error {
	return s.want(ctx, id, delivery.NoPartition, delivery.Pending)
}

func (s subnet) Leave(ctx context.Context, id ids.Lease) error {
	return s.want(ctx, id, delivery.Verified, delivery.Draining)
}

func (s subnet) want(ctx context.Context, id ids.Lease, from, to delivery.Isolation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.isolation[id]; now == from || now == "" && from == delivery.NoPartition {
		s.isolation[id] = to
		return s.box.Put(ctx, outbox.FabricNudge, s.Fabric.String(), nil, time.Now())
	}
	return nil
}

func (s subnet) Status(_ context.Context, id ids.Lease) (delivery.Isolation, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isolation[id] == "" {
		return delivery.NoPartition, "", nil
	}
	return s.isolation[id], "", nil
}

func (s subnet) Witness(ctx context.Context, id ids.Lease, occasion delivery.Occasion, attempt int) error {
	instances, err := s.work.Instances(ctx, id)
	if err != nil {
		return err
	}
	var orders []delivery.Order
	for _, i := range instances {
		if len(i.Ports) > 0 {
			orders = append(orders, delivery.Order{Allocation: i.ID, Node: i.Node, Kind: protocol.ObservePKeys, Epoch: i.Epoch, Spec: struct{}{}})
		}
	}
	return agents(s).Issue(ctx, delivery.Step{Lease: id, Kind: s.WitnessStep(occasion), Attempt: attempt}, orders, delivery.Limits{PickUpWithin: time.Minute, DoneWithin: time.Minute})
}

func (subnet) WitnessStep(occasion delivery.Occasion) string { return "witness_" + string(occasion) }

func (subnet) Attest(context.Context, ids.Lease, delivery.Occasion) (ids.Attestation, delivery.Verdict, error) {
	return ids.Make[ids.Attestation](), delivery.Isolated, nil
}

// sweeper is the fabric as its own workflow sees it.
type sweeper struct{ *world }

func (s sweeper) Absorb(ctx context.Context, _ ids.Fabric) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.answered {
		return nil
	}
	s.sweeping, s.answered = false, false
	for id, is := range s.isolation {
		switch is { //nolint:exhaustive // the others do not wait
		case delivery.Pending:
			s.isolation[id] = delivery.Verified
		case delivery.Draining:
			s.isolation[id] = delivery.Clear
		default:
			continue
		}
		s.nudge(ctx, outbox.LeaseNudge, id.String())
	}
	return nil
}

func (s sweeper) Plan(_ context.Context, _ ids.Fabric) (bool, time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, is := range s.isolation {
		if !s.sweeping && (is == delivery.Pending || is == delivery.Draining) {
			s.sweeping = true
			s.sweeps++
			go s.sweep()
		}
	}
	return s.sweeping, time.Time{}, nil
}

func (s sweeper) sweep() {
	ctx := context.Background()
	s.mu.Lock()
	s.answered = true
	s.mu.Unlock()
	s.nudge(ctx, outbox.FabricNudge, s.Fabric.String())
}

type free struct{}

func (free) Accrue(context.Context, ids.Lease, time.Time) error { return nil }

func (free) Settle(context.Context, ids.Lease) (ids.Invoice, error) {
	return ids.Make[ids.Invoice](), nil
}

type noKey struct{}

func (noKey) Sign(_ context.Context, payloadType string, payload []byte) (protocol.Envelope, error) {
	return protocol.Envelope{PayloadType: payloadType, Payload: payload}, nil
}

// tell logs what happened to the lease.
func (w *world) tell(t *testing.T, id ids.Lease) {
	t.Helper()
	rows, err := w.Pool.Query(t.Context(), `
		SELECT at, what FROM (
			SELECT at, type || ' ' || data AS what FROM lease_event WHERE lease_id = $1 UNION ALL
			SELECT o.created_at, s.kind || ' ' || s.attempt || ' ' || o.state || ' until ' || coalesce(o.finished_at::text, '?') FROM operation o JOIN step s ON s.id = o.step_id
			WHERE s.lease_id = $1 UNION ALL
			SELECT created_at, topic || ' ' || key || ' attempt ' || attempts || ' done ' || coalesce(done_at::text, '?') FROM outbox) x ORDER BY at`, id)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var at time.Time
		var what string
		require.NoError(t, rows.Scan(&at, &what))
		t.Log(at.Format("15:04:05.000"), what)
	}
}

// Unproved implements delivery.Fabric: here every port is proved.
func (subnet) Unproved(context.Context, ids.Attestation) ([]protocol.GUID, error) { return nil, nil }

// Uncleared implements delivery.Fabric: here every port is seen clear.
func (subnet) Uncleared(context.Context, ids.Lease) ([]protocol.GUID, error) { return nil, nil }
