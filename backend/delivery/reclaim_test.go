package delivery_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/agenttoken"
	"github.com/leasehold/leasehold/backend/internal/keys"
	"github.com/leasehold/leasehold/backend/internal/markettest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/inventory"
	"github.com/leasehold/leasehold/backend/outbox"
)

// ward is a database with one node whose slots were quarantined when their lease ended, and the services that can help.
type ward struct {
	*markettest.Market
	db         *postgres.DB
	clock      *clock.Fake
	inventory  *inventory.Service
	delivery   *delivery.Service
	reclaim    *delivery.Reclaim
	work       *postgres.LeaseWork
	node       ids.Node
	customer   markettest.Customer
	lease      ids.Lease
	allocation ids.Allocation
	partition  ids.Partition
}

type agents struct{ fleet *fleet.Service }

func (a agents) Issue(ctx context.Context, step delivery.Step, orders []delivery.Order, limits delivery.Limits) error {
	work := make([]fleet.Work, len(orders))
	for i, o := range orders {
		work[i] = fleet.Work{
			Node: o.Node, Allocation: o.Allocation, Kind: o.Kind, Epoch: o.Epoch, Slots: protocol.Slots(o.Slots), Spec: o.Spec,
			PickUpWithin: limits.PickUpWithin, DoneWithin: limits.DoneWithin,
		}
	}
	_, err := a.fleet.Issue(ctx, fleet.Step{Lease: step.Lease, Kind: step.Kind, Attempt: step.Attempt, Node: step.Node}, work)
	return err
}

// partitions is the fabric's side as far as a reclaim needs it.
type partitions struct {
	delivery.Fabric
	subnets *fabric.Service
}

func (p partitions) Leave(ctx context.Context, id ids.Lease) error { return p.subnets.Leave(ctx, id) }

func (p partitions) Uncleared(ctx context.Context, id ids.Lease) ([]protocol.GUID, error) {
	return p.subnets.Uncleared(ctx, id)
}

func newWard(t *testing.T) *ward {
	t.Helper()
	m := markettest.New(t)
	db, err := postgres.Open(t.Context(), m.URL, 16)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	key, err := keys.Generate()
	require.NoError(t, err)
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	w := &ward{
		Market: m, db: db, clock: clock.NewFake(start.Add(48 * time.Hour)), work: postgres.NewLeaseWork(db), customer: m.Customer(t, "Acme"),
		node: m.Nodes(t, "h100", "h100-sxm-80gb.8", "bare_metal", 1, 4)[0], allocation: ids.Make[ids.Allocation](), partition: ids.Make[ids.Partition](),
	}
	store, stock, box, log := postgres.NewFleet(db), postgres.NewInventory(db), postgres.NewOutbox(db), audit.New(postgres.NewAuditEvents(db), w.clock)
	w.inventory = inventory.New(db, stock, stock, stock, w.clock)
	machines := fleet.New(fleet.Deps{
		Tx: db, Agents: store, Beats: store, Operations: store, Hardware: w.inventory, Outbox: box, Audit: log, Tokens: agenttoken.New(w.clock), Clock: w.clock,
		Log: slog.New(slog.DiscardHandler),
	})
	subnets := fabric.New(fabric.Deps{
		Tx: db, Leases: postgres.NewLeases(db), Partitions: postgres.NewIsolation(db), Work: machines, Keys: store, Outbox: box, Audit: log, Signer: key, Clock: w.clock,
	})
	w.delivery = delivery.New(delivery.Deps{
		DB: db, Leases: postgres.NewLeases(db), Allocations: postgres.NewAllocations(db), Work: w.work, Agents: agents{machines}, Fabric: partitions{subnets: subnets},
		Outbox: box, Signer: fabric.Sealer{Key: key}, Clock: w.clock,
	})
	w.reclaim = delivery.NewReclaim(w.delivery, delivery.ReclaimDeps{Rows: w.work, Nodes: w.inventory, Ports: subnets, Audit: log})
	w.inventory.UseWriteOffs(w.reclaim)

	w.lease = m.Lease(t, w.customer, m.InstanceType(t, "h100-sxm.8x.ndr", "h100-sxm-80gb.8", "bare_metal", 8), start, start.Add(time.Hour))
	m.Exec(t, "UPDATE lease SET state = 'closed', outcome = 'completed', released_at = end_at, closed_at = end_at WHERE id = $1", w.lease)
	m.Exec(t, "SELECT setval('allocation_epoch', 40)")
	m.Exec(t, `INSERT INTO allocation (id, node_id, purpose, lease_id, slots, occupied, state, reason, epoch, created_at)
		VALUES ($1, $2, 'lease', $3, '[0,64)', tstzrange($4, $5), 'quarantined', 'wipe failed', 40, $4)`, w.allocation, w.node, w.lease, start, start.Add(2*time.Hour))
	m.Exec(t, `INSERT INTO agent (id, kind, site_id, node_id, public_key, created_at) VALUES ($1, 'node', $2, $3, $4, now())`,
		ids.Make[ids.Agent](), m.Site, w.node, []byte(rand.Text() + rand.Text())[:32])
	m.Exec(t, `INSERT INTO partition (id, org_id, fabric_id, lease_id, pkey, state, created_at, updated_at) VALUES ($1, $2, $3, $4, 7, 'draining', now(), now())`,
		w.partition, w.customer.Org, m.Fabric, w.lease)
	m.Exec(t, `INSERT INTO partition_member (partition_id, hca_port_id, allocation_id, org_id, wanted, joined_at) SELECT $1, id, $2, $3, false, now() FROM hca_port WHERE node_id = $4`,
		w.partition, w.allocation, w.customer.Org, w.node)
	m.Exec(t, `INSERT INTO fabric_port (fabric_id, guid, node_guid, description, lid, switch_id, switch_port, rate_gbps)
		SELECT fabric_id, guid, node_guid, '', 1, switch_id, switch_port, rate_gbps FROM hca_port`)
	m.Exec(t, "UPDATE node SET state = 'quarantined', state_reason = 'wipe failed', state_exit = 'retest' WHERE id = $1", w.node)
	return w
}

// seenClear is the fabric's agent's word that the ports have left the partition.
func (w *ward) seenClear(t *testing.T) {
	t.Helper()
	w.Exec(t, "UPDATE partition_member SET left_at = now() WHERE partition_id = $1", w.partition)
	w.Exec(t, "UPDATE partition SET state = 'clear' WHERE id = $1", w.partition)
}

func (w *ward) move(t *testing.T, m inventory.Move) (inventory.Detail, error) {
	t.Helper()
	return w.inventory.SetState(t.Context(), w.node, 0, m)
}

func (w *ward) nodeNow(t *testing.T) inventory.Node {
	t.Helper()
	d, err := w.inventory.Node(t.Context(), w.node)
	require.NoError(t, err)
	return d.Node
}

func scalar[T any](t *testing.T, w *ward, query string, args ...any) (value T) {
	t.Helper()
	require.NoError(t, w.Pool.QueryRow(t.Context(), query, args...).Scan(&value))
	return value
}

// look takes one look at each step, as the workflow would, as far as they are done, and returns whether all are.
func (w *ward) look(t *testing.T) bool {
	t.Helper()
	ctx := t.Context()
	for _, step := range []func(context.Context, ids.Node) (delivery.Progress, error){w.reclaim.Begin, w.reclaim.Revoke, w.reclaim.Clear, w.reclaim.Observe, w.reclaim.Wipe} {
		progress, err := step(ctx, w.node)
		require.NoError(t, err)
		if progress.Again {
			break
		}
		if !progress.Done {
			return false
		}
	}
	progress, err := w.reclaim.Conclude(ctx, w.node, "")
	require.NoError(t, err)
	return progress.Done
}

// answer has the node's agent do, or fail, what it was asked and has not answered; it returns what it was asked for.
func (w *ward) answer(t *testing.T, works bool) (kinds []string) {
	t.Helper()
	rows, err := w.Pool.Query(t.Context(), `SELECT o.id, o.kind, o.spec, o.epoch, s.node_id IS NOT NULL FROM operation o JOIN step s ON s.id = o.step_id WHERE o.state = 'queued'`)
	require.NoError(t, err)
	type asked struct {
		id    ids.Operation
		kind  protocol.OperationKind
		spec  json.RawMessage
		epoch int64
		own   bool
	}
	var all []asked
	for rows.Next() {
		var a asked
		require.NoError(t, rows.Scan(&a.id, &a.kind, &a.spec, &a.epoch, &a.own))
		all = append(all, a)
	}
	require.NoError(t, rows.Err())
	for _, a := range all {
		require.Greater(t, a.epoch, int64(40), "what is late from the lease's own end is fenced")
		require.True(t, a.own, "the node's own process is woken")
		kinds = append(kinds, string(a.kind))
		if !works {
			w.Exec(t, `UPDATE operation SET state = 'failed', fault = '{"code": "busy", "detail": "the disk is busy", "retryable": true}', finished_at = $2 WHERE id = $1`, a.id, w.clock.Now())
			continue
		}
		w.Exec(t, "UPDATE operation SET state = 'succeeded', evidence = $2, finished_at = $3 WHERE id = $1", a.id, w.evidence(t, a.kind, a.spec), w.clock.Now())
	}
	return kinds
}

func (w *ward) evidence(t *testing.T, kind protocol.OperationKind, spec json.RawMessage) json.RawMessage {
	t.Helper()
	var evidence any
	switch kind { //nolint:exhaustive // no others are asked for
	case protocol.Revoke:
		evidence = protocol.RevokeEvidence{LoginRefused: true}
	case protocol.ObservePKeys:
		var s protocol.ObservePKeysSpec
		require.NoError(t, json.Unmarshal(spec, &s))
		require.NotEmpty(t, s.PortGUIDs)
		seen := protocol.PKeyObservation{NodeID: w.node.String(), Nonce: s.Nonce}
		for _, guid := range s.PortGUIDs {
			seen.Ports = append(seen.Ports, protocol.PortTable{GUID: guid, Readable: true, Keys: []protocol.PKey{protocol.DefaultLimited}})
		}
		evidence = seen
	case protocol.Wipe:
		var s protocol.WipeSpec
		require.NoError(t, json.Unmarshal(spec, &s))
		evidence = protocol.WipeEvidence{
			LeaseID: s.LeaseID, NodeID: w.node.String(), Nonce: s.Nonce, Slots: protocol.Slots{From: 0, To: 64},
			Devices: []protocol.DeviceWipe{{Kind: "nvme", Identity: "S1", Status: protocol.Wiped, ReadBackSamples: 16}},
		}
	}
	raw, err := json.Marshal(evidence)
	require.NoError(t, err)
	return raw
}

func (w *ward) requireHealthy(t *testing.T) {
	t.Helper()
	findings, err := postgres.NewDoctor(w.db).Examine(t.Context())
	require.NoError(t, err)
	require.Empty(t, findings)
}

func TestAQuarantinedNodeThatIsTestedAgainIsCleanedFirst(t *testing.T) {
	t.Parallel()
	w := newWard(t)
	w.requireHealthy(t)
	before := scalar[string](t, w, "SELECT to_jsonb(l) - 'event_seq' FROM lease l WHERE id = $1", w.lease)

	detail, err := w.move(t, inventory.Move{To: inventory.Verifying})
	require.NoError(t, err)
	require.Equal(t, inventory.Verifying, detail.Node.State)
	require.Equal(t, "slots [0, 64) are quarantined: wipe failed", detail.Node.StateReason)
	require.Equal(t, 1, scalar[int](t, w, "SELECT count(*) FROM outbox WHERE topic = $1 AND key = $2", outbox.NodeNudge, w.node.String()))
	nodes, err := w.work.Reclaims(t.Context())
	require.NoError(t, err)
	require.Equal(t, []ids.Node{w.node}, nodes, "the reconciler starts a process that was lost")

	require.False(t, w.look(t))
	require.False(t, w.look(t), "a second look asks for nothing twice")
	w.requireHealthy(t)
	left, err := w.work.Left(t.Context())
	require.NoError(t, err)
	require.Empty(t, left, "the reconciler leaves it to the node's process")
	require.NoError(t, w.delivery.CleanUpAfter(t.Context(), w.lease))
	require.Equal(t, "cleaning", scalar[string](t, w, "SELECT state FROM allocation WHERE id = $1", w.allocation))
	require.Equal(t, []string{"revoke"}, w.answer(t, true))

	require.False(t, w.look(t))
	require.Empty(t, w.answer(t, true), "nothing goes on before the ports are seen clear")
	require.Contains(t, w.nodeNow(t).StateReason, "its ports must be seen clear of the tenant's partition")
	require.NoError(t, w.inventory.ReportFabric(t.Context(), w.Fabric, w.report(t)), "a report in between does not sell it")
	require.Equal(t, inventory.Verifying, w.nodeNow(t).State)
	w.seenClear(t)
	require.False(t, w.look(t))
	require.Equal(t, []string{"observe_pkeys"}, w.answer(t, true))
	require.False(t, w.look(t))
	require.Contains(t, w.nodeNow(t).StateReason, "its wipe is awaited")
	require.Equal(t, []string{"wipe"}, w.answer(t, true))
	require.True(t, w.look(t))

	node := w.nodeNow(t)
	require.Equal(t, inventory.Available, node.State, node.StateReason)
	require.Equal(t, "released", scalar[string](t, w, "SELECT state FROM allocation WHERE id = $1", w.allocation))
	require.Equal(t, 1, scalar[int](t, w, "SELECT count(*) FROM wipe_certificate WHERE allocation_id = $1 AND result = 'wiped'", w.allocation))
	require.JSONEq(t, before, scalar[string](t, w, "SELECT to_jsonb(l) - 'event_seq' FROM lease l WHERE id = $1", w.lease), "the lease is as it was")
	require.Equal(t, "node.wiped", scalar[string](t, w, "SELECT type FROM lease_event WHERE lease_id = $1 ORDER BY seq DESC LIMIT 1", w.lease))
	require.Zero(t, scalar[int](t, w, "SELECT count(*) FROM ledger_tx"))
	require.True(t, w.look(t), "again, it has nothing to do")
	w.requireHealthy(t)
}

// replaced makes the ward's lease a running one that has another node instead of the ward's.
func (w *ward) replaced(t *testing.T) ids.Allocation {
	t.Helper()
	other, serves := w.Nodes(t, "spare", "h100-sxm-80gb.8", "bare_metal", 1, 4)[0], ids.Make[ids.Allocation]()
	w.Exec(t, "UPDATE lease SET state = 'active', outcome = '', released_at = NULL, closed_at = NULL, end_at = $2 WHERE id = $1", w.lease, w.clock.Now().Add(time.Hour))
	w.Exec(t, `INSERT INTO allocation (id, node_id, purpose, lease_id, slots, occupied, state, epoch, created_at)
		VALUES ($1, $2, 'lease', $3, '[0,64)', tstzrange($4, $5), 'in_use', 42, now())`, serves, other, w.lease, w.clock.Now().Add(-time.Hour), w.clock.Now().Add(2*time.Hour))
	w.Exec(t, "UPDATE allocation SET state = 'cleaning', replaced_by = $2, epoch = 41 WHERE id = $1", w.allocation, serves)
	w.Exec(t, "UPDATE partition SET state = 'verified' WHERE id = $1", w.partition)
	w.Exec(t, `INSERT INTO partition_member (partition_id, hca_port_id, allocation_id, org_id, wanted, joined_at) SELECT $1, id, $2, $3, true, now() FROM hca_port WHERE node_id = $4`,
		w.partition, serves, w.customer.Org, other)
	w.Exec(t, "SELECT setval('allocation_epoch', 42)")
	return serves
}

func TestANodeThatWasReplacedIsCleanedWhileItsLeaseGoesOn(t *testing.T) {
	t.Parallel()
	w := newWard(t)
	serves := w.replaced(t)
	w.requireHealthy(t)
	detail, err := w.move(t, inventory.Move{To: inventory.Verifying})
	require.NoError(t, err)
	require.Equal(t, inventory.Verifying, detail.Node.State, "nothing says that it is available while its slots are not clean")
	require.Contains(t, detail.Node.StateReason, "slots [0, 64)")
	_, err = w.move(t, inventory.Move{To: inventory.Available})
	require.Error(t, err)

	require.False(t, w.look(t))
	require.Equal(t, []string{"revoke"}, w.answer(t, true))
	require.False(t, w.look(t), "its ports are not clear yet")
	w.Exec(t, "UPDATE partition_member SET left_at = now() WHERE allocation_id = $1", w.allocation)
	require.False(t, w.look(t))
	require.Equal(t, []string{"observe_pkeys"}, w.answer(t, true))
	require.False(t, w.look(t))
	require.Equal(t, []string{"wipe"}, w.answer(t, true))
	require.True(t, w.look(t))

	require.Equal(t, inventory.Available, w.nodeNow(t).State, w.nodeNow(t).StateReason)
	require.Equal(t, "released", scalar[string](t, w, "SELECT state FROM allocation WHERE id = $1", w.allocation))
	require.Equal(t, "in_use", scalar[string](t, w, "SELECT state FROM allocation WHERE id = $1", serves))
	require.Equal(t, "active", scalar[string](t, w, "SELECT state FROM lease WHERE id = $1", w.lease))
	require.Equal(t, "verified", scalar[string](t, w, "SELECT state FROM partition WHERE id = $1", w.partition))
	require.Equal(t, 1, scalar[int](t, w, "SELECT count(*) FROM partition_member WHERE partition_id = $1 AND wanted AND left_at IS NULL", w.partition), "its partition lives on")
	w.requireHealthy(t)
}

func TestALeaseAtItsEndCleansWhatWasReplacedItself(t *testing.T) {
	t.Parallel()
	w := newWard(t)
	w.replaced(t)
	w.Exec(t, "UPDATE lease SET state = 'releasing', outcome = 'completed' WHERE id = $1", w.lease)
	_, err := w.move(t, inventory.Move{To: inventory.Verifying})
	require.NoError(t, err)
	require.False(t, w.look(t))
	require.Empty(t, w.answer(t, true))
	require.Equal(t, inventory.Verifying, w.nodeNow(t).State)
}

// report is what the fabric's agent would say of the ports.
func (w *ward) report(t *testing.T) protocol.FabricInventory {
	t.Helper()
	parse := func(column string) (g protocol.GUID) {
		require.NoError(t, g.UnmarshalText([]byte(scalar[string](t, w, "SELECT "+column+" FROM hca_port p JOIN switch s ON s.id = p.switch_id"))))
		return g
	}
	var f protocol.FabricInventory
	f.Topology.Switches = []protocol.Switch{{GUID: parse("s.guid"), Name: "h100-leaf-0", Level: 1, Ports: 40, Pod: "pod-0"}}
	f.Topology.Ports = []protocol.TopologyPort{{GUID: parse("p.guid"), NodeGUID: parse("p.node_guid"), SwitchGUID: parse("s.guid"), SwitchPort: 1}}
	return f
}

func TestANodeThatCannotBeCleanedGoesBackToQuarantine(t *testing.T) {
	t.Parallel()
	w := newWard(t)
	w.seenClear(t)
	for round := 1; round <= 2; round++ { // an admin may try as often as they like
		_, err := w.move(t, inventory.Move{To: inventory.Verifying})
		require.NoError(t, err)
		asked := 0
		for done := false; !done; done = w.look(t) {
			asked += len(w.answer(t, false))
			w.clock.Advance(time.Minute)
			require.Less(t, asked, 20)
		}
		require.Equal(t, delivery.DefaultPolicy().UndoAttempts, asked, "earlier rounds' failures do not count")
		node := w.nodeNow(t)
		require.Equal(t, inventory.Quarantined, node.State)
		require.Equal(t, "ending access again failed: the disk is busy", node.StateReason)
		require.Equal(t, inventory.Retest, node.StateExit)
		require.Equal(t, "quarantined", scalar[string](t, w, "SELECT state FROM allocation WHERE id = $1", w.allocation))
		require.Equal(t, round, scalar[int](t, w, "SELECT count(*) FROM outbox WHERE topic = 'notify' AND key = 'operator'"))
		w.requireHealthy(t)
	}
	for done := false; !done; done = w.look(t) {
		require.Empty(t, w.answer(t, true), "nobody asked for another try")
	}
	_, err := w.move(t, inventory.Move{To: inventory.Verifying})
	require.NoError(t, err)
	for done := false; !done; done = w.look(t) {
		w.answer(t, true)
	}
	require.Equal(t, inventory.Available, w.nodeNow(t).State)
	w.requireHealthy(t)
}

func TestANodeIsNotSoldPastItsQuarantinedSlots(t *testing.T) {
	t.Parallel()
	w := newWard(t)
	_, err := w.move(t, inventory.Move{To: inventory.Maintenance, Reason: "a new disk"})
	require.NoError(t, err)
	_, err = w.move(t, inventory.Move{To: inventory.Available})
	require.Equal(t, "node-not-clean", fault.CodeOf(err))
	_, err = w.move(t, inventory.Move{To: inventory.Verifying})
	require.NoError(t, err)
	require.False(t, w.look(t))

	_, err = w.move(t, inventory.Move{To: inventory.Maintenance, Reason: "not that disk"})
	require.NoError(t, err)
	require.True(t, w.look(t), "the process ends")
	require.Equal(t, "quarantined", scalar[string](t, w, "SELECT state FROM allocation WHERE id = $1", w.allocation))
	require.Equal(t, inventory.Maintenance, w.nodeNow(t).State)
	w.requireHealthy(t)

	w.seenClear(t)
	_, err = w.move(t, inventory.Move{To: inventory.Verifying})
	require.NoError(t, err)
	for done := false; !done; done = w.look(t) {
		w.answer(t, true)
	}
	require.Equal(t, inventory.Available, w.nodeNow(t).State)
	w.requireHealthy(t)
}

func TestARetiredNodeTakesItsQuarantinedSlotsAlong(t *testing.T) {
	t.Parallel()
	for _, begun := range []bool{false, true} {
		w := newWard(t)
		if begun {
			_, err := w.move(t, inventory.Move{To: inventory.Verifying})
			require.NoError(t, err)
			require.False(t, w.look(t))
		}
		_, err := w.move(t, inventory.Move{To: inventory.Retired})
		require.Equal(t, "retire-reason", fault.CodeOf(err))
		_, err = w.move(t, inventory.Move{To: inventory.Retired, Reason: "hmm", ByProvider: true})
		require.Equal(t, "operator-only", fault.CodeOf(err))
		require.NotEqual(t, "released", scalar[string](t, w, "SELECT state FROM allocation WHERE id = $1", w.allocation), "a refusal changes nothing")

		_, err = w.move(t, inventory.Move{To: inventory.Retired, Reason: "scrapped: its mainboard burnt"})
		require.NoError(t, err)
		require.Equal(t, inventory.Retired, w.nodeNow(t).State)
		require.Equal(t, "scrapped: its mainboard burnt", scalar[string](t, w, "SELECT reason FROM allocation WHERE id = $1 AND state = 'released'", w.allocation))
		require.Equal(t, w.allocation.String(), scalar[string](t, w, "SELECT target FROM audit_event WHERE action = 'allocation.written_off'"))
		require.Equal(t, 1, scalar[int](t, w, "SELECT count(*) FROM lease_event WHERE lease_id = $1 AND type = 'node.written_off'", w.lease))
		require.True(t, w.look(t))
		w.requireHealthy(t)
	}
}

func TestANodeIsNotRetiredUnderALeaseThatIsNotOver(t *testing.T) {
	t.Parallel()
	w := newWard(t)
	w.Exec(t, "UPDATE lease SET state = 'releasing', closed_at = NULL WHERE id = $1", w.lease)
	_, err := w.move(t, inventory.Move{To: inventory.Retired, Reason: "scrapped"})
	require.Equal(t, "node-in-use", fault.CodeOf(err))
	_, err = w.move(t, inventory.Move{To: inventory.Verifying})
	require.NoError(t, err)
	require.False(t, w.look(t))
	require.Equal(t, "quarantined", scalar[string](t, w, "SELECT state FROM allocation WHERE id = $1", w.allocation))
	require.Empty(t, w.answer(t, true))
}
