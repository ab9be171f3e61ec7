package postgres

import (
	"context"
	"fmt"

	"gorm.io/gorm"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/inventory"
)

// TopologySummary implements inventory.Topology.
func (s *Inventory) TopologySummary(ctx context.Context, fabric ids.Fabric) (inventory.TopologySummary, error) {
	var row struct{ Switches, Links, Ports, UnknownPorts, Nodes, Pods int }
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`SELECT (SELECT count(*) FROM switch WHERE fabric_id = b.id) AS switches, (SELECT count(*) FROM link WHERE fabric_id = b.id) AS links,
			       (SELECT count(*) FROM fabric_port WHERE fabric_id = b.id) AS ports,
			       (SELECT count(*) FROM fabric_port f WHERE f.fabric_id = b.id
			        AND NOT EXISTS (SELECT FROM hca_port p WHERE p.fabric_id = f.fabric_id AND p.guid = f.guid)) AS unknown_ports,
			       (SELECT count(DISTINCT node_id) FROM hca_port WHERE fabric_id = b.id) AS nodes,
			       (SELECT count(DISTINCT pod) FROM switch WHERE fabric_id = b.id AND pod <> '') AS pods
			FROM fabric b WHERE b.id = ?`, fabric).Scan(&row).Error
	})
	if err != nil {
		return inventory.TopologySummary{}, fmt.Errorf("count topology: %w", err)
	}
	return inventory.TopologySummary{
		Switches: row.Switches, Links: row.Links, Ports: row.Ports, UnknownPorts: row.UnknownPorts, Nodes: row.Nodes, Pods: row.Pods,
	}, nil
}

type pageLinkRow struct {
	SwitchID ids.Switch
	Port     int
	PeerID   ids.Switch
	PeerGUID string
	PeerName string
	PeerPort int
	RateGbps int
}

type pageHostRow struct {
	SwitchID    ids.Switch
	Port        int
	GUID        string
	Description string
	RateGbps    int
	NodeID      ids.Node
	NodeName    string
	Device      string
	Rail        int
	Absent      bool
}

// TopologyPage implements inventory.Topology: three statements, whatever the page.
func (s *Inventory) TopologyPage(ctx context.Context, fabric ids.Fabric, after ids.Switch, limit int) ([]inventory.TopologySwitch, error) {
	var page []inventory.TopologySwitch
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		query := conn(ctx).Where("fabric_id = ?", fabric).Order("level, name, guid").Limit(limit)
		if !after.IsZero() {
			query = query.Where("(level, name, guid) > (SELECT level, name, guid FROM switch WHERE id = ?)", after)
		}
		var switches []switchRow
		if err := query.Find(&switches).Error; err != nil || len(switches) == 0 {
			return err
		}
		links, hosts, err := plugged(conn(ctx), fabric, each(switches, func(r switchRow) ids.Switch { return r.ID }))
		if err != nil {
			return err
		}
		page = each(switches, func(r switchRow) inventory.TopologySwitch {
			return inventory.TopologySwitch{Switch: toSwitch(r), Links: links[r.ID], Hosts: hosts[r.ID]}
		})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read topology: %w", err)
	}
	return page, nil
}

func toSwitch(r switchRow) inventory.Switch {
	return inventory.Switch{ID: r.ID, GUID: toGUID(r.GUID), Name: r.Name, Level: r.Level, Ports: r.Ports, Pod: r.Pod}
}

// plugged reads what hangs on the switches. A host is there because the fabric's manager sees it there, or because inventory has it
// there and the manager does not see it at all.
func plugged(db *gorm.DB, fabric ids.Fabric, of []ids.Switch) (map[ids.Switch][]inventory.TopologyLink, map[ids.Switch][]inventory.TopologyHost, error) {
	var links []pageLinkRow
	err := db.Raw(`SELECT x.switch_id, x.port, w.id AS peer_id, w.guid AS peer_guid, w.name AS peer_name, x.peer_port, x.rate_gbps
		FROM (SELECT from_switch_id AS switch_id, from_port AS port, to_switch_id AS peer, to_port AS peer_port, rate_gbps FROM link WHERE fabric_id = ?
		      UNION ALL SELECT to_switch_id, to_port, from_switch_id, from_port, rate_gbps FROM link WHERE fabric_id = ?) x JOIN switch w ON w.id = x.peer
		WHERE x.switch_id IN ? ORDER BY x.port`, fabric, fabric, of).Scan(&links).Error
	if err != nil {
		return nil, nil, err
	}
	var hosts []pageHostRow
	err = db.Raw(`SELECT f.switch_id, f.switch_port AS port, f.guid, f.description, f.rate_gbps, n.id AS node_id, coalesce(n.name, '') AS node_name,
		       coalesce(p.device, '') AS device, coalesce(p.rail, 0) AS rail, false AS absent
		FROM fabric_port f LEFT JOIN hca_port p ON p.guid = f.guid AND p.fabric_id = f.fabric_id LEFT JOIN node n ON n.id = p.node_id
		WHERE f.fabric_id = ? AND f.switch_id IN ?
		UNION ALL
		SELECT p.switch_id, p.switch_port, p.guid, '', p.rate_gbps, n.id, n.name, p.device, p.rail, true
		FROM hca_port p JOIN node n ON n.id = p.node_id
		WHERE p.fabric_id = ? AND p.switch_id IN ? AND NOT EXISTS (SELECT FROM fabric_port f WHERE f.fabric_id = p.fabric_id AND f.guid = p.guid)
		ORDER BY 2, 3`, fabric, of, fabric, of).Scan(&hosts).Error
	if err != nil {
		return nil, nil, err
	}
	return linksBySwitch(links), hostsBySwitch(hosts), nil
}

func linksBySwitch(rows []pageLinkRow) map[ids.Switch][]inventory.TopologyLink {
	out := map[ids.Switch][]inventory.TopologyLink{}
	for _, r := range rows {
		out[r.SwitchID] = append(out[r.SwitchID], inventory.TopologyLink{
			Port: r.Port, Peer: r.PeerID, PeerGUID: toGUID(r.PeerGUID), PeerName: r.PeerName, PeerPort: r.PeerPort, RateGbps: r.RateGbps,
		})
	}
	return out
}

func hostsBySwitch(rows []pageHostRow) map[ids.Switch][]inventory.TopologyHost {
	out := map[ids.Switch][]inventory.TopologyHost{}
	for _, r := range rows {
		out[r.SwitchID] = append(out[r.SwitchID], inventory.TopologyHost{
			Port: r.Port, GUID: toGUID(r.GUID), Description: r.Description, RateGbps: r.RateGbps, Node: r.NodeID, NodeName: r.NodeName, Device: r.Device,
			Rail: r.Rail, Absent: r.Absent,
		})
	}
	return out
}

// SeenPorts implements inventory.Topology.
func (s *Inventory) SeenPorts(ctx context.Context, fabric ids.Fabric) ([]protocol.TopologyPort, error) {
	var rows []struct {
		GUID, NodeGUID, Description, SwitchGUID string
		LID                                     int `gorm:"column:lid"`
		SwitchPort, RateGbps                    int
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`SELECT f.guid, f.node_guid, f.description, f.lid, coalesce(w.guid, '') AS switch_guid, f.switch_port, f.rate_gbps
			FROM fabric_port f LEFT JOIN switch w ON w.id = f.switch_id WHERE f.fabric_id = ? ORDER BY f.guid`, fabric).Scan(&rows).Error
	})
	if err != nil {
		return nil, fmt.Errorf("read seen ports: %w", err)
	}
	ports := make([]protocol.TopologyPort, len(rows))
	for i, r := range rows {
		ports[i] = protocol.TopologyPort{
			GUID: toGUID(r.GUID), NodeGUID: toGUID(r.NodeGUID), Description: r.Description, LID: r.LID, SwitchGUID: toGUID(r.SwitchGUID),
			SwitchPort: r.SwitchPort, RateGbps: r.RateGbps,
		}
	}
	return ports, nil
}

// PodsApart implements inventory.Topology.
func (s *Inventory) PodsApart(ctx context.Context, node ids.Node) ([]ids.Fabric, error) {
	var found []ids.Fabric
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`SELECT p.fabric_id FROM hca_port p JOIN switch w ON w.id = p.switch_id JOIN fabric f ON f.id = p.fabric_id
			WHERE p.node_id = ? AND w.pod <> '' AND NOT f.planned_pods GROUP BY p.fabric_id HAVING count(DISTINCT w.pod) > 1 ORDER BY p.fabric_id`,
			node).Scan(&found).Error
	})
	if err != nil {
		return nil, fmt.Errorf("read pods of node: %w", err)
	}
	return found, nil
}

// SaveSwitches implements inventory.Topology.
func (s *Inventory) SaveSwitches(ctx context.Context, fabric ids.Fabric, switches []protocol.Switch) error {
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return saveSwitches(conn(ctx), fabric, switches) })
	if err != nil {
		return fmt.Errorf("save switches: %w", translate(err))
	}
	return nil
}
