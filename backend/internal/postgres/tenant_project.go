package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/tenant"
)

type projectRow struct {
	ID         ids.Project `gorm:"primaryKey"`
	OrgID      ids.Org
	Name       string
	Version    int64
	CreatedAt  time.Time
	ArchivedAt *time.Time
}

func (projectRow) TableName() string { return "project" }

func toProject(r projectRow) tenant.Project {
	return tenant.Project{ID: r.ID, Org: r.OrgID, Name: r.Name, Version: r.Version, CreatedAt: r.CreatedAt.UTC(), ArchivedAt: instant(r.ArchivedAt)}
}

// CreateProject implements tenant.Projects.
func (s *Tenants) CreateProject(ctx context.Context, p tenant.Project) error {
	row := projectRow{ID: p.ID, OrgID: p.Org, Name: p.Name, Version: p.Version, CreatedAt: p.CreatedAt, ArchivedAt: nullable(p.ArchivedAt)}
	if err := conn(ctx).Create(&row).Error; err != nil {
		return duplicate(err, "project-exists", "the organization has a project of that name already")
	}
	return nil
}

// Project implements tenant.Projects.
func (s *Tenants) Project(ctx context.Context, id ids.Project) (tenant.Project, error) {
	return takeOne(conn(ctx).Where("id = ?", id), toProject, "project")
}

// ProjectByName implements tenant.Projects.
func (s *Tenants) ProjectByName(ctx context.Context, org ids.Org, name string) (tenant.Project, error) {
	return takeOne(conn(ctx).Where("org_id = ? AND name = ?", org, name), toProject, "project")
}

// Projects implements tenant.Projects.
func (s *Tenants) Projects(ctx context.Context, org ids.Org, page tenant.Page[ids.Project]) ([]tenant.Project, error) {
	find := conn(ctx).Where("org_id = ?", org).Order("id")
	if !page.After.IsZero() {
		find = find.Where("id > ?", page.After)
	}
	var rows []projectRow
	if err := find.Limit(page.Limit).Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("list projects: %w", err)
	}
	return each(rows, toProject), nil
}

// duplicate gives a violated unique constraint words of its own.
func duplicate(err error, code, detail string) error {
	var f *fault.Fault
	if errors.As(translate(err), &f) && f.Code == "duplicate" {
		return fault.New(fault.Conflict, code, "%s", detail)
	}
	return err
}
