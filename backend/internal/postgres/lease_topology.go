package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"gorm.io/gorm"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

type topologyPortRow struct {
	ID     ids.HCAPort
	GUID   string
	Device string
	Rail   int
	Leaf   ids.Switch
}

type wayRow struct {
	Leaf  ids.Switch
	ID    ids.Switch
	Name  string
	Level int
}

// Topology implements lease.Reads: none, or the one instance. It has the ports that the lease has: those of its bays, and with the whole
// node all of them.
func (r *LeaseReads) Topology(ctx context.Context, id ids.Lease, allocation ids.Allocation) ([]lease.NodeTopology, error) {
	var found []lease.NodeTopology
	err := r.db.asPlatform(ctx, func(ctx context.Context) error {
		var nodes []struct{ NodeName, FabricName, Pod, NvlinkDomain string }
		err := conn(ctx).Raw(`SELECT n.name AS node_name, coalesce(f.name, '') AS fabric_name, n.pod, n.nvlink_domain
			FROM allocation JOIN node n ON n.id = allocation.node_id LEFT JOIN fabric f ON f.id = n.fabric_id
			WHERE allocation.id = ? AND allocation.lease_id = ? AND allocation.released_at IS NULL AND `+own, allocation, id).Scan(&nodes).Error
		if err != nil || len(nodes) == 0 {
			return err
		}
		n := nodes[0]
		t := lease.NodeTopology{Allocation: allocation, NodeName: n.NodeName, FabricName: n.FabricName, Pod: n.Pod, NVLinkDomain: n.NvlinkDomain}
		if err := climb(conn(ctx), allocation, &t); err != nil {
			return err
		}
		found = append(found, t)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read lease's topology: %w", err)
	}
	return found, nil
}

// climb fills in the ports and the switches above them.
func climb(db *gorm.DB, allocation ids.Allocation, t *lease.NodeTopology) error {
	var ports []topologyPortRow
	err := db.Raw(`SELECT p.id, p.guid, p.device, p.rail, p.switch_id AS leaf
		FROM allocation a JOIN node n ON n.id = a.node_id JOIN hca_port p ON p.node_id = n.id
		WHERE a.id = ? AND (p.bay >= lower(a.slots) / 8 AND p.bay < (upper(a.slots) + 7) / 8
		                    OR p.bay IS NULL AND lower(a.slots) = 0 AND upper(a.slots) = n.slots)
		ORDER BY p.rail, p.guid`, allocation).Scan(&ports).Error
	if err != nil {
		return err
	}
	var leaves []ids.Switch
	for _, p := range ports {
		if !p.Leaf.IsZero() && !slices.Contains(leaves, p.Leaf) {
			leaves = append(leaves, p.Leaf)
		}
	}
	ways := map[ids.Switch][]ids.Switch{}
	if len(leaves) > 0 {
		if t.Switches, ways, err = waysUp(db, leaves); err != nil {
			return err
		}
	}
	t.Ports = each(ports, func(p topologyPortRow) lease.TopologyPort {
		return lease.TopologyPort{GUID: toGUID(p.GUID), Device: p.Device, Rail: p.Rail, Leaf: p.Leaf, Chain: ways[p.Leaf]}
	})
	return nil
}

// waysUp are the switches that each leaf reaches by going up a level at every step.
func waysUp(db *gorm.DB, leaves []ids.Switch) ([]lease.TopologySwitch, map[ids.Switch][]ids.Switch, error) {
	var rows []wayRow
	err := db.Raw(`WITH RECURSIVE cable AS (SELECT from_switch_id AS low, to_switch_id AS high FROM link
		      UNION SELECT to_switch_id, from_switch_id FROM link),
		up AS (SELECT id AS leaf, id, name, level FROM switch WHERE id IN ?
		      UNION SELECT up.leaf, w.id, w.name, w.level FROM up JOIN cable c ON c.low = up.id JOIN switch w ON w.id = c.high AND w.level > up.level AND up.level > 0)
		SELECT * FROM up ORDER BY level, name, id`, leaves).Scan(&rows).Error
	if err != nil {
		return nil, nil, err
	}
	var all []lease.TopologySwitch
	ways := map[ids.Switch][]ids.Switch{}
	for _, r := range rows {
		ways[r.Leaf] = append(ways[r.Leaf], r.ID)
		one := lease.TopologySwitch{ID: r.ID, Name: r.Name, Level: r.Level}
		if !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	slices.SortStableFunc(all, func(a, b lease.TopologySwitch) int { return cmp.Compare(a.Level, b.Level) })
	return all, ways, nil
}
