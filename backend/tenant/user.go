package tenant

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
)

// User is a person, who may belong to several organizations.
type User struct {
	ID           ids.User
	Email        string // lower case
	Name         string
	PasswordHash string    // argon2id, PHC string
	DisabledAt   time.Time // zero: may log in
	CreatedAt    time.Time
}

// Membership says what a person may do in an organization, or in one of its projects.
type Membership struct {
	Org     ids.Org
	OrgKind OrgKind
	User    ids.User
	Project ids.Project // zero: the whole organization
	Role    Role
}

// normalizeEmail gives the form in which e-mail addresses are kept.
func normalizeEmail(email string) string { return strings.ToLower(strings.TrimSpace(email)) }

// strongest picks the membership that a session in org has: the whole organization's before a project's, then the strongest role, then the oldest. A
// zero org takes the person's first organization.
func strongest(all []Membership, org ids.Org) (Membership, bool) {
	candidates := slices.DeleteFunc(slices.Clone(all), func(m Membership) bool { return !org.IsZero() && m.Org != org })
	if len(candidates) == 0 {
		return Membership{}, false
	}
	best := candidates[0]
	for _, m := range candidates[1:] {
		if m.Org == best.Org && (m.Project.IsZero() && !best.Project.IsZero() || m.Project.IsZero() == best.Project.IsZero() && m.Role.rank() > best.Role.rank()) {
			best = m
		}
	}
	return best, true
}

// Me is who asks, with the organization that they act for.
type Me struct {
	Actor        Actor
	User         User
	Organization Organization
}

// Me describes the actor in ctx.
func (s *Service) Me(ctx context.Context) (Me, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return Me{}, err
	}
	me := Me{Actor: actor}
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if me.Organization, err = s.accounts.Organization(ctx, actor.Org); err != nil {
			return err
		}
		if actor.User.IsZero() { // a service account's key
			return nil
		}
		me.User, err = s.accounts.User(ctx, actor.User)
		return err
	})
	if err != nil {
		return Me{}, fmt.Errorf("describe actor: %w", err)
	}
	return me, nil
}
