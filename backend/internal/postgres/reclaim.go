package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/inventory"
	"github.com/leasehold/leasehold/backend/outbox"
)

var _ delivery.ReclaimRows = (*LeaseWork)(nil)

// unclean are the allocations that were quarantined, and those being cleaned that serve no lease any more: their leases are over, or have
// another machine instead.
const unclean = `a.released_at IS NULL AND (a.state = 'quarantined'
	OR a.state = 'cleaning' AND (a.replaced_by IS NOT NULL OR EXISTS (SELECT FROM lease l WHERE l.id = a.lease_id AND l.state IN ('closed', 'cancelled'))))`

// Leftovers implements delivery.ReclaimRows.
func (w *LeaseWork) Leftovers(ctx context.Context, node ids.Node) ([]ids.Lease, error) {
	found, err := scan[ids.Lease](ctx, w.db, "SELECT DISTINCT a.lease_id FROM allocation a WHERE a.node_id = ? AND a.lease_id IS NOT NULL AND "+unclean+" ORDER BY a.lease_id", node)
	if err != nil {
		return nil, fmt.Errorf("read leftovers: %w", err)
	}
	return found, nil
}

// Verifying implements delivery.ReclaimRows.
func (w *LeaseWork) Verifying(ctx context.Context, node ids.Node) (bool, error) {
	states, err := scan[string](ctx, w.db, "SELECT state FROM node WHERE id = ?", node)
	state, err := first(states, err, "node-not-found", "there is no such node")
	return state == string(inventory.Verifying), err
}

// Reclaims lists the nodes that are being verified and must be cleaned again first: each has a process of its own.
func (w *LeaseWork) Reclaims(ctx context.Context) ([]ids.Node, error) {
	found, err := scan[ids.Node](ctx, w.db, "SELECT DISTINCT n.id FROM node n JOIN allocation a ON a.node_id = n.id WHERE n.state = 'verifying' AND a.lease_id IS NOT NULL AND "+unclean+" ORDER BY n.id")
	if err != nil {
		return nil, fmt.Errorf("list nodes to clean again: %w", err)
	}
	return found, nil
}

// Unclean implements inventory.Nodes.
func (s *Inventory) Unclean(ctx context.Context, id ids.Node) ([]inventory.Held, error) {
	return listed(ctx, s.db, toHeld, func(db *gorm.DB) *gorm.DB {
		return db.Table("allocation a").Where("a.node_id = ? AND "+unclean, id).Order("lower(a.occupied), a.slots")
	})
}

// Wake implements inventory.Nodes.
func (s *Inventory) Wake(ctx context.Context, id ids.Node, at time.Time) error {
	return NewOutbox(s.db).Put(ctx, outbox.NodeNudge, id.String(), nil, at)
}
