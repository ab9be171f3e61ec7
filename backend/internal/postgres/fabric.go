package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Isolation keeps partitions, their members and what was proved about them. It is for workers, which act for the platform.
type Isolation struct{ db *DB }

var _ fabric.Partitions = (*Isolation)(nil)

// NewIsolation returns the isolation of db.
func NewIsolation(db *DB) *Isolation { return &Isolation{db: db} }

func toSubnet(r fabricRow) fabric.Subnet {
	s := fabric.Subnet{
		ID: r.ID, Name: r.Name, Epoch: r.Epoch, Low: pkeyOf(r.ManagedLow), High: pkeyOf(r.ManagedHigh), MaxPKeysPerPort: r.MaxPKeysPerPort, Posture: r.Posture.Of,
		ObservedAt: instant(r.ObservedAt),
	}
	if r.PostureOverride != nil {
		s.Override = *r.PostureOverride
	}
	return s
}

// pkeyOf reads a key's number, which the schema keeps within 15 bits.
func pkeyOf(n int) protocol.PKey { return protocol.PKey(n & 0x7fff) } //nolint:gosec // masked

// Subnet implements fabric.Partitions.
func (s *Isolation) Subnet(ctx context.Context, id ids.Fabric) (fabric.Subnet, error) {
	found, err := listed(ctx, s.db, toSubnet, func(db *gorm.DB) *gorm.DB { return db.Where("id = ?", id) })
	subnet, err := first(found, err, "fabric-not-found", "there is no such fabric")
	return s.watched(ctx, subnet, err)
}

// SubnetForUpdate implements fabric.Partitions.
func (s *Isolation) SubnetForUpdate(ctx context.Context, id ids.Fabric) (fabric.Subnet, error) {
	found, err := listed(ctx, s.db, toSubnet, func(db *gorm.DB) *gorm.DB {
		return db.Where("id = ?", id).Clauses(clause.Locking{Strength: "NO KEY UPDATE"})
	})
	subnet, err := first(found, err, "fabric-not-found", "there is no such fabric")
	return s.watched(ctx, subnet, err)
}

// RaiseEpoch implements fabric.Partitions.
func (s *Isolation) RaiseEpoch(ctx context.Context, id ids.Fabric) (int64, error) {
	epochs, err := scan[int64](ctx, s.db, "UPDATE fabric SET epoch = epoch + 1 WHERE id = ? RETURNING epoch", id)
	return first(epochs, err, "fabric-not-found", "there is no such fabric")
}

// scan reads the rows of a query in the platform role.
func scan[T any](ctx context.Context, db *DB, query string, args ...any) ([]T, error) {
	var found []T
	err := db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Raw(query, args...).Scan(&found).Error })
	if err != nil {
		return nil, fmt.Errorf("read: %w", translate(err))
	}
	return found, nil
}

// Override implements fabric.Partitions.
func (s *Isolation) Override(ctx context.Context, id ids.Fabric, reason string) error {
	_, err := scan[int64](ctx, s.db, "UPDATE fabric SET posture_override = nullif(?, ''), version = version + 1 WHERE id = ? RETURNING version", reason, id)
	return err
}

type partitionRow struct {
	ID            ids.Partition `gorm:"primaryKey"`
	OrgID         ids.Org
	FabricID      ids.Fabric
	LeaseID       ids.Lease
	Pkey          int
	State         string
	ClearSeen     int
	ReusableAfter *time.Time
	Reason        string
	WitnessID     ids.Operation
	CreatedAt     time.Time
	UpdatedAt     time.Time `gorm:"autoUpdateTime:false"`
}

func (partitionRow) TableName() string { return "partition" }

func newPartitionRow(p fabric.Partition) partitionRow {
	return partitionRow{
		ID: p.ID, OrgID: p.Org, FabricID: p.Fabric, LeaseID: p.Lease, Pkey: int(p.PKey), State: string(p.State), ClearSeen: p.ClearSeen,
		ReusableAfter: nullable(p.ReusableAfter), Reason: p.Reason, WitnessID: p.Witness, CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt,
	}
}

func toPartition(r partitionRow) fabric.Partition {
	return fabric.Partition{
		ID: r.ID, Org: r.OrgID, Fabric: r.FabricID, Lease: r.LeaseID, PKey: pkeyOf(r.Pkey), State: fabric.State(r.State), ClearSeen: r.ClearSeen,
		ReusableAfter: instant(r.ReusableAfter), Reason: r.Reason, Witness: r.WitnessID, CreatedAt: r.CreatedAt.UTC(), UpdatedAt: r.UpdatedAt.UTC(),
	}
}

// OfLease implements fabric.Partitions.
func (s *Isolation) OfLease(ctx context.Context, id ids.Lease) (fabric.Partition, bool, error) {
	found, err := listed(ctx, s.db, toPartition, func(db *gorm.DB) *gorm.DB {
		return db.Where("lease_id = ?", id).Order("created_at DESC, id DESC").Limit(1)
	})
	if err != nil || len(found) == 0 {
		return fabric.Partition{}, false, err
	}
	return found[0], true, nil
}

// Live implements fabric.Partitions.
func (s *Isolation) Live(ctx context.Context, id ids.Fabric) ([]fabric.Partition, error) {
	return listed(ctx, s.db, toPartition, func(db *gorm.DB) *gorm.DB { return db.Where("fabric_id = ? AND state <> 'free'", id).Order("pkey") })
}

// Insert implements fabric.Partitions. A key that another partition has is a Conflict fault.
func (s *Isolation) Insert(ctx context.Context, p fabric.Partition) error {
	row := newPartitionRow(p)
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Create(&row).Error })
	if err != nil {
		return fmt.Errorf("insert partition: %w", translate(err))
	}
	return nil
}

// Update implements fabric.Partitions.
func (s *Isolation) Update(ctx context.Context, p fabric.Partition) error {
	row := newPartitionRow(p)
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		done := conn(ctx).Model(&partitionRow{}).Where("id = ?", p.ID).
			Select("state", "clear_seen", "reusable_after", "reason", "witness_id", "updated_at").Updates(row)
		if done.Error == nil && done.RowsAffected == 0 {
			return fault.New(fault.NotFound, "partition-not-found", "there is no such partition")
		}
		return done.Error
	})
	if err != nil {
		return fmt.Errorf("update partition: %w", translate(err))
	}
	return nil
}
