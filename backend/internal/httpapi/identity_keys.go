package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/tenant"
)

// ListAPIKeys lists API keys, the newest first.
func (i Identity) ListAPIKeys(ctx context.Context, r api.ListAPIKeysRequestObject) (api.ListAPIKeysResponseObject, error) {
	page, err := pageAfter[ids.APIKey](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := i.Tenants.APIKeys(ctx, page.ahead())
	if err != nil {
		return nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(k tenant.APIKey) ids.APIKey { return k.ID })
	if err != nil {
		return nil, err
	}
	return api.ListAPIKeys200JSONResponse{
		Body: api.APIKeyList{Items: each(items, i.newAPIKeyView)}, Headers: api.ListAPIKeys200ResponseHeaders{Link: link},
	}, nil
}

// CreateAPIKey makes an API key.
func (i Identity) CreateAPIKey(ctx context.Context, r api.CreateAPIKeyRequestObject) (api.CreateAPIKeyResponseObject, error) {
	in := tenant.APIKeyInput{Name: r.Body.Name, ExpiresAt: orZero(r.Body.ExpiresAt).UTC()}
	for _, scope := range r.Body.Scopes {
		in.Scopes = append(in.Scopes, string(scope))
	}
	if r.Body.ProjectID != nil {
		project, err := idFromBody[ids.Project](*r.Body.ProjectID, "/project_id")
		if err != nil {
			return nil, err
		}
		in.Project = project
	}
	if r.Body.ServiceAccountID != nil {
		service, err := idFromBody[ids.Service](*r.Body.ServiceAccountID, "/service_account_id")
		if err != nil {
			return nil, err
		}
		in.Service = service
	}
	var err error
	if in.Networks, err = networksFromBody(orZero(r.Body.AllowedNetworks)); err != nil {
		return nil, err
	}
	key, secret, err := i.Tenants.CreateAPIKey(ctx, in)
	if err != nil {
		return nil, err
	}
	view := i.newAPIKeyView(key)
	view.Secret = &secret
	return api.CreateAPIKey201JSONResponse(view), nil
}

// networksFromBody reads networks, and single addresses as networks of one.
func networksFromBody(texts []string) ([]netip.Prefix, error) {
	networks := make([]netip.Prefix, len(texts))
	for n, text := range texts {
		network, err := netip.ParsePrefix(text)
		if address, addressErr := netip.ParseAddr(text); addressErr == nil && address.Zone() == "" {
			network, err = netip.PrefixFrom(address.Unmap(), address.Unmap().BitLen()), nil
		}
		if err != nil {
			return nil, fault.New(fault.Invalid, "invalid-request", "the request has defects").At(fmt.Sprintf("/allowed_networks/%d", n), "is neither an address nor a network such as 192.0.2.0/24")
		}
		networks[n] = network.Masked()
	}
	return networks, nil
}

// RotateAPIKey gives a key another secret.
func (i Identity) RotateAPIKey(ctx context.Context, r api.RotateAPIKeyRequestObject) (api.RotateAPIKeyResponseObject, error) {
	id, err := idFromPath[ids.APIKey](r.APIKeyID)
	if err != nil {
		return nil, err
	}
	var overlap *time.Duration
	if r.Body.OverlapSeconds != nil {
		overlap = new(time.Duration(*r.Body.OverlapSeconds) * time.Second)
	}
	key, secret, err := i.Tenants.RotateAPIKey(ctx, id, overlap)
	if err != nil {
		return nil, err
	}
	view := i.newAPIKeyView(key)
	view.Secret = &secret
	return api.RotateAPIKey201JSONResponse(view), nil
}

func (i Identity) newAPIKeyView(k tenant.APIKey) api.APIKey {
	networks := each(k.Networks, netip.Prefix.String)
	return api.APIKey{
		ServiceAccountID: orNil(k.Service.String()), AllowedNetworks: &networks, Prefix: new(i.Tenants.Prefix(k.ID)), PreviousSecretValidUntil: orNil(k.PreviousUntil),
		ID: k.ID.String(), Name: k.Name, Scopes: each(k.Scopes, func(s string) api.Scope { return api.Scope(s) }), ProjectID: orNil(k.Project.String()),
		CreatedAt: k.CreatedAt, ExpiresAt: orNil(k.ExpiresAt), LastUsedAt: orNil(k.LastUsedAt), RevokedAt: orNil(k.RevokedAt),
	}
}

// DeleteAPIKey revokes an API key.
func (i Identity) DeleteAPIKey(ctx context.Context, r api.DeleteAPIKeyRequestObject) (api.DeleteAPIKeyResponseObject, error) {
	id, err := idFromPath[ids.APIKey](r.APIKeyID)
	if err != nil {
		return nil, err
	}
	if err := i.Tenants.RevokeAPIKey(ctx, id); err != nil {
		return nil, err
	}
	return api.DeleteAPIKey204Response{}, nil
}

// ListSSHKeys lists SSH keys, the newest first.
func (i Identity) ListSSHKeys(ctx context.Context, r api.ListSSHKeysRequestObject) (api.ListSSHKeysResponseObject, error) {
	page, err := pageAfter[ids.SSHKey](r.Params.Limit, r.Params.Cursor)
	if err != nil {
		return nil, err
	}
	found, err := i.Tenants.SSHKeys(ctx, page.ahead())
	if err != nil {
		return nil, err
	}
	items, link, err := cutPageByID(ctx, found, page, func(k tenant.SSHKey) ids.SSHKey { return k.ID })
	if err != nil {
		return nil, err
	}
	return api.ListSSHKeys200JSONResponse{
		Body: api.SSHKeyList{Items: each(items, newSSHKeyView)}, Headers: api.ListSSHKeys200ResponseHeaders{Link: link},
	}, nil
}

// CreateSSHKey adds an SSH key.
func (i Identity) CreateSSHKey(ctx context.Context, r api.CreateSSHKeyRequestObject) (api.CreateSSHKeyResponseObject, error) {
	key, err := i.Tenants.CreateSSHKey(ctx, r.Body.Name, r.Body.PublicKey)
	if err != nil {
		return nil, err
	}
	return api.CreateSSHKey201JSONResponse(newSSHKeyView(key)), nil
}

func newSSHKeyView(k tenant.SSHKey) api.SSHKey {
	return api.SSHKey{ID: k.ID.String(), Name: k.Name, PublicKey: k.PublicKey, Fingerprint: k.Fingerprint, CreatedAt: k.CreatedAt}
}

// DeleteSSHKey removes an SSH key.
func (i Identity) DeleteSSHKey(ctx context.Context, r api.DeleteSSHKeyRequestObject) (api.DeleteSSHKeyResponseObject, error) {
	id, err := idFromPath[ids.SSHKey](r.SSHKeyID)
	if err != nil {
		return nil, err
	}
	if err := i.Tenants.DeleteSSHKey(ctx, id); err != nil {
		return nil, err
	}
	return api.DeleteSSHKey204Response{}, nil
}

// hashedEmail keys a bucket without keeping addresses of strangers.
func hashedEmail(email string) string {
	sum := sha256.Sum256([]byte(strings.ToLower(strings.TrimSpace(email))))
	return hex.EncodeToString(sum[:16])
}

func errTooManyLogIns(wait time.Duration) error {
	return fault.New(fault.Exhausted, "rate-limited", "too many log-ins for this address, try again in %d s", seconds(wait)).With(factRetryAfter, seconds(wait))
}
