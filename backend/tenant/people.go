package tenant

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Person is a member of an organization.
type Person struct {
	User     ids.User
	Email    string
	Name     string
	Role     Role // in the whole organization; "": only in projects
	Projects []ProjectRole
	Groups   []ids.Group // what they give comes on top
	Disabled bool
	JoinedAt time.Time
	Version  int64
}

// ProjectRole is a role in one project.
type ProjectRole struct {
	Project ids.Project
	Role    Role
}

// People keeps who belongs to an organization. All of it is about one organization, which is named.
type People interface {
	People(ctx context.Context, org ids.Org, page Page[ids.User]) ([]Person, error)
	// Person answers NotFound for who is no member.
	Person(ctx context.Context, org ids.Org, user ids.User) (Person, error)
	// LockPeople makes changes of an organization's people wait for each other, so that two of them do not each spare another last owner.
	LockPeople(ctx context.Context, org ids.Org) error
	// Owners counts the people who are owners by themselves, and may log in.
	Owners(ctx context.Context, org ids.Org) (int, error)
	// SetRole gives a person another role in the whole organization.
	SetRole(ctx context.Context, org ids.Org, user ids.User, role Role, at time.Time) error
	// RemovePerson takes memberships and groups away, and ends sessions.
	RemovePerson(ctx context.Context, org ids.Org, user ids.User, at time.Time) error
}

// rank orders roles by strength.
func (r Role) rank() int {
	switch r {
	case Owner:
		return 4
	case Admin:
		return 3
	case Member:
		return 2
	case Billing, Viewer:
		return 1
	default:
		return 0
	}
}

// mayGrant answers Forbidden when the actor would give more than it has, and Invalid for what is no role.
func mayGrant(actor Actor, role Role) error {
	if role.rank() == 0 {
		return errRequest().At("/role", "is not a role")
	}
	if role.rank() > actor.Role.rank() {
		return fault.New(fault.Forbidden, "beyond-your-rights", "you cannot give the role %s, since yours is %s", role, actor.Role)
	}
	return nil
}

func errRequest() *fault.Fault {
	return fault.New(fault.Invalid, "invalid-request", "the request has defects")
}

func errStaleVersion() error {
	return fault.New(fault.Stale, "stale", "it has changed since you read it; read it again")
}

// People lists the organization's people.
func (s *Service) People(ctx context.Context, page Page[ids.User]) ([]Person, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return nil, err
	}
	var people []Person
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		people, err = s.people.People(ctx, actor.Org, page)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list members: %w", err)
	}
	return people, nil
}

// Person reads one member. NotFound for anybody else.
func (s *Service) Person(ctx context.Context, user ids.User) (Person, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return Person{}, err
	}
	var person Person
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		person, err = s.people.Person(ctx, actor.Org, user)
		return err
	})
	if err != nil {
		return Person{}, fmt.Errorf("read member: %w", err)
	}
	return person, nil
}

// ChangeRole gives a member another role. Nobody changes who is stronger than they are, or makes anybody stronger; an organization always
// has an owner.
func (s *Service) ChangeRole(ctx context.Context, user ids.User, version int64, role Role) (Person, error) {
	var after Person
	err := s.changePerson(ctx, user, func(ctx context.Context, actor Actor, before Person) error {
		if before.Version != version {
			return errStaleVersion()
		}
		if err := mayGrant(actor, role); err != nil {
			return err
		}
		if err := s.spareAnOwner(ctx, actor.Org, before, role); err != nil {
			return err
		}
		if err := s.people.SetRole(ctx, actor.Org, user, role, s.clock.Now()); err != nil {
			return err
		}
		var err error
		if after, err = s.people.Person(ctx, actor.Org, user); err != nil {
			return err
		}
		return s.audit.Record(ctx, "member.role_changed", user.String(), map[string]any{"role": before.Role}, map[string]any{"role": role})
	})
	if err != nil {
		return Person{}, fmt.Errorf("change role: %w", err)
	}
	return after, nil
}

// RemovePerson takes somebody out of the organization: their sessions here end, and the keys that they made prove nothing any more.
func (s *Service) RemovePerson(ctx context.Context, user ids.User) error {
	err := s.changePerson(ctx, user, func(ctx context.Context, actor Actor, before Person) error {
		if err := s.spareAnOwner(ctx, actor.Org, before, ""); err != nil {
			return err
		}
		if err := s.people.RemovePerson(ctx, actor.Org, user, s.clock.Now()); err != nil {
			return err
		}
		return s.audit.Record(ctx, "member.removed", user.String(), map[string]any{"email": before.Email, "role": before.Role}, nil)
	})
	if err != nil {
		return fmt.Errorf("remove member: %w", err)
	}
	return nil
}

func (s *Service) changePerson(ctx context.Context, user ids.User, change func(ctx context.Context, actor Actor, before Person) error) error {
	actor, err := MustAct(ctx)
	if err != nil {
		return err
	}
	return s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if err := s.people.LockPeople(ctx, actor.Org); err != nil {
			return err
		}
		before, err := s.people.Person(ctx, actor.Org, user)
		if err != nil {
			return err
		}
		if before.Role.rank() > actor.Role.rank() {
			return fault.New(fault.Forbidden, "beyond-your-rights", "you cannot change an %s, since you are %s", before.Role, actor.Role)
		}
		return change(ctx, actor, before)
	})
}

// spareAnOwner answers Conflict when nobody would be left who can do everything.
func (s *Service) spareAnOwner(ctx context.Context, org ids.Org, before Person, role Role) error {
	if before.Role != Owner || role == Owner {
		return nil
	}
	owners, err := s.people.Owners(ctx, org)
	if err != nil {
		return err
	}
	if owners <= 1 {
		return fault.New(fault.Conflict, "last-owner", "an organization has at least one owner; make somebody else one first")
	}
	return nil
}
