package httpapi

import (
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/tenant"
)

// permission says who may call an operation. A session needs a role that covers the scope (tenant.Role.Allows is that table); an API
// key needs the scope as well.
type permission struct {
	scope string // "" with public: anybody; "" otherwise: anybody who is signed in
	// public operations take no credential.
	public bool
	// operator operations are for the operator's own people, who then act for the platform and not for their organization.
	operator bool
	// provider, with operator: a provider's people may as well. They act for the platform too, so the handler must keep them to what
	// their organization owns (providerOf); the matrix of tests looks at every such operation.
	provider bool
	// wholeOrganization operations concern all projects at once, so that a credential that is limited to one may not.
	wholeOrganization bool
	// whileLocked operations are for sessions too that lack the second factor that is required of them: they lead to one.
	whileLocked bool
	// offTransaction operations talk to somebody outside (a payment gateway) and must not hold a transaction meanwhile: the domain
	// makes them idempotent itself, with the key that httpapi.IdempotencyKey tells.
	offTransaction bool
}

// permissions is the one table route × permission. A test fails for an operation of the contract without a row, and for a row
// without an operation.
func permissions() map[string]permission {
	public := permission{public: true}
	signedIn := permission{}
	can := func(scope string) permission { return permission{scope: scope} }
	all := func(scope string) permission { return permission{scope: scope, wholeOrganization: true} }
	operator := func(scope string) permission {
		return permission{scope: scope, operator: true, wholeOrganization: true}
	}
	provider := func(scope string) permission {
		return permission{scope: scope, operator: true, provider: true, wholeOrganization: true}
	}
	return map[string]permission{
		"createSession":  public,
		"refreshSession": public,
		"deleteSession":  {whileLocked: true},
		"getMe":          {whileLocked: true},

		"getLogInMethods": public,
		"beginOidc":       public,
		// Proved by the identity provider.
		"finishOidc": public,
		// Proved by the device code.
		"startDeviceAuthorization":  public,
		"claimDeviceAuthorization":  public,
		"getDeviceAuthorization":    signedIn,
		"decideDeviceAuthorization": signedIn,

		"beginSecondFactor":   {whileLocked: true},
		"confirmSecondFactor": {whileLocked: true},
		"removeSecondFactor":  signedIn,
		"getPolicy":           all(tenant.OrganizationRead),
		"setPolicy":           all(tenant.OrganizationWrite),

		"listProjects":  can(tenant.IdentityRead),
		"createProject": all(tenant.IdentityWrite),
		"listAPIKeys":   can(tenant.IdentityRead),
		"createAPIKey":  can(tenant.IdentityWrite),
		"deleteAPIKey":  can(tenant.IdentityWrite),
		"rotateAPIKey":  can(tenant.IdentityWrite),
		"listSSHKeys":   can(tenant.IdentityRead),
		"createSSHKey":  can(tenant.IdentityWrite),
		"deleteSSHKey":  can(tenant.IdentityWrite),

		"listSites":          can(tenant.MarketRead),
		"listInstanceTypes":  can(tenant.MarketRead),
		"listPrices":         can(tenant.MarketRead),
		"getAvailability":    can(tenant.MarketRead),
		"searchAvailability": can(tenant.MarketRead),
		"listQuotes":         can(tenant.LeasesRead),
		"getQuote":           can(tenant.LeasesRead),
		"createQuote":        can(tenant.LeasesWrite),

		"listLeases":           can(tenant.LeasesRead),
		"createLease":          can(tenant.LeasesWrite),
		"getLease":             can(tenant.LeasesRead),
		"updateLease":          can(tenant.LeasesWrite),
		"extendLease":          can(tenant.LeasesWrite),
		"cancelLease":          can(tenant.LeasesWrite),
		"listLeaseNodes":       can(tenant.LeasesRead),
		"getLeaseNodeTopology": can(tenant.LeasesRead),
		"getLeaseNodePower":    can(tenant.LeasesRead),
		"setLeaseNodePower":    can(tenant.LeasesWrite),
		"listLeaseEvents":      can(tenant.LeasesRead),
		"getLeaseMetrics":      can(tenant.LeasesRead),
		"getLeaseUsage":        can(tenant.LeasesRead),
		"getLeaseIsolation":    can(tenant.LeasesRead),
		"requestAttestation":   can(tenant.LeasesWrite),
		"listWipeCertificates": can(tenant.LeasesRead),

		"getBalance":    all(tenant.BillingRead),
		"listLedger":    all(tenant.BillingRead),
		"listUsage":     all(tenant.BillingRead),
		"listTopUps":    all(tenant.BillingRead),
		"createTopUp":   {scope: tenant.BillingWrite, offTransaction: true, wholeOrganization: true},
		"listInvoices":  all(tenant.BillingRead),
		"getInvoice":    all(tenant.BillingRead),
		"getInvoicePdf": all(tenant.BillingRead),
		"exportFocus":   all(tenant.BillingRead),
		// Proved by the signature on its body.
		"receiveStripeWebhook": public,

		"listEvents":              all(tenant.EventsRead),
		"listWebhookEndpoints":    all(tenant.EventsRead),
		"getWebhookEndpoint":      all(tenant.EventsRead),
		"createWebhookEndpoint":   all(tenant.EventsWrite),
		"updateWebhookEndpoint":   all(tenant.EventsWrite),
		"deleteWebhookEndpoint":   all(tenant.EventsWrite),
		"rotateWebhookSecret":     all(tenant.EventsWrite),
		"testWebhookEndpoint":     all(tenant.EventsWrite),
		"listWebhookDeliveries":   all(tenant.EventsRead),
		"getWebhookDelivery":      all(tenant.EventsRead),
		"replayWebhookDeliveries": all(tenant.EventsWrite),

		"listMembers":      all(tenant.OrganizationRead),
		"getMember":        all(tenant.OrganizationRead),
		"updateMember":     all(tenant.OrganizationWrite),
		"deleteMember":     all(tenant.OrganizationWrite),
		"listInvitations":  all(tenant.OrganizationRead),
		"createInvitation": all(tenant.OrganizationWrite),
		"deleteInvitation": all(tenant.OrganizationWrite),
		// Proved by the invitation's token.
		"acceptInvitation":     public,
		"listGroups":           all(tenant.OrganizationRead),
		"getGroup":             all(tenant.OrganizationRead),
		"createGroup":          all(tenant.OrganizationWrite),
		"updateGroup":          all(tenant.OrganizationWrite),
		"deleteGroup":          all(tenant.OrganizationWrite),
		"listServiceAccounts":  all(tenant.OrganizationRead),
		"getServiceAccount":    all(tenant.OrganizationRead),
		"createServiceAccount": all(tenant.OrganizationWrite),
		"updateServiceAccount": all(tenant.OrganizationWrite),
		"deleteServiceAccount": all(tenant.OrganizationWrite),

		"listAuditEvents":   all(tenant.AuditRead),
		"exportAuditEvents": all(tenant.AuditRead),

		"adminListSites":             provider(tenant.AdminRead),
		"adminListNodes":             provider(tenant.AdminRead),
		"adminGetNode":               provider(tenant.AdminRead),
		"adminSetNodeState":          provider(tenant.AdminWrite),
		"adminListFabrics":           provider(tenant.AdminRead),
		"adminGetFabric":             provider(tenant.AdminRead),
		"adminGetTopology":           provider(tenant.AdminRead),
		"adminGetCapacity":           provider(tenant.AdminRead),
		"adminListFabricAudits":      operator(tenant.AdminRead),
		"adminAuditFabric":           operator(tenant.AdminWrite),
		"adminDismissDrift":          operator(tenant.AdminWrite),
		"adminOverridePosture":       operator(tenant.AdminWrite),
		"adminReservePKeys":          operator(tenant.AdminWrite),
		"adminSetPKeyRange":          operator(tenant.AdminWrite),
		"adminNameManagers":          operator(tenant.AdminWrite),
		"adminImportTopology":        operator(tenant.AdminWrite),
		"adminSettleChanges":         operator(tenant.AdminWrite),
		"adminCreateSite":            operator(tenant.AdminWrite),
		"adminCreateEnrollmentToken": operator(tenant.AdminWrite),
		"adminListOrganizations":     operator(tenant.AdminRead),
		"adminListLeases":            operator(tenant.AdminRead),
		"adminListAuditEvents":       operator(tenant.AdminRead),
		"adminExportAuditEvents":     operator(tenant.AdminRead),
		"adminRunDoctor":             operator(tenant.AdminRead),

		"getHealth":          public,
		"getReadiness":       public,
		"getJWKS":            public,
		"getAttestationKeys": public,
	}
}

// opens reports whether an operator's operation is for people of that kind of organization.
func (p permission) opens(kind tenant.OrgKind) bool {
	return kind == tenant.Operator || p.provider && kind == tenant.Provider
}

// permit answers Forbidden when the actor may not call the operation.
func (p permission) permit(actor tenant.Actor) error {
	switch {
	case actor.Locked && !p.whileLocked && !p.public:
		return fault.New(fault.Forbidden, "second-factor-missing", "set up a second factor first, at /v1/me/second-factor, or log in with yours")
	case p.public, p.scope == "":
		return nil
	case p.operator && !p.opens(actor.OrgKind):
		return fault.New(fault.Forbidden, "operator-only", "only the operator may do that")
	case p.wholeOrganization && !actor.Project.IsZero():
		return fault.New(fault.Forbidden, "limited-to-project", "this credential is limited to one project")
	case !actor.Role.Allows(p.scope, actor.OrgKind):
		return fault.New(fault.Forbidden, "role", "your role does not allow that").With("needed_scope", p.scope)
	case !actor.HasScope(p.scope):
		return fault.New(fault.Forbidden, "scope", "the API key lacks a scope").With("needed_scope", p.scope)
	default:
		return nil
	}
}
