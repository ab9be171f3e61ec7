package tenant

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Identity is who an identity provider says that somebody is.
type Identity struct {
	Issuer        string
	Subject       string // theirs for ever, whatever their address becomes
	Email         string
	EmailVerified bool
	Name          string
	SecondFactor  bool // the provider has asked for one
}

// Identities keeps who people are to identity providers, for the platform.
type Identities interface {
	// UserByIdentity answers NotFound for a stranger.
	UserByIdentity(ctx context.Context, issuer, subject string) (User, error)
	AddIdentity(ctx context.Context, identity Identity, user ids.User, at time.Time) error
}

// LogInAs starts a session for somebody whom the installation's identity provider knows. The first time, a verified address finds their account;
// accounts come by invitation only. Forbidden, code "no-account", for anybody else.
func (s *Service) LogInAs(ctx context.Context, identity Identity, userAgent string) (Grant, error) {
	ctx = AsPlatform(ctx)
	var grant Grant
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		user, err := s.identified(ctx, identity)
		if err != nil {
			return err
		}
		if !user.DisabledAt.IsZero() {
			return errNoAccount()
		}
		grant, err = s.openSession(ctx, user, ids.Org{}, userAgent, identity.SecondFactor, map[string]any{"by": identity.Issuer})
		return err
	})
	if fault.CodeOf(err) == "no-account" {
		refused := s.tx.WithinTx(ctx, func(ctx context.Context) error {
			return s.audit.Record(ctx, "session.refused", "nobody", nil, map[string]any{"by": identity.Issuer, "subject": identity.Subject})
		})
		if refused != nil {
			return Grant{}, fmt.Errorf("log in: %w", refused)
		}
	}
	if err != nil {
		return Grant{}, fmt.Errorf("log in: %w", err)
	}
	return grant, nil
}

func errNoAccount() error {
	return fault.New(fault.Forbidden, "no-account", "there is no account with your verified address; ask for an invitation")
}

// identified finds the person, and links them the first time.
func (s *Service) identified(ctx context.Context, identity Identity) (User, error) {
	user, err := s.identities.UserByIdentity(ctx, identity.Issuer, identity.Subject)
	if !fault.Is(err, fault.NotFound) {
		return user, err
	}
	if !identity.EmailVerified || identity.Email == "" {
		return User{}, errNoAccount() // anybody can claim any address
	}
	user, err = s.accounts.UserByEmail(ctx, normalizeEmail(identity.Email))
	if fault.Is(err, fault.NotFound) {
		return User{}, errNoAccount()
	}
	if err != nil {
		return User{}, err
	}
	if err := s.identities.AddIdentity(ctx, identity, user.ID, s.clock.Now()); err != nil {
		return User{}, err
	}
	return user, s.audit.Record(ctx, "identity.linked", user.ID.String(), nil, map[string]any{"issuer": identity.Issuer, "subject": identity.Subject})
}
