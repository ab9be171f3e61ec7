package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"gorm.io/gorm"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/inventory"
	"github.com/leasehold/leasehold/backend/lease"
)

type overviewRow struct {
	Node        nodeRow `gorm:"embedded"`
	SiteName    string
	FabricName  string
	LeafName    string
	LeasedSlots int
	SeenAt      *time.Time
	Conditions  json.RawMessage `gorm:"type:jsonb"`
}

// overviewQuery reads nodes without their reports, which are long.
const overviewQuery = `
	SELECT n.id, n.site_id, n.fabric_id, n.name, n.serial, n.manufacturer, n.product, n.hardware, n.mode, n.state, n.state_reason, n.state_exit, n.slots, n.pod,
		n.leaf_id, n.hca_per_gpu, n.nvlink_domain, n.bmc_address, n.cpu_cores, n.memory_bytes, n.version, n.created_at,
		s.name AS site_name, coalesce(f.name, '') AS fabric_name, coalesce(w.name, '') AS leaf_name, v.seen_at,
		(SELECT coalesce(sum(upper(a.slots) - lower(a.slots)), 0) FROM allocation a
		 WHERE a.node_id = n.id AND a.released_at IS NULL AND lower(a.occupied) <= now()) AS leased_slots,
		(SELECT jsonb_agg(jsonb_build_object('Name', c.name, 'Device', c.device, 'Class', c.class, 'Onset', c.onset, 'Evidence', c.evidence, 'Exit', c.exit)
			ORDER BY c.onset) FROM node_condition c WHERE c.node_id = n.id AND c.cleared_at IS NULL) AS conditions
	FROM node n JOIN site s ON s.id = n.site_id LEFT JOIN fabric f ON f.id = n.fabric_id LEFT JOIN switch w ON w.id = n.leaf_id
		LEFT JOIN node_liveness v ON v.node_id = n.id`

// ListNodes implements inventory.Nodes. Reports are left out.
func (s *Inventory) ListNodes(ctx context.Context, f inventory.Filter) ([]inventory.Overview, error) {
	conditions, args := []string{"true"}, []any{}
	where := func(condition string, arg any) {
		conditions, args = append(conditions, condition), append(args, arg)
	}
	if !f.Provider.IsZero() {
		where("s.provider_org_id = ?", f.Provider)
	}
	if !f.Site.IsZero() {
		where("n.site_id = ?", f.Site)
	}
	if !f.Node.IsZero() {
		where("n.id = ?", f.Node)
	}
	if f.State != "" {
		where("n.state = ?", string(f.State))
	}
	if !f.After.IsZero() {
		where("(n.name, n.id) > (SELECT name, id FROM node WHERE id = ?)", f.After)
	}
	query := overviewQuery + " WHERE " + strings.Join(conditions, " AND ") + " ORDER BY n.name, n.id"
	if f.Limit > 0 {
		query += fmt.Sprintf(" LIMIT %d", f.Limit)
	}
	var rows []overviewRow
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Raw(query, args...).Scan(&rows).Error })
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	out := make([]inventory.Overview, len(rows))
	for i, r := range rows {
		out[i] = inventory.Overview{
			Node: toNode(r.Node), SiteName: r.SiteName, FabricName: r.FabricName, LeafName: r.LeafName, LeasedSlots: r.LeasedSlots, LastSeen: instant(r.SeenAt),
		}
		if len(r.Conditions) > 0 {
			if err := json.Unmarshal(r.Conditions, &out[i].Conditions); err != nil { //nolint:musttag // jsonb_build_object names its members as the fields are named
				return nil, fmt.Errorf("decode conditions: %w", err)
			}
		}
	}
	return out, nil
}

func toHeld(r allocationRow) inventory.Held {
	return inventory.Held{
		ID: r.ID, Purpose: r.Purpose, Lease: r.LeaseID, State: lease.AllocationState(r.State), Reason: r.Reason, Slots: lease.Slots(r.Slots),
		Occupied: lease.Window(r.Occupied),
	}
}

// Held implements inventory.Nodes: whatever has not been released, also what lies in the future.
func (s *Inventory) Held(ctx context.Context, id ids.Node) ([]inventory.Held, error) {
	return listed(ctx, s.db, toHeld, func(db *gorm.DB) *gorm.DB {
		return db.Where("node_id = ? AND released_at IS NULL", id).Order("lower(occupied), slots")
	})
}
