package leasetest

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/inventory"
	"github.com/leasehold/leasehold/backend/outbox"
	"github.com/leasehold/leasehold/workflows/reclaim"
)

// janitor is the agent of a node that is tested again: it answers at once, wipes only while it may, and holds its answers back while it is
// told to.
type janitor struct {
	*world
	wipes atomic.Bool
	holds atomic.Bool
}

func (j *janitor) Issue(ctx context.Context, step delivery.Step, orders []delivery.Order, limits delivery.Limits) error {
	id := ids.Make[ids.Step]()
	if _, err := j.Pool.Exec(ctx, `INSERT INTO step (id, lease_id, node_id, kind, attempt, remaining, created_at) VALUES ($1, $2, $3, $4, $5, $6, now())`,
		id, step.Lease, step.Node, step.Kind, step.Attempt, len(orders)); err != nil {
		return err
	}
	for _, o := range orders {
		spec, err := json.Marshal(o.Spec)
		if err != nil {
			return err
		}
		if _, err := j.Pool.Exec(ctx, `INSERT INTO operation (id, agent_id, step_id, lease_id, allocation_id, node_id, kind, dedup_key, epoch, spec, pick_up_by, done_by, created_at)
			VALUES ($1::uuid, $2, $3, $4, $5, $2, $6, $1::uuid::text, $7, $8, now() + interval '1 minute', now() + $9::int * interval '1 second', now())`,
			ids.Make[ids.Operation](), o.Node, id, step.Lease, o.Allocation, string(o.Kind), o.Epoch, spec, int(limits.DoneWithin.Seconds())); err != nil {
			return err
		}
	}
	if !j.holds.Load() {
		go j.answer(step.Node)
	}
	return nil
}

// answer runs outside the transaction that asked, hence without its context.
func (j *janitor) answer(node ids.Node) {
	ctx := context.Background()
	status := "wiped"
	if !j.wipes.Load() {
		status = "unsupported"
	}
	_, _ = j.Pool.Exec(ctx, `
		UPDATE operation SET state = 'succeeded', finished_at = now(), evidence = CASE kind
			WHEN 'revoke' THEN '{"login_refused": true}'
			WHEN 'wipe' THEN jsonb_build_object('lease_id', spec->>'lease_id', 'nonce', spec->>'nonce', 'node_id', $2::text, 'slots', '{"from": 0, "to": 64}'::jsonb,
				'devices', jsonb_build_array(jsonb_build_object('kind', 'nvme', 'identity', 'S1', 'status', $3::text)))
			ELSE '{}' END
		WHERE node_id = $1 AND state = 'queued'`, node, node.String(), status)
	j.nudge(ctx, outbox.NodeNudge, node.String())
}

// spotless is a fabric without a trace of earlier leases.
type spotless struct{ delivery.Fabric }

func (spotless) Leave(context.Context, ids.Lease) error { return nil }

func (spotless) Uncleared(context.Context, ids.Lease) ([]protocol.GUID, error) { return nil, nil }

func (spotless) Vacancy(context.Context, ids.Fabric) (func(ids.Node, json.RawMessage, json.RawMessage) string, error) {
	return func(ids.Node, json.RawMessage, json.RawMessage) string { return "" }, nil
}

func TestANodeIsCleanedAgainOnARealServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	node, agent := w.nodes[0], &janitor{world: w}
	stock := postgres.NewInventory(w.db)
	machines := inventory.New(w.db, stock, stock, stock, clock.System{})
	service := delivery.New(delivery.Deps{
		DB: w.db, Leases: w.leases, Allocations: postgres.NewAllocations(w.db), Work: w.work, Agents: agent, Fabric: spotless{}, Billing: free{}, Outbox: w.box,
		Signer: noKey{}, Clock: clock.System{},
	})
	w.deps.Reclaim = delivery.NewReclaim(service, delivery.ReclaimDeps{Rows: w.work, Nodes: machines, Ports: spotless{}})
	w.Exec(t, `INSERT INTO fabric_port (fabric_id, guid, node_guid, description, lid, switch_id, switch_port, rate_gbps)
		SELECT fabric_id, guid, node_guid, '', 1, switch_id, switch_port, rate_gbps FROM hca_port`)
	lease := w.Lease(t, w.customer, w.kind, time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour))
	w.Exec(t, "UPDATE lease SET state = 'closed' WHERE id = $1", lease)
	w.Exec(t, `INSERT INTO allocation (id, node_id, purpose, lease_id, slots, occupied, state, reason, created_at)
		VALUES ($1, $2, 'lease', $3, '[0,64)', tstzrange(now() - interval '2 hours', now() - interval '50 minutes'), 'quarantined', 'wipe failed', now())`,
		ids.Make[ids.Allocation](), node, lease)
	w.Exec(t, "UPDATE node SET state = 'quarantined', state_reason = 'wipe failed', state_exit = 'retest'")
	stop := w.startWorker(t)
	retest := func() {
		_, err := machines.SetState(t.Context(), node, 0, inventory.Move{To: inventory.Verifying})
		require.NoError(t, err)
	}
	await := func(state inventory.State) {
		t.Helper()
		require.Eventually(t, func() bool {
			now, err := machines.Node(t.Context(), node)
			return err == nil && now.Node.State == state
		}, 30*time.Second, 20*time.Millisecond)
	}

	retest() // its wipe shows nothing
	await(inventory.Quarantined)
	w.recordNode(t, node, "quarantined")

	agent.holds.Store(true)
	agent.wipes.Store(true)
	retest()
	asked := func() (n int) {
		_ = w.Pool.QueryRow(t.Context(), "SELECT count(*) FROM operation WHERE state = 'queued'").Scan(&n)
		return n
	}
	require.Eventually(t, func() bool { return asked() == 1 }, 30*time.Second, 20*time.Millisecond)
	require.NoError(t, w.temporal.TerminateWorkflow(t.Context(), reclaim.WorkflowID(node), "", "lost"))
	stop() // and the worker with it
	stop = w.startWorker(t)
	agent.holds.Store(false)
	agent.answer(node)
	require.NoError(t, w.reconciler(t).WakeNodes(t.Context()))
	await(inventory.Available)
	w.recordNode(t, node, "cleaned")

	findings, err := postgres.NewDoctor(w.db).Examine(t.Context())
	require.NoError(t, err)
	require.Empty(t, findings)
	stop()
}

// recordNode writes the history of the node's latest run, once it has ended.
func (w *world) recordNode(t *testing.T, node ids.Node, name string) {
	t.Helper()
	require.NoError(t, w.temporal.GetWorkflow(t.Context(), reclaim.WorkflowID(node), "").Get(t.Context(), nil))
	if *record {
		w.save(t, reclaim.WorkflowID(node), "", filepath.Join("reclaim", "testdata", "histories", fmt.Sprintf("v%d-%s.json", reclaim.Version, name)))
	}
}
