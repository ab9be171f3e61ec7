package tenant

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// DefaultProjectName is the project that a new organization starts with, and that bookings without one take.
const DefaultProjectName = "default"

// Project is a part of an organization that leases, budgets and tags belong to.
type Project struct {
	ID         ids.Project
	Org        ids.Org
	Name       string
	Version    int64
	CreatedAt  time.Time
	ArchivedAt time.Time // zero: in use
}

// CreateProject makes a project in the actor's organization; Conflict when the name is taken, Forbidden for a credential that is
// limited to one project.
func (s *Service) CreateProject(ctx context.Context, name string) (Project, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return Project{}, err
	}
	if !actor.Project.IsZero() {
		return Project{}, fault.New(fault.Forbidden, "limited-to-project", "this credential is limited to one project")
	}
	if name == "" || len([]rune(name)) > 100 {
		return Project{}, fault.New(fault.Invalid, "invalid-request", "a project's name has 1 to 100 characters").At("/name", "has the wrong length")
	}
	project := Project{ID: ids.Make[ids.Project](), Org: actor.Org, Name: name, Version: 1, CreatedAt: s.clock.Now()}
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if err := s.projects.CreateProject(ctx, project); err != nil {
			return err
		}
		return s.audit.Record(ctx, "project.created", project.ID.String(), nil, map[string]any{"name": name})
	})
	if err != nil {
		return Project{}, fmt.Errorf("create project: %w", err)
	}
	return project, nil
}

// Projects lists the actor's projects by id, which is by age.
func (s *Service) Projects(ctx context.Context, page Page[ids.Project]) ([]Project, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return nil, err
	}
	var projects []Project
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if actor.Project.IsZero() {
			projects, err = s.projects.Projects(ctx, actor.Org, page)
			return err
		}
		only, err := s.projects.Project(ctx, actor.Project)
		if err == nil && page.After.IsZero() {
			projects = []Project{only}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list projects: %w", err)
	}
	return projects, nil
}

// ProjectFor is the project that a change of the actor's belongs to: the named one, or for a zero id the credential's own, or the
// organization's default one. NotFound for another organization's, and for one outside the credential's limits; Conflict for an
// archived one.
func (s *Service) ProjectFor(ctx context.Context, wanted ids.Project) (Project, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return Project{}, err
	}
	if !actor.Project.IsZero() && !wanted.IsZero() && wanted != actor.Project {
		return Project{}, fault.New(fault.NotFound, "not-found", "there is no such project")
	}
	if wanted.IsZero() {
		wanted = actor.Project
	}
	var project Project
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if wanted.IsZero() {
			project, err = s.projects.ProjectByName(ctx, actor.Org, DefaultProjectName)
		} else {
			project, err = s.projects.Project(ctx, wanted)
		}
		return err
	})
	if err != nil {
		return Project{}, fmt.Errorf("find project: %w", err)
	}
	if !project.ArchivedAt.IsZero() {
		return Project{}, fault.New(fault.Conflict, "project-archived", "the project %s is archived", project.Name)
	}
	return project, nil
}
