package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/inventory"
)

// LocateFabric implements inventory.Topology. The nodes are locked in the order of their ids, as a booking does.
func (s *Inventory) LocateFabric(ctx context.Context, id ids.Fabric, at time.Time) error {
	return s.locate(ctx, location{which: `f.fabric_id = ?`, of: id, at: at})
}

// LocateNode implements inventory.Topology. The caller holds the node's lock.
func (s *Inventory) LocateNode(ctx context.Context, id ids.Node, at time.Time, reviewed bool) error {
	return s.locate(ctx, location{which: `n.id = ?`, of: id, at: at, reviewed: reviewed})
}

// location says which ports to locate.
type location struct {
	which    string // a condition on located with one argument
	of       any
	at       time.Time
	reviewed bool
}

// located joins ports with where their site's fabrics see them.
const located = `FROM hca_port p JOIN node n ON n.id = p.node_id JOIN fabric_port f ON f.guid = p.guid
	JOIN fabric b ON b.id = f.fabric_id AND b.site_id = n.site_id WHERE `

// leased is true of a node n that a lease holds, now or later.
const leased = `EXISTS (SELECT FROM allocation a WHERE a.node_id = n.id AND a.purpose = 'lease' AND a.released_at IS NULL)`

// moved is true of a located port that hung elsewhere before.
const moved = `(p.switch_id IS NOT NULL AND (p.fabric_id, p.switch_id, p.switch_port) IS DISTINCT FROM (f.fabric_id, f.switch_id, f.switch_port))`

// placeChange is what a change of a port's place is called.
const placeChange = `'port ' || p.guid || ' place'`

func (s *Inventory) locate(ctx context.Context, l location) error {
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		db := conn(ctx)
		if err := db.Exec(`SELECT id FROM node WHERE id IN (SELECT n.id `+located+l.which+`) ORDER BY id FOR NO KEY UPDATE`, l.of).Error; err != nil {
			return err
		}
		if err := l.review(db); err != nil {
			return err
		}
		return l.move(db)
	})
	if err != nil {
		return fmt.Errorf("locate ports: %w", translate(err))
	}
	return nil
}

// review notes where ports of leased nodes went, and forgets undecided notes of ports that came back.
func (l location) review(db *gorm.DB) error {
	if !l.reviewed {
		err := db.Exec(`INSERT INTO inventory_change (node_id, what, before, after, observed_at)
			SELECT n.id, `+placeChange+`, coalesce(was.name, 'nowhere') || ' port ' || coalesce(p.switch_port, 0),
			       coalesce(is_on.name, 'nowhere') || ' port ' || f.switch_port, ?
			`+leftJoinSwitches+l.which+` AND `+moved+` AND `+leased+`
			ON CONFLICT DO NOTHING`, l.at, l.of).Error
		if err != nil {
			return err
		}
	}
	return db.Exec(`DELETE FROM inventory_change c USING (SELECT n.id, `+placeChange+` AS what `+located+l.which+` AND NOT `+moved+`) w
		WHERE c.node_id = w.id AND c.what = w.what AND c.state = 'pending'`, l.of).Error
}

// leftJoinSwitches is located with the switches of both places, for their names.
const leftJoinSwitches = `FROM hca_port p JOIN node n ON n.id = p.node_id JOIN fabric_port f ON f.guid = p.guid
	JOIN fabric b ON b.id = f.fabric_id AND b.site_id = n.site_id LEFT JOIN switch was ON was.id = p.switch_id LEFT JOIN switch is_on ON is_on.id = f.switch_id
	WHERE `

// move gives ports their places, and nodes the leaf of their first rail.
func (l location) move(db *gorm.DB) error {
	err := db.Exec(`UPDATE hca_port t SET fabric_id = w.fabric_id, switch_id = w.switch_id, switch_port = w.switch_port
		FROM (SELECT p.id, f.fabric_id, f.switch_id, f.switch_port `+located+l.which+` AND (? OR NOT (`+moved+` AND `+leased+`))) w WHERE w.id = t.id
		AND (t.fabric_id, t.switch_id, t.switch_port) IS DISTINCT FROM (w.fabric_id, w.switch_id, w.switch_port)`, l.of, l.reviewed).Error
	if err != nil {
		return err
	}
	return db.Exec(`UPDATE node t SET fabric_id = w.fabric_id, leaf_id = w.switch_id, pod = w.pod
		FROM (SELECT DISTINCT ON (n.id) n.id, p.fabric_id, p.switch_id, coalesce(s.pod, '') AS pod
			FROM hca_port p JOIN node n ON n.id = p.node_id LEFT JOIN switch s ON s.id = p.switch_id
			WHERE p.fabric_id IS NOT NULL AND n.id IN (SELECT n.id `+located+l.which+`) ORDER BY n.id, p.switch_id IS NULL, p.rail, p.guid) w WHERE w.id = t.id
		AND (t.fabric_id, t.leaf_id, t.pod) IS DISTINCT FROM (w.fabric_id, w.switch_id, w.pod)`, l.of).Error
}

// KnownPorts implements inventory.Topology.
func (s *Inventory) KnownPorts(ctx context.Context, site ids.Site) ([]inventory.KnownPort, error) {
	var rows []struct {
		ID         ids.HCAPort
		GUID       string
		NodeID     ids.Node
		NodeName   string
		Device     string
		Rail       int
		FabricID   ids.Fabric
		FabricName string
		SwitchGUID string
		SwitchName string
		SwitchPort int
		Leased     bool
		LeafGUID   string
		LeafName   string
		Pod        string
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`SELECT p.id, p.guid, n.id AS node_id, n.name AS node_name, p.device, p.rail, p.fabric_id, coalesce(b.name, '') AS fabric_name,
			       coalesce(w.guid, '') AS switch_guid, coalesce(w.name, '') AS switch_name, coalesce(p.switch_port, 0) AS switch_port, `+leased+` AS leased,
			       coalesce(l.guid, '') AS leaf_guid, coalesce(l.name, '') AS leaf_name, n.pod
			FROM hca_port p JOIN node n ON n.id = p.node_id LEFT JOIN fabric b ON b.id = p.fabric_id LEFT JOIN switch w ON w.id = p.switch_id
			LEFT JOIN switch l ON l.id = n.leaf_id
			WHERE n.site_id = ? AND n.state <> 'retired' ORDER BY n.name, p.rail, p.guid`, site).Scan(&rows).Error
	})
	if err != nil {
		return nil, fmt.Errorf("read known ports: %w", err)
	}
	out := make([]inventory.KnownPort, len(rows))
	for i, r := range rows {
		out[i] = inventory.KnownPort{
			ID: r.ID, GUID: toGUID(r.GUID), Node: r.NodeID, NodeName: r.NodeName, Device: r.Device, Rail: r.Rail, Fabric: r.FabricID, FabricName: r.FabricName,
			Place: inventory.Place{Switch: toGUID(r.SwitchGUID), SwitchName: r.SwitchName, Port: r.SwitchPort}, Leased: r.Leased,
			NodeLeaf: toGUID(r.LeafGUID), NodeLeafName: r.LeafName, NodePod: r.Pod,
		}
	}
	return out, nil
}

// RemoveSwitches implements inventory.Topology. A switch that a port hangs on all the same is left alone.
func (s *Inventory) RemoveSwitches(ctx context.Context, fabric ids.Fabric, guids []protocol.GUID) error {
	if len(guids) == 0 {
		return nil
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Exec(`DELETE FROM switch w WHERE fabric_id = ? AND guid = ANY(?) AND NOT EXISTS (SELECT FROM hca_port p WHERE p.switch_id = w.id)`,
			fabric, textArray(each(guids, protocol.GUID.String))).Error
	})
	if err != nil {
		return fmt.Errorf("remove switches: %w", translate(err))
	}
	return nil
}
