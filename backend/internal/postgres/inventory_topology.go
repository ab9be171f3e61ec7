package postgres

import (
	"context"
	"encoding/json"
	"fmt"

	"gorm.io/gorm"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/inventory"
)

type switchRow struct {
	ID       ids.Switch `gorm:"primaryKey"`
	FabricID ids.Fabric
	GUID     string `gorm:"column:guid"`
	Name     string
	Level    int
	Ports    int
	Pod      string
}

func (switchRow) TableName() string { return "switch" }

// Switches implements inventory.Topology.
func (s *Inventory) Switches(ctx context.Context, fabric ids.Fabric) ([]inventory.Switch, error) {
	return listed(ctx, s.db, toSwitch, func(db *gorm.DB) *gorm.DB { return db.Where("fabric_id = ?", fabric).Order("level, name, guid") })
}

// Links implements inventory.Topology.
func (s *Inventory) Links(ctx context.Context, fabric ids.Fabric) ([]inventory.Link, error) {
	var rows []struct {
		FromGUID, ToGUID, FromName, ToName string
		FromPort, ToPort, RateGbps         int
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`SELECT a.guid AS from_guid, b.guid AS to_guid, a.name AS from_name, b.name AS to_name, l.from_port, l.to_port, l.rate_gbps
			FROM link l JOIN switch a ON a.id = l.from_switch_id JOIN switch b ON b.id = l.to_switch_id
			WHERE l.fabric_id = ? ORDER BY a.name, l.from_port`, fabric).Scan(&rows).Error
	})
	if err != nil {
		return nil, fmt.Errorf("read links: %w", err)
	}
	links := make([]inventory.Link, len(rows))
	for i, r := range rows {
		links[i] = inventory.Link{
			FromGUID: toGUID(r.FromGUID), ToGUID: toGUID(r.ToGUID), FromName: r.FromName, ToName: r.ToName, FromPort: r.FromPort, ToPort: r.ToPort, RateGbps: r.RateGbps,
		}
	}
	return links, nil
}

// reportedSwitch carries an id of our own making beside the report's switch.
type reportedSwitch struct {
	ID    string        `json:"id"`
	GUID  protocol.GUID `json:"guid"`
	Name  string        `json:"name"`
	Level int           `json:"level"`
	Ports int           `json:"ports"`
	Pod   string        `json:"pod"`
}

type reportedLink struct {
	ID       string        `json:"id"`
	FromGUID protocol.GUID `json:"from_guid"`
	FromPort int           `json:"from_port"`
	ToGUID   protocol.GUID `json:"to_guid"`
	ToPort   int           `json:"to_port"`
	RateGbps int           `json:"rate_gbps"`
}

// SaveReport implements inventory.Topology. Each table is one statement, whatever the fabric's size.
func (s *Inventory) SaveReport(ctx context.Context, f inventory.Fabric, topology protocol.Topology) error {
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		posture := f.Posture
		if posture == nil {
			posture = []protocol.PostureCheck{}
		}
		err := conn(ctx).Exec(`UPDATE fabric SET driver = ?, controller_version = ?, max_pkeys_per_port = ?, posture = ?, planned_pods = ?, observed_at = ? WHERE id = ?`,
			f.Driver, f.ControllerVersion, f.MaxPKeysPerPort, document[[]protocol.PostureCheck]{posture}, f.PlannedPods, nullable(f.ObservedAt), f.ID).Error
		if err != nil {
			return err
		}
		if err := saveSwitches(conn(ctx), f.ID, topology.Switches); err != nil {
			return err
		}
		if err := saveLinks(conn(ctx), f.ID, topology.Links); err != nil {
			return err
		}
		return savePorts(conn(ctx), f.ID, topology.Ports)
	})
	if err != nil {
		return fmt.Errorf("save topology: %w", translate(err))
	}
	return nil
}

func saveSwitches(db *gorm.DB, fabric ids.Fabric, switches []protocol.Switch) error {
	body, err := json.Marshal(each(switches, func(w protocol.Switch) reportedSwitch {
		return reportedSwitch{ID: uuidOf(ids.Make[ids.Switch]()), GUID: w.GUID, Name: w.Name, Level: w.Level, Ports: w.Ports, Pod: w.Pod}
	}))
	if err != nil {
		return err
	}
	return db.Exec(`INSERT INTO switch (id, fabric_id, guid, name, level, ports, pod)
		SELECT DISTINCT ON (guid) id, ?, guid, name, level, ports, coalesce(pod, '')
		FROM jsonb_to_recordset(?::jsonb) AS r (id uuid, guid text, name text, level integer, ports integer, pod text) ORDER BY guid
		ON CONFLICT (fabric_id, guid) DO UPDATE SET name = excluded.name, level = excluded.level, ports = excluded.ports, pod = excluded.pod
		WHERE (switch.name, switch.level, switch.ports, switch.pod) IS DISTINCT FROM (excluded.name, excluded.level, excluded.ports, excluded.pod)`,
		fabric, string(body)).Error
}

func saveLinks(db *gorm.DB, fabric ids.Fabric, links []protocol.Link) error {
	body, err := json.Marshal(each(links, func(l protocol.Link) reportedLink {
		return reportedLink{ID: uuidOf(ids.Make[ids.Link]()), FromGUID: l.FromGUID, FromPort: l.FromPort, ToGUID: l.ToGUID, ToPort: l.ToPort, RateGbps: l.RateGbps}
	}))
	if err != nil {
		return err
	}
	if err := db.Exec("DELETE FROM link WHERE fabric_id = ?", fabric).Error; err != nil {
		return err
	}
	return db.Exec(`INSERT INTO link (id, fabric_id, from_switch_id, from_port, to_switch_id, to_port, rate_gbps)
		SELECT r.id, ?, a.id, r.from_port, b.id, r.to_port, r.rate_gbps
		FROM jsonb_to_recordset(?::jsonb) AS r (id uuid, from_guid text, from_port integer, to_guid text, to_port integer, rate_gbps integer)
		JOIN switch a ON a.fabric_id = ? AND a.guid = r.from_guid JOIN switch b ON b.fabric_id = ? AND b.guid = r.to_guid
		ON CONFLICT (from_switch_id, from_port) DO NOTHING`, fabric, string(body), fabric, fabric).Error
}

func savePorts(db *gorm.DB, fabric ids.Fabric, ports []protocol.TopologyPort) error {
	body, err := json.Marshal(ports)
	if err != nil {
		return err
	}
	if ports == nil {
		body = []byte("[]")
	}
	err = db.Exec(`DELETE FROM fabric_port p WHERE fabric_id = ?
		AND NOT EXISTS (SELECT FROM jsonb_to_recordset(?::jsonb) AS r (guid text) WHERE r.guid = p.guid)`, fabric, string(body)).Error
	if err != nil {
		return err
	}
	return db.Exec(`INSERT INTO fabric_port (fabric_id, guid, node_guid, description, lid, switch_id, switch_port, rate_gbps)
		SELECT DISTINCT ON (r.guid) ?, r.guid, r.node_guid, r.description, r.lid, s.id, r.switch_port, r.rate_gbps
		FROM jsonb_to_recordset(?::jsonb)
			AS r (guid text, node_guid text, description text, lid integer, switch_guid text, switch_port integer, rate_gbps integer)
		LEFT JOIN switch s ON s.fabric_id = ? AND s.guid = r.switch_guid ORDER BY r.guid
		ON CONFLICT (fabric_id, guid) DO UPDATE SET node_guid = excluded.node_guid, description = excluded.description, lid = excluded.lid,
			switch_id = excluded.switch_id, switch_port = excluded.switch_port, rate_gbps = excluded.rate_gbps`, fabric, string(body), fabric).Error
}

// reportsLock is the advisory lock under which reports meet.
const reportsLock = 7122

// MeetReports implements inventory.Topology.
func (s *Inventory) MeetReports(ctx context.Context, ofFabric bool) error {
	lock := "SELECT pg_advisory_xact_lock_shared(?)"
	if ofFabric {
		lock = "SELECT pg_advisory_xact_lock(?)"
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Exec(lock, reportsLock).Error })
	if err != nil {
		return fmt.Errorf("meet reports: %w", err)
	}
	return nil
}

// Unverified implements inventory.Nodes.
func (s *Inventory) Unverified(ctx context.Context, fabric ids.Fabric) ([]ids.Node, error) {
	var found []ids.Node
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw("SELECT id FROM node WHERE fabric_id = ? AND state = 'verifying' ORDER BY id", fabric).Scan(&found).Error
	})
	if err != nil {
		return nil, fmt.Errorf("read unverified nodes: %w", err)
	}
	return found, nil
}

func uuidOf(id interface{ UUID() [16]byte }) string {
	u := id.UUID()
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}
