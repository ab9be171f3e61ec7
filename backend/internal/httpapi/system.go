package httpapi

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/internal/keys"
)

// System is health and public keys.
type System struct {
	// Checks say by name what the process needs to serve, e.g. database and migrations.
	Checks map[string]func(ctx context.Context) error
	Keys   keys.Registry
	Log    *slog.Logger
}

// checkTimeout bounds readiness: whoever asks wants to know soon.
const checkTimeout = 2 * time.Second

// GetHealth answers as long as the process can.
func (System) GetHealth(context.Context, api.GetHealthRequestObject) (api.GetHealthResponseObject, error) {
	return api.GetHealth200JSONResponse{Status: "ok"}, nil
}

// GetReadiness runs every check; why one failed is for the log only.
func (s System) GetReadiness(ctx context.Context, _ api.GetReadinessRequestObject) (api.GetReadinessResponseObject, error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	results, ready := s.check(ctx)
	if !ready {
		return api.GetReadiness503JSONResponse{Status: "unavailable", Checks: &results}, nil
	}
	return api.GetReadiness200JSONResponse{Status: "ok", Checks: &results}, nil
}

func (s System) check(ctx context.Context) (map[string]string, bool) {
	var (
		mu      sync.Mutex
		wait    sync.WaitGroup
		ready   = true
		results = make(map[string]string, len(s.Checks))
	)
	for name, check := range s.Checks {
		wait.Go(func() {
			err := check(ctx)
			mu.Lock()
			defer mu.Unlock()
			results[name] = "ok"
			if err != nil {
				results[name], ready = "failed", false
				s.Log.WarnContext(ctx, "not ready", slog.String("check", name), slog.Any("error", err))
			}
		})
	}
	wait.Wait()
	return results, ready
}

// GetJWKS lists the keys of access tokens that are in use.
func (s System) GetJWKS(ctx context.Context, _ api.GetJWKSRequestObject) (api.GetJWKSResponseObject, error) {
	set, err := s.keySet(ctx, keys.Session, false)
	return api.GetJWKS200JSONResponse(set), err
}

// GetAttestationKeys lists all keys that ever signed an attestation or a wipe certificate.
func (s System) GetAttestationKeys(ctx context.Context, _ api.GetAttestationKeysRequestObject) (api.GetAttestationKeysResponseObject, error) {
	set, err := s.keySet(ctx, keys.Attestation, true)
	return api.GetAttestationKeys200JSONResponse(set), err
}

// keySet is a JWK set (RFC 7517, 8037).
func (s System) keySet(ctx context.Context, purpose keys.Purpose, retired bool) (map[string]any, error) {
	published, err := s.Keys.PublishedKeys(ctx, purpose)
	if err != nil {
		return nil, fmt.Errorf("list %s keys: %w", purpose, err)
	}
	set := []map[string]any{}
	for _, key := range published {
		if !retired && !key.RetiredAt.IsZero() {
			continue
		}
		jwk := map[string]any{
			"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": key.KeyID, "x": base64.RawURLEncoding.EncodeToString(key.Public),
		}
		if !key.RetiredAt.IsZero() {
			jwk["retired_at"] = key.RetiredAt
		}
		set = append(set, jwk)
	}
	return map[string]any{"keys": set}, nil
}
