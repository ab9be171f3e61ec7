package tenant

import "slices"

// Scopes are what an API key may be allowed: area:read or area:write.
const (
	MarketRead    = "market:read"
	LeasesRead    = "leases:read"
	LeasesWrite   = "leases:write"
	BillingRead   = "billing:read"
	BillingWrite  = "billing:write"
	IdentityRead  = "identity:read"
	IdentityWrite = "identity:write"
	// OrganizationRead and OrganizationWrite are about who belongs to the organization, and what holds for all of it.
	OrganizationRead  = "organization:read"
	OrganizationWrite = "organization:write"
	EventsRead        = "events:read"
	EventsWrite       = "events:write"
	AuditRead         = "audit:read"
	AdminRead         = "admin:read"
	AdminWrite        = "admin:write"
)

// AllScopes lists every scope.
func AllScopes() []string {
	return []string{MarketRead, LeasesRead, LeasesWrite, BillingRead, BillingWrite, IdentityRead, IdentityWrite, OrganizationRead, OrganizationWrite, EventsRead, EventsWrite, AuditRead, AdminRead, AdminWrite}
}

// Allows reports whether a role, in an organization of that kind, covers the scope. It is the one table of roles: routes name a
// scope, and a credential needs both the role and, for API keys, the scope itself. The admin scopes are for who has an inventory to
// look after: the operator all of it, a provider its own sites; which of the admin's routes are a provider's too, the routes say.
func (r Role) Allows(scope string, kind OrgKind) bool {
	if (scope == AdminRead || scope == AdminWrite) && kind != Operator && kind != Provider {
		return false
	}
	return slices.Contains(r.scopes(), scope)
}

func (r Role) scopes() []string {
	reading := []string{MarketRead, LeasesRead, BillingRead, IdentityRead, OrganizationRead, EventsRead}
	switch r {
	case Owner, Admin:
		return AllScopes()
	case Member:
		return append(reading, LeasesWrite, IdentityWrite)
	case Billing:
		return append(reading, BillingWrite)
	case Viewer:
		return reading
	default:
		return nil
	}
}
