package postgres

import (
	"context"
	"fmt"
	"time"

	"gorm.io/gorm/clause"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/tenant"
)

// personRow is a member with what stands in several tables. People are no tenants' rows, so that it is read with the platform's eyes, and
// every query names the organization.
type personRow struct {
	UserID     ids.User
	Email      string
	Name       string
	DisabledAt *time.Time
	JoinedAt   time.Time
	Role       string
	Version    int64
	Projects   document[[]struct {
		Project string `json:"project"`
		Role    string `json:"role"`
	}]
	Groups document[[]string]
}

const peopleQuery = `
	SELECT u.id AS user_id, u.email, u.name, u.disabled_at, min(m.created_at) AS joined_at,
	       coalesce(max(m.role) FILTER (WHERE m.project_id IS NULL), '') AS role, sum(m.version) AS version,
	       coalesce(jsonb_agg(jsonb_build_object('project', m.project_id, 'role', m.role) ORDER BY m.project_id) FILTER (WHERE m.project_id IS NOT NULL), '[]') AS projects,
	       (SELECT coalesce(jsonb_agg(p.group_id ORDER BY p.group_id), '[]') FROM user_group_member p WHERE p.org_id = @org AND p.user_id = u.id) AS groups
	FROM membership m JOIN app_user u ON u.id = m.user_id
	WHERE m.org_id = @org `

func toPerson(r personRow) (tenant.Person, error) {
	p := tenant.Person{
		User: r.UserID, Email: r.Email, Name: r.Name, Role: tenant.Role(r.Role), Disabled: r.DisabledAt != nil, JoinedAt: r.JoinedAt.UTC(), Version: r.Version,
	}
	for _, in := range r.Projects.Of {
		var project ids.Project
		if err := project.Scan(in.Project); err != nil {
			return tenant.Person{}, err
		}
		p.Projects = append(p.Projects, tenant.ProjectRole{Project: project, Role: tenant.Role(in.Role)})
	}
	for _, text := range r.Groups.Of {
		var group ids.Group
		if err := group.Scan(text); err != nil {
			return tenant.Person{}, err
		}
		p.Groups = append(p.Groups, group)
	}
	return p, nil
}

func (s *Tenants) people(ctx context.Context, condition string, args map[string]any) ([]tenant.Person, error) {
	var rows []personRow
	err := s.db.asPlatform(ctx, func(ctx context.Context) error { return conn(ctx).Raw(peopleQuery+condition, args).Scan(&rows).Error })
	if err != nil {
		return nil, fmt.Errorf("read members: %w", err)
	}
	people := make([]tenant.Person, len(rows))
	for i, r := range rows {
		if people[i], err = toPerson(r); err != nil {
			return nil, err
		}
	}
	return people, nil
}

// People implements tenant.People.
func (s *Tenants) People(ctx context.Context, org ids.Org, page tenant.Page[ids.User]) ([]tenant.Person, error) {
	return s.people(ctx, "AND (CAST(@after AS uuid) IS NULL OR u.id > @after) GROUP BY u.id ORDER BY u.id LIMIT @limit",
		map[string]any{"org": org, "after": page.After, "limit": page.Limit})
}

// Person implements tenant.People.
func (s *Tenants) Person(ctx context.Context, org ids.Org, user ids.User) (tenant.Person, error) {
	people, err := s.people(ctx, "AND u.id = @user GROUP BY u.id", map[string]any{"org": org, "user": user})
	if err == nil && len(people) == 0 {
		err = fault.New(fault.NotFound, "not-found", "there is no such member")
	}
	if err != nil {
		return tenant.Person{}, err
	}
	return people[0], nil
}

// LockPeople implements tenant.People.
func (s *Tenants) LockPeople(ctx context.Context, org ids.Org) error {
	if err := conn(ctx).Exec("SELECT pg_advisory_xact_lock(hashtextextended(?, 7124))", org.String()).Error; err != nil {
		return fmt.Errorf("lock members: %w", err)
	}
	return nil
}

// Owners implements tenant.People.
func (s *Tenants) Owners(ctx context.Context, org ids.Org) (int, error) {
	var n int
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Raw(`SELECT count(*) FROM membership m JOIN app_user u ON u.id = m.user_id
			WHERE m.org_id = ? AND m.project_id IS NULL AND m.role = 'owner' AND u.disabled_at IS NULL`, org).Scan(&n).Error
	})
	if err != nil {
		return 0, fmt.Errorf("count owners: %w", err)
	}
	return n, nil
}

// SetRole implements tenant.People.
func (s *Tenants) SetRole(ctx context.Context, org ids.Org, user ids.User, role tenant.Role, at time.Time) error {
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		return conn(ctx).Exec(`INSERT INTO membership AS m (org_id, user_id, role, created_at) VALUES (?, ?, ?, ?)
			ON CONFLICT (org_id, user_id, project_id) DO UPDATE SET role = excluded.role, version = m.version + 1`, org, user, string(role), at).Error
	})
	if err != nil {
		return fmt.Errorf("set role: %w", err)
	}
	return nil
}

// RemovePerson implements tenant.People.
func (s *Tenants) RemovePerson(ctx context.Context, org ids.Org, user ids.User, at time.Time) error {
	err := s.db.asPlatform(ctx, func(ctx context.Context) error {
		for _, sql := range []string{
			"DELETE FROM user_group_member WHERE org_id = @org AND user_id = @user",
			"DELETE FROM membership WHERE org_id = @org AND user_id = @user",
			"UPDATE session SET revoked_at = @at WHERE org_id = @org AND user_id = @user AND revoked_at IS NULL",
			"UPDATE api_key SET revoked_at = @at WHERE org_id = @org AND created_by = @user AND service_account_id IS NULL AND revoked_at IS NULL",
		} {
			if err := conn(ctx).Exec(sql, map[string]any{"org": org, "user": user, "at": at}).Error; err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove member: %w", err)
	}
	return nil
}

type invitationRow struct {
	ID         ids.Invitation `gorm:"primaryKey"`
	OrgID      ids.Org
	Email      string
	Role       string
	ProjectID  ids.Project
	TokenHash  []byte
	InvitedBy  string
	CreatedAt  time.Time
	ExpiresAt  time.Time
	AcceptedAt *time.Time
	AcceptedBy ids.User
	RevokedAt  *time.Time
}

func (invitationRow) TableName() string { return "invitation" }

func newInvitationRow(i tenant.Invitation) invitationRow {
	return invitationRow{
		ID: i.ID, OrgID: i.Org, Email: i.Email, Role: string(i.Role), ProjectID: i.Project, TokenHash: i.TokenHash, InvitedBy: i.InvitedBy, CreatedAt: i.CreatedAt,
		ExpiresAt: i.ExpiresAt, AcceptedAt: nullable(i.AcceptedAt), AcceptedBy: i.AcceptedBy, RevokedAt: nullable(i.RevokedAt),
	}
}

func toInvitation(r invitationRow) tenant.Invitation {
	return tenant.Invitation{
		ID: r.ID, Org: r.OrgID, Email: r.Email, Role: tenant.Role(r.Role), Project: r.ProjectID, TokenHash: r.TokenHash, InvitedBy: r.InvitedBy,
		CreatedAt: r.CreatedAt.UTC(), ExpiresAt: r.ExpiresAt.UTC(), AcceptedAt: instant(r.AcceptedAt), AcceptedBy: r.AcceptedBy, RevokedAt: instant(r.RevokedAt),
	}
}

// CreateInvitation implements tenant.Invitations.
func (s *Tenants) CreateInvitation(ctx context.Context, i tenant.Invitation) error {
	row := newInvitationRow(i)
	if err := conn(ctx).Create(&row).Error; err != nil {
		return duplicate(err, "invitation-open", "that address has an open invitation; revoke it first")
	}
	return nil
}

// Invitation implements tenant.Invitations.
func (s *Tenants) Invitation(ctx context.Context, id ids.Invitation) (tenant.Invitation, error) {
	return takeOne(conn(ctx).Where("id = ?", id).Clauses(clause.Locking{Strength: "NO KEY UPDATE"}), toInvitation, "invitation")
}

// InvitationByToken implements tenant.Invitations; only the platform may.
func (s *Tenants) InvitationByToken(ctx context.Context, hash []byte) (tenant.Invitation, error) {
	return takeOne(conn(ctx).Where("token_hash = ?", hash).Clauses(clause.Locking{Strength: "NO KEY UPDATE"}), toInvitation, "invitation")
}

// Invitations implements tenant.Invitations.
func (s *Tenants) Invitations(ctx context.Context, org ids.Org, page tenant.Page[ids.Invitation]) ([]tenant.Invitation, error) {
	find := conn(ctx).Where("org_id = ?", org).Order("id DESC")
	if !page.After.IsZero() {
		find = find.Where("id < ?", page.After)
	}
	var rows []invitationRow
	if err := find.Limit(page.Limit).Find(&rows).Error; err != nil {
		return nil, fmt.Errorf("list invitations: %w", err)
	}
	return each(rows, toInvitation), nil
}

// UpdateInvitation implements tenant.Invitations.
func (s *Tenants) UpdateInvitation(ctx context.Context, i tenant.Invitation) error {
	row := newInvitationRow(i)
	if err := conn(ctx).Model(&invitationRow{}).Where("id = ?", i.ID).Select("accepted_at", "accepted_by", "revoked_at").Updates(&row).Error; err != nil {
		return fmt.Errorf("update invitation: %w", err)
	}
	return nil
}

// RevokeExpired implements tenant.Invitations.
func (s *Tenants) RevokeExpired(ctx context.Context, org ids.Org, email string, now time.Time) error {
	err := conn(ctx).Exec("UPDATE invitation SET revoked_at = ? WHERE org_id = ? AND email = ? AND accepted_at IS NULL AND revoked_at IS NULL AND expires_at <= ?",
		now, org, email, now).Error
	if err != nil {
		return fmt.Errorf("revoke expired invitations: %w", err)
	}
	return nil
}
