package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/tenant"
)

// Tenants keeps organizations, people, projects, sessions and keys. It implements tenant.Store.
type Tenants struct{ db *DB }

var _ tenant.Store = (*Tenants)(nil)

// NewTenants returns the tenants of db.
func NewTenants(db *DB) *Tenants { return &Tenants{db: db} }

type organizationRow struct {
	ID                  ids.Org `gorm:"primaryKey"`
	Name                string
	Kind                string
	Country             string
	Currency            string
	TaxRateBPS          int64 `gorm:"column:tax_rate_bps"`
	CreditLimitMinor    int64
	PlatformFeeBPS      int64 `gorm:"column:platform_fee_bps"`
	BookingsSuspendedAt *time.Time
	Version             int64
	CreatedAt           time.Time
}

func (organizationRow) TableName() string { return "organization" }

func toOrganization(r organizationRow) tenant.Organization {
	return tenant.Organization{
		ID: r.ID, Name: r.Name, Kind: tenant.OrgKind(r.Kind), Country: r.Country, Currency: r.Currency, TaxRateBPS: r.TaxRateBPS,
		CreditLimitMinor: r.CreditLimitMinor, PlatformFeeBPS: r.PlatformFeeBPS, BookingsSuspendedAt: instant(r.BookingsSuspendedAt),
		Version: r.Version, CreatedAt: r.CreatedAt.UTC(),
	}
}

type userRow struct {
	ID           ids.User `gorm:"primaryKey"`
	Email        string
	Name         string
	PasswordHash string
	DisabledAt   *time.Time
	CreatedAt    time.Time
}

func (userRow) TableName() string { return "app_user" }

func toUser(r userRow) tenant.User {
	return tenant.User{
		ID: r.ID, Email: r.Email, Name: r.Name, PasswordHash: r.PasswordHash, DisabledAt: instant(r.DisabledAt), CreatedAt: r.CreatedAt.UTC(),
	}
}

type membershipRow struct {
	OrgID     ids.Org
	UserID    ids.User
	ProjectID ids.Project
	Role      string
	CreatedAt time.Time
	Version   int64 `gorm:"<-:false"` // counted by SetRole only
}

func (membershipRow) TableName() string { return "membership" }

// memberRow is what the query of Memberships answers.
type memberRow struct {
	Member  membershipRow `gorm:"embedded"`
	OrgKind string
}

// takeOne reads the one row that the conditions leave; no row is a NotFound fault that names the thing.
func takeOne[Row, Thing any](from *gorm.DB, to func(Row) Thing, noun string) (Thing, error) {
	var (
		rows []Row
		none Thing
	)
	if err := from.Limit(1).Find(&rows).Error; err != nil {
		return none, fmt.Errorf("read %s: %w", noun, err)
	}
	if len(rows) == 0 {
		return none, fault.New(fault.NotFound, "not-found", "there is no such %s", noun)
	}
	return to(rows[0]), nil
}

// CreateOrganization implements tenant.Accounts; only the platform may.
func (s *Tenants) CreateOrganization(ctx context.Context, org tenant.Organization) error {
	row := organizationRow{
		ID: org.ID, Name: org.Name, Kind: string(org.Kind), Country: org.Country, Currency: org.Currency, TaxRateBPS: org.TaxRateBPS,
		CreditLimitMinor: org.CreditLimitMinor, PlatformFeeBPS: org.PlatformFeeBPS, BookingsSuspendedAt: nullable(org.BookingsSuspendedAt),
		Version: org.Version, CreatedAt: org.CreatedAt,
	}
	if err := conn(ctx).Create(&row).Error; err != nil {
		return fmt.Errorf("insert organization: %w", err)
	}
	return nil
}

// Organization implements tenant.Accounts.
func (s *Tenants) Organization(ctx context.Context, id ids.Org) (tenant.Organization, error) {
	return takeOne(conn(ctx).Where("id = ?", id), toOrganization, "organization")
}

// OrganizationByName implements tenant.Accounts.
func (s *Tenants) OrganizationByName(ctx context.Context, name string) (tenant.Organization, error) {
	return takeOne(conn(ctx).Where("name = ?", name).Order("id"), toOrganization, "organization")
}

// Organizations implements tenant.Accounts.
func (s *Tenants) Organizations(ctx context.Context, page tenant.Page[ids.Org]) ([]tenant.Organization, error) {
	find := conn(ctx).Order("id")
	if !page.After.IsZero() {
		find = find.Where("id > ?", page.After)
	}
	var rows []organizationRow
	if err := find.Limit(page.Limit).Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("list organizations: %w", err)
	}
	return each(rows, toOrganization), nil
}

// CreateUser implements tenant.Accounts.
func (s *Tenants) CreateUser(ctx context.Context, user tenant.User) error {
	row := userRow{
		ID: user.ID, Email: user.Email, Name: user.Name, PasswordHash: user.PasswordHash, DisabledAt: nullable(user.DisabledAt), CreatedAt: user.CreatedAt,
	}
	if err := conn(ctx).Create(&row).Error; err != nil {
		return fmt.Errorf("insert user: %w", err)
	}
	return nil
}

// User implements tenant.Accounts. People are no tenants' rows, so that it looks with the platform's eyes, and leaves the password out
// when a tenant asks.
func (s *Tenants) User(ctx context.Context, id ids.User) (tenant.User, error) {
	var user tenant.User
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		var err error
		user, err = takeOne(conn(ctx).Where("id = ?", id), toUser, "user")
		return err
	})
	return user, err
}

// UserByEmail implements tenant.Accounts; only the platform may.
func (s *Tenants) UserByEmail(ctx context.Context, email string) (tenant.User, error) {
	return takeOne(conn(ctx).Where("email = ?", email), toUser, "user")
}

// SetPasswordHash implements tenant.Accounts; only the platform may.
func (s *Tenants) SetPasswordHash(ctx context.Context, id ids.User, hash string) error {
	if err := conn(ctx).Model(&userRow{}).Where("id = ?", id).Update("password_hash", hash).Error; err != nil {
		return fmt.Errorf("update password: %w", err)
	}
	return nil
}

// AddMembership implements tenant.Accounts; only the platform may.
func (s *Tenants) AddMembership(ctx context.Context, m tenant.Membership, at time.Time) error {
	row := membershipRow{OrgID: m.Org, UserID: m.User, ProjectID: m.Project, Role: string(m.Role), CreatedAt: at}
	if err := conn(ctx).Clauses(clause.OnConflict{DoNothing: true}).Create(&row).Error; err != nil {
		return fmt.Errorf("insert membership: %w", err)
	}
	return nil
}

// Memberships implements tenant.Accounts.
func (s *Tenants) Memberships(ctx context.Context, user ids.User) ([]tenant.Membership, error) {
	var rows []memberRow
	err := conn(ctx).Table("standing").Select("standing.*, organization.kind AS org_kind").
		Joins("JOIN organization ON organization.id = standing.org_id").
		Where("user_id = ?", user).Order("standing.created_at, org_id").Scan(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("list memberships: %w", err)
	}
	all := make([]tenant.Membership, len(rows))
	for i, r := range rows {
		m := r.Member
		all[i] = tenant.Membership{Org: m.OrgID, OrgKind: tenant.OrgKind(r.OrgKind), User: m.UserID, Project: m.ProjectID, Role: tenant.Role(m.Role)}
	}
	return all, nil
}
