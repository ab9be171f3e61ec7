package tenant

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Policy is what an organization allows its own people and programs, on top of their roles. The zero value forbids nothing.
type Policy struct {
	Org                 ids.Org
	InstanceTypes       *[]string     // names; nil: all
	Sites               *[]string     // names; nil: all
	MaxDuration         time.Duration // of a lease with its extensions; 0: no limit
	MaxLeaseMinor       *int64        // worst case of a lease with its extensions, tax included, in minor units; nil: no limit
	MaxKeyLife          time.Duration // 0: no limit
	RequireSecondFactor bool
	Version             int64 // 1: nobody has set one
}

// Policies keeps policies.
type Policies interface {
	// Policy answers one that forbids nothing, of version 1, when nobody has set any.
	Policy(ctx context.Context, org ids.Org) (Policy, error)
	// PutPolicy answers Stale when somebody else was faster.
	PutPolicy(ctx context.Context, policy Policy, at time.Time) error
}

const maxNames = 200

func (p Policy) validate() error {
	invalid := errRequest()
	for pointer, names := range map[string]*[]string{"/instance_types": p.InstanceTypes, "/sites": p.Sites} {
		if names != nil && len(*names) > maxNames {
			invalid = invalid.At(pointer, fmt.Sprintf("has at most %d", maxNames))
		}
	}
	if p.MaxDuration < 0 || p.MaxKeyLife < 0 || p.MaxLeaseMinor != nil && *p.MaxLeaseMinor < 0 {
		invalid = invalid.At("", "a limit is not below zero")
	}
	if len(invalid.Fields) > 0 {
		return invalid
	}
	return nil
}

func (p Policy) seen() map[string]any {
	return map[string]any{
		"instance_types": p.InstanceTypes, "sites": p.Sites, "max_duration_seconds": int64(p.MaxDuration / time.Second), "max_lease_minor": p.MaxLeaseMinor,
		"max_key_seconds": int64(p.MaxKeyLife / time.Second), "require_second_factor": p.RequireSecondFactor,
	}
}

// Policy reads the organization's.
func (s *Service) Policy(ctx context.Context) (Policy, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return Policy{}, err
	}
	var policy Policy
	err = s.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		policy, err = s.policies.Policy(ctx, actor.Org)
		return err
	})
	if err != nil {
		return Policy{}, fmt.Errorf("read policy: %w", err)
	}
	return policy, nil
}

// SetPolicy replaces the organization's policy, whose version the caller has seen; Stale otherwise. Who requires a second factor has shown one:
// nobody locks everybody out by it.
func (s *Service) SetPolicy(ctx context.Context, version int64, policy Policy) (Policy, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return Policy{}, err
	}
	if err := policy.validate(); err != nil {
		return Policy{}, err
	}
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		before, err := s.policies.Policy(ctx, actor.Org)
		if err != nil {
			return err
		}
		if before.Version != version {
			return errStaleVersion()
		}
		if policy.RequireSecondFactor && !before.RequireSecondFactor && !actor.SecondFactor {
			return fault.New(fault.Conflict, "second-factor-missing", "set up your own second factor first, and log in with it")
		}
		policy.Org, policy.Version = actor.Org, version+1
		if err := s.policies.PutPolicy(ctx, policy, s.clock.Now()); err != nil {
			return err
		}
		return s.audit.Record(ctx, "organization.policy_set", actor.Org.String(), before.seen(), policy.seen())
	})
	if err != nil {
		return Policy{}, fmt.Errorf("set policy: %w", err)
	}
	return policy, nil
}

// keyWithin answers Forbidden for a key that would live longer than the organization lets keys live.
func (s *Service) keyWithin(ctx context.Context, key APIKey) error {
	policy, err := s.policies.Policy(ctx, key.Org)
	if err != nil || policy.MaxKeyLife == 0 {
		return err
	}
	if key.ExpiresAt.IsZero() || key.ExpiresAt.Sub(key.CreatedAt) > policy.MaxKeyLife {
		return fault.New(fault.Forbidden, "organization-policy", "your organization lets API keys live for %s at most; give it an earlier end", policy.MaxKeyLife).
			With("rule", "max_key_seconds")
	}
	return nil
}
