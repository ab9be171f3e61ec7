package tenant

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Group gives a role to its people, in the organization or in one project, on top of what they have by themselves.
type Group struct {
	ID        ids.Group
	Org       ids.Org
	Name      string
	Role      Role
	Project   ids.Project // zero: the whole organization
	People    []ids.User
	Version   int64
	CreatedAt time.Time
}

// Groups keeps groups. An organization's actor sees its own; others' are not found.
type Groups interface {
	// InsertGroup and UpdateGroup write the group with its people. They answer Conflict when the name is taken.
	InsertGroup(ctx context.Context, group Group) error
	UpdateGroup(ctx context.Context, group Group, at time.Time) error
	// GroupForUpdate locks it.
	GroupForUpdate(ctx context.Context, id ids.Group) (Group, error)
	// Groups lists newest first.
	Groups(ctx context.Context, org ids.Org, page Page[ids.Group]) ([]Group, error)
	DeleteGroup(ctx context.Context, id ids.Group) error
}

// GroupInput is what a group shall be; nil members are what they were.
type GroupInput struct {
	Name   *string
	Role   *Role
	People *[]ids.User
}

const maxGroup = 1_000

// CreateGroup makes a group. Nobody gives a group more than they have.
func (s *Service) CreateGroup(ctx context.Context, in GroupInput, project ids.Project) (Group, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return Group{}, err
	}
	group := Group{ID: ids.Make[ids.Group](), Org: actor.Org, Version: 1, CreatedAt: s.clock.Now()}
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if !project.IsZero() {
			found, err := s.ProjectFor(ctx, project)
			if err != nil {
				return err
			}
			group.Project = found.ID
		}
		if group, err = s.shape(ctx, actor, group, in); err != nil {
			return err
		}
		if err := s.groups.InsertGroup(ctx, group); err != nil {
			return err
		}
		return s.audit.Record(ctx, "group.created", group.ID.String(), nil, group.seen())
	})
	if err != nil {
		return Group{}, fmt.Errorf("create group: %w", err)
	}
	return group, nil
}

func (g Group) seen() map[string]any {
	return map[string]any{"name": g.Name, "role": g.Role, "project_id": g.Project.String(), "user_ids": g.People}
}

// shape puts the wishes into the group, and refuses people who are no members.
func (s *Service) shape(ctx context.Context, actor Actor, group Group, in GroupInput) (Group, error) {
	if in.Name != nil {
		group.Name = *in.Name
	}
	if in.Role != nil {
		group.Role = *in.Role
	}
	if n := len([]rune(group.Name)); n < 1 || n > 100 {
		return Group{}, errRequest().At("/name", "has 1 to 100 characters")
	}
	if err := mayGrant(actor, group.Role); err != nil {
		return Group{}, err
	}
	if in.People == nil {
		return group, nil
	}
	if len(*in.People) > maxGroup {
		return Group{}, errRequest().At("/user_ids", fmt.Sprintf("has at most %d", maxGroup))
	}
	group.People = nil
	for i, user := range *in.People {
		if slices.Contains(group.People, user) {
			continue
		}
		if _, err := s.people.Person(ctx, actor.Org, user); err != nil {
			if fault.Is(err, fault.NotFound) {
				return Group{}, errRequest().At(fmt.Sprintf("/user_ids/%d", i), "is no member")
			}
			return Group{}, err
		}
		group.People = append(group.People, user)
	}
	return group, nil
}

// Groups lists the organization's, newest first.
func (s *Service) Groups(ctx context.Context, page Page[ids.Group]) ([]Group, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return nil, err
	}
	var groups []Group
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		groups, err = s.groups.Groups(ctx, actor.Org, page)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list groups: %w", err)
	}
	return groups, nil
}

// Group reads one. NotFound for another organization's.
func (s *Service) Group(ctx context.Context, id ids.Group) (Group, error) {
	var group Group
	err := s.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		group, err = s.groups.GroupForUpdate(ctx, id)
		return err
	})
	if err != nil {
		return Group{}, fmt.Errorf("read group: %w", err)
	}
	return group, nil
}

// UpdateGroup changes a group whose version the caller has seen; Stale otherwise. Nobody changes a group that gives more than they have.
func (s *Service) UpdateGroup(ctx context.Context, id ids.Group, version int64, in GroupInput) (Group, error) {
	var after Group
	err := s.changeGroup(ctx, id, func(ctx context.Context, actor Actor, before Group) error {
		if before.Version != version {
			return errStaleVersion()
		}
		var err error
		if after, err = s.shape(ctx, actor, before, in); err != nil {
			return err
		}
		after.Version++
		if err := s.groups.UpdateGroup(ctx, after, s.clock.Now()); err != nil {
			return err
		}
		return s.audit.Record(ctx, "group.updated", id.String(), before.seen(), after.seen())
	})
	if err != nil {
		return Group{}, fmt.Errorf("change group: %w", err)
	}
	return after, nil
}

// DeleteGroup takes a group away, with what it gave.
func (s *Service) DeleteGroup(ctx context.Context, id ids.Group) error {
	err := s.changeGroup(ctx, id, func(ctx context.Context, _ Actor, before Group) error {
		if err := s.groups.DeleteGroup(ctx, id); err != nil {
			return err
		}
		return s.audit.Record(ctx, "group.deleted", id.String(), before.seen(), nil)
	})
	if err != nil {
		return fmt.Errorf("delete group: %w", err)
	}
	return nil
}

func (s *Service) changeGroup(ctx context.Context, id ids.Group, change func(ctx context.Context, actor Actor, before Group) error) error {
	actor, err := MustAct(ctx)
	if err != nil {
		return err
	}
	return s.tx.WithinTx(ctx, func(ctx context.Context) error {
		before, err := s.groups.GroupForUpdate(ctx, id)
		if err != nil {
			return err
		}
		if err := mayGrant(actor, before.Role); err != nil {
			return err
		}
		return change(ctx, actor, before)
	})
}
