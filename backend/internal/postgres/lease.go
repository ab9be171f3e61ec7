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
	"github.com/leasehold/leasehold/backend/money"
)

// Leases keeps leases with their segments, keys and events. Within an actor's transaction it sees the organization's own only.
//
// Locks are taken in one order everywhere: the lease's row, then node rows by id, then the ledger's balances.
type Leases struct{ db *DB }

// NewLeases returns the leases of db.
func NewLeases(db *DB) *Leases { return &Leases{db: db} }

type leaseRow struct {
	ID             ids.Lease `gorm:"primaryKey"`
	OrgID          ids.Org
	ProjectID      ids.Project
	Name           string
	QuoteID        ids.Quote
	InstanceTypeID ids.Instance
	SiteID         ids.Site
	FabricID       ids.Fabric
	Class          string
	Priority       int
	Instances      int
	StartAt        time.Time
	EndAt          time.Time
	State          string
	Outcome        string
	Reason         string
	FailurePolicy  string
	Currency       string
	Image          string
	UserData       string
	Tags           document[map[string]string]
	WantedEndAt    *time.Time
	ProvisioningAt *time.Time
	ActiveAt       *time.Time
	ReleasedAt     *time.Time
	ClosedAt       *time.Time
	Version        int64
	EventSeq       int64 `gorm:"<-:false"` // drawn by AppendEvent only
	CreatedBy      string
	CreatedAt      time.Time
}

func (leaseRow) TableName() string { return "lease" }

func newLeaseRow(l lease.Lease) leaseRow {
	tags := l.Tags
	if tags == nil {
		tags = map[string]string{}
	}
	return leaseRow{
		ID: l.ID, OrgID: l.Org, ProjectID: l.Project, Name: l.Name, QuoteID: l.Quote, InstanceTypeID: l.InstanceType, SiteID: l.Site,
		FabricID: l.Fabric, Class: string(l.Class), Priority: l.Priority, Instances: l.Instances, StartAt: l.Start, EndAt: l.End,
		State: string(l.State), Outcome: string(l.Outcome), Reason: l.Reason, FailurePolicy: string(l.FailurePolicy),
		Currency: string(l.Currency), Image: l.Image, UserData: l.UserData, Tags: document[map[string]string]{tags},
		WantedEndAt: nullable(l.WantedEnd), ProvisioningAt: nullable(l.ProvisioningAt), ActiveAt: nullable(l.ActiveAt),
		ReleasedAt: nullable(l.ReleasedAt), ClosedAt: nullable(l.ClosedAt), Version: l.Version, CreatedBy: l.CreatedBy, CreatedAt: l.CreatedAt,
	}
}

func toLease(r leaseRow) lease.Lease {
	return lease.Lease{
		ID: r.ID, Org: r.OrgID, Project: r.ProjectID, Name: r.Name, Quote: r.QuoteID, InstanceType: r.InstanceTypeID, Site: r.SiteID,
		Fabric: r.FabricID, Class: lease.Class(r.Class), Priority: r.Priority, Instances: r.Instances, Start: r.StartAt.UTC(), End: r.EndAt.UTC(),
		State: lease.State(r.State), Outcome: lease.Outcome(r.Outcome), Reason: r.Reason, FailurePolicy: lease.FailurePolicy(r.FailurePolicy),
		Currency: money.Currency(r.Currency), Image: r.Image, UserData: r.UserData, Tags: r.Tags.Of,
		WantedEnd: instant(r.WantedEndAt), ProvisioningAt: instant(r.ProvisioningAt), ActiveAt: instant(r.ActiveAt),
		ReleasedAt: instant(r.ReleasedAt), ClosedAt: instant(r.ClosedAt), Version: r.Version, CreatedBy: r.CreatedBy, CreatedAt: r.CreatedAt.UTC(),
	}
}

func noLease() error { return fault.New(fault.NotFound, "lease-not-found", "there is no such lease") }

// Insert writes a new lease.
func (s *Leases) Insert(ctx context.Context, l lease.Lease) error {
	row := newLeaseRow(l)
	if err := conn(ctx).Create(&row).Error; err != nil {
		return fmt.Errorf("insert lease: %w", err)
	}
	return nil
}

// Get reads a lease. It returns a NotFound fault, also for another organization's.
func (s *Leases) Get(ctx context.Context, id ids.Lease) (lease.Lease, error) {
	return takeLease(conn(ctx), id)
}

// GetForUpdate reads a lease and locks its row until the transaction ends, so that whoever changes it does so one after the other.
// It returns a NotFound fault.
func (s *Leases) GetForUpdate(ctx context.Context, id ids.Lease) (lease.Lease, error) {
	return takeLease(conn(ctx).Clauses(clause.Locking{Strength: "NO KEY UPDATE"}), id)
}

func takeLease(from *gorm.DB, id ids.Lease) (lease.Lease, error) {
	var rows []leaseRow
	if err := from.Where("id = ?", id).Limit(1).Find(&rows).Error; err != nil {
		return lease.Lease{}, fmt.Errorf("read lease: %w", err)
	}
	if len(rows) == 0 {
		return lease.Lease{}, noLease()
	}
	return toLease(rows[0]), nil
}

// List reads the leases that the filter leaves, latest first.
func (s *Leases) List(ctx context.Context, f lease.Filter) ([]lease.Lease, error) {
	find := conn(ctx).Order("created_at DESC, id DESC")
	if !f.ID.IsZero() {
		find = find.Where("id = ?", f.ID)
	}
	if !f.Project.IsZero() {
		find = find.Where("project_id = ?", f.Project)
	}
	if len(f.States) > 0 {
		find = find.Where("state IN ?", f.States)
	}
	if !f.After.IsZero() {
		find = find.Where("(created_at, id) < (SELECT created_at, id FROM lease WHERE id = ?)", f.After)
	}
	if f.Limit > 0 {
		find = find.Limit(f.Limit)
	}
	var rows []leaseRow
	if err := find.Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	return each(rows, toLease), nil
}

// Due lists reserved leases whose provisioning must begin: those that start before the instant, soonest first.
func (s *Leases) Due(ctx context.Context, startsBefore time.Time, limit int) ([]lease.Lease, error) {
	var rows []leaseRow
	err := conn(ctx).Where("state = 'reserved' AND start_at < ?", startsBefore).Order("start_at, id").Limit(limit).Find(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("list due leases: %w", err)
	}
	return each(rows, toLease), nil
}

// Update writes everything about a lease that may change. The caller holds its lock (GetForUpdate); Version is the caller's
// affair: it counts changes of the contract, not of progress.
func (s *Leases) Update(ctx context.Context, l lease.Lease) error {
	row := newLeaseRow(l)
	done := conn(ctx).Model(&leaseRow{}).Where("id = ?", l.ID).
		Select("name", "priority", "end_at", "state", "outcome", "reason", "failure_policy", "tags", "wanted_end_at",
			"provisioning_at", "active_at", "released_at", "closed_at", "version").Updates(row)
	if done.Error != nil {
		return fmt.Errorf("update lease: %w", done.Error)
	}
	if done.RowsAffected == 0 {
		return noLease()
	}
	return nil
}

// each converts a slice; nil becomes an empty slice.
func each[A, B any](in []A, convert func(A) B) []B {
	out := make([]B, len(in))
	for i, v := range in {
		out[i] = convert(v)
	}
	return out
}
