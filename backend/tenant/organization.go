package tenant

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
)

// Organization is a tenant: a customer, a provider or the operator.
type Organization struct {
	ID         ids.Org
	Name       string
	Kind       OrgKind
	Country    string // ISO 3166-1 alpha-2
	Currency   string // ISO 4217, what it pays in
	TaxRateBPS int64  // basis points
	// CreditLimitMinor is how far below zero its cash may go, in minor units of its currency.
	CreditLimitMinor int64
	// PlatformFeeBPS is what the platform keeps of a provider's earnings, in basis points.
	PlatformFeeBPS      int64
	BookingsSuspendedAt time.Time // zero: it may book
	Version             int64
	CreatedAt           time.Time
}

// Organization returns one organization; NotFound for another one than the actor's.
func (s *Service) Organization(ctx context.Context, id ids.Org) (Organization, error) {
	var org Organization
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		org, err = s.accounts.Organization(ctx, id)
		return err
	})
	if err != nil {
		return Organization{}, fmt.Errorf("get organization: %w", err)
	}
	return org, nil
}

// Page asks for a part of a list in its stable order: what comes after the id, Limit items at most.
type Page[ID any] struct {
	After ID // zero: from the start
	Limit int
}

// Organizations lists all organizations by id, for the platform only: an organization's actor sees its own.
func (s *Service) Organizations(ctx context.Context, page Page[ids.Org]) ([]Organization, error) {
	var orgs []Organization
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		orgs, err = s.accounts.Organizations(ctx, page)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list organizations: %w", err)
	}
	return orgs, nil
}
