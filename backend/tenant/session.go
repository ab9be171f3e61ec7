package tenant

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Session is one log-in of a person. Its access tokens are short and need no look-up; its refresh token is rotated at each use.
type Session struct {
	ID           ids.Session
	Org          ids.Org
	User         ids.User
	RefreshHash  []byte // SHA-256
	PreviousHash []byte // of the token that was traded for it; the release before this one reads both
	UserAgent    string
	CreatedAt    time.Time
	RefreshedAt  time.Time
	ExpiresAt    time.Time
	RevokedAt    time.Time // zero: it lives
	SecondFactor bool      // it was shown
}

// Claims are what an access token proves.
type Claims struct {
	Session   ids.Session
	User      ids.User
	Org       ids.Org
	OrgKind   OrgKind
	Project   ids.Project
	Role      Role
	IssuedAt  time.Time
	ExpiresAt time.Time
}

func (c Claims) actor() Actor {
	return Actor{Org: c.Org, OrgKind: c.OrgKind, User: c.User, Session: c.Session, Project: c.Project, Role: c.Role}
}

// Grant is what a log-in or a refresh gives.
type Grant struct {
	AccessToken     string
	AccessExpiresAt time.Time
	RefreshToken    string
	RefreshTTL      time.Duration // from now
	Me              Me
}

// LogInInput is what a person types, and which of their organizations they want (zero: the first).
type LogInInput struct {
	Email     string
	Password  string
	Org       ids.Org
	UserAgent string
	Code      string // of the authenticator app, or a recovery code; "": none
}

const (
	refreshTokenBytes = 32
	maxUserAgent      = 400
)

// LogIn starts a session. Whatever is wrong with address or password, the answer is the same Unauthenticated fault and takes as
// long; Forbidden when the person does not belong to the organization that they asked for.
func (s *Service) LogIn(ctx context.Context, in LogInInput) (Grant, error) {
	ctx = AsPlatform(ctx)
	user, err := s.findUser(ctx, normalizeEmail(in.Email))
	if err != nil {
		return Grant{}, fmt.Errorf("log in: %w", err)
	}
	right, err := s.passwords.verify(ctx, user.PasswordHash, in.Password)
	if err != nil {
		return Grant{}, fmt.Errorf("log in: %w", err)
	}
	if !right || !user.DisabledAt.IsZero() {
		return Grant{}, s.refuseLogIn(ctx, user, in)
	}
	grant, err := s.open(ctx, user, in)
	if fault.CodeOf(err) == "wrong-code" {
		if refusal := s.refuseLogIn(ctx, user, in); fault.CodeOf(refusal) != "wrong-credentials" {
			return Grant{}, refusal
		}
		return Grant{}, err
	}
	if err != nil {
		return Grant{}, fmt.Errorf("log in: %w", err)
	}
	return grant, nil
}

// findUser answers the zero user when there is none.
func (s *Service) findUser(ctx context.Context, email string) (User, error) {
	var user User
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		user, err = s.accounts.UserByEmail(ctx, email)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return User{}, nil
	}
	return user, err
}

// refuseLogIn notes the failure, in the organization that it concerns or else in the platform's own log, and answers the one fault. Addresses
// of nobody are kept as hashes: people type passwords there.
func (s *Service) refuseLogIn(ctx context.Context, user User, in LogInInput) error {
	refusal := fault.New(fault.Unauthenticated, "wrong-credentials", "e-mail or password is wrong")
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if user.ID.IsZero() {
			sum := sha256.Sum256([]byte(normalizeEmail(in.Email)))
			return s.audit.Record(ctx, "session.refused", "nobody", nil, map[string]any{"email_sha256": hex.EncodeToString(sum[:])})
		}
		all, err := s.accounts.Memberships(ctx, user.ID)
		if err != nil {
			return err
		}
		if member, ok := strongest(all, in.Org); ok {
			ctx = WithActor(ctx, Actor{Org: member.Org, User: user.ID, Platform: true})
		}
		return s.audit.Record(ctx, "session.refused", user.ID.String(), nil, map[string]any{"user_agent": cut(in.UserAgent, maxUserAgent)})
	})
	if err != nil {
		return fmt.Errorf("log in: %w", err)
	}
	return refusal
}

func (s *Service) open(ctx context.Context, user User, in LogInInput) (Grant, error) {
	token, hash, err := newRefreshToken()
	if err != nil {
		return Grant{}, err
	}
	now := s.clock.Now()
	session := Session{
		ID: ids.Make[ids.Session](), User: user.ID, RefreshHash: hash, UserAgent: cut(in.UserAgent, maxUserAgent),
		CreatedAt: now, RefreshedAt: now, ExpiresAt: now.Add(s.options.RefreshTTL),
	}
	var grant Grant
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		member, err := s.member(ctx, user.ID, in.Org)
		if err != nil {
			return err
		}
		session.Org = member.Org
		if session.SecondFactor, err = s.prove(ctx, user.ID, in.Code); err != nil {
			return err
		}
		if err := s.sessions.CreateSession(ctx, session); err != nil {
			return err
		}
		if err := s.sessions.AddToken(ctx, session, RefreshToken{Hash: hash, CreatedAt: now}); err != nil {
			return err
		}
		if s.passwords.outdated(user.PasswordHash) {
			if err := s.rehash(ctx, user.ID, in.Password); err != nil {
				return err
			}
		}
		if grant, err = s.grant(ctx, session, user, member, token); err != nil {
			return err
		}
		return s.audit.Record(WithActor(ctx, grant.Me.Actor), "session.created", session.ID.String(), nil, map[string]any{"user_agent": session.UserAgent})
	})
	return grant, err
}

func (s *Service) rehash(ctx context.Context, user ids.User, password string) error {
	hash, err := s.passwords.hash(ctx, password)
	if err != nil {
		return err
	}
	return s.accounts.SetPasswordHash(ctx, user, hash)
}

func (s *Service) member(ctx context.Context, user ids.User, org ids.Org) (Membership, error) {
	all, err := s.accounts.Memberships(ctx, user)
	if err != nil {
		return Membership{}, err
	}
	member, ok := strongest(all, org)
	if !ok {
		return Membership{}, fault.New(fault.Forbidden, "not-a-member", "you do not belong to that organization")
	}
	return member, nil
}

// grant signs the access token of a session.
func (s *Service) grant(ctx context.Context, session Session, user User, member Membership, refresh string) (Grant, error) {
	org, err := s.accounts.Organization(ctx, member.Org)
	if err != nil {
		return Grant{}, err
	}
	now := s.clock.Now()
	claims := Claims{
		Session: session.ID, User: user.ID, Org: org.ID, OrgKind: org.Kind, Project: member.Project, Role: member.Role,
		IssuedAt: now, ExpiresAt: now.Add(s.options.AccessTTL),
	}
	actor := claims.actor()
	actor.SecondFactor = session.SecondFactor
	if actor.Locked, err = s.locked(ctx, session, member); err != nil {
		return Grant{}, err
	}
	access, err := s.tokens.Sign(claims)
	if err != nil {
		return Grant{}, err
	}
	return Grant{
		AccessToken: access, AccessExpiresAt: claims.ExpiresAt, RefreshToken: refresh, RefreshTTL: session.ExpiresAt.Sub(now),
		Me: Me{Actor: actor, User: user, Organization: org},
	}, nil
}

// RefreshToken is one of a session's. Several may be good at a time: each tab that traded at once has its own.
type RefreshToken struct {
	Hash      []byte // SHA-256
	CreatedAt time.Time
	RetiredAt time.Time // zero: it was not traded yet
}

// refreshGrace is how long a traded token is good still. Two tabs share a cookie and trade it within a second of each other; an answer that
// gets lost is asked for again within a few. A thief who is as quick gets a token too, which ends when the owner's is traded next; using it
// after that ends the session.
const refreshGrace = 30 * time.Second

// Refresh trades a refresh token for a new grant. A token that was traded a while ago ends the session, since it means that two parties
// have it; that, an unknown token, an ended session and a disabled person are all the same Unauthenticated fault.
func (s *Service) Refresh(ctx context.Context, token string) (Grant, error) {
	ctx = AsPlatform(ctx)
	hash := hashToken(token)
	var (
		grant  Grant
		reused bool
	)
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		session, found, err := s.sessions.SessionByToken(ctx, hash)
		if err != nil {
			return err
		}
		now := s.clock.Now()
		if !session.RevokedAt.IsZero() || !now.Before(session.ExpiresAt) {
			return errSessionEnded()
		}
		if !found.RetiredAt.IsZero() && now.Sub(found.RetiredAt) > refreshGrace {
			reused = true // commits the revocation; the refusal follows
			return s.revoke(ctx, session, "session.reuse_detected")
		}
		grant, err = s.rotate(ctx, session, found)
		return err
	})
	switch {
	case reused && err == nil, fault.Is(err, fault.NotFound):
		return Grant{}, errSessionEnded()
	case err != nil:
		return Grant{}, fmt.Errorf("refresh session: %w", err)
	default:
		return grant, nil
	}
}

func errSessionEnded() error {
	return fault.New(fault.Unauthenticated, "session-ended", "the session has ended, log in again")
}

// rotate gives the session another token in place of the one that was traded, and retires those that other tabs got a while ago.
func (s *Service) rotate(ctx context.Context, session Session, traded RefreshToken) (Grant, error) {
	user, err := s.accounts.User(ctx, session.User)
	if err != nil {
		return Grant{}, err
	}
	member, err := s.member(ctx, session.User, session.Org)
	if err != nil || !user.DisabledAt.IsZero() {
		return Grant{}, errSessionEnded()
	}
	token, hash, err := newRefreshToken()
	if err != nil {
		return Grant{}, err
	}
	session.PreviousHash, session.RefreshHash = traded.Hash, hash
	session.RefreshedAt = s.clock.Now()
	session.ExpiresAt = session.RefreshedAt.Add(s.options.RefreshTTL)
	if err := s.sessions.UpdateSession(ctx, session); err != nil {
		return Grant{}, err
	}
	if err := s.sessions.RetireTokens(ctx, session.ID, traded.Hash, session.RefreshedAt.Add(-refreshGrace), session.RefreshedAt); err != nil {
		return Grant{}, err
	}
	if err := s.sessions.AddToken(ctx, session, RefreshToken{Hash: hash, CreatedAt: session.RefreshedAt}); err != nil {
		return Grant{}, err
	}
	return s.grant(ctx, session, user, member, token)
}

func (s *Service) revoke(ctx context.Context, session Session, action string) error {
	if err := s.sessions.RevokeSession(ctx, session.ID, s.clock.Now()); err != nil {
		return err
	}
	ctx = WithActor(ctx, Actor{Org: session.Org, User: session.User, Session: session.ID})
	return s.audit.Record(ctx, action, session.ID.String(), nil, nil)
}

// LogOut ends the actor's session; its access token lives on for some seconds (standingFor). Conflict for an API key.
func (s *Service) LogOut(ctx context.Context) error {
	actor, err := MustAct(ctx)
	if err != nil {
		return err
	}
	if actor.Session.IsZero() {
		return fault.New(fault.Conflict, "not-a-session", "an API key has no session; revoke it instead")
	}
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		return s.revoke(ctx, Session{ID: actor.Session, Org: actor.Org, User: actor.User}, "session.deleted")
	})
	if err != nil {
		return fmt.Errorf("log out: %w", err)
	}
	return nil
}

func newRefreshToken() (token string, hash []byte, err error) { //nolint:nonamedreturns // which is which
	raw := make([]byte, refreshTokenBytes)
	if _, err := rand.Read(raw); err != nil {
		return "", nil, fmt.Errorf("draw refresh token: %w", err)
	}
	token = base64.RawURLEncoding.EncodeToString(raw)
	return token, hashToken(token), nil
}

func hashToken(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return sum[:]
}

// cut shortens s to at most n bytes, at a character's edge.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n]
}
