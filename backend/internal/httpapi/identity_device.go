package httpapi

import (
	"context"
	"net/url"
	"time"

	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/tenant"
)

// StartDeviceAuthorization begins the log-in of a program without a browser.
func (i Identity) StartDeviceAuthorization(
	ctx context.Context, r api.StartDeviceAuthorizationRequestObject,
) (api.StartDeviceAuthorizationResponseObject, error) {
	grant, token, err := i.Tenants.StartDevice(ctx, orElse(r.Body.Client, requestFrom(ctx).userAgent))
	if err != nil {
		return nil, err
	}
	page := i.PublicURL + "/device"
	return api.StartDeviceAuthorization201JSONResponse{
		DeviceCode: token, UserCode: grant.UserCode, VerificationURL: page, VerificationURLComplete: page + "?code=" + url.QueryEscape(grant.UserCode),
		ExpiresInSeconds: int(tenant.DeviceLife / time.Second), IntervalSeconds: int(tenant.DeviceInterval / time.Second),
	}, nil
}

// ClaimDeviceAuthorization gives the program its session once somebody has approved.
func (i Identity) ClaimDeviceAuthorization(
	ctx context.Context, r api.ClaimDeviceAuthorizationRequestObject,
) (api.ClaimDeviceAuthorizationResponseObject, error) {
	grant, err := i.Tenants.ClaimDevice(ctx, r.Body.DeviceCode, requestFrom(ctx).userAgent)
	if err != nil {
		return nil, err
	}
	return api.ClaimDeviceAuthorization201JSONResponse{
		Body: i.newSessionView(grant), Headers: api.ClaimDeviceAuthorization201ResponseHeaders{SetCookie: i.cookie(grant.RefreshToken, grant.RefreshTTL)},
	}, nil
}

// GetDeviceAuthorization shows what asks, to whoever decides.
func (i Identity) GetDeviceAuthorization(ctx context.Context, r api.GetDeviceAuthorizationRequestObject) (api.GetDeviceAuthorizationResponseObject, error) {
	grant, err := i.Tenants.Device(ctx, r.UserCode)
	if err != nil {
		return nil, err
	}
	return api.GetDeviceAuthorization200JSONResponse{
		UserCode: grant.UserCode, Client: grant.Client, Source: grant.Source, CreatedAt: grant.CreatedAt, ExpiresAt: grant.ExpiresAt,
	}, nil
}

// DecideDeviceAuthorization approves or refuses.
func (i Identity) DecideDeviceAuthorization(
	ctx context.Context, r api.DecideDeviceAuthorizationRequestObject,
) (api.DecideDeviceAuthorizationResponseObject, error) {
	if err := i.Tenants.DecideDevice(ctx, r.UserCode, r.Body.Approve); err != nil {
		return nil, err
	}
	return api.DecideDeviceAuthorization204Response{}, nil
}
