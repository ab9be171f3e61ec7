package tenant

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// ServiceAccount is a program of an organization. Its keys act with its role, and go on when the person who made them leaves.
type ServiceAccount struct {
	ID         ids.Service
	Org        ids.Org
	Name       string
	Role       Role
	Project    ids.Project // zero: the whole organization
	CreatedBy  string
	CreatedAt  time.Time
	ExpiresAt  time.Time // zero: never
	DisabledAt time.Time // zero: its keys work
	Version    int64
}

// ServiceAccounts keeps service accounts. An organization's actor sees its own; others' are not found.
type ServiceAccounts interface {
	// InsertServiceAccount and UpdateServiceAccount answer Conflict when the name is taken.
	InsertServiceAccount(ctx context.Context, account ServiceAccount) error
	UpdateServiceAccount(ctx context.Context, account ServiceAccount) error
	ServiceAccountForUpdate(ctx context.Context, id ids.Service) (ServiceAccount, error)
	// ServiceAccounts lists newest first.
	ServiceAccounts(ctx context.Context, org ids.Org, page Page[ids.Service]) ([]ServiceAccount, error)
	// DeleteServiceAccount takes it away and revokes its keys.
	DeleteServiceAccount(ctx context.Context, id ids.Service, at time.Time) error
}

// ServiceAccountInput is what a service account shall be; nil members are what they were.
type ServiceAccountInput struct {
	Name      *string
	Role      *Role
	ExpiresAt *time.Time // the zero instant: never
	Enabled   *bool
}

// apply returns the account as it shall be.
func (in ServiceAccountInput) apply(actor Actor, a ServiceAccount, now time.Time) (ServiceAccount, error) {
	if in.Name != nil {
		a.Name = *in.Name
	}
	if in.Role != nil {
		a.Role = *in.Role
	}
	if in.ExpiresAt != nil {
		if !in.ExpiresAt.IsZero() && !in.ExpiresAt.After(now) {
			return ServiceAccount{}, errRequest().At("/expires_at", "lies in the past")
		}
		a.ExpiresAt = *in.ExpiresAt
	}
	switch {
	case in.Enabled == nil:
	case *in.Enabled:
		a.DisabledAt = time.Time{}
	case a.DisabledAt.IsZero():
		a.DisabledAt = now
	}
	if n := len([]rune(a.Name)); n < 1 || n > 100 {
		return ServiceAccount{}, errRequest().At("/name", "has 1 to 100 characters")
	}
	return a, mayGrant(actor, a.Role)
}

func (a ServiceAccount) seen() map[string]any {
	return map[string]any{
		"name": a.Name, "role": a.Role, "project_id": a.Project.String(), "expires_at": a.ExpiresAt, "disabled": !a.DisabledAt.IsZero(),
	}
}

// CreateServiceAccount makes one. Nobody gives it more than they have.
func (s *Service) CreateServiceAccount(ctx context.Context, in ServiceAccountInput, project ids.Project) (ServiceAccount, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return ServiceAccount{}, err
	}
	now := s.clock.Now()
	account, err := in.apply(actor, ServiceAccount{
		ID: ids.Make[ids.Service](), Org: actor.Org, CreatedBy: actor.Name(), CreatedAt: now, Version: 1,
	}, now)
	if err != nil {
		return ServiceAccount{}, err
	}
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if !project.IsZero() {
			found, err := s.ProjectFor(ctx, project)
			if err != nil {
				return err
			}
			account.Project = found.ID
		}
		if err := s.services.InsertServiceAccount(ctx, account); err != nil {
			return err
		}
		return s.audit.Record(ctx, "service_account.created", account.ID.String(), nil, account.seen())
	})
	if err != nil {
		return ServiceAccount{}, fmt.Errorf("create service account: %w", err)
	}
	return account, nil
}

// ServiceAccounts lists the organization's, newest first.
func (s *Service) ServiceAccounts(ctx context.Context, page Page[ids.Service]) ([]ServiceAccount, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return nil, err
	}
	var all []ServiceAccount
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		all, err = s.services.ServiceAccounts(ctx, actor.Org, page)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list service accounts: %w", err)
	}
	return all, nil
}

// ServiceAccount reads one. NotFound for another organization's.
func (s *Service) ServiceAccount(ctx context.Context, id ids.Service) (ServiceAccount, error) {
	var account ServiceAccount
	err := s.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		account, err = s.services.ServiceAccountForUpdate(ctx, id)
		return err
	})
	if err != nil {
		return ServiceAccount{}, fmt.Errorf("read service account: %w", err)
	}
	return account, nil
}

// UpdateServiceAccount changes one whose version the caller has seen; Stale otherwise.
func (s *Service) UpdateServiceAccount(ctx context.Context, id ids.Service, version int64, in ServiceAccountInput) (ServiceAccount, error) {
	var after ServiceAccount
	err := s.changeService(ctx, id, func(ctx context.Context, actor Actor, before ServiceAccount) error {
		if before.Version != version {
			return errStaleVersion()
		}
		var err error
		if after, err = in.apply(actor, before, s.clock.Now()); err != nil {
			return err
		}
		after.Version++
		if err := s.services.UpdateServiceAccount(ctx, after); err != nil {
			return err
		}
		return s.audit.Record(ctx, "service_account.updated", id.String(), before.seen(), after.seen())
	})
	if err != nil {
		return ServiceAccount{}, fmt.Errorf("change service account: %w", err)
	}
	return after, nil
}

// DeleteServiceAccount takes one away; its keys prove nothing any more.
func (s *Service) DeleteServiceAccount(ctx context.Context, id ids.Service) error {
	err := s.changeService(ctx, id, func(ctx context.Context, _ Actor, before ServiceAccount) error {
		if err := s.services.DeleteServiceAccount(ctx, id, s.clock.Now()); err != nil {
			return err
		}
		return s.audit.Record(ctx, "service_account.deleted", id.String(), before.seen(), nil)
	})
	if err != nil {
		return fmt.Errorf("delete service account: %w", err)
	}
	return nil
}

func (s *Service) changeService(ctx context.Context, id ids.Service, change func(ctx context.Context, actor Actor, before ServiceAccount) error) error {
	actor, err := MustAct(ctx)
	if err != nil {
		return err
	}
	return s.tx.WithinTx(ctx, func(ctx context.Context) error {
		before, err := s.services.ServiceAccountForUpdate(ctx, id)
		if err != nil {
			return err
		}
		if err := mayGrant(actor, before.Role); err != nil {
			return err
		}
		return change(ctx, actor, before)
	})
}

// alive reports whether the account's keys work.
func (a ServiceAccount) alive(now time.Time) bool {
	return a.DisabledAt.IsZero() && (a.ExpiresAt.IsZero() || now.Before(a.ExpiresAt))
}

// errNoServiceAccount answers for one that is not there, or that is not the organization's.
func errNoServiceAccount() error {
	return fault.New(fault.Invalid, "unknown-service-account", "there is no such service account").At("/service_account_id", "does not exist")
}
