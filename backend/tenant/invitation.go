package tenant

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Invitation lets whoever has its token join an organization.
type Invitation struct {
	ID         ids.Invitation
	Org        ids.Org
	Email      string
	Role       Role
	Project    ids.Project // zero: the whole organization
	TokenHash  []byte
	InvitedBy  string
	CreatedAt  time.Time
	ExpiresAt  time.Time
	AcceptedAt time.Time // zero: not yet
	AcceptedBy ids.User
	RevokedAt  time.Time
}

// Invitations keeps invitations.
type Invitations interface {
	// CreateInvitation answers Conflict when the address has an open invitation.
	CreateInvitation(ctx context.Context, invitation Invitation) error
	// Invitation answers NotFound for a missing one and for another organization's.
	Invitation(ctx context.Context, id ids.Invitation) (Invitation, error)
	// InvitationByToken finds it for the platform and locks it; NotFound for none.
	InvitationByToken(ctx context.Context, hash []byte) (Invitation, error)
	// Invitations lists newest first.
	Invitations(ctx context.Context, org ids.Org, page Page[ids.Invitation]) ([]Invitation, error)
	// UpdateInvitation writes what became of it.
	UpdateInvitation(ctx context.Context, invitation Invitation) error
	// RevokeExpired ends the address's open invitations that are too old.
	RevokeExpired(ctx context.Context, org ids.Org, email string, now time.Time) error
}

const (
	invitationLife   = 7 * 24 * time.Hour
	invitationPrefix = "lhinv_"
	maxEmail         = 320
)

// Invite invites somebody, and returns the token that lets them join; nobody can show it again. Nobody invites to more than they have.
func (s *Service) Invite(ctx context.Context, email string, role Role, project ids.Project) (Invitation, string, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return Invitation{}, "", err
	}
	email = normalizeEmail(email)
	if at := strings.Index(email, "@"); at < 1 || at == len(email)-1 || len(email) > maxEmail || strings.ContainsAny(email, " \t\r\n<>,") {
		return Invitation{}, "", errRequest().At("/email", "is not an e-mail address")
	}
	if err := mayGrant(actor, role); err != nil {
		return Invitation{}, "", err
	}
	token, err := drawToken(invitationPrefix)
	if err != nil {
		return Invitation{}, "", err
	}
	now := s.clock.Now()
	made := Invitation{
		ID: ids.Make[ids.Invitation](), Org: actor.Org, Email: email, Role: role, TokenHash: hashToken(token), InvitedBy: actor.Name(), CreatedAt: now,
		ExpiresAt: now.Add(invitationLife),
	}
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if !project.IsZero() {
			found, err := s.ProjectFor(ctx, project)
			if err != nil {
				return err
			}
			made.Project = found.ID
		}
		if err := s.invitations.RevokeExpired(ctx, actor.Org, email, now); err != nil {
			return err
		}
		if err := s.invitations.CreateInvitation(ctx, made); err != nil {
			return err
		}
		return s.audit.Record(ctx, "invitation.created", made.ID.String(), nil, map[string]any{"email": email, "role": role, "project_id": made.Project.String()})
	})
	if err != nil {
		return Invitation{}, "", fmt.Errorf("invite: %w", err)
	}
	return made, token, nil
}

// drawToken is a secret of 256 random bits behind a prefix that scanners know.
func drawToken(prefix string) (string, error) {
	raw := make([]byte, secretBytes)
	if _, err := rand.Read(raw); err != nil {
		return "", fmt.Errorf("draw token: %w", err)
	}
	return prefix + secretEncoding().EncodeToString(raw), nil
}

// Invitations lists the organization's, newest first.
func (s *Service) Invitations(ctx context.Context, page Page[ids.Invitation]) ([]Invitation, error) {
	actor, err := MustAct(ctx)
	if err != nil {
		return nil, err
	}
	var all []Invitation
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		all, err = s.invitations.Invitations(ctx, actor.Org, page)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list invitations: %w", err)
	}
	return all, nil
}

// RevokeInvitation takes an invitation back. Conflict when it was accepted.
func (s *Service) RevokeInvitation(ctx context.Context, id ids.Invitation) error {
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		found, err := s.invitations.Invitation(ctx, id)
		if err != nil || !found.RevokedAt.IsZero() {
			return err
		}
		if !found.AcceptedAt.IsZero() {
			return fault.New(fault.Conflict, "invitation-accepted", "it was accepted; remove the member instead")
		}
		found.RevokedAt = s.clock.Now()
		if err := s.invitations.UpdateInvitation(ctx, found); err != nil {
			return err
		}
		return s.audit.Record(ctx, "invitation.revoked", id.String(), nil, nil)
	})
	if err != nil {
		return fmt.Errorf("revoke invitation: %w", err)
	}
	return nil
}

// JoinInput is how somebody accepts. Who has an account proves it by its password; anybody else gets one with that password.
type JoinInput struct {
	Token    string
	Name     string
	Password string
}

// Join accepts an invitation. Whatever is wrong with it, the answer is the same NotFound; Unauthenticated for the wrong password of an
// account that is there.
func (s *Service) Join(ctx context.Context, in JoinInput) (Invitation, error) {
	ctx = AsPlatform(ctx)
	if len([]rune(in.Name)) > 200 {
		return Invitation{}, errRequest().At("/name", "has at most 200 characters")
	}
	invitation, user, err := s.invited(ctx, in.Token)
	if err != nil {
		return Invitation{}, err
	}
	// Outside the transaction: hashing takes long.
	var hash string
	if user.ID.IsZero() {
		if err := checkPassword(in.Password); err != nil {
			return Invitation{}, err
		}
		if hash, err = s.passwords.hash(ctx, in.Password); err != nil {
			return Invitation{}, err
		}
	} else {
		right, err := s.passwords.verify(ctx, user.PasswordHash, in.Password)
		if err != nil {
			return Invitation{}, fmt.Errorf("accept invitation: %w", err)
		}
		if !right || !user.DisabledAt.IsZero() {
			return Invitation{}, s.refuseLogIn(ctx, user, LogInInput{Email: invitation.Email, Org: invitation.Org})
		}
	}
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		invitation, err = s.join(ctx, in, user, hash)
		return err
	})
	if err != nil {
		return Invitation{}, fmt.Errorf("accept invitation: %w", err)
	}
	return invitation, nil
}

func errNoInvitation() error {
	return fault.New(fault.NotFound, "invitation-not-found", "there is no such invitation, or it is over; ask for another one")
}

// open reports whether the invitation can be accepted.
func (i Invitation) open(now time.Time) bool {
	return i.AcceptedAt.IsZero() && i.RevokedAt.IsZero() && now.Before(i.ExpiresAt)
}

// State is open, accepted, revoked or expired.
func (i Invitation) State(now time.Time) string {
	switch {
	case !i.AcceptedAt.IsZero():
		return "accepted"
	case !i.RevokedAt.IsZero():
		return "revoked"
	case !now.Before(i.ExpiresAt):
		return "expired"
	default:
		return "open"
	}
}

// invited finds an open invitation, and the account that has its address; the zero user for none.
func (s *Service) invited(ctx context.Context, token string) (Invitation, User, error) {
	var found Invitation
	var user User
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		if found, err = s.invitations.InvitationByToken(ctx, hashToken(token)); err != nil {
			return err
		}
		user, err = s.accounts.UserByEmail(ctx, found.Email)
		if fault.Is(err, fault.NotFound) {
			return nil
		}
		return err
	})
	if fault.Is(err, fault.NotFound) || err == nil && !found.open(s.clock.Now()) {
		return Invitation{}, User{}, errNoInvitation()
	}
	if err != nil {
		return Invitation{}, User{}, fmt.Errorf("find invitation: %w", err)
	}
	return found, user, nil
}

// join looks at the invitation once more, now that it is locked, and takes the person in.
func (s *Service) join(ctx context.Context, in JoinInput, user User, hash string) (Invitation, error) {
	now := s.clock.Now()
	found, err := s.invitations.InvitationByToken(ctx, hashToken(in.Token))
	if err != nil {
		return Invitation{}, err
	}
	if !found.open(now) {
		return Invitation{}, errNoInvitation()
	}
	if user.ID.IsZero() {
		user = User{ID: ids.Make[ids.User](), Email: found.Email, Name: in.Name, PasswordHash: hash, CreatedAt: now}
		if err := s.accounts.CreateUser(ctx, user); err != nil {
			return Invitation{}, err
		}
	}
	if err := s.accounts.AddMembership(ctx, Membership{Org: found.Org, User: user.ID, Project: found.Project, Role: found.Role}, now); err != nil {
		return Invitation{}, err
	}
	found.AcceptedAt, found.AcceptedBy = now, user.ID
	if err := s.invitations.UpdateInvitation(ctx, found); err != nil {
		return Invitation{}, err
	}
	ctx = WithActor(ctx, Actor{Org: found.Org, User: user.ID, Platform: true})
	return found, s.audit.Record(ctx, "invitation.accepted", found.ID.String(), nil, map[string]any{"user_id": user.ID.String(), "role": found.Role})
}
