package tenant

import (
	"context"
	"fmt"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Seed is one organization with its first person, for a first start.
type Seed struct {
	Organization     string
	Kind             OrgKind
	Country          string // default US
	Currency         string // default USD
	TaxRateBPS       int64
	CreditLimitMinor int64
	PlatformFeeBPS   int64
	Email            string
	Name             string
	Password         string
	Role             Role // default owner
}

// Seeded is what a seed became.
type Seeded struct {
	Org     ids.Org
	User    ids.User
	Project ids.Project
}

// Bootstrap brings every seed about, as the platform. What exists stays, so that a second start changes nothing, with one exception:
// a person whose password is another one gets the seed's, since a first start's password file may be lost.
func (s *Service) Bootstrap(ctx context.Context, seeds []Seed) ([]Seeded, error) {
	ctx = AsPlatform(ctx)
	made := make([]Seeded, len(seeds))
	for i, seed := range seeds {
		if err := checkPassword(seed.Password); err != nil {
			return nil, fmt.Errorf("bootstrap %s: %w", seed.Email, err)
		}
		err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
			var err error
			made[i], err = s.plant(ctx, seed.withDefaults())
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("bootstrap %s: %w", seed.Email, err)
		}
	}
	return made, nil
}

func (seed Seed) withDefaults() Seed {
	if seed.Country == "" {
		seed.Country = "US"
	}
	if seed.Currency == "" {
		seed.Currency = "USD"
	}
	if seed.Role == "" {
		seed.Role = Owner
	}
	seed.Email = normalizeEmail(seed.Email)
	return seed
}

func (s *Service) plant(ctx context.Context, seed Seed) (Seeded, error) {
	org, err := s.plantOrganization(ctx, seed)
	if err != nil {
		return Seeded{}, err
	}
	project, err := s.plantProject(ctx, org)
	if err != nil {
		return Seeded{}, err
	}
	user, err := s.plantUser(ctx, seed)
	if err != nil {
		return Seeded{}, err
	}
	err = s.accounts.AddMembership(ctx, Membership{Org: org, User: user, Role: seed.Role}, s.clock.Now())
	return Seeded{Org: org, User: user, Project: project}, err
}

func (s *Service) plantOrganization(ctx context.Context, seed Seed) (ids.Org, error) {
	found, err := s.accounts.OrganizationByName(ctx, seed.Organization)
	if !fault.Is(err, fault.NotFound) {
		return found.ID, err
	}
	org := Organization{
		ID: ids.Make[ids.Org](), Name: seed.Organization, Kind: seed.Kind, Country: seed.Country, Currency: seed.Currency,
		TaxRateBPS: seed.TaxRateBPS, CreditLimitMinor: seed.CreditLimitMinor, PlatformFeeBPS: seed.PlatformFeeBPS, Version: 1, CreatedAt: s.clock.Now(),
	}
	if err := s.accounts.CreateOrganization(ctx, org); err != nil {
		return ids.Org{}, err
	}
	ctx = WithActor(ctx, Actor{Org: org.ID, Platform: true})
	return org.ID, s.audit.Record(ctx, "organization.created", org.ID.String(), nil, map[string]any{"name": org.Name, "kind": org.Kind})
}

func (s *Service) plantProject(ctx context.Context, org ids.Org) (ids.Project, error) {
	found, err := s.projects.ProjectByName(ctx, org, DefaultProjectName)
	if !fault.Is(err, fault.NotFound) {
		return found.ID, err
	}
	project := Project{ID: ids.Make[ids.Project](), Org: org, Name: DefaultProjectName, Version: 1, CreatedAt: s.clock.Now()}
	return project.ID, s.projects.CreateProject(ctx, project)
}

func (s *Service) plantUser(ctx context.Context, seed Seed) (ids.User, error) {
	found, err := s.accounts.UserByEmail(ctx, seed.Email)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return ids.User{}, err
	}
	if err == nil {
		same, err := s.passwords.verify(ctx, found.PasswordHash, seed.Password)
		if err != nil || same {
			return found.ID, err
		}
		return found.ID, s.rehash(ctx, found.ID, seed.Password)
	}
	hash, err := s.passwords.hash(ctx, seed.Password)
	if err != nil {
		return ids.User{}, err
	}
	user := User{ID: ids.Make[ids.User](), Email: seed.Email, Name: seed.Name, PasswordHash: hash, CreatedAt: s.clock.Now()}
	return user.ID, s.accounts.CreateUser(ctx, user)
}
