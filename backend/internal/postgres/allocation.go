package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// Allocations keeps node × slots × time. They are a market table: the tenant role cannot read them, so each method steps into the
// platform role, and shows an organization's actor only what belongs to its own leases.
type Allocations struct{ db *DB }

// NewAllocations returns the allocations of db.
func NewAllocations(db *DB) *Allocations { return &Allocations{db: db} }

type allocationRow struct {
	ID         ids.Allocation `gorm:"primaryKey"`
	NodeID     ids.Node
	Purpose    string
	LeaseID    ids.Lease
	Ordinal    int
	Slots      slotRange
	Occupied   timeRange
	State      string
	Reason     string
	Epoch      int64
	Access     *document[lease.Access]
	ReplacedBy ids.Allocation
	CreatedAt  time.Time
	ReleasedAt *time.Time
}

func (allocationRow) TableName() string { return "allocation" }

func newAllocationRow(a lease.Allocation) allocationRow {
	row := allocationRow{
		ID: a.ID, NodeID: a.Node, Purpose: "lease", LeaseID: a.Lease, Ordinal: a.Ordinal, Slots: slotRange(a.Slots), Occupied: timeRange(a.Occupied),
		State: string(a.State), Reason: a.Reason, Epoch: a.Epoch, ReplacedBy: a.ReplacedBy, CreatedAt: a.CreatedAt, ReleasedAt: nullable(a.ReleasedAt),
	}
	if a.Lease.IsZero() {
		row.Purpose = "maintenance"
	}
	if a.Access != nil {
		row.Access = &document[lease.Access]{*a.Access}
	}
	return row
}

func toAllocation(r allocationRow) lease.Allocation {
	a := lease.Allocation{
		ID: r.ID, Node: r.NodeID, Lease: r.LeaseID, Ordinal: r.Ordinal, Slots: lease.Slots(r.Slots), Occupied: lease.Window(r.Occupied),
		State: lease.AllocationState(r.State), Reason: r.Reason, Epoch: r.Epoch, ReplacedBy: r.ReplacedBy,
		CreatedAt: r.CreatedAt.UTC(), ReleasedAt: instant(r.ReleasedAt),
	}
	if r.Access != nil {
		a.Access = &r.Access.Of
	}
	return a
}

// own keeps an actor to allocations of its organization's leases, although the platform role sees all.
const own = "(current_org() IS NULL OR EXISTS (SELECT FROM lease l WHERE l.id = allocation.lease_id AND l.org_id = current_org()))"

func noAllocation() error {
	return fault.New(fault.NotFound, "allocation-not-found", "there is no such allocation")
}

// Insert writes allocations. An overlap with a live one is a Conflict fault, code "overlap", at this call.
func (s *Allocations) Insert(ctx context.Context, allocations ...lease.Allocation) error {
	rows := each(allocations, newAllocationRow)
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).CreateInBatches(&rows, insertBatch).Error })
	if err != nil {
		return fmt.Errorf("insert allocations: %w", translate(err))
	}
	return nil
}

// ByLease reads a lease's allocations by ordinal, replaced ones included, in the order in which they were made.
func (s *Allocations) ByLease(ctx context.Context, id ids.Lease) ([]lease.Allocation, error) {
	return s.find(ctx, func(db *gorm.DB) *gorm.DB { return db.Where("lease_id = ?", id) })
}

// ByLeaseForUpdate is ByLease with the rows locked until the transaction ends.
func (s *Allocations) ByLeaseForUpdate(ctx context.Context, id ids.Lease) ([]lease.Allocation, error) {
	return s.find(ctx, func(db *gorm.DB) *gorm.DB {
		return db.Where("lease_id = ?", id).Clauses(clause.Locking{Strength: "NO KEY UPDATE"})
	})
}

func (s *Allocations) find(ctx context.Context, narrow func(*gorm.DB) *gorm.DB) ([]lease.Allocation, error) {
	var rows []allocationRow
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return narrow(conn(ctx)).Where(own).Order("ordinal, created_at, id").Find(&rows).Error
	})
	if err != nil {
		return nil, fmt.Errorf("read allocations: %w", err)
	}
	return each(rows, toAllocation), nil
}

// Get reads one allocation. It returns a NotFound fault.
func (s *Allocations) Get(ctx context.Context, id ids.Allocation) (lease.Allocation, error) {
	found, err := s.find(ctx, func(db *gorm.DB) *gorm.DB { return db.Where("id = ?", id) })
	if err != nil {
		return lease.Allocation{}, err
	}
	if len(found) == 0 {
		return lease.Allocation{}, noAllocation()
	}
	return found[0], nil
}

// GetForUpdate reads one allocation and locks its row until the transaction ends. It returns a NotFound fault.
func (s *Allocations) GetForUpdate(ctx context.Context, id ids.Allocation) (lease.Allocation, error) {
	found, err := s.find(ctx, func(db *gorm.DB) *gorm.DB {
		return db.Where("id = ?", id).Clauses(clause.Locking{Strength: "NO KEY UPDATE"})
	})
	if err != nil {
		return lease.Allocation{}, err
	}
	if len(found) == 0 {
		return lease.Allocation{}, noAllocation()
	}
	return found[0], nil
}

// Update writes what may change: occupied, state, reason, epoch, access, replacement and release. An overlap that a longer
// occupied makes is a Conflict fault, code "overlap".
func (s *Allocations) Update(ctx context.Context, a lease.Allocation) error {
	row := newAllocationRow(a)
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		done := conn(ctx).Model(&allocationRow{}).Where("id = ?", a.ID).
			Select("occupied", "state", "reason", "epoch", "access", "replaced_by", "released_at").Updates(row)
		if done.Error == nil && done.RowsAffected == 0 {
			return noAllocation()
		}
		return done.Error
	})
	if err != nil {
		return fmt.Errorf("update allocation: %w", translate(err))
	}
	return nil
}

// NextEpoch draws the number that fences every earlier command on the slots that are handed over.
func (s *Allocations) NextEpoch(ctx context.Context) (int64, error) {
	var epoch int64
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw("SELECT nextval('allocation_epoch')").Scan(&epoch).Error
	})
	if err != nil {
		return 0, fmt.Errorf("draw epoch: %w", err)
	}
	return epoch, nil
}
