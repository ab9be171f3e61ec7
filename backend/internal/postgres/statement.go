package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// Within implements billing.Invoices.
func (s *Invoices) Within(ctx context.Context, org ids.Org, from, to time.Time) ([]billing.Invoice, error) {
	var rows []invoiceRow
	err := conn(ctx).Where(`org_id = ? AND state <> 'void' AND EXISTS (SELECT FROM charge_line c WHERE c.invoice_id = invoice.id
		AND c.start_at < ? AND c.end_at > ?)`, org, to, from).Order("created_at, id").Find(&rows).Error
	if err != nil {
		return nil, fmt.Errorf("list invoices within a period: %w", err)
	}
	return withLines(ctx, rows)
}

// titleRow is what a lease is called, with names of the market beside its own.
type titleRow struct {
	ID          ids.Lease
	Name        string
	TypeID      ids.Instance
	TypeName    string
	Instances   int
	Class       string
	SiteID      ids.Site
	SiteName    string
	ProjectID   ids.Project
	ProjectName string
	Tags        string
}

// titleQuery reads past the tenant's role for the market's names, and therefore names the organization itself.
const titleQuery = `
	SELECT l.id, l.name, t.id AS type_id, t.name AS type_name, l.instances, l.class, s.id AS site_id, s.name AS site_name,
	       p.id AS project_id, p.name AS project_name, l.tags::text AS tags
	FROM lease l JOIN instance_type t ON t.id = l.instance_type_id JOIN site s ON s.id = l.site_id JOIN project p ON p.id = l.project_id
	WHERE l.org_id = ? AND l.id IN ?`

// Names implements billing.Invoices.
func (s *Invoices) Names(ctx context.Context, org ids.Org, leases map[ids.Lease]bool) (billing.Party, map[ids.Lease]billing.Title, error) {
	var customers []billing.Party
	if err := conn(ctx).Raw("SELECT id, name, country FROM organization WHERE id = ?", org).Scan(&customers).Error; err != nil {
		return billing.Party{}, nil, fmt.Errorf("read customer: %w", err)
	}
	if len(customers) == 0 {
		return billing.Party{}, nil, fault.New(fault.NotFound, "organization-not-found", "there is no such organization")
	}
	titles := make(map[ids.Lease]billing.Title, len(leases))
	if len(leases) == 0 {
		return customers[0], titles, nil
	}
	var rows []titleRow
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(titleQuery, org, slices.Collect(maps.Keys(leases))).Scan(&rows).Error
	})
	if err != nil {
		return billing.Party{}, nil, fmt.Errorf("read titles of leases: %w", err)
	}
	for _, row := range rows {
		if titles[row.ID], err = toTitle(row); err != nil {
			return billing.Party{}, nil, err
		}
	}
	return customers[0], titles, nil
}

func toTitle(r titleRow) (billing.Title, error) {
	title := billing.Title{
		Lease: r.ID, Name: r.Name, Type: r.TypeID, TypeName: r.TypeName, Instances: r.Instances, Class: lease.Class(r.Class), Site: r.SiteID,
		SiteName: r.SiteName, Project: r.ProjectID, ProjectName: r.ProjectName,
	}
	if err := json.Unmarshal([]byte(r.Tags), &title.Tags); err != nil {
		return billing.Title{}, fmt.Errorf("read tags of %s: %w", r.ID, err)
	}
	return title, nil
}
