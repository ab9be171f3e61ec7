// Package oidc asks an identity provider of the installation who somebody is (OpenID Connect, authorization code with PKCE).
package oidc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	gooidc "github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/tenant"
)

// Config is the provider and what we are to it.
type Config struct {
	Issuer       string
	ClientID     string
	ClientSecret string
	RedirectURL  string
}

// Provider asks one identity provider.
type Provider struct {
	config Config
	client *http.Client

	mu    sync.Mutex
	found *gooidc.Provider // nil: not discovered yet
}

// askWithin bounds each question to the provider.
const askWithin = 10 * time.Second

// New returns the provider. It is discovered when somebody first logs in: one that is away must not keep the installation from starting.
func New(config Config) *Provider {
	return &Provider{config: config, client: &http.Client{Timeout: askWithin}}
}

func (p *Provider) discover(ctx context.Context) (*gooidc.Provider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.found != nil {
		return p.found, nil
	}
	// The provider keeps the context for its keys, so that it must outlive this request.
	found, err := gooidc.NewProvider(gooidc.ClientContext(context.WithoutCancel(ctx), p.client), p.config.Issuer)
	if err != nil {
		return nil, errAway(err)
	}
	p.found = found
	return found, nil
}

func errAway(err error) error {
	return errors.Join(fault.New(fault.Unavailable, "identity-provider-unavailable", "the identity provider does not answer, try again"), err)
}

func (p *Provider) flow(found *gooidc.Provider) *oauth2.Config {
	return &oauth2.Config{
		ClientID: p.config.ClientID, ClientSecret: p.config.ClientSecret, RedirectURL: p.config.RedirectURL, Endpoint: found.Endpoint(),
		Scopes: []string{gooidc.ScopeOpenID, "email", "profile"},
	}
}

// Begin is where the browser is sent. The three are drawn anew for each log-in: state comes back, nonce comes back signed, and the verifier shows at
// the end that we are who began.
func (p *Provider) Begin(ctx context.Context, state, nonce, verifier string) (string, error) {
	found, err := p.discover(ctx)
	if err != nil {
		return "", err
	}
	return p.flow(found).AuthCodeURL(state, gooidc.Nonce(nonce), oauth2.S256ChallengeOption(verifier)), nil
}

// Finish trades the code for who it is. Unauthenticated when the provider does not say so.
func (p *Provider) Finish(ctx context.Context, code, nonce, verifier string) (tenant.Identity, error) {
	found, err := p.discover(ctx)
	if err != nil {
		return tenant.Identity{}, err
	}
	ctx = gooidc.ClientContext(ctx, p.client)
	token, err := p.flow(found).Exchange(ctx, code, oauth2.VerifierOption(verifier))
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused):
		return tenant.Identity{}, errNotProved(err)
	case err != nil:
		return tenant.Identity{}, errAway(err)
	}
	raw, ok := token.Extra("id_token").(string)
	if !ok {
		return tenant.Identity{}, errNotProved(errors.New("no id_token"))
	}
	proof, err := found.Verifier(&gooidc.Config{ClientID: p.config.ClientID}).Verify(ctx, raw)
	if err != nil {
		return tenant.Identity{}, errNotProved(err)
	}
	if proof.Nonce != nonce {
		return tenant.Identity{}, errNotProved(errors.New("another nonce"))
	}
	return p.identity(ctx, found, proof, token)
}

type claims struct {
	Email         string   `json:"email"`
	EmailVerified bool     `json:"email_verified"`
	Name          string   `json:"name"`
	Methods       []string `json:"amr"`
}

// identity reads the claims; a provider may keep the address for its user info.
func (p *Provider) identity(ctx context.Context, found *gooidc.Provider, proof *gooidc.IDToken, token *oauth2.Token) (tenant.Identity, error) {
	var c claims
	if err := proof.Claims(&c); err != nil {
		return tenant.Identity{}, errNotProved(err)
	}
	if c.Email == "" {
		info, err := found.UserInfo(ctx, oauth2.StaticTokenSource(token))
		if err != nil {
			return tenant.Identity{}, errAway(err)
		}
		if info.Subject != proof.Subject { // OpenID Connect Core, 5.3.2
			return tenant.Identity{}, errNotProved(errors.New("user info of somebody else"))
		}
		c.Email, c.EmailVerified = info.Email, info.EmailVerified
	}
	return tenant.Identity{
		Issuer: proof.Issuer, Subject: proof.Subject, Email: c.Email, EmailVerified: c.EmailVerified, Name: c.Name,
		// RFC 8176: more than one factor, a one-time password, or a key in hardware.
		SecondFactor: slices.ContainsFunc(c.Methods, func(m string) bool { return m == "mfa" || m == "otp" || m == "hwk" }),
	}, nil
}

func errNotProved(err error) error {
	return fmt.Errorf("%w: %w", fault.New(fault.Unauthenticated, "identity-not-proved", "the identity provider did not confirm who you are; try again"), err)
}
