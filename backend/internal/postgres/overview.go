package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/overview"
)

// Overview reads across nouns for the operator. It implements overview.Store; a tenant's transaction may not use it.
type Overview struct{ db *DB }

var _ overview.Store = (*Overview)(nil)

// NewOverview returns the overview of db.
func NewOverview(db *DB) *Overview { return &Overview{db: db} }

// capacityQuery counts in GPUs, eight slots each; slices of one GPU round up.
const capacityQuery = `
	SELECT s.name AS site, n.hardware, sum(n.slots) / 8 AS delivered,
	       coalesce(sum(n.slots) FILTER (WHERE n.state = 'available' AND NOT EXISTS (
	           SELECT FROM node_condition c WHERE c.node_id = n.id AND c.cleared_at IS NULL AND c.class = 'prevents_allocation')), 0) / 8 AS healthy,
	       coalesce(sum(a.reserved), 0) AS reserved, coalesce(sum(a.active), 0) AS active
	FROM node n
	JOIN site s ON s.id = n.site_id
	LEFT JOIN LATERAL (
	    SELECT ceil(sum(upper(slots) - lower(slots)) FILTER (WHERE state IN ('held', 'preparing')) / 8.0)::int AS reserved,
	           ceil(sum(upper(slots) - lower(slots)) FILTER (WHERE state = 'in_use') / 8.0)::int AS active
	    FROM allocation
	    WHERE node_id = n.id AND purpose = 'lease' AND released_at IS NULL AND occupied @> ?::timestamptz
	) a ON true
	WHERE n.state <> 'retired' AND n.hardware <> ''
	GROUP BY s.name, n.hardware
	ORDER BY s.name, n.hardware`

// Capacity implements overview.Store.
func (s *Overview) Capacity(ctx context.Context, now time.Time) ([]overview.Capacity, error) {
	var found []overview.Capacity
	if err := conn(ctx).Raw(capacityQuery, now).Scan(&found).Error; err != nil {
		return nil, fmt.Errorf("read capacity: %w", err)
	}
	return found, nil
}

// Partitions implements overview.Store.
func (s *Overview) Partitions(ctx context.Context, fabric ids.Fabric) ([]overview.Partition, error) {
	var rows []struct {
		ID      ids.Partition
		Pkey    uint16
		State   string
		LeaseID ids.Lease
		Members int
	}
	err := conn(ctx).Raw(`
		SELECT p.id, p.pkey, p.state, p.lease_id, count(m.hca_port_id) AS members
		FROM partition p LEFT JOIN partition_member m ON m.partition_id = p.id AND m.left_at IS NULL
		WHERE p.fabric_id = ? AND p.state <> 'free'
		GROUP BY p.id ORDER BY p.pkey`, fabric).Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("read partitions: %w", err)
	}
	found := make([]overview.Partition, len(rows))
	for i, r := range rows {
		found[i] = overview.Partition{ID: r.ID, PKey: r.Pkey, State: r.State, Lease: r.LeaseID, Members: r.Members}
	}
	return found, nil
}

// PartitionCounts implements overview.Store.
func (s *Overview) PartitionCounts(ctx context.Context) (map[ids.Fabric]int, error) {
	var rows []struct {
		FabricID ids.Fabric
		Count    int
	}
	err := conn(ctx).Raw("SELECT fabric_id, count(*) AS count FROM partition WHERE state <> 'free' GROUP BY fabric_id").Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("count partitions: %w", err)
	}
	counts := make(map[ids.Fabric]int, len(rows))
	for _, r := range rows {
		counts[r.FabricID] = r.Count
	}
	return counts, nil
}

// Drift implements overview.Store.
func (s *Overview) Drift(ctx context.Context, fabric ids.Fabric, limit int) ([]overview.Drift, error) {
	var rows []struct {
		PortGUID string `gorm:"column:port_guid"`
		Kind     string
		What     string
		Onset    time.Time
		Repair   string
		Attempts int
		GaveUpAt *time.Time
		EndedAt  *time.Time
	}
	err := conn(ctx).Raw(`SELECT port_guid, kind, what, onset, repair, attempts, gave_up_at, ended_at FROM drift WHERE fabric_id = ?
		ORDER BY ended_at DESC NULLS FIRST, onset DESC LIMIT ?`, fabric, limit).Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("read drift: %w", err)
	}
	found := make([]overview.Drift, len(rows))
	for i, r := range rows {
		found[i] = overview.Drift{
			PortGUID: r.PortGUID, Kind: r.Kind, What: r.What, Onset: r.Onset.UTC(), Repair: r.Repair, Attempts: r.Attempts, GaveUpAt: instant(r.GaveUpAt),
			EndedAt: instant(r.EndedAt),
		}
	}
	return found, nil
}

// Operations implements overview.Store.
func (s *Overview) Operations(ctx context.Context, node ids.Node, limit int) ([]overview.Operation, error) {
	var rows []struct {
		ID         ids.Operation
		Kind       string
		LeaseID    ids.Lease
		State      string
		Percent    int
		Phase      string
		Epoch      int64
		Fault      document[*protocol.Fault]
		CreatedAt  time.Time
		FinishedAt *time.Time
	}
	err := conn(ctx).Raw(`SELECT id, kind, lease_id, state, percent, phase, epoch, fault, created_at, finished_at FROM operation
		WHERE node_id = ? ORDER BY created_at DESC, id DESC LIMIT ?`, node, limit).Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("read operations: %w", err)
	}
	found := make([]overview.Operation, len(rows))
	for i, r := range rows {
		found[i] = overview.Operation{
			ID: r.ID, Kind: r.Kind, Lease: r.LeaseID, State: r.State, Percent: r.Percent, Phase: r.Phase, Epoch: r.Epoch, Fault: r.Fault.Of,
			CreatedAt: r.CreatedAt.UTC(), FinishedAt: instant(r.FinishedAt),
		}
	}
	return found, nil
}
