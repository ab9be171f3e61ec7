package httpapi

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/tenant"
)

// IdentityProvider asks somebody else who a person is.
type IdentityProvider interface {
	Begin(ctx context.Context, state, nonce, verifier string) (string, error)
	// Finish answers Unauthenticated when the provider does not confirm it.
	Finish(ctx context.Context, code, nonce, verifier string) (tenant.Identity, error)
}

const (
	oidcCookie = "leasehold_oidc"
	oidcWithin = 10 * time.Minute
)

// oidcTrip is what a browser carries through a log-in, sealed: any replica can take it up, and nobody can start a log-in for somebody else.
type oidcTrip struct {
	State    string    `json:"state"`
	Nonce    string    `json:"nonce"`
	Verifier string    `json:"verifier"`
	Next     string    `json:"next"`
	Until    time.Time `json:"until"`
}

// GetLogInMethods says how people can log in here.
func (i Identity) GetLogInMethods(context.Context, api.GetLogInMethodsRequestObject) (api.GetLogInMethodsResponseObject, error) {
	return api.GetLogInMethods200JSONResponse{Password: true, Oidc: i.OIDC != nil}, nil
}

// BeginOidc sends the browser to the identity provider.
func (i Identity) BeginOidc(ctx context.Context, r api.BeginOidcRequestObject) (api.BeginOidcResponseObject, error) {
	if i.OIDC == nil {
		return nil, fault.New(fault.NotFound, "no-identity-provider", "this installation has no identity provider; log in with a password")
	}
	trip := oidcTrip{State: rand.Text(), Nonce: rand.Text(), Verifier: rand.Text() + rand.Text(), Next: ownPath(orZero(r.Params.Next)), Until: i.Tenants.Now().Add(oidcWithin)}
	to, err := i.OIDC.Begin(ctx, trip.State, trip.Nonce, trip.Verifier)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(trip)
	if err != nil {
		return nil, err
	}
	cookie := http.Cookie{ //nolint:gosec // Secure is not for plain loopback, see SecureCookies
		Name: oidcCookie, Value: base64.RawURLEncoding.EncodeToString(i.Vault.Seal(raw, oidcCookie)), Path: "/v1/sessions/oidc", MaxAge: int(oidcWithin / time.Second),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: i.SecureCookies, // Lax: the provider's site sends the browser back
	}
	return api.BeginOidc302Response{Headers: api.BeginOidc302ResponseHeaders{Location: to, SetCookie: cookie.String()}}, nil
}

// ownPath is a path of ours, whatever the link said.
func ownPath(next string) string {
	if regexp.MustCompile(`^/[A-Za-z0-9_]`).MatchString(next) && !strings.ContainsAny(next, "\\\r\n") {
		return next
	}
	return "/"
}

// FinishOidc takes the browser back, logged in; or to the log-in's page with what was wrong.
func (i Identity) FinishOidc(ctx context.Context, r api.FinishOidcRequestObject) (api.FinishOidcResponseObject, error) {
	trip, err := i.tripOf(ctx)
	if err == nil && (r.Params.State == nil || *r.Params.State != trip.State) {
		err = errTrip()
	}
	if err == nil && r.Params.Code == nil {
		err = fault.New(fault.Unauthenticated, "identity-not-proved", "the identity provider did not confirm who you are; try again")
	}
	if err != nil {
		return i.failedOidc(err)
	}
	identity, err := i.OIDC.Finish(ctx, *r.Params.Code, trip.Nonce, trip.Verifier)
	if err != nil {
		return i.failedOidc(err)
	}
	grant, err := i.Tenants.LogInAs(ctx, identity, requestFrom(ctx).userAgent)
	if err != nil {
		return i.failedOidc(err)
	}
	return api.FinishOidc302Response{Headers: api.FinishOidc302ResponseHeaders{
		Location: trip.Next, SetCookie: new(i.cookie(grant.RefreshToken, grant.RefreshTTL)),
	}}, nil
}

func errTrip() error {
	return fault.New(fault.Unauthenticated, "log-in-expired", "this log-in was not begun in this browser, or took too long; try again")
}

func (i Identity) tripOf(ctx context.Context) (oidcTrip, error) {
	var trip oidcTrip
	if i.OIDC == nil {
		return trip, fault.New(fault.NotFound, "no-identity-provider", "this installation has no identity provider")
	}
	sealed, err := base64.RawURLEncoding.DecodeString(requestFrom(ctx).oidc)
	if err != nil {
		return trip, errTrip()
	}
	raw, err := i.Vault.Unseal(sealed, oidcCookie)
	if err != nil || json.Unmarshal(raw, &trip) != nil || !i.Tenants.Now().Before(trip.Until) {
		return trip, errTrip()
	}
	return trip, nil
}

// failedOidc is for people: a browser is what is here. What is our own defect stays a problem.
func (i Identity) failedOidc(err error) (api.FinishOidcResponseObject, error) {
	code := fault.CodeOf(err)
	if code == "" || code == "no-identity-provider" {
		return nil, err
	}
	return api.FinishOidc302Response{Headers: api.FinishOidc302ResponseHeaders{Location: "/login?problem=" + url.QueryEscape(code)}}, nil
}
