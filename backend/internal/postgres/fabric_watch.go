package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/ids"
)

type driftRow struct {
	ID       ids.Drift `gorm:"primaryKey"`
	FabricID ids.Fabric
	PortGUID string `gorm:"column:port_guid"` // '' is the fabric itself
	What     string
	Onset    time.Time
	Repair   string
	EndedAt  *time.Time
	Kind     string
	Pkey     int
	SeenAt   *time.Time
	Attempts int
	TriedAt  *time.Time
	GaveUpAt *time.Time
}

func (driftRow) TableName() string { return "drift" }

func newDriftRow(d fabric.Drift) driftRow {
	row := driftRow{
		ID: d.ID, FabricID: d.Fabric, What: d.What, Onset: d.Onset, Repair: d.Repair, EndedAt: nullable(d.EndedAt), Kind: string(d.Kind), Pkey: int(d.PKey),
		SeenAt: nullable(d.SeenAt), Attempts: d.Attempts, TriedAt: nullable(d.TriedAt), GaveUpAt: nullable(d.GaveUpAt),
	}
	if d.Port != 0 {
		row.PortGUID = d.Port.String()
	}
	return row
}

func toDrift(r driftRow) fabric.Drift {
	d := fabric.Drift{
		ID: r.ID, Fabric: r.FabricID, Deviation: fabric.Deviation{Kind: fabric.DriftKind(r.Kind), PKey: pkeyOf(r.Pkey), What: r.What}, Onset: r.Onset.UTC(),
		SeenAt: instant(r.SeenAt), Repair: r.Repair, Attempts: r.Attempts, TriedAt: instant(r.TriedAt), GaveUpAt: instant(r.GaveUpAt), EndedAt: instant(r.EndedAt),
	}
	if r.PortGUID != "" {
		d.Port = toGUID(r.PortGUID)
	}
	return d
}

// OpenDrift implements fabric.Watch.
func (s *Isolation) OpenDrift(ctx context.Context, id ids.Fabric) ([]fabric.Drift, error) {
	rows, err := scan[driftRow](ctx, s.db, "SELECT * FROM drift WHERE fabric_id = ? AND ended_at IS NULL ORDER BY onset, port_guid, what", id)
	if err != nil {
		return nil, fmt.Errorf("read drift: %w", err)
	}
	return each(rows, toDrift), nil
}

// rowsAtOnce bounds the rows of one statement: PostgreSQL takes 65,535 parameters.
const rowsAtOnce = 1000

// PutDrift implements fabric.Watch.
func (s *Isolation) PutDrift(ctx context.Context, all []fabric.Drift) error {
	if len(all) == 0 {
		return nil
	}
	rows := each(all, newDriftRow)
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Clauses(clause.OnConflict{
			Columns:   []clause.Column{{Name: "id"}},
			DoUpdates: clause.AssignmentColumns([]string{"repair", "ended_at", "seen_at", "attempts", "tried_at", "gave_up_at"}),
		}).CreateInBatches(&rows, rowsAtOnce).Error
	})
	if err != nil {
		return fmt.Errorf("write drift: %w", translate(err))
	}
	return nil
}

// KnownPorts implements fabric.Watch.
func (s *Isolation) KnownPorts(ctx context.Context, id ids.Fabric) ([]protocol.GUID, error) {
	rows, err := scan[string](ctx, s.db, `SELECT p.guid FROM hca_port p JOIN node n ON n.id = p.node_id WHERE p.fabric_id = ? AND n.state <> 'retired' ORDER BY p.guid`, id)
	if err != nil {
		return nil, fmt.Errorf("read known ports: %w", err)
	}
	return each(rows, toGUID), nil
}

// foreignKey is a row of foreign_pkey as a statement takes them, many at once.
type foreignKey struct {
	Port protocol.GUID `json:"port"`
	PKey int           `json:"pkey"`
}

// PutForeign implements fabric.Watch, in two statements whatever the number of ports.
func (s *Isolation) PutForeign(ctx context.Context, id ids.Fabric, keys map[protocol.GUID][]protocol.PKey, at time.Time) error {
	ports, held := []protocol.GUID{}, []foreignKey{}
	for port, foreign := range keys {
		ports = append(ports, port)
		for _, key := range foreign {
			held = append(held, foreignKey{port, int(key)})
		}
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		err := conn(ctx).Exec(`DELETE FROM foreign_pkey f WHERE fabric_id = ? AND port_guid IN (SELECT jsonb_array_elements_text(?::jsonb))
			AND NOT EXISTS (SELECT FROM jsonb_to_recordset(?::jsonb) AS k (port text, pkey integer) WHERE k.port = f.port_guid AND k.pkey = f.pkey)`,
			id, document[[]protocol.GUID]{ports}, document[[]foreignKey]{held}).Error
		if err != nil || len(held) == 0 {
			return err
		}
		return conn(ctx).Exec(`INSERT INTO foreign_pkey (fabric_id, port_guid, pkey, onset)
			SELECT ?, port, pkey, ? FROM jsonb_to_recordset(?::jsonb) AS k (port text, pkey integer) ON CONFLICT DO NOTHING`,
			id, at, document[[]foreignKey]{held}).Error
	})
	if err != nil {
		return fmt.Errorf("write foreign keys: %w", translate(err))
	}
	return nil
}

// fullPorts selects the HCA ports whose tables have no room for a lease's key beside the default one and the foreign ones that were seen
// there. There are few or none: as a subquery of its own it is read once, not once a port.
const fullPorts = `SELECT p.id, p.node_id FROM foreign_pkey k JOIN hca_port p ON p.fabric_id = k.fabric_id AND p.guid = k.port_guid JOIN fabric f ON f.id = k.fabric_id
	GROUP BY p.id, f.max_pkeys_per_port HAVING count(*) + 2 > f.max_pkeys_per_port`

// takesLeases is the condition that new leases may come to node n, which is on a fabric: the fabric's posture allows it, or an admin has let
// it pass, and the node's ports have room. It says in SQL what fabric.Bars says of one item. Neither part is read once a node.
const takesLeases = ` n.fabric_id NOT IN (SELECT f.id FROM fabric f WHERE f.posture_override IS NULL AND EXISTS (SELECT FROM jsonb_array_elements(f.posture) c
		WHERE c->>'verdict' = 'false' OR c->>'item' = 'default_membership_limited' AND c->>'verdict' <> 'true'))
	AND n.id NOT IN (SELECT full_ports.node_id FROM (` + fullPorts + `) full_ports) `

// Full implements fabric.Watch.
func (s *Isolation) Full(ctx context.Context, ports []ids.HCAPort) ([]protocol.GUID, error) {
	if len(ports) == 0 {
		return []protocol.GUID{}, nil
	}
	rows, err := scan[string](ctx, s.db, "SELECT guid FROM hca_port WHERE id IN ? AND id IN (SELECT id FROM ("+fullPorts+") full_ports) ORDER BY guid", ports)
	if err != nil {
		return nil, fmt.Errorf("read full ports: %w", err)
	}
	return each(rows, toGUID), nil
}

// NotePosture implements fabric.Watch.
func (s *Isolation) NotePosture(ctx context.Context, id ids.Fabric, posture []protocol.PostureCheck) error {
	return s.exec(ctx, "note posture", "UPDATE fabric SET posture = ? WHERE id = ?", document[[]protocol.PostureCheck]{posture}, id)
}

func (s *Isolation) exec(ctx context.Context, what, statement string, args ...any) error {
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Exec(statement, args...).Error })
	if err != nil {
		return fmt.Errorf("%s: %w", what, translate(err))
	}
	return nil
}

// Reserve implements fabric.Watch.
func (s *Isolation) Reserve(ctx context.Context, id ids.Fabric, keys []protocol.PKey) error {
	return s.exec(ctx, "reserve keys", `INSERT INTO fabric_watch (fabric_id, reserved_pkeys) VALUES (?, ?)
		ON CONFLICT (fabric_id) DO UPDATE SET reserved_pkeys = excluded.reserved_pkeys`,
		id, document[[]int]{each(keys, func(k protocol.PKey) int { return int(k) })})
}

// Suspected implements fabric.Watch.
func (s *Isolation) Suspected(ctx context.Context, id ids.Fabric) (time.Time, error) {
	rows, err := scan[struct{ At *time.Time }](ctx, s.db, `SELECT max(o.finished_at) AS at FROM operation o JOIN node n ON n.id = o.node_id
		WHERE o.fault->>'code' = 'ports-not-clear' AND n.fabric_id = ?`, id)
	if err != nil || len(rows) == 0 {
		return time.Time{}, err
	}
	return instant(rows[0].At), nil
}

// Range implements fabric.Watch.
func (s *Isolation) Range(ctx context.Context, id ids.Fabric, low, high protocol.PKey) error {
	return s.exec(ctx, "set managed range", "UPDATE fabric SET managed_low = ?, managed_high = ? WHERE id = ?", int(low), int(high), id)
}

// Manage implements fabric.Watch.
func (s *Isolation) Manage(ctx context.Context, id ids.Fabric, ports []protocol.GUID) error {
	return s.exec(ctx, "name managers", `INSERT INTO fabric_watch (fabric_id, manager_guids) VALUES (?, ?)
		ON CONFLICT (fabric_id) DO UPDATE SET manager_guids = excluded.manager_guids`, id, document[[]protocol.GUID]{ports})
}

// DueAudit implements fabric.Watch.
func (s *Isolation) DueAudit(ctx context.Context, id ids.Fabric, at time.Time, askedBy string) error {
	return s.exec(ctx, "note audit", `INSERT INTO fabric_watch (fabric_id, audit_due_at, audit_asked_by) VALUES (?, ?, ?)
		ON CONFLICT (fabric_id) DO UPDATE SET audit_due_at = excluded.audit_due_at, audit_asked_by = excluded.audit_asked_by`, id, at, askedBy)
}

type auditRow struct {
	OperationID ids.Operation `gorm:"primaryKey"`
	FabricID    ids.Fabric
	AskedBy     string
	AskedAt     time.Time
	EndedAt     time.Time
	Verdict     string
	Ports       int
	Clean       int
	Deviating   int
	Unreadable  int
	Strangers   int
	ForeignKeys document[[]int]
	Detail      string
}

func (auditRow) TableName() string { return "fabric_audit" }

// InsertAudit implements fabric.Watch.
func (s *Isolation) InsertAudit(ctx context.Context, a fabric.Audit) error {
	row := auditRow{
		OperationID: a.Operation, FabricID: a.Fabric, AskedBy: a.AskedBy, AskedAt: a.AskedAt, EndedAt: a.EndedAt, Verdict: string(a.Verdict), Ports: a.Ports,
		Clean: a.Clean, Deviating: a.Deviating, Unreadable: a.Unreadable, Strangers: a.Strangers,
		ForeignKeys: document[[]int]{each(a.Foreign, func(k protocol.PKey) int { return int(k) })}, Detail: a.Detail,
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Create(&row).Error })
	if err != nil {
		return fmt.Errorf("insert audit: %w", translate(err))
	}
	return nil
}

func toAudit(r auditRow) fabric.Audit {
	return fabric.Audit{
		Operation: r.OperationID, Fabric: r.FabricID, AskedBy: r.AskedBy, AskedAt: r.AskedAt.UTC(), EndedAt: r.EndedAt.UTC(), Verdict: fabric.AuditVerdict(r.Verdict),
		Ports: r.Ports, Clean: r.Clean, Deviating: r.Deviating, Unreadable: r.Unreadable, Strangers: r.Strangers, Foreign: each(r.ForeignKeys.Of, pkeyOf),
		Detail: r.Detail,
	}
}

// Audits implements fabric.Watch.
func (s *Isolation) Audits(ctx context.Context, id ids.Fabric, limit int) ([]fabric.Audit, error) {
	rows, err := scan[auditRow](ctx, s.db, "SELECT * FROM fabric_audit WHERE fabric_id = ? ORDER BY ended_at DESC, operation_id DESC LIMIT ?", id, limit)
	if err != nil {
		return nil, fmt.Errorf("read audits: %w", err)
	}
	return each(rows, toAudit), nil
}

// ForgetAudits implements fabric.Watch.
func (s *Isolation) ForgetAudits(ctx context.Context, id ids.Fabric, keep int) error {
	return s.exec(ctx, "forget audits", `UPDATE operation o SET evidence = NULL, signed = NULL
		WHERE o.id IN (SELECT operation_id FROM fabric_audit WHERE fabric_id = ? ORDER BY ended_at DESC, operation_id DESC OFFSET ? LIMIT 20)
		  AND o.signed IS NOT NULL AND NOT EXISTS (SELECT FROM partition p WHERE p.witness_id = o.id)`, id, keep)
}

// AuditsDue lists the fabrics that somebody must look at: an audit is due, or drift is to be repaired.
func (w *LeaseWork) AuditsDue(ctx context.Context, now time.Time) ([]ids.Fabric, error) {
	var found []ids.Fabric
	err := w.db.WithinTx(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`
			SELECT f.id FROM fabric f LEFT JOIN fabric_watch w ON w.fabric_id = f.id
			WHERE coalesce(w.audit_due_at <= ?, f.observed_at IS NOT NULL)
			   OR (SELECT max(o.finished_at) FROM operation o JOIN node n ON n.id = o.node_id WHERE o.fault->>'code' = 'ports-not-clear' AND n.fabric_id = f.id)
			      > coalesce((SELECT max(a.asked_at) FROM fabric_audit a WHERE a.fabric_id = f.id), '-infinity')
			   OR EXISTS (SELECT FROM drift d WHERE d.fabric_id = f.id AND d.ended_at IS NULL AND d.gave_up_at IS NULL AND d.kind NOT IN ('unknown_port', 'unreadable'))
			ORDER BY f.id`, now).Scan(&found).Error
	})
	if err != nil {
		return nil, fmt.Errorf("list fabrics to audit: %w", err)
	}
	return found, nil
}

// watched adds what fabric_watch has of a fabric.
func (s *Isolation) watched(ctx context.Context, subnet fabric.Subnet, err error) (fabric.Subnet, error) {
	if err != nil {
		return subnet, err
	}
	rows, err := scan[struct {
		ReservedPkeys document[[]int]
		AuditDueAt    *time.Time
		AuditAskedBy  string
		ManagerGuids  document[[]protocol.GUID]
	}](ctx, s.db, "SELECT reserved_pkeys, audit_due_at, audit_asked_by, manager_guids FROM fabric_watch WHERE fabric_id = ?", subnet.ID)
	if err != nil || len(rows) == 0 {
		return subnet, err
	}
	if keys := rows[0].ReservedPkeys.Of; len(keys) > 0 {
		subnet.Reserved = each(keys, pkeyOf)
	}
	subnet.AuditDueAt, subnet.AuditAskedBy = instant(rows[0].AuditDueAt), rows[0].AuditAskedBy
	if len(rows[0].ManagerGuids.Of) > 0 {
		subnet.Managers = rows[0].ManagerGuids.Of
	}
	return subnet, nil
}
