package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/money"
)

// LeaseReads reads leases as people want to see them. It implements lease.Reads.
type LeaseReads struct {
	db     *DB
	leases *Leases
}

var _ lease.Reads = (*LeaseReads)(nil)

// NewLeaseReads returns the reads of db.
func NewLeaseReads(db *DB) *LeaseReads { return &LeaseReads{db: db, leases: NewLeases(db)} }

// detailRow is what stands beside a lease.
type detailRow struct {
	ID         ids.Lease
	TypeName   string
	SiteName   string
	FabricName string
	LastEvent  int64
	Held       int64
	Charged    int64
	InvoiceID  ids.Invoice
	Step       string
	Percent    int
	Done       int
	Total      int
}

// detailQuery reads past the tenant's role, since names of the market and the work on nodes are not the tenant's rows; it is asked only
// for leases that were read as the tenant before.
//
// The step is the latest one that was asked of nodes, by its first word: an instance is through with it when its latest operation
// there has succeeded. One that was replaced counts again on the way back.
const detailQuery = `
	SELECT l.id, t.name AS type_name, s.name AS site_name, coalesce(f.name, '') AS fabric_name, l.event_seq AS last_event,
	       coalesce(h.amount_minor - h.captured_minor - h.released_minor, 0) AS held, coalesce(h.captured_minor, 0) AS charged, i.id AS invoice_id,
	       coalesce(w.kind, '') AS step, coalesce(w.percent, 0) AS percent, coalesce(w.done, 0) AS done, coalesce(w.total, 0) AS total
	FROM lease l
	JOIN instance_type t ON t.id = l.instance_type_id
	JOIN site s ON s.id = l.site_id
	LEFT JOIN fabric f ON f.id = l.fabric_id
	LEFT JOIN hold h ON h.lease_id = l.id
	LEFT JOIN invoice i ON i.lease_id = l.id AND i.state <> 'void'
	LEFT JOIN LATERAL (
	    SELECT kind, round(avg(percent))::int AS percent, count(*) FILTER (WHERE state = 'succeeded') AS done, count(*) AS total FROM (
	        SELECT DISTINCT ON (o.allocation_id) x.kind, o.state, CASE o.state WHEN 'succeeded' THEN 100 ELSE o.percent END AS percent
	        FROM (SELECT kind FROM step WHERE lease_id = l.id ORDER BY created_at DESC, id DESC LIMIT 1) latest
	        JOIN step x ON x.lease_id = l.id AND x.kind = latest.kind JOIN operation o ON o.step_id = x.id
	        JOIN allocation a ON a.id = o.allocation_id AND (a.replaced_by IS NULL OR l.state = 'releasing')
	        ORDER BY o.allocation_id, x.attempt DESC, o.created_at DESC) each_node
	    GROUP BY kind
	) w ON l.state IN ('provisioning', 'releasing')
	WHERE l.id IN ?`

// Details implements lease.Reads.
func (r *LeaseReads) Details(ctx context.Context, filter lease.Filter) ([]lease.Details, error) {
	leases, err := r.leases.List(ctx, filter)
	if err != nil || len(leases) == 0 {
		return []lease.Details{}, err
	}
	var rows []detailRow
	err = r.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(detailQuery, each(leases, func(l lease.Lease) ids.Lease { return l.ID })).Scan(&rows).Error
	})
	if err != nil {
		return nil, fmt.Errorf("read leases' details: %w", err)
	}
	beside := map[ids.Lease]detailRow{}
	for _, row := range rows {
		beside[row.ID] = row
	}
	return each(leases, func(l lease.Lease) lease.Details { return toDetails(l, beside[l.ID]) }), nil
}

func toDetails(l lease.Lease, r detailRow) lease.Details {
	d := lease.Details{
		Lease: l, TypeName: r.TypeName, SiteName: r.SiteName, FabricName: r.FabricName, LastEvent: r.LastEvent,
		Held: money.Of(r.Held, l.Currency), Charged: money.Of(r.Charged, l.Currency), Invoice: r.InvoiceID,
	}
	if r.Step != "" {
		d.Progress = lease.Progress{Step: lease.StepName(r.Step), Percent: r.Percent, Done: r.Done, Total: r.Total}
	}
	if d.Progress.Step == "prepare" && r.Done == r.Total && !l.Fabric.IsZero() {
		d.Progress.Step = "isolate" // the nodes are ready, and the fabric is not yet
	}
	return d
}

type nodeDetailRow struct {
	Allocation allocationRow `gorm:"embedded"`
	NodeName   string
	Leaf       string
	GPUs       document[[]lease.GPU] `gorm:"column:gpus"`
	Step       string
	WorkState  string
	Percent    int
	Phase      string
}

// Nodes implements lease.Reads.
func (r *LeaseReads) Nodes(ctx context.Context, id ids.Lease) ([]lease.NodeDetails, error) {
	var rows []nodeDetailRow
	err := r.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`
			SELECT allocation.*, n.name AS node_name, coalesce(w.kind, '') AS step, coalesce(w.state, '') AS work_state, coalesce(w.percent, 0) AS percent,
			       coalesce(w.phase, '') AS phase,
			       coalesce((SELECT min(x.name) FROM hca_port p JOIN switch x ON x.id = p.switch_id WHERE p.node_id = n.id), '') AS leaf,
			       (SELECT coalesce(jsonb_agg(jsonb_build_object('bay', g.bay, 'model', g.model, 'uuid', g.uuid) ORDER BY g.bay), '[]') FROM gpu g
			        WHERE g.node_id = n.id AND g.bay >= lower(allocation.slots) / 8 AND g.bay < (upper(allocation.slots) + 7) / 8) AS gpus
			FROM allocation JOIN node n ON n.id = allocation.node_id
			LEFT JOIN LATERAL (
			    SELECT s.kind, o.state, o.percent, o.phase FROM operation o JOIN step s ON s.id = o.step_id
			    WHERE o.allocation_id = allocation.id AND o.lease_id = allocation.lease_id AND s.node_id IS NULL ORDER BY o.created_at DESC, o.id DESC LIMIT 1
			) w ON true
			WHERE allocation.lease_id = ? AND `+own+` ORDER BY allocation.ordinal, allocation.created_at, allocation.id`, id).Scan(&rows).Error
	})
	if err != nil {
		return nil, fmt.Errorf("read lease's nodes: %w", err)
	}
	return each(rows, func(r nodeDetailRow) lease.NodeDetails {
		d := lease.NodeDetails{Allocation: toAllocation(r.Allocation), NodeName: r.NodeName, Leaf: r.Leaf, GPUs: r.GPUs.Of}
		if r.Step != "" {
			d.Work = lease.Work{Step: lease.StepName(r.Step), State: r.WorkState, Percent: r.Percent, Phase: r.Phase}
		}
		return d
	}), nil
}

// Events implements lease.Reads.
func (r *LeaseReads) Events(ctx context.Context, id ids.Lease, after int64, limit int) ([]lease.Event, error) {
	return r.leases.Events(ctx, id, after, limit)
}

// Isolation implements lease.Reads.
func (r *LeaseReads) Isolation(ctx context.Context, id ids.Lease) (lease.Isolation, error) {
	l, err := r.leases.Get(ctx, id)
	if err != nil {
		return lease.Isolation{}, err
	}
	is := lease.Isolation{Applies: !l.Fabric.IsZero(), Ports: []lease.IsolationPort{}, Attestations: []lease.Attestation{}}
	if is.Attestations, err = r.attestations(ctx, id); err != nil || !is.Applies {
		return is, err
	}
	err = r.db.asPlatform(ctx, func(ctx context.Context) error { return r.partition(ctx, id, &is) })
	if err != nil {
		return lease.Isolation{}, fmt.Errorf("read partition: %w", err)
	}
	return is, nil
}

// partition reads the lease's latest partition with the ports that have not left it.
func (r *LeaseReads) partition(ctx context.Context, id ids.Lease, is *lease.Isolation) error {
	var found []struct {
		ID    ids.Partition
		Pkey  int
		State string
	}
	err := conn(ctx).Raw("SELECT id, pkey, state FROM partition WHERE lease_id = ? ORDER BY created_at DESC LIMIT 1", id).Scan(&found).Error
	if err != nil || len(found) == 0 {
		return err
	}
	is.PKey, is.State = found[0].Pkey, found[0].State
	return conn(ctx).Raw(`
		SELECT p.guid, n.name AS node, m.joined_at IS NOT NULL AS joined
		FROM partition_member m JOIN hca_port p ON p.id = m.hca_port_id JOIN node n ON n.id = p.node_id
		WHERE m.partition_id = ? AND m.left_at IS NULL ORDER BY n.name, p.guid`, found[0].ID).Scan(&is.Ports).Error
}

func (r *LeaseReads) attestations(ctx context.Context, id ids.Lease) ([]lease.Attestation, error) {
	var rows []attestationDetailRow
	err := conn(ctx).Raw("SELECT id, occasion, verdict, created_at, envelope FROM attestation WHERE lease_id = ? ORDER BY created_at, id", id).Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("read attestations: %w", err)
	}
	return each(rows, func(r attestationDetailRow) lease.Attestation {
		return lease.Attestation{ID: r.ID, Occasion: r.Occasion, Verdict: r.Verdict, Envelope: r.Envelope.Of, CreatedAt: r.CreatedAt.UTC()}
	}), nil
}

type attestationDetailRow struct {
	ID        ids.Attestation
	Occasion  string
	Verdict   string
	Envelope  document[protocol.Envelope]
	CreatedAt time.Time
}

// WipeCertificates implements lease.Reads.
func (r *LeaseReads) WipeCertificates(ctx context.Context, id ids.Lease) ([]lease.WipeCertificate, error) {
	certificates, err := NewLeaseWork(r.db).Certificates(ctx, id)
	if err != nil || len(certificates) == 0 {
		return []lease.WipeCertificate{}, err
	}
	var names []struct {
		ID   ids.Node
		Name string
	}
	err = r.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw("SELECT n.id, n.name FROM node n JOIN allocation a ON a.node_id = n.id WHERE a.lease_id = ?", id).Scan(&names).Error
	})
	if err != nil {
		return nil, fmt.Errorf("read names of nodes: %w", err)
	}
	known := map[ids.Node]string{}
	for _, n := range names {
		known[n.ID] = n.Name
	}
	found := make([]lease.WipeCertificate, len(certificates))
	for i, c := range certificates {
		found[i] = lease.WipeCertificate{ID: c.ID, Node: known[c.Node], Result: string(c.Result), Envelope: c.Envelope, CreatedAt: c.CreatedAt}
	}
	return found, nil
}
