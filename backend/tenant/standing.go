package tenant

import (
	"context"
	"sync"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// standingFor is how long what a session may do is believed without another look: a log-out, a lost role and a removed member take effect
// within this time, everywhere.
const standingFor = 10 * time.Second

// maxStandings bounds the memory; past it everything is looked up again.
const maxStandings = 50_000

// standings remembers what sessions may do, a moment long.
type standings struct {
	mu   sync.Mutex
	seen map[ids.Session]seenStanding
}

type seenStanding struct {
	member Membership
	strong bool // it has shown a second factor
	locked bool
	alive  bool
	until  time.Time
}

func newStandings() *standings { return &standings{seen: map[ids.Session]seenStanding{}} }

func (s *standings) get(id ids.Session, now time.Time) (seenStanding, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.seen[id]
	return found, ok && now.Before(found.until)
}

func (s *standings) put(id ids.Session, standing seenStanding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) >= maxStandings {
		clear(s.seen)
	}
	s.seen[id] = standing
}

// forget has the session looked up at its next request here.
func (s *standings) forget(id ids.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.seen, id)
}

// standing is what a session's person may do now, whatever the token says: tokens live for minutes, and rights may not.
func (s *Service) standing(ctx context.Context, claims Claims) (Actor, error) {
	now := s.clock.Now()
	found, ok := s.standings.get(claims.Session, now)
	if !ok {
		err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
			var err error
			found, err = s.look(ctx, claims, now)
			return err
		})
		if err != nil {
			return Actor{}, err
		}
		if !found.locked { // who has just set a second factor up wants to go on
			s.standings.put(claims.Session, found)
		}
	}
	if !found.alive {
		return Actor{}, errSessionEnded()
	}
	actor := claims.actor()
	actor.Role, actor.Project, actor.OrgKind = found.member.Role, found.member.Project, found.member.OrgKind
	actor.SecondFactor, actor.Locked = found.strong, found.locked
	return actor, nil
}

func (s *Service) look(ctx context.Context, claims Claims, now time.Time) (seenStanding, error) {
	gone := seenStanding{until: now.Add(standingFor)}
	session, err := s.sessions.Session(ctx, claims.Session)
	if fault.Is(err, fault.NotFound) || err == nil && (!session.RevokedAt.IsZero() || session.User != claims.User) {
		return gone, nil
	}
	if err != nil {
		return gone, err
	}
	user, err := s.accounts.User(ctx, claims.User)
	if err != nil || !user.DisabledAt.IsZero() {
		return gone, err
	}
	all, err := s.accounts.Memberships(ctx, claims.User)
	if err != nil {
		return gone, err
	}
	member, ok := strongest(all, claims.Org)
	locked, err := s.locked(ctx, session, member)
	if err != nil {
		return gone, err
	}
	return seenStanding{member: member, alive: ok, strong: session.SecondFactor, locked: locked, until: now.Add(standingFor)}, nil
}

// locked reports whether a second factor is required of the session that it has not shown.
func (s *Service) locked(ctx context.Context, session Session, member Membership) (bool, error) {
	if session.SecondFactor {
		return false, nil
	}
	if s.options.AdminsNeedSecondFactor && member.Role.rank() >= Admin.rank() {
		return true, nil
	}
	policy, err := s.policies.Policy(ctx, session.Org)
	return policy.RequireSecondFactor, err
}
