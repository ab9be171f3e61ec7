package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/tenant"
)

type groupRow struct {
	ID        ids.Group `gorm:"primaryKey"`
	OrgID     ids.Org
	Name      string
	Role      string
	ProjectID ids.Project
	Version   int64
	CreatedAt time.Time
}

func (groupRow) TableName() string { return "user_group" }

type groupMemberRow struct {
	GroupID ids.Group `gorm:"primaryKey"`
	OrgID   ids.Org
	UserID  ids.User `gorm:"primaryKey"`
	AddedAt time.Time
}

func (groupMemberRow) TableName() string { return "user_group_member" }

func newGroupRow(g tenant.Group) groupRow {
	return groupRow{ID: g.ID, OrgID: g.Org, Name: g.Name, Role: string(g.Role), ProjectID: g.Project, Version: g.Version, CreatedAt: g.CreatedAt}
}

const groupTaken = "the organization has a group of that name already"

// InsertGroup implements tenant.Groups.
func (s *Tenants) InsertGroup(ctx context.Context, g tenant.Group) error {
	row := newGroupRow(g)
	if err := conn(ctx).Create(&row).Error; err != nil {
		return duplicate(err, "group-exists", groupTaken)
	}
	return s.fillGroup(ctx, g, g.CreatedAt)
}

// UpdateGroup implements tenant.Groups.
func (s *Tenants) UpdateGroup(ctx context.Context, g tenant.Group, at time.Time) error {
	row := newGroupRow(g)
	if err := conn(ctx).Model(&groupRow{}).Where("id = ?", g.ID).Select("name", "role", "version").Updates(&row).Error; err != nil {
		return duplicate(err, "group-exists", groupTaken)
	}
	return s.fillGroup(ctx, g, at)
}

// fillGroup makes the group's people those that it names; who is in it already stays as long.
func (s *Tenants) fillGroup(ctx context.Context, g tenant.Group, at time.Time) error {
	leaving := conn(ctx).Where("group_id = ?", g.ID)
	if len(g.People) > 0 {
		leaving = leaving.Where("user_id NOT IN ?", g.People)
	}
	if err := leaving.Delete(&groupMemberRow{}).Error; err != nil {
		return fmt.Errorf("empty group: %w", err)
	}
	if len(g.People) == 0 {
		return nil
	}
	rows := each(g.People, func(user ids.User) groupMemberRow {
		return groupMemberRow{GroupID: g.ID, OrgID: g.Org, UserID: user, AddedAt: at}
	})
	if err := conn(ctx).Clauses(clause.OnConflict{DoNothing: true}).Create(&rows).Error; err != nil {
		return fmt.Errorf("fill group: %w", err)
	}
	return nil
}

// GroupForUpdate implements tenant.Groups.
func (s *Tenants) GroupForUpdate(ctx context.Context, id ids.Group) (tenant.Group, error) {
	row, err := takeOne(conn(ctx).Where("id = ?", id).Clauses(clause.Locking{Strength: "NO KEY UPDATE"}), func(r groupRow) groupRow { return r }, "group")
	if err != nil {
		return tenant.Group{}, err
	}
	all, err := withPeople(ctx, []groupRow{row})
	if err != nil {
		return tenant.Group{}, err
	}
	return all[0], nil
}

// Groups implements tenant.Groups.
func (s *Tenants) Groups(ctx context.Context, org ids.Org, page tenant.Page[ids.Group]) ([]tenant.Group, error) {
	find := conn(ctx).Where("org_id = ?", org).Order("id DESC")
	if !page.After.IsZero() {
		find = find.Where("id < ?", page.After)
	}
	var rows []groupRow
	if err := find.Limit(page.Limit).Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	return withPeople(ctx, rows)
}

func withPeople(ctx context.Context, rows []groupRow) ([]tenant.Group, error) {
	people := map[ids.Group][]ids.User{}
	if len(rows) > 0 {
		var members []groupMemberRow
		err := conn(ctx).Where("group_id IN ?", each(rows, func(r groupRow) ids.Group { return r.ID })).Order("group_id, user_id").Find(&members).Error
		if err != nil {
			return nil, fmt.Errorf("read groups' people: %w", err)
		}
		for _, m := range members {
			people[m.GroupID] = append(people[m.GroupID], m.UserID)
		}
	}
	return each(rows, func(r groupRow) tenant.Group {
		return tenant.Group{
			ID: r.ID, Org: r.OrgID, Name: r.Name, Role: tenant.Role(r.Role), Project: r.ProjectID, People: people[r.ID], Version: r.Version,
			CreatedAt: r.CreatedAt.UTC(),
		}
	}), nil
}

// DeleteGroup implements tenant.Groups.
func (s *Tenants) DeleteGroup(ctx context.Context, id ids.Group) error {
	for _, sql := range []string{"DELETE FROM user_group_member WHERE group_id = ?", "DELETE FROM user_group WHERE id = ?"} {
		if err := conn(ctx).Exec(sql, id).Error; err != nil {
			return fmt.Errorf("delete group: %w", err)
		}
	}
	return nil
}

type serviceAccountRow struct {
	ID         ids.Service `gorm:"primaryKey"`
	OrgID      ids.Org
	Name       string
	Role       string
	ProjectID  ids.Project
	CreatedBy  string
	CreatedAt  time.Time
	ExpiresAt  *time.Time
	DisabledAt *time.Time
	DeletedAt  *time.Time
	Version    int64
}

func (serviceAccountRow) TableName() string { return "service_account" }

func newServiceAccountRow(a tenant.ServiceAccount) serviceAccountRow {
	return serviceAccountRow{
		ID: a.ID, OrgID: a.Org, Name: a.Name, Role: string(a.Role), ProjectID: a.Project, CreatedBy: a.CreatedBy, CreatedAt: a.CreatedAt,
		ExpiresAt: nullable(a.ExpiresAt), DisabledAt: nullable(a.DisabledAt), Version: a.Version,
	}
}

func toServiceAccount(r serviceAccountRow) tenant.ServiceAccount {
	return tenant.ServiceAccount{
		ID: r.ID, Org: r.OrgID, Name: r.Name, Role: tenant.Role(r.Role), Project: r.ProjectID, CreatedBy: r.CreatedBy, CreatedAt: r.CreatedAt.UTC(),
		ExpiresAt: instant(r.ExpiresAt), DisabledAt: instant(r.DisabledAt), Version: r.Version,
	}
}

const accountTaken = "the organization has a service account of that name already"

// InsertServiceAccount implements tenant.ServiceAccounts.
func (s *Tenants) InsertServiceAccount(ctx context.Context, a tenant.ServiceAccount) error {
	row := newServiceAccountRow(a)
	if err := conn(ctx).Create(&row).Error; err != nil {
		return duplicate(err, "service-account-exists", accountTaken)
	}
	return nil
}

// UpdateServiceAccount implements tenant.ServiceAccounts.
func (s *Tenants) UpdateServiceAccount(ctx context.Context, a tenant.ServiceAccount) error {
	row := newServiceAccountRow(a)
	err := conn(ctx).Model(&serviceAccountRow{}).Where("id = ?", a.ID).Select("name", "role", "expires_at", "disabled_at", "version").Updates(&row).Error
	if err != nil {
		return duplicate(err, "service-account-exists", accountTaken)
	}
	return nil
}

// ServiceAccountForUpdate implements tenant.ServiceAccounts.
func (s *Tenants) ServiceAccountForUpdate(ctx context.Context, id ids.Service) (tenant.ServiceAccount, error) {
	return takeOne(conn(ctx).Where("id = ? AND deleted_at IS NULL", id).Clauses(clause.Locking{Strength: "NO KEY UPDATE"}), toServiceAccount, "service account")
}

// ServiceAccounts implements tenant.ServiceAccounts.
func (s *Tenants) ServiceAccounts(ctx context.Context, org ids.Org, page tenant.Page[ids.Service]) ([]tenant.ServiceAccount, error) {
	find := conn(ctx).Where("org_id = ? AND deleted_at IS NULL", org).Order("id DESC")
	if !page.After.IsZero() {
		find = find.Where("id < ?", page.After)
	}
	var rows []serviceAccountRow
	if err := find.Limit(page.Limit).Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("list service accounts: %w", err)
	}
	return each(rows, toServiceAccount), nil
}

// DeleteServiceAccount implements tenant.ServiceAccounts.
func (s *Tenants) DeleteServiceAccount(ctx context.Context, id ids.Service, at time.Time) error {
	for _, sql := range []string{
		"UPDATE service_account SET deleted_at = @at, version = version + 1 WHERE id = @id",
		"UPDATE api_key SET revoked_at = @at WHERE service_account_id = @id AND revoked_at IS NULL",
	} {
		if err := conn(ctx).Exec(sql, map[string]any{"at": at, "id": id}).Error; err != nil {
			return fmt.Errorf("delete service account: %w", err)
		}
	}
	return nil
}
