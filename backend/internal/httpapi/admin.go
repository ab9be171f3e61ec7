package httpapi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/doctor"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/inventory"
	"github.com/leasehold/leasehold/backend/overview"
	"github.com/leasehold/leasehold/backend/tenant"
)

// Enroller lets agents of a site enrol.
type Enroller interface {
	// CreateToken makes a token that enrols maxUses agents within ttl. Nobody can show it again.
	CreateToken(ctx context.Context, site ids.Site, maxUses int, ttl time.Duration) (id ids.Enrollment, token string, expiresAt time.Time, err error)
}

// Doctor examines the live database.
type Doctor interface {
	Run(ctx context.Context) ([]doctor.Finding, error)
}

// Admin is the operator's side, and in part the providers'. Its routes act for the platform, so that what they read is everybody's: a
// route that providers may call keeps them to their own sites (providers.go). What they change is in the audit log, with the person's
// name.
type Admin struct {
	Inventory *inventory.Service
	Overview  *overview.Service
	Tenants   *tenant.Service
	Enroller  Enroller
	Doctor    Doctor
	Audit     tenant.Recorder
	Fabrics   Fabrics
}

// AdminListSites lists all sites, or a provider's, with what their nodes are up to.
func (a Admin) AdminListSites(ctx context.Context, _ api.AdminListSitesRequestObject) (api.AdminListSitesResponseObject, error) {
	sites, err := a.sites(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := a.Inventory.Nodes(ctx, inventory.Filter{Provider: providerOf(ctx)})
	if err != nil {
		return nil, err
	}
	states := map[ids.Site]map[string]int{}
	for _, n := range nodes {
		if states[n.Node.Site] == nil {
			states[n.Node.Site] = map[string]int{}
		}
		states[n.Node.Site][string(n.Node.State)]++
	}
	view := func(s inventory.Site) api.AdminSite { return newAdminSiteView(s, states[s.ID]) }
	return api.AdminListSites200JSONResponse{Items: each(sites, view)}, nil
}

func newAdminSiteView(s inventory.Site, states map[string]int) api.AdminSite {
	if states == nil {
		states = map[string]int{}
	}
	return api.AdminSite{
		ID: s.ID.String(), Name: s.Name, Region: s.Region, Country: s.Country, ProviderOrganizationID: s.Provider.String(), AutoAccept: s.AutoAccept,
		NodesByState: states,
	}
}

// AdminCreateSite makes a site of a provider.
func (a Admin) AdminCreateSite(ctx context.Context, r api.AdminCreateSiteRequestObject) (api.AdminCreateSiteResponseObject, error) {
	provider, err := a.provider(ctx, r.Body.ProviderOrganizationID)
	if err != nil {
		return nil, err
	}
	site, err := a.Inventory.AddSite(ctx, inventory.Site{
		Provider: provider, Name: r.Body.Name, Region: r.Body.Region, Country: r.Body.Country, AutoAccept: orZero(r.Body.AutoAccept),
	})
	if err != nil {
		return nil, err
	}
	after := map[string]any{"name": site.Name, "provider_organization_id": provider.String(), "auto_accept": site.AutoAccept}
	if err := a.Audit.Record(ctx, "site.created", site.ID.String(), nil, after); err != nil {
		return nil, err
	}
	return api.AdminCreateSite201JSONResponse(newAdminSiteView(site, nil)), nil
}

// provider reads the id of an organization that may own a site.
func (a Admin) provider(ctx context.Context, id string) (ids.Org, error) {
	const pointer = "/provider_organization_id"
	provider, err := idFromBody[ids.Org](id, pointer)
	if err != nil {
		return ids.Org{}, err
	}
	org, err := a.Tenants.Organization(ctx, provider)
	if fault.Is(err, fault.NotFound) || err == nil && org.Kind == tenant.Customer {
		return ids.Org{}, fault.New(fault.Invalid, "not-a-provider", "a site belongs to a provider").At(pointer, "is not a provider")
	}
	return org.ID, err
}

// AdminCreateEnrollmentToken lets agents enrol.
func (a Admin) AdminCreateEnrollmentToken(ctx context.Context, r api.AdminCreateEnrollmentTokenRequestObject) (api.AdminCreateEnrollmentTokenResponseObject, error) {
	site, err := a.Inventory.SiteByName(ctx, r.Body.Site)
	if fault.Is(err, fault.NotFound) {
		return nil, fault.New(fault.Invalid, "unknown-site", "there is no such site").At("/site", "does not exist")
	}
	if err != nil {
		return nil, err
	}
	uses, ttl := orElse(r.Body.MaxUses, 1), time.Duration(orElse(r.Body.TTLSeconds, 3600))*time.Second
	id, token, expires, err := a.Enroller.CreateToken(ctx, site.ID, uses, ttl)
	if err != nil {
		return nil, err
	}
	after := map[string]any{"site": site.Name, "max_uses": uses, "expires_at": expires}
	if err := a.Audit.Record(ctx, "enrollment_token.created", id.String(), nil, after); err != nil {
		return nil, err
	}
	return api.AdminCreateEnrollmentToken201JSONResponse{ID: id.String(), Site: site.Name, Token: &token, MaxUses: uses, ExpiresAt: expires}, nil
}

// AdminListOrganizations lists all organizations, the oldest first.
func (a Admin) AdminListOrganizations(ctx context.Context, r api.AdminListOrganizationsRequestObject) (api.AdminListOrganizationsResponseObject, error) {
	page, err := pageAfter[ids.Org](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := a.Tenants.Organizations(ctx, page.ahead())
	if err != nil {
		return nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(o tenant.Organization) ids.Org { return o.ID })
	if err != nil {
		return nil, err
	}
	return api.AdminListOrganizations200JSONResponse{
		Body: api.OrganizationList{Items: each(items, newOrganizationView)}, Headers: api.AdminListOrganizations200ResponseHeaders{Link: link},
	}, nil
}

// AdminGetCapacity counts GPUs, of all sites or of a provider's.
func (a Admin) AdminGetCapacity(ctx context.Context, _ api.AdminGetCapacityRequestObject) (api.AdminGetCapacityResponseObject, error) {
	all, err := a.Overview.Capacity(ctx)
	if err != nil {
		return nil, err
	}
	names, err := a.siteNames(ctx)
	if err != nil {
		return nil, err
	}
	own := slices.Collect(maps.Values(names))
	found := slices.DeleteFunc(all, func(c overview.Capacity) bool { return !slices.Contains(own, c.Site) })
	view := func(c overview.Capacity) api.Capacity {
		return api.Capacity{
			Site: c.Site, Hardware: c.Hardware, DeliveredGpus: c.Delivered, HealthyGpus: c.Healthy, ReservedGpus: c.Reserved, ActiveGpus: c.Active,
		}
	}
	return api.AdminGetCapacity200JSONResponse{Items: each(found, view)}, nil
}

// AdminRunDoctor checks every invariant now.
func (a Admin) AdminRunDoctor(ctx context.Context, _ api.AdminRunDoctorRequestObject) (api.AdminRunDoctorResponseObject, error) {
	findings, err := a.Doctor.Run(ctx)
	if err != nil {
		return nil, err
	}
	report := api.DoctorReport{Healthy: len(findings) == 0, Checks: make([]api.DoctorCheck, len(doctor.Invariants()))}
	for i, title := range doctor.Invariants() {
		report.Checks[i] = api.DoctorCheck{Invariant: i + 1, Title: title, Ok: true, Findings: []string{}}
	}
	for _, f := range findings {
		if f.Invariant < 1 || f.Invariant > len(report.Checks) {
			return nil, fmt.Errorf("report finding: there is no invariant %d", f.Invariant)
		}
		check := &report.Checks[f.Invariant-1]
		check.Ok = false
		check.Findings = append(check.Findings, fmt.Sprintf("%s: %s: %s", f.Claim, f.What, f.Found))
	}
	return api.AdminRunDoctor200JSONResponse(report), nil
}
