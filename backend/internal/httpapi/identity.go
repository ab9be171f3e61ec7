package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/internal/ratelimit"
	"github.com/leasehold/leasehold/backend/tenant"
)

// Identity is sessions, projects and keys.
type Identity struct {
	Tenants *tenant.Service
	// Gateway is the payment gateway's name, which every page that shows money must say: stripe or test.
	Gateway string
	// OIDC is the installation's identity provider; nil: none. Vault seals what a browser carries through such a log-in.
	OIDC  IdentityProvider
	Vault tenant.Vault
	// PublicURL is where people find the portal.
	PublicURL string
	// SecureCookies is set wherever people come by HTTPS; on plain loopback a browser would drop such a cookie.
	SecureCookies bool
	// LogIns bounds the tries at one e-mail address, from wherever they come; nil: no bound.
	LogIns *ratelimit.Limiter
	// Codes bounds the tries of second factors at one address: there are only a million codes. nil: no bound.
	Codes *ratelimit.Limiter
}

// CreateSession logs in.
func (i Identity) CreateSession(ctx context.Context, r api.CreateSessionRequestObject) (api.CreateSessionResponseObject, error) {
	in := tenant.LogInInput{Email: r.Body.Email, Password: r.Body.Password, UserAgent: requestFrom(ctx).userAgent, Code: orZero(r.Body.Code)}
	if r.Body.OrganizationID != nil {
		org, err := idFromBody[ids.Org](*r.Body.OrganizationID, "/organization_id")
		if err != nil {
			return nil, err
		}
		in.Org = org
	}
	if err := i.boundLogIns(ctx, in.Email); err != nil {
		return nil, err
	}
	if err := i.boundCodes(ctx, in); err != nil {
		return nil, err
	}
	grant, err := i.Tenants.LogIn(ctx, in)
	if err != nil {
		return nil, err
	}
	return api.CreateSession201JSONResponse{
		Body: i.newSessionView(grant), Headers: api.CreateSession201ResponseHeaders{SetCookie: i.cookie(grant.RefreshToken, grant.RefreshTTL)},
	}, nil
}

// RefreshSession trades the cookie. One that no longer works is taken away.
func (i Identity) RefreshSession(ctx context.Context, _ api.RefreshSessionRequestObject) (api.RefreshSessionResponseObject, error) {
	grant, err := i.Tenants.Refresh(ctx, requestFrom(ctx).cookie)
	if err != nil {
		return nil, err
	}
	return api.RefreshSession201JSONResponse{
		Body: i.newSessionView(grant), Headers: api.RefreshSession201ResponseHeaders{SetCookie: i.cookie(grant.RefreshToken, grant.RefreshTTL)},
	}, nil
}

// DeleteSession logs out.
func (i Identity) DeleteSession(ctx context.Context, _ api.DeleteSessionRequestObject) (api.DeleteSessionResponseObject, error) {
	if err := i.Tenants.LogOut(ctx); err != nil {
		return nil, err
	}
	gone := i.cookie("", 0)
	return api.DeleteSession204Response{Headers: api.DeleteSession204ResponseHeaders{SetCookie: &gone}}, nil
}

// cookie is the refresh cookie: no script can read it, no other site can send it, and only the session routes get it.
func (i Identity) cookie(token string, ttl time.Duration) string {
	cookie := http.Cookie{ //nolint:gosec // Secure is not for plain loopback, see SecureCookies
		Name: refreshCookie, Value: token, Path: "/v1/sessions", MaxAge: int(ttl / time.Second), HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: i.SecureCookies,
	}
	if token == "" {
		cookie.MaxAge = -1
	}
	return cookie.String()
}

func (i Identity) newSessionView(grant tenant.Grant) api.Session {
	return api.Session{AccessToken: grant.AccessToken, ExpiresAt: grant.AccessExpiresAt, Me: i.newMeView(grant.Me)}
}

// GetMe describes the credential.
func (i Identity) GetMe(ctx context.Context, _ api.GetMeRequestObject) (api.GetMeResponseObject, error) {
	me, err := i.Tenants.Me(ctx)
	if err != nil {
		return nil, err
	}
	return api.GetMe200JSONResponse(i.newMeView(me)), nil
}

func (i Identity) newMeView(me tenant.Me) api.Me {
	view := api.Me{
		Actor: me.Actor.Name(), Organization: newOrganizationView(me.Organization), Role: api.MeRole(me.Actor.Role),
		Scopes: append([]string{}, me.Actor.Scopes...), PaymentGateway: api.MePaymentGateway(i.Gateway),
		SecondFactor: me.Actor.SecondFactor, SecondFactorMissing: me.Actor.Locked,
	}
	if me.Actor.APIKey.IsZero() { // a program has no name and address to show
		view.User = &api.User{ID: me.User.ID.String(), Email: me.User.Email, Name: me.User.Name}
	}
	return view
}

func newOrganizationView(o tenant.Organization) api.Organization {
	return api.Organization{
		ID: o.ID.String(), Name: o.Name, Kind: api.OrganizationKind(o.Kind), Currency: o.Currency, Country: o.Country, CreatedAt: o.CreatedAt,
	}
}

// ListProjects lists projects, the oldest first.
func (i Identity) ListProjects(ctx context.Context, r api.ListProjectsRequestObject) (api.ListProjectsResponseObject, error) {
	page, err := pageAfter[ids.Project](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := i.Tenants.Projects(ctx, page.ahead())
	if err != nil {
		return nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(p tenant.Project) ids.Project { return p.ID })
	if err != nil {
		return nil, err
	}
	return api.ListProjects200JSONResponse{
		Body: api.ProjectList{Items: each(items, newProjectView)}, Headers: api.ListProjects200ResponseHeaders{Link: link},
	}, nil
}

// CreateProject makes a project.
func (i Identity) CreateProject(ctx context.Context, r api.CreateProjectRequestObject) (api.CreateProjectResponseObject, error) {
	project, err := i.Tenants.CreateProject(ctx, r.Body.Name)
	if err != nil {
		return nil, err
	}
	return api.CreateProject201JSONResponse{
		Body: newProjectView(project), Headers: api.CreateProject201ResponseHeaders{ETag: etag(project.Version)},
	}, nil
}

func newProjectView(p tenant.Project) api.Project {
	return api.Project{ID: p.ID.String(), Name: p.Name, CreatedAt: p.CreatedAt}
}

// boundCodes refuses too many codes at one address.
func (i Identity) boundCodes(ctx context.Context, in tenant.LogInInput) error {
	if i.Codes == nil || in.Code == "" {
		return nil
	}
	verdict, err := i.Codes.Allow(ctx, hashedEmail(in.Email))
	if err != nil || verdict.Allowed {
		return err
	}
	return errTooManyLogIns(verdict.RetryAfter)
}

// boundLogIns refuses too many tries at one address.
func (i Identity) boundLogIns(ctx context.Context, email string) error {
	if i.LogIns == nil {
		return nil
	}
	verdict, err := i.LogIns.Allow(ctx, hashedEmail(email))
	if err != nil || verdict.Allowed {
		return err
	}
	return errTooManyLogIns(verdict.RetryAfter)
}
