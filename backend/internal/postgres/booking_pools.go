package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

type machineRow struct {
	NodeID     ids.Node
	SiteID     ids.Site
	SiteName   string
	FabricID   ids.Fabric
	FabricName string
	Spares     int
	LeafID     ids.Switch
	Pod        string
	Slots      int
	Blemishes  int
}

type busyRow struct {
	NodeID  ids.Node
	Slots   slotRange
	From    time.Time
	To      time.Time
	Forever bool
}

// Pools implements booking.Market, in two statements: the machines, then what is busy on them.
func (s *Booking) Pools(ctx context.Context, q booking.PoolQuery) ([]booking.Pool, error) {
	var machines []machineRow
	var busy []busyRow
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		where, args := narrowNodes(q)
		err := conn(ctx).Raw(`
			SELECT n.id AS node_id, n.site_id, s.name AS site_name, f.id AS fabric_id, coalesce(f.name, '') AS fabric_name, coalesce(f.spares, 0) AS spares,
			       n.leaf_id, n.pod, n.slots,
			       (SELECT count(*) FROM node_condition c WHERE c.node_id = n.id AND c.cleared_at IS NULL AND c.class = 'degrades') AS blemishes
			FROM node n JOIN site s ON s.id = n.site_id LEFT JOIN fabric f ON f.id = n.fabric_id`+where+`
			  AND NOT EXISTS (SELECT FROM node_condition c WHERE c.node_id = n.id AND c.cleared_at IS NULL AND c.class = 'prevents_allocation')
			  AND NOT EXISTS (SELECT FROM node_liveness v WHERE v.node_id = n.id AND v.seen_at < ?)
			ORDER BY n.site_id, f.id, n.id`, append(slices.Clone(args), q.HeardSince)...).Scan(&machines).Error
		if err != nil || len(machines) == 0 {
			return err
		}
		// What is held in the time; and, whatever the time, what is not to be had until somebody clears it.
		args = append([]any{q.Now}, append(args, q.Time.Start, q.Time.End, q.Now, q.But)...)
		return conn(ctx).Raw(`
			SELECT a.node_id, a.slots, lower(a.occupied) AS "from", upper(a.occupied) AS "to",
			       a.state = 'quarantined' OR upper(a.occupied) <= ? AS forever
			FROM allocation a JOIN node n ON n.id = a.node_id`+where+`
			  AND a.released_at IS NULL
			  AND (a.occupied && tstzrange(?, ?) OR a.state = 'quarantined' OR upper(a.occupied) <= ?)
			  AND a.lease_id IS DISTINCT FROM ?`, args...).Scan(&busy).Error
	})
	if err != nil {
		return nil, fmt.Errorf("read capacity: %w", err)
	}
	return toPools(machines, busy, q.Type.WithHCA), nil
}

// narrowNodes is the condition that both statements share.
func narrowNodes(q booking.PoolQuery) (string, []any) {
	where, args := " WHERE n.state = 'available' AND n.hardware = ? AND n.mode = ?", []any{q.Type.Hardware, string(q.Type.Mode)}
	if !q.Site.IsZero() {
		where, args = where+" AND n.site_id = ?", append(args, q.Site)
	}
	if q.Nodes != nil {
		where, args = where+" AND n.id IN ?", append(args, q.Nodes)
	}
	if q.Type.WithHCA {
		where += " AND n.fabric_id IS NOT NULL"
	}
	return where, args
}

// toPools groups machines by fabric; of types without InfiniBand, by site.
func toPools(machines []machineRow, busy []busyRow, withHCA bool) []booking.Pool {
	onNode := map[ids.Node][]booking.Busy{}
	for _, b := range busy {
		taken := booking.Busy{Slots: lease.Slots(b.Slots), Time: lease.Window{Start: b.From.UTC(), End: b.To.UTC()}}
		if b.Forever {
			taken.Time = booking.Forever()
		}
		onNode[b.NodeID] = append(onNode[b.NodeID], taken)
	}
	type key struct {
		site   ids.Site
		fabric ids.Fabric
	}
	index := map[key]int{}
	var pools []booking.Pool
	for _, m := range machines {
		k := key{site: m.SiteID}
		pool := booking.Pool{Site: m.SiteID, SiteName: m.SiteName}
		machine := booking.Machine{Node: m.NodeID, Pod: m.Pod, Slots: m.Slots, Blemishes: m.Blemishes, Busy: onNode[m.NodeID]}
		if withHCA {
			k.fabric, pool.Fabric, pool.FabricName, pool.Spares, machine.Leaf = m.FabricID, m.FabricID, m.FabricName, m.Spares, m.LeafID
		}
		i, known := index[k]
		if !known {
			i = len(pools)
			index[k] = i
			pools = append(pools, pool)
		}
		pools[i].Machines = append(pools[i].Machines, machine)
	}
	return pools
}
