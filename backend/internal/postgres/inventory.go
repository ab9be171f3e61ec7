package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/inventory"
)

// Inventory keeps sites, fabrics, nodes and their parts: market tables, read and written in the platform role.
type Inventory struct{ db *DB }

// NewInventory returns the inventory of db.
func NewInventory(db *DB) *Inventory { return &Inventory{db: db} }

type siteRow struct {
	ID                ids.Site `gorm:"primaryKey"`
	ProviderOrgID     ids.Org
	Name              string
	Region            string
	Country           string
	TimeZone          string
	EthernetIsolation string
	AutoAccept        bool
	Version           int64
	CreatedAt         time.Time
}

func (siteRow) TableName() string { return "site" }

func toSite(r siteRow) inventory.Site {
	return inventory.Site{
		ID: r.ID, Provider: r.ProviderOrgID, Name: r.Name, Region: r.Region, Country: r.Country, TimeZone: r.TimeZone, AutoAccept: r.AutoAccept,
		Version: r.Version, CreatedAt: r.CreatedAt.UTC(),
	}
}

type fabricRow struct {
	ID                ids.Fabric `gorm:"primaryKey"`
	SiteID            ids.Site
	Name              string
	Kind              string
	Driver            string
	ControllerVersion string
	Epoch             int64
	ManagedLow        int
	ManagedHigh       int
	MaxPKeysPerPort   int `gorm:"column:max_pkeys_per_port"`
	Posture           document[[]protocol.PostureCheck]
	PostureOverride   *string
	PlannedPods       bool
	Spares            int
	ObservedAt        *time.Time
	Version           int64
	CreatedAt         time.Time
}

func (fabricRow) TableName() string { return "fabric" }

func toFabric(r fabricRow) inventory.Fabric {
	return inventory.Fabric{
		ID: r.ID, Site: r.SiteID, Name: r.Name, Kind: r.Kind, Driver: r.Driver, ControllerVersion: r.ControllerVersion, Epoch: r.Epoch,
		MaxPKeysPerPort: r.MaxPKeysPerPort, Posture: r.Posture.Of, PlannedPods: r.PlannedPods, Spares: r.Spares, ObservedAt: instant(r.ObservedAt), CreatedAt: r.CreatedAt.UTC(),
	}
}

type nodeRow struct {
	ID           ids.Node `gorm:"primaryKey"`
	SiteID       ids.Site
	FabricID     ids.Fabric
	Name         string
	Serial       string
	Manufacturer string
	Product      string
	Hardware     string
	Mode         string
	State        string
	StateReason  string
	StateExit    string
	Slots        int
	Pod          string
	LeafID       ids.Switch
	HCAPerGPU    bool `gorm:"column:hca_per_gpu"`
	Rack         string
	NvlinkDomain string
	BmcAddress   string
	CPUCores     int `gorm:"column:cpu_cores"`
	MemoryBytes  int64
	Inventory    *document[protocol.NodeInventory]
	Reported     *document[protocol.NodeInventory]
	Version      int64
	CreatedAt    time.Time
}

func (nodeRow) TableName() string { return "node" }

func newNodeRow(n inventory.Node) nodeRow {
	return nodeRow{
		ID: n.ID, SiteID: n.Site, FabricID: n.Fabric, Name: n.Name, Serial: n.Serial, Manufacturer: n.Manufacturer, Product: n.Product, Hardware: n.Hardware,
		Mode: string(n.Mode), State: string(n.State), StateReason: n.StateReason, StateExit: string(n.StateExit), Slots: n.Slots, Pod: n.Pod, LeafID: n.Leaf,
		HCAPerGPU: n.HCAPerGPU, NvlinkDomain: n.NVLinkDomain, BmcAddress: n.BMCAddress, CPUCores: n.CPUCores, MemoryBytes: n.MemoryBytes,
		Inventory: optional(n.Accepted), Reported: optional(n.Reported), Version: n.Version, CreatedAt: n.CreatedAt,
	}
}

func toNode(r nodeRow) inventory.Node {
	n := inventory.Node{
		ID: r.ID, Site: r.SiteID, Fabric: r.FabricID, Name: r.Name, Serial: r.Serial, Manufacturer: r.Manufacturer, Product: r.Product, Hardware: r.Hardware,
		Mode: catalog.Mode(r.Mode), State: inventory.State(r.State), StateReason: r.StateReason, StateExit: inventory.Exit(r.StateExit), Slots: r.Slots, Pod: r.Pod,
		Leaf: r.LeafID, HCAPerGPU: r.HCAPerGPU, NVLinkDomain: r.NvlinkDomain, BMCAddress: r.BmcAddress, CPUCores: r.CPUCores, MemoryBytes: r.MemoryBytes,
		Version: r.Version, CreatedAt: r.CreatedAt.UTC(),
	}
	if r.Inventory != nil {
		n.Accepted = &r.Inventory.Of
	}
	if r.Reported != nil {
		n.Reported = &r.Reported.Of
	}
	return n
}

// optional makes a jsonb column that is NULL for nil.
func optional[T any](v *T) *document[T] {
	if v == nil {
		return nil
	}
	return &document[T]{*v}
}

// Sites implements inventory.Places.
func (s *Inventory) Sites(ctx context.Context) ([]inventory.Site, error) {
	return listed(ctx, s.db, toSite, func(db *gorm.DB) *gorm.DB { return db.Order("name") })
}

// Site implements inventory.Places.
func (s *Inventory) Site(ctx context.Context, id ids.Site) (inventory.Site, error) {
	return s.siteWhere(ctx, "id = ?", id)
}

// SiteByName implements inventory.Places.
func (s *Inventory) SiteByName(ctx context.Context, name string) (inventory.Site, error) {
	return s.siteWhere(ctx, "name = ?", name)
}

func (s *Inventory) siteWhere(ctx context.Context, condition string, arg any) (inventory.Site, error) {
	found, err := listed(ctx, s.db, toSite, func(db *gorm.DB) *gorm.DB { return db.Where(condition, arg).Limit(1) })
	return first(found, err, "site-not-found", "there is no such site")
}

// AddSite implements inventory.Places.
func (s *Inventory) AddSite(ctx context.Context, site inventory.Site) error {
	row := siteRow{
		ID: site.ID, ProviderOrgID: site.Provider, Name: site.Name, Region: site.Region, Country: site.Country, TimeZone: site.TimeZone,
		EthernetIsolation: "none", AutoAccept: site.AutoAccept, Version: site.Version, CreatedAt: site.CreatedAt,
	}
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Create(&row).Error })
	if err != nil {
		return fmt.Errorf("add site: %w", translate(err))
	}
	return nil
}

// Fabrics implements inventory.Places.
func (s *Inventory) Fabrics(ctx context.Context) ([]inventory.Fabric, error) {
	return listed(ctx, s.db, toFabric, func(db *gorm.DB) *gorm.DB { return db.Order("name, id") })
}

// Fabric implements inventory.Places.
func (s *Inventory) Fabric(ctx context.Context, id ids.Fabric) (inventory.Fabric, error) {
	found, err := listed(ctx, s.db, toFabric, func(db *gorm.DB) *gorm.DB { return db.Where("id = ?", id).Limit(1) })
	return first(found, err, "fabric-not-found", "there is no such fabric")
}

// AddFabric implements inventory.Places.
func (s *Inventory) AddFabric(ctx context.Context, f inventory.Fabric) (inventory.Fabric, error) {
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Exec(`INSERT INTO fabric (id, site_id, name, kind, max_pkeys_per_port, created_at) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (site_id, name) DO NOTHING`, f.ID, f.Site, f.Name, f.Kind, f.MaxPKeysPerPort, f.CreatedAt).Error
	})
	if err != nil {
		return inventory.Fabric{}, fmt.Errorf("add fabric: %w", err)
	}
	found, err := listed(ctx, s.db, toFabric, func(db *gorm.DB) *gorm.DB { return db.Where("site_id = ? AND name = ?", f.Site, f.Name) })
	return first(found, err, "fabric-not-found", "there is no such fabric")
}

// AddNode implements inventory.Nodes.
func (s *Inventory) AddNode(ctx context.Context, n inventory.Node) (inventory.Node, error) {
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		row := newNodeRow(n)
		return conn(ctx).Clauses(clause.OnConflict{Columns: []clause.Column{{Name: "site_id"}, {Name: "name"}}, DoNothing: true}).Create(&row).Error
	})
	if err != nil {
		return inventory.Node{}, fmt.Errorf("add node: %w", translate(err))
	}
	found, err := listed(ctx, s.db, toNode, func(db *gorm.DB) *gorm.DB { return db.Where("site_id = ? AND name = ?", n.Site, n.Name) })
	return first(found, err, "node-not-found", "there is no such node")
}

// Node implements inventory.Nodes.
func (s *Inventory) Node(ctx context.Context, id ids.Node) (inventory.Node, error) {
	found, err := listed(ctx, s.db, toNode, func(db *gorm.DB) *gorm.DB { return db.Where("id = ?", id) })
	return first(found, err, "node-not-found", "there is no such node")
}

// NodeForUpdate implements inventory.Nodes.
func (s *Inventory) NodeForUpdate(ctx context.Context, id ids.Node) (inventory.Node, error) {
	found, err := listed(ctx, s.db, toNode, func(db *gorm.DB) *gorm.DB {
		return db.Where("id = ?", id).Clauses(clause.Locking{Strength: "NO KEY UPDATE"})
	})
	return first(found, err, "node-not-found", "there is no such node")
}

// UpdateNode implements inventory.Nodes.
func (s *Inventory) UpdateNode(ctx context.Context, n inventory.Node) error {
	row := newNodeRow(n)
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Model(&nodeRow{}).Where("id = ?", n.ID).Select(
			"fabric_id", "serial", "manufacturer", "product", "hardware", "mode", "state", "state_reason", "state_exit", "slots", "pod", "leaf_id", "hca_per_gpu",
			"nvlink_domain", "bmc_address", "cpu_cores", "memory_bytes", "inventory", "reported", "version").Updates(row).Error
	})
	if err != nil {
		return fmt.Errorf("update node: %w", translate(err))
	}
	return nil
}

// listed reads rows in the platform role and converts them.
func listed[R, T any](ctx context.Context, db *DB, convert func(R) T, narrow func(*gorm.DB) *gorm.DB) ([]T, error) {
	var rows []R
	err := db.asPlatform(ctx, func(ctx context.Context) error { return narrow(conn(ctx)).Find(&rows).Error })
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	return each(rows, convert), nil
}

// first returns the only thing that was looked for, or a NotFound fault.
func first[T any](found []T, err error, code, detail string) (T, error) {
	var zero T
	if err != nil {
		return zero, err
	}
	if len(found) == 0 {
		return zero, fault.New(fault.NotFound, code, "%s", detail)
	}
	return found[0], nil
}
