package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/inventory"
)

type gpuRow struct {
	ID          ids.GPU `gorm:"primaryKey"`
	NodeID      ids.Node
	Bay         int
	UUID        string `gorm:"column:uuid"`
	Vendor      string
	Model       string
	Serial      string
	MemoryBytes int64
	PCIAddress  string `gorm:"column:pci_address"`
	NUMANode    int    `gorm:"column:numa_node"`
	MIGCapable  bool   `gorm:"column:mig_capable"`
}

func (gpuRow) TableName() string { return "gpu" }

func toGPU(r gpuRow) inventory.GPU {
	return inventory.GPU{
		ID: r.ID, Bay: r.Bay, UUID: r.UUID, Vendor: r.Vendor, Model: r.Model, Serial: r.Serial, MemoryBytes: r.MemoryBytes, PCIAddress: r.PCIAddress,
		NUMANode: r.NUMANode, MIGCapable: r.MIGCapable,
	}
}

type hcaPortRow struct {
	ID         ids.HCAPort `gorm:"primaryKey"`
	NodeID     ids.Node
	FabricID   ids.Fabric
	Bay        *int
	Rail       int
	Device     string
	Port       int
	NodeGUID   string `gorm:"column:node_guid"`
	GUID       string `gorm:"column:guid"`
	RateGbps   int
	SwitchID   ids.Switch
	SwitchPort *int
}

func (hcaPortRow) TableName() string { return "hca_port" }

// portWithSwitch is a port with the name of the switch that it hangs on.
type portWithSwitch struct {
	Port       hcaPortRow `gorm:"embedded"`
	SwitchName string
}

func toPort(p portWithSwitch) inventory.Port {
	r := p.Port
	port := inventory.Port{
		ID: r.ID, Fabric: r.FabricID, Bay: inventory.NoBay, Rail: r.Rail, Device: r.Device, Number: r.Port, NodeGUID: toGUID(r.NodeGUID), GUID: toGUID(r.GUID),
		RateGbps: r.RateGbps, Switch: r.SwitchID, SwitchName: p.SwitchName,
	}
	if r.Bay != nil {
		port.Bay = *r.Bay
	}
	if r.SwitchPort != nil {
		port.SwitchPort = *r.SwitchPort
	}
	return port
}

// toGUID reads a column that a CHECK keeps in form; anything else is the zero GUID.
func toGUID(s string) protocol.GUID {
	var g protocol.GUID
	_ = g.UnmarshalText([]byte(s))
	return g
}

// Parts implements inventory.Nodes.
func (s *Inventory) Parts(ctx context.Context, id ids.Node) ([]inventory.GPU, []inventory.Port, error) {
	gpus, err := listed(ctx, s.db, toGPU, func(db *gorm.DB) *gorm.DB { return db.Where("node_id = ?", id).Order("bay") })
	if err != nil {
		return nil, nil, err
	}
	var ports []portWithSwitch
	err = s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`SELECT p.*, coalesce(s.name, '') AS switch_name FROM hca_port p LEFT JOIN switch s ON s.id = p.switch_id
			WHERE p.node_id = ? ORDER BY p.rail, p.guid`, id).Scan(&ports).Error
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read ports: %w", err)
	}
	return gpus, each(ports, toPort), nil
}

// ReplaceParts implements inventory.Nodes. A port that a partition remembers stays as a row, off every fabric.
func (s *Inventory) ReplaceParts(ctx context.Context, id ids.Node, gpus []inventory.GPU, ports []inventory.Port) error {
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		if err := replaceGPUs(conn(ctx), id, gpus); err != nil {
			return err
		}
		return replacePorts(conn(ctx), id, ports)
	})
	if err != nil {
		return fmt.Errorf("replace parts: %w", translate(err))
	}
	return nil
}

func replaceGPUs(db *gorm.DB, id ids.Node, gpus []inventory.GPU) error {
	if err := db.Exec("DELETE FROM gpu WHERE node_id = ? AND bay >= ?", id, len(gpus)).Error; err != nil || len(gpus) == 0 {
		return err
	}
	rows := each(gpus, func(g inventory.GPU) gpuRow {
		return gpuRow{
			ID: g.ID, NodeID: id, Bay: g.Bay, UUID: g.UUID, Vendor: g.Vendor, Model: g.Model, Serial: g.Serial, MemoryBytes: g.MemoryBytes, PCIAddress: g.PCIAddress,
			NUMANode: g.NUMANode, MIGCapable: g.MIGCapable,
		}
	})
	return db.Clauses(clause.OnConflict{
		Columns:   []clause.Column{{Name: "node_id"}, {Name: "bay"}},
		DoUpdates: clause.AssignmentColumns([]string{"uuid", "vendor", "model", "serial", "memory_bytes", "pci_address", "numa_node", "mig_capable"}),
	}).Create(&rows).Error
}

func replacePorts(db *gorm.DB, id ids.Node, ports []inventory.Port) error {
	guids := each(ports, func(p inventory.Port) string { return p.GUID.String() })
	err := db.Exec(`UPDATE hca_port SET fabric_id = NULL, switch_id = NULL, switch_port = NULL, bay = NULL WHERE node_id = ? AND guid <> ALL(?)`,
		id, textArray(guids)).Error
	if err != nil {
		return err
	}
	err = db.Exec(`DELETE FROM hca_port p WHERE node_id = ? AND guid <> ALL(?)
		AND NOT EXISTS (SELECT FROM partition_member m WHERE m.hca_port_id = p.id)`, id, textArray(guids)).Error
	if err != nil || len(ports) == 0 {
		return err
	}
	rows := each(ports, func(p inventory.Port) hcaPortRow {
		row := hcaPortRow{
			ID: p.ID, NodeID: id, Rail: p.Rail, Device: p.Device, Port: p.Number, NodeGUID: p.NodeGUID.String(), GUID: p.GUID.String(), RateGbps: p.RateGbps,
		}
		if p.Bay != inventory.NoBay {
			row.Bay = &p.Bay
		}
		return row
	})
	return db.Clauses(clause.OnConflict{
		Columns:   []clause.Column{{Name: "node_id"}, {Name: "guid"}},
		DoUpdates: clause.AssignmentColumns([]string{"bay", "rail", "device", "port", "node_guid", "rate_gbps"}),
	}).Create(&rows).Error
}

// Claimants implements inventory.Nodes.
func (s *Inventory) Claimants(ctx context.Context, id ids.Node, ports []inventory.Port) ([]string, error) {
	var claims []struct{ GUID, Name string }
	guids := each(ports, func(p inventory.Port) string { return p.GUID.String() })
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`SELECT p.guid, n.name FROM hca_port p JOIN node n ON n.id = p.node_id
			WHERE p.guid = ANY(?) AND n.id <> ? AND n.state <> 'retired' ORDER BY p.guid`, textArray(guids), id).Scan(&claims).Error
	})
	if err != nil {
		return nil, fmt.Errorf("read claimants: %w", err)
	}
	return each(claims, func(c struct{ GUID, Name string }) string {
		return fmt.Sprintf("port %s is claimed by node %s as well", c.GUID, c.Name)
	}), nil
}

type nodeConditionRow struct {
	NodeID     ids.Node `gorm:"primaryKey"`
	Name       string   `gorm:"primaryKey"`
	Device     string   `gorm:"primaryKey"`
	Class      string
	Onset      time.Time `gorm:"primaryKey"`
	Evidence   string
	Exit       string
	ReportedAt time.Time
	ClearedAt  *time.Time
}

func (nodeConditionRow) TableName() string { return "node_condition" }

func toCondition(r nodeConditionRow) inventory.Condition {
	return inventory.Condition{
		Name: r.Name, Device: r.Device, Class: protocol.ConditionClass(r.Class), Onset: r.Onset.UTC(), Evidence: r.Evidence, Exit: r.Exit,
	}
}

// Conditions implements inventory.Nodes.
func (s *Inventory) Conditions(ctx context.Context, id ids.Node) ([]inventory.Condition, error) {
	return listed(ctx, s.db, toCondition, func(db *gorm.DB) *gorm.DB {
		return db.Where("node_id = ? AND cleared_at IS NULL", id).Order("onset, name, device")
	})
}

type inventoryChangeRow struct {
	ID         int64 `gorm:"primaryKey;->"`
	NodeID     ids.Node
	What       string
	Before     string
	After      string
	State      string
	ObservedAt time.Time
}

func (inventoryChangeRow) TableName() string { return "inventory_change" }

// Changes implements inventory.Nodes.
func (s *Inventory) Changes(ctx context.Context, id ids.Node) ([]inventory.Change, error) {
	convert := func(r inventoryChangeRow) inventory.Change {
		return inventory.Change{What: r.What, Before: r.Before, After: r.After, State: inventory.ChangeState(r.State), ObservedAt: r.ObservedAt.UTC()}
	}
	return listed(ctx, s.db, convert, func(db *gorm.DB) *gorm.DB { return db.Where("node_id = ?", id).Order("id DESC") })
}

// AddChanges implements inventory.Nodes. A difference that is pending already stays as it is.
func (s *Inventory) AddChanges(ctx context.Context, id ids.Node, changes []inventory.Change) error {
	rows := each(changes, func(c inventory.Change) inventoryChangeRow {
		return inventoryChangeRow{NodeID: id, What: c.What, Before: c.Before, After: c.After, State: string(c.State), ObservedAt: c.ObservedAt}
	})
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Omit("id").Clauses(clause.OnConflict{DoNothing: true}).Create(&rows).Error
	})
	if err != nil {
		return fmt.Errorf("add changes: %w", translate(err))
	}
	return nil
}

// SettleChanges implements inventory.Nodes. The same difference may have been settled that way before; then the older row goes.
func (s *Inventory) SettleChanges(ctx context.Context, id ids.Node, as inventory.ChangeState) error {
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		err := conn(ctx).Exec(`DELETE FROM inventory_change o WHERE node_id = ? AND state = ? AND EXISTS (SELECT FROM inventory_change p
			WHERE p.node_id = o.node_id AND p.what = o.what AND p.after = o.after AND p.state = 'pending')`, id, string(as)).Error
		if err != nil {
			return err
		}
		return conn(ctx).Exec("UPDATE inventory_change SET state = ? WHERE node_id = ? AND state = 'pending'", string(as), id).Error
	})
	if err != nil {
		return fmt.Errorf("settle changes: %w", translate(err))
	}
	return nil
}
