package httpapi

import (
	"context"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
)

// notBuilt is TEMPORARY and goes away with pending in server.go: every operation answers that it is not built yet.
type notBuilt struct{}

func errNotBuilt() error {
	return fault.New(fault.Unavailable, "not-built", "this part of the API is not built yet")
}

func (notBuilt) GetAttestationKeys(context.Context, api.GetAttestationKeysRequestObject) (api.GetAttestationKeysResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) GetJWKS(context.Context, api.GetJWKSRequestObject) (api.GetJWKSResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) GetHealth(context.Context, api.GetHealthRequestObject) (api.GetHealthResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) GetReadiness(context.Context, api.GetReadinessRequestObject) (api.GetReadinessResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) AdminGetCapacity(context.Context, api.AdminGetCapacityRequestObject) (api.AdminGetCapacityResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) AdminRunDoctor(context.Context, api.AdminRunDoctorRequestObject) (api.AdminRunDoctorResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) AdminCreateEnrollmentToken(context.Context, api.AdminCreateEnrollmentTokenRequestObject) (api.AdminCreateEnrollmentTokenResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) AdminListFabrics(context.Context, api.AdminListFabricsRequestObject) (api.AdminListFabricsResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) AdminGetFabric(context.Context, api.AdminGetFabricRequestObject) (api.AdminGetFabricResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) AdminListLeases(context.Context, api.AdminListLeasesRequestObject) (api.AdminListLeasesResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) AdminListNodes(context.Context, api.AdminListNodesRequestObject) (api.AdminListNodesResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) AdminGetNode(context.Context, api.AdminGetNodeRequestObject) (api.AdminGetNodeResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) AdminSetNodeState(context.Context, api.AdminSetNodeStateRequestObject) (api.AdminSetNodeStateResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) AdminListOrganizations(context.Context, api.AdminListOrganizationsRequestObject) (api.AdminListOrganizationsResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) AdminListSites(context.Context, api.AdminListSitesRequestObject) (api.AdminListSitesResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) AdminCreateSite(context.Context, api.AdminCreateSiteRequestObject) (api.AdminCreateSiteResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ListAPIKeys(context.Context, api.ListAPIKeysRequestObject) (api.ListAPIKeysResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) CreateAPIKey(context.Context, api.CreateAPIKeyRequestObject) (api.CreateAPIKeyResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) DeleteAPIKey(context.Context, api.DeleteAPIKeyRequestObject) (api.DeleteAPIKeyResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) GetAvailability(context.Context, api.GetAvailabilityRequestObject) (api.GetAvailabilityResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) SearchAvailability(context.Context, api.SearchAvailabilityRequestObject) (api.SearchAvailabilityResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) GetBalance(context.Context, api.GetBalanceRequestObject) (api.GetBalanceResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ListInvoices(context.Context, api.ListInvoicesRequestObject) (api.ListInvoicesResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) GetInvoice(context.Context, api.GetInvoiceRequestObject) (api.GetInvoiceResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ListLedger(context.Context, api.ListLedgerRequestObject) (api.ListLedgerResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ListTopUps(context.Context, api.ListTopUpsRequestObject) (api.ListTopUpsResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) CreateTopUp(context.Context, api.CreateTopUpRequestObject) (api.CreateTopUpResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ListUsage(context.Context, api.ListUsageRequestObject) (api.ListUsageResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ListInstanceTypes(context.Context, api.ListInstanceTypesRequestObject) (api.ListInstanceTypesResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ListLeases(context.Context, api.ListLeasesRequestObject) (api.ListLeasesResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) CreateLease(context.Context, api.CreateLeaseRequestObject) (api.CreateLeaseResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) GetLease(context.Context, api.GetLeaseRequestObject) (api.GetLeaseResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) UpdateLease(context.Context, api.UpdateLeaseRequestObject) (api.UpdateLeaseResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) CancelLease(context.Context, api.CancelLeaseRequestObject) (api.CancelLeaseResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ListLeaseEvents(context.Context, api.ListLeaseEventsRequestObject) (api.ListLeaseEventsResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ExtendLease(context.Context, api.ExtendLeaseRequestObject) (api.ExtendLeaseResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) GetLeaseIsolation(context.Context, api.GetLeaseIsolationRequestObject) (api.GetLeaseIsolationResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) GetLeaseMetrics(context.Context, api.GetLeaseMetricsRequestObject) (api.GetLeaseMetricsResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ListLeaseNodes(context.Context, api.ListLeaseNodesRequestObject) (api.ListLeaseNodesResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) GetLeaseUsage(context.Context, api.GetLeaseUsageRequestObject) (api.GetLeaseUsageResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ListWipeCertificates(context.Context, api.ListWipeCertificatesRequestObject) (api.ListWipeCertificatesResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) GetMe(context.Context, api.GetMeRequestObject) (api.GetMeResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ListPrices(context.Context, api.ListPricesRequestObject) (api.ListPricesResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ListProjects(context.Context, api.ListProjectsRequestObject) (api.ListProjectsResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) CreateProject(context.Context, api.CreateProjectRequestObject) (api.CreateProjectResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ListQuotes(context.Context, api.ListQuotesRequestObject) (api.ListQuotesResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) CreateQuote(context.Context, api.CreateQuoteRequestObject) (api.CreateQuoteResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) GetQuote(context.Context, api.GetQuoteRequestObject) (api.GetQuoteResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) CreateSession(context.Context, api.CreateSessionRequestObject) (api.CreateSessionResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) DeleteSession(context.Context, api.DeleteSessionRequestObject) (api.DeleteSessionResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) RefreshSession(context.Context, api.RefreshSessionRequestObject) (api.RefreshSessionResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ListSites(context.Context, api.ListSitesRequestObject) (api.ListSitesResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ListSSHKeys(context.Context, api.ListSSHKeysRequestObject) (api.ListSSHKeysResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) CreateSSHKey(context.Context, api.CreateSSHKeyRequestObject) (api.CreateSSHKeyResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) DeleteSSHKey(context.Context, api.DeleteSSHKeyRequestObject) (api.DeleteSSHKeyResponseObject, error) {
	return nil, errNotBuilt()
}

func (notBuilt) ReceiveStripeWebhook(context.Context, api.ReceiveStripeWebhookRequestObject) (api.ReceiveStripeWebhookResponseObject, error) {
	return nil, errNotBuilt()
}
