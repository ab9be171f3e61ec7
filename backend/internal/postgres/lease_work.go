package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/power"
)

// LeaseWork reads and writes what concerns the work on a lease's nodes. It is for workers, which act for the platform.
type LeaseWork struct{ db *DB }

// NewLeaseWork returns the work on leases of db.
func NewLeaseWork(db *DB) *LeaseWork { return &LeaseWork{db: db} }

type instanceRow struct {
	Allocation allocationRow `gorm:"embedded"`
	NodeName   string
	Mode       string
	GPUUUIDs   document[[]string] `gorm:"column:gpu_uuids"`
	MIGProfile string             `gorm:"column:mig_profile"`
	Ports      document[[]protocol.GUID]
	WholeNode  bool
	Retested   bool
	Metal      bool
	Stage      string
	Low        int
	High       int
	Reserved   document[[]int]
}

func toInstance(r instanceRow) delivery.Instance {
	return delivery.Instance{
		Allocation: toAllocation(r.Allocation), NodeName: r.NodeName, Mode: r.Mode, GPUUUIDs: r.GPUUUIDs.Of, MIGProfile: r.MIGProfile,
		Ports: r.Ports.Of, WholeNode: r.WholeNode,
		Managed:  delivery.ManagedKeys{Low: pkeyOf(r.Low), High: pkeyOf(r.High), Reserved: each(r.Reserved.Of, pkeyOf)},
		Retested: r.Retested, Metal: r.Metal, Stage: power.Stage(r.Stage),
	}
}

// Instances reads and locks the lease's allocations that are not released, with what their nodes must be told. Ports that belong
// to no bay come with the whole node only; a lease without a fabric has none.
func (w *LeaseWork) Instances(ctx context.Context, id ids.Lease) ([]delivery.Instance, error) {
	var rows []instanceRow
	err := conn(ctx).Raw(`
		SELECT a.*, n.name AS node_name, n.mode, t.mig_profile, lower(a.slots) = 0 AND upper(a.slots) = n.slots AS whole_node, n.state = 'verifying' AS retested,
		       (SELECT coalesce(jsonb_agg(g.uuid ORDER BY g.bay), '[]') FROM gpu g
		        WHERE g.node_id = a.node_id AND g.bay >= lower(a.slots) / 8 AND g.bay < (upper(a.slots) + 7) / 8) AS gpu_uuids,
		       (SELECT coalesce(jsonb_agg(p.guid ORDER BY p.rail, p.guid), '[]') FROM hca_port p
		        WHERE p.node_id = a.node_id AND p.fabric_id = l.fabric_id
		          AND (p.bay >= lower(a.slots) / 8 AND p.bay < (upper(a.slots) + 7) / 8
		               OR p.bay IS NULL AND lower(a.slots) = 0 AND upper(a.slots) = n.slots)) AS ports,
		       coalesce(f.managed_low, 0) AS low, coalesce(f.managed_high, 0) AS high, coalesce(x.reserved_pkeys, '[]') AS reserved,
		       k.node_id IS NOT NULL AND n.mode = 'bare_metal' AS metal, coalesce(k.stage, '') AS stage
		FROM allocation a JOIN lease l ON l.id = a.lease_id JOIN node n ON n.id = a.node_id JOIN instance_type t ON t.id = l.instance_type_id
		LEFT JOIN fabric f ON f.id = l.fabric_id LEFT JOIN fabric_watch x ON x.fabric_id = l.fabric_id
		LEFT JOIN machine k ON k.node_id = a.node_id
		WHERE a.lease_id = ? AND a.released_at IS NULL
		ORDER BY a.ordinal, a.created_at, a.id FOR NO KEY UPDATE OF a`, id).Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("read instances: %w", err)
	}
	return each(rows, toInstance), nil
}

// Begin returns the first instant at which any of the lease's slots is held; the zero instant when none is.
func (w *LeaseWork) Begin(ctx context.Context, id ids.Lease) (time.Time, error) {
	var begin *time.Time
	err := conn(ctx).Raw("SELECT min(lower(occupied)) FROM allocation WHERE lease_id = ? AND released_at IS NULL", id).Scan(&begin).Error
	if err != nil {
		return time.Time{}, fmt.Errorf("read beginning: %w", err)
	}
	return instant(begin), nil
}

// Blockers lists what keeps the lease's held slots from being handed over: an unreleased allocation of the same slots that is
// earlier or already in use, or a node that is not available.
func (w *LeaseWork) Blockers(ctx context.Context, id ids.Lease) ([]delivery.Blocker, error) {
	var rows []struct {
		Allocation ids.Allocation
		NodeName   string
		NodeLost   bool
	}
	err := conn(ctx).Raw(`
		SELECT mine.id AS allocation, n.name AS node_name, n.state <> 'available' AS node_lost
		FROM allocation mine JOIN node n ON n.id = mine.node_id
		WHERE mine.lease_id = ? AND mine.state = 'held'
		  AND (n.state <> 'available' OR EXISTS (
		       SELECT FROM allocation other
		       WHERE other.node_id = mine.node_id AND other.slots && mine.slots AND other.id <> mine.id AND other.released_at IS NULL
		         AND (lower(other.occupied) < lower(mine.occupied) OR other.state <> 'held')))
		ORDER BY mine.ordinal, mine.id`, id).Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("read blockers: %w", err)
	}
	blockers := make([]delivery.Blocker, len(rows))
	for i, r := range rows {
		blockers[i] = delivery.Blocker{Allocation: r.Allocation, NodeName: r.NodeName, NodeLost: r.NodeLost}
	}
	return blockers, nil
}

// Waiters lists provisioning leases that hold slots which overlap the allocation's.
func (w *LeaseWork) Waiters(ctx context.Context, a lease.Allocation) ([]ids.Lease, error) {
	var waiters []ids.Lease
	err := conn(ctx).Raw(`
		SELECT DISTINCT l.id FROM allocation o JOIN lease l ON l.id = o.lease_id
		WHERE o.node_id = ? AND o.slots && ?::int4range AND o.id <> ? AND o.state = 'held' AND l.state = 'provisioning'`,
		a.Node, slotRange(a.Slots), a.ID).Scan(&waiters).Error
	if err != nil {
		return nil, fmt.Errorf("read waiters: %w", err)
	}
	return waiters, nil
}

type workRow struct {
	ID         ids.Operation
	Attempt    int
	Allocation ids.Allocation
	Node       ids.Node
	Epoch      int64
	State      string
	Fault      document[*protocol.Fault]
	Spec       json.RawMessage
	Evidence   json.RawMessage
	Signed     document[*protocol.Envelope]
	DoneBy     time.Time
	FinishedAt *time.Time
}

func toWork(r workRow) delivery.Operation {
	return delivery.Operation{
		ID: r.ID, Attempt: r.Attempt, Allocation: r.Allocation, Node: r.Node, Epoch: r.Epoch, State: delivery.OperationState(r.State),
		Fault: r.Fault.Of, Spec: r.Spec, Evidence: r.Evidence, Signed: r.Signed.Of, DoneBy: r.DoneBy.UTC(), FinishedAt: instant(r.FinishedAt),
	}
}

// Operations reads what was asked of the lease's nodes in steps of that kind, by attempt. DoneBy is the next deadline: to be
// picked up while it is queued, to be done after that.
func (w *LeaseWork) Operations(ctx context.Context, id ids.Lease, step string) ([]delivery.Operation, error) {
	return w.operations(ctx, id, step, "true")
}

// LastRound is Operations of the latest attempt only.
func (w *LeaseWork) LastRound(ctx context.Context, id ids.Lease, step string) ([]delivery.Operation, error) {
	return w.operations(ctx, id, step, "s.attempt = (SELECT max(attempt) FROM step WHERE lease_id = s.lease_id AND kind = s.kind)")
}

func (w *LeaseWork) operations(ctx context.Context, id ids.Lease, step, which string) ([]delivery.Operation, error) {
	var rows []workRow
	err := conn(ctx).Raw(`
		SELECT o.id, s.attempt, o.allocation_id AS allocation, o.node_id AS node, o.epoch, o.state, o.fault, o.spec, o.evidence, o.signed,
		       CASE o.state WHEN 'queued' THEN o.pick_up_by ELSE o.done_by END AS done_by, o.finished_at
		FROM operation o JOIN step s ON s.id = o.step_id
		WHERE s.lease_id = ? AND s.kind = ? AND `+which+` ORDER BY s.attempt, o.created_at, o.id`, id, step).Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("read operations: %w", err)
	}
	return each(rows, toWork), nil
}

// Recorded reads the values of one field of the data of the lease's events of that type, in order.
func (w *LeaseWork) Recorded(ctx context.Context, id ids.Lease, event lease.EventType, field string) ([]string, error) {
	return NewLeases(w.db).Recorded(ctx, id, event, field)
}

type certificateRow struct {
	ID           ids.Wipe `gorm:"primaryKey"`
	OrgID        ids.Org
	LeaseID      ids.Lease
	AllocationID ids.Allocation
	NodeID       ids.Node
	Result       string
	Envelope     document[protocol.Envelope]
	CreatedAt    time.Time
}

func (certificateRow) TableName() string { return "wipe_certificate" }

func toCertificate(r certificateRow) delivery.Certificate {
	return delivery.Certificate{
		ID: r.ID, Org: r.OrgID, Lease: r.LeaseID, Allocation: r.AllocationID, Node: r.NodeID, Result: protocol.WipeStatus(r.Result),
		Envelope: r.Envelope.Of, CreatedAt: r.CreatedAt.UTC(),
	}
}

// InsertCertificate writes a wipe certificate.
func (w *LeaseWork) InsertCertificate(ctx context.Context, c delivery.Certificate) error {
	row := certificateRow{
		ID: c.ID, OrgID: c.Org, LeaseID: c.Lease, AllocationID: c.Allocation, NodeID: c.Node, Result: string(c.Result),
		Envelope: document[protocol.Envelope]{c.Envelope}, CreatedAt: c.CreatedAt,
	}
	if err := conn(ctx).Create(&row).Error; err != nil {
		return fmt.Errorf("insert wipe certificate: %w", err)
	}
	return nil
}

// Certificates reads a lease's wipe certificates in the order in which they were issued; an organization's actor sees its own.
func (w *LeaseWork) Certificates(ctx context.Context, id ids.Lease) ([]delivery.Certificate, error) {
	var rows []certificateRow
	if err := conn(ctx).Where("lease_id = ?", id).Order("created_at, id").Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("read wipe certificates: %w", err)
	}
	return each(rows, toCertificate), nil
}

// Silent says since when nodes have sent no heartbeat: those of the given ones that were last heard before the instant, while at least half
// of their site's nodes were heard after it.
func (w *LeaseWork) Silent(ctx context.Context, nodes []ids.Node, before time.Time) (map[ids.Node]time.Time, error) {
	var rows []struct {
		NodeID ids.Node
		SeenAt time.Time
	}
	err := conn(ctx).Raw(`
		SELECT v.node_id, v.seen_at FROM node_liveness v JOIN node n ON n.id = v.node_id
		WHERE v.node_id IN ? AND v.seen_at < ?
		  AND (SELECT 2 * count(*) FILTER (WHERE o.seen_at >= ?) >= count(*)
		       FROM node_liveness o JOIN node m ON m.id = o.node_id LEFT JOIN machine k ON k.node_id = m.id
		       WHERE m.site_id = n.site_id AND coalesce(k.stage, 'service') = 'service')`,
		nodes, before, before).Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("read silent nodes: %w", err)
	}
	silent := make(map[ids.Node]time.Time, len(rows))
	for _, r := range rows {
		silent[r.NodeID] = r.SeenAt.UTC()
	}
	return silent, nil
}

// Watched implements delivery.Work. A running lease has a reason while something of it is out, and only then.
func (w *LeaseWork) Watched(ctx context.Context, heardBefore time.Time) ([]ids.Lease, error) {
	found, err := scan[ids.Lease](ctx, w.db, `
		SELECT l.id FROM lease l WHERE l.state = 'active' AND (l.reason <> '' OR EXISTS (
		    SELECT FROM allocation a LEFT JOIN node_liveness v ON v.node_id = a.node_id
		    WHERE a.lease_id = l.id AND a.state = 'in_use' AND a.released_at IS NULL AND (v.seen_at < ?
		        OR EXISTS (SELECT FROM node_condition c WHERE c.node_id = a.node_id AND c.cleared_at IS NULL AND c.class = 'prevents_allocation'))))
		ORDER BY l.id`, heardBefore)
	if err != nil {
		return nil, fmt.Errorf("list leases to watch: %w", err)
	}
	return found, nil
}

// Troubles implements delivery.Work.
func (w *LeaseWork) Troubles(ctx context.Context, nodes []ids.Node) ([]delivery.Trouble, error) {
	type row struct {
		NodeID ids.Node
		Name   string
		Device string
		Onset  time.Time
	}
	rows, err := scan[row](ctx, w.db, `SELECT node_id, name, device, onset FROM node_condition
		WHERE node_id IN ? AND cleared_at IS NULL AND class = 'prevents_allocation' ORDER BY onset, name, device`, nodes)
	if err != nil {
		return nil, fmt.Errorf("read troubles: %w", err)
	}
	return each(rows, func(r row) delivery.Trouble {
		return delivery.Trouble{Node: r.NodeID, Name: r.Name, Device: r.Device, Onset: r.Onset.UTC()}
	}), nil
}

// QuarantineNode takes a node off the market, until an admin retests, repairs or retires it. A retired one stays retired.
func (w *LeaseWork) QuarantineNode(ctx context.Context, node ids.Node, reason string) error {
	err := conn(ctx).Exec(`
		UPDATE node SET state = 'quarantined', state_reason = ?, state_exit = 'retest', version = version + 1
		WHERE id = ? AND state NOT IN ('quarantined', 'retired')`, reason, node).Error
	if err != nil {
		return fmt.Errorf("quarantine node: %w", err)
	}
	return nil
}

// Announce wakes whoever waits for the lease to change, when the transaction commits.
func (w *LeaseWork) Announce(ctx context.Context, id ids.Lease) error {
	if err := conn(ctx).Exec("SELECT pg_notify(?, ?)", lease.Channel, id.String()).Error; err != nil {
		return fmt.Errorf("announce lease: %w", err)
	}
	return nil
}
