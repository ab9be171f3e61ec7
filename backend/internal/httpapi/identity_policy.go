package httpapi

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/tenant"
)

// BeginSecondFactor draws a secret for an authenticator app.
func (i Identity) BeginSecondFactor(ctx context.Context, _ api.BeginSecondFactorRequestObject) (api.BeginSecondFactorResponseObject, error) {
	secret, address, err := i.Tenants.BeginSecondFactor(ctx)
	if err != nil {
		return nil, err
	}
	return api.BeginSecondFactor201JSONResponse{Secret: &secret, OtpauthURL: &address}, nil
}

// ConfirmSecondFactor takes the first code.
func (i Identity) ConfirmSecondFactor(ctx context.Context, r api.ConfirmSecondFactorRequestObject) (api.ConfirmSecondFactorResponseObject, error) {
	codes, err := i.Tenants.ConfirmSecondFactor(ctx, r.Body.Code)
	if err != nil {
		return nil, err
	}
	return api.ConfirmSecondFactor201JSONResponse{RecoveryCodes: &codes}, nil
}

// RemoveSecondFactor takes the factor away. Tries are bounded: who has found an open session does not get to guess.
func (i Identity) RemoveSecondFactor(ctx context.Context, r api.RemoveSecondFactorRequestObject) (api.RemoveSecondFactorResponseObject, error) {
	me, err := i.Tenants.Me(ctx)
	if err != nil {
		return nil, err
	}
	if err := i.boundCodes(ctx, tenant.LogInInput{Email: me.User.Email, Code: r.Body.Code}); err != nil {
		return nil, err
	}
	if err := i.Tenants.RemoveSecondFactor(ctx, r.Body.Code); err != nil {
		return nil, err
	}
	return api.RemoveSecondFactor204Response{}, nil
}

// GetPolicy reads the organization's policy.
func (i Identity) GetPolicy(ctx context.Context, _ api.GetPolicyRequestObject) (api.GetPolicyResponseObject, error) {
	policy, err := i.Tenants.Policy(ctx)
	if err != nil {
		return nil, err
	}
	return api.GetPolicy200JSONResponse{Body: newPolicyView(policy), Headers: api.GetPolicy200ResponseHeaders{ETag: etag(policy.Version)}}, nil
}

func newPolicyView(p tenant.Policy) api.Policy {
	return api.Policy{
		InstanceTypes: p.InstanceTypes, Sites: p.Sites, MaxDurationSeconds: orNil(int64(p.MaxDuration / time.Second)), MaxLeaseMinor: p.MaxLeaseMinor,
		MaxKeySeconds: orNil(int64(p.MaxKeyLife / time.Second)), RequireSecondFactor: &p.RequireSecondFactor,
	}
}

// SetPolicy replaces the organization's policy.
func (i Identity) SetPolicy(ctx context.Context, r api.SetPolicyRequestObject) (api.SetPolicyResponseObject, error) {
	version, err := ifMatch(r.Params.IfMatch)
	if err != nil {
		return nil, err
	}
	after, err := i.Tenants.SetPolicy(ctx, version, tenant.Policy{
		InstanceTypes: r.Body.InstanceTypes, Sites: r.Body.Sites, MaxDuration: policySpan(r.Body.MaxDurationSeconds), MaxLeaseMinor: r.Body.MaxLeaseMinor,
		MaxKeyLife: policySpan(r.Body.MaxKeySeconds), RequireSecondFactor: orZero(r.Body.RequireSecondFactor),
	})
	if err != nil {
		return nil, err
	}
	return api.SetPolicy200JSONResponse{Body: newPolicyView(after), Headers: api.SetPolicy200ResponseHeaders{ETag: etag(after.Version)}}, nil
}

// policySpan is at most a century, which is no limit but fits.
func policySpan(seconds *int64) time.Duration {
	const century = 100 * 365 * 24 * 60 * 60
	return time.Duration(min(orZero(seconds), century)) * time.Second
}
