package access

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	gossh "golang.org/x/crypto/ssh"

	"github.com/leasehold/leasehold/agent/protocol"
)

// maxKeys bounds a grant.
const maxKeys = 256

// keepRevoked is how many revoked grants are kept.
const keepRevoked = 32

// Grant implements Driver.
func (s *Server) Grant(ctx context.Context, g Grant) (protocol.GrantEvidence, error) {
	if err := s.check(g); err != nil {
		return protocol.GrantEvidence{}, err
	}
	h, err := s.put(g)
	if err != nil {
		return protocol.GrantEvidence{}, fmt.Errorf("grant access: %w", err)
	}
	if err := s.tryLogin(ctx, h.User, h.Probe); err != nil {
		return protocol.GrantEvidence{}, fmt.Errorf("grant access: a log-in was tried and did not work: %w", err)
	}
	return protocol.GrantEvidence{
		Host: s.advertised(), Port: s.port(), User: h.User,
		HostKeys: []string{strings.TrimSpace(string(gossh.MarshalAuthorizedKey(s.host.PublicKey())))},
	}, nil
}

func (s *Server) check(g Grant) error {
	switch {
	case g.Place == "" || g.User == "":
		return fmt.Errorf("a grant needs a place and a user: %w", ErrInvalid)
	case len(g.Keys) > maxKeys:
		return fmt.Errorf("%d keys are more than %d: %w", len(g.Keys), maxKeys, ErrInvalid)
	case !s.cfg.Now().Before(g.NotAfter):
		return fmt.Errorf("the grant ended at %s: %w", g.NotAfter.Format(time.RFC3339), ErrInvalid)
	}
	for n, line := range g.Keys {
		if _, _, options, rest, err := gossh.ParseAuthorizedKey([]byte(line)); err != nil || len(options) > 0 || len(rest) > 0 {
			return fmt.Errorf("key %d is not one plain authorized_keys line: %w", n+1, ErrInvalid)
		}
	}
	return nil
}

// put makes the grant hold, durably.
func (s *Server) put(g Grant) (held, error) {
	probe, err := newKey()
	if err != nil {
		return held{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := held{Grant: g, Probe: probe}
	before, existed := s.state.Grants[g.Place]
	if existed && !before.Revoked {
		h.User = before.User
	} else {
		h.User = s.distinctUser(g)
	}
	s.state.Grants[g.Place] = h
	if err := s.save(); err != nil {
		return h, err
	}
	if existed && !subset(before.Keys, g.Keys) {
		s.closeConns(g.Place) // whoever still may comes back
	}
	s.expireAt(g.Place, g.NotAfter)
	return h, s.listen()
}

// distinctUser gives every place of the machine a log-in name of its own.
func (s *Server) distinctUser(g Grant) string {
	taken := map[string]bool{}
	for place, other := range s.state.Grants {
		if place != g.Place && !other.Revoked {
			taken[other.User] = true
		}
	}
	user := g.User
	for n := 2; taken[user]; n++ {
		user = fmt.Sprintf("%s-%d", g.User, n)
	}
	return user
}

func subset(some, all []string) bool {
	return !slices.ContainsFunc(some, func(k string) bool { return !slices.Contains(all, k) })
}

// expireAt ends the place's access at an instant, also when nobody revokes it: a node that is cut off does not stay open.
func (s *Server) expireAt(place string, at time.Time) {
	if timer := s.timers[place]; timer != nil {
		timer.Stop()
	}
	s.timers[place] = time.AfterFunc(max(at.Sub(s.cfg.Now()), 0), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if g, exists := s.state.Grants[place]; exists && !g.holds(s.cfg.Now()) {
			s.cfg.Log.Info("access ended by itself", "place", place)
			s.closeConns(place)
		}
	})
}

// closeConns ends everything that the place has open and returns how many sessions that were. The caller holds the lock.
func (s *Server) closeConns(place string) int {
	open := s.live[place]
	if open == nil {
		return 0
	}
	for conn := range open.conns {
		counted, ok := conn.(*countedConn)
		if ok {
			_ = counted.Conn.Close() //nolint:errcheck // the peer may have closed it already; its handler notices either way
		}
	}
	return open.sessions
}

// Revoke implements Driver.
func (s *Server) Revoke(ctx context.Context, place string) (protocol.RevokeEvidence, error) {
	h, ended, err := s.take(place)
	if err != nil {
		return protocol.RevokeEvidence{}, fmt.Errorf("revoke access: %w", err)
	}
	evidence := protocol.RevokeEvidence{SessionsEnded: ended, ProcessesEnded: ended}
	if err := s.awaitQuiet(ctx, place); err != nil {
		return evidence, err
	}
	evidence.LoginRefused, err = refused(s.tryLogin(ctx, h.User, h.Probe))
	if err != nil {
		return evidence, fmt.Errorf("revoke access: %w", err)
	}
	return evidence, nil
}

// take ends the place's grant, durably, and returns it with the number of sessions that it had open. For a place that never had
// one it returns a stranger's, so that a log-in can be tried all the same; the server listens for it.
func (s *Server) take(place string) (held, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, existed := s.state.Grants[place]
	if !existed {
		stranger, err := newKey()
		return held{Grant: Grant{User: "lease"}, Probe: stranger}, 0, errors.Join(err, s.listen())
	}
	h.Revoked, h.Keys = true, nil
	s.state.Grants[place] = h
	s.forgetRevoked()
	if timer := s.timers[place]; timer != nil {
		timer.Stop()
		delete(s.timers, place)
	}
	err := s.save()
	return h, s.closeConns(place), errors.Join(err, s.listen())
}

func (s *Server) forgetRevoked() {
	var revoked []held
	for _, h := range s.state.Grants {
		if h.Revoked {
			revoked = append(revoked, h)
		}
	}
	slices.SortFunc(revoked, func(a, b held) int { return b.NotAfter.Compare(a.NotAfter) })
	for _, h := range revoked[min(len(revoked), keepRevoked):] {
		delete(s.state.Grants, h.Place)
	}
}

// refused reports whether a log-in failed because the server said no. An attempt that failed for another reason proves nothing.
func refused(err error) (bool, error) {
	switch {
	case err == nil:
		return false, errors.New("a log-in was tried and succeeded")
	case strings.Contains(err.Error(), "unable to authenticate"):
		return true, nil
	default:
		return false, fmt.Errorf("a log-in could not be tried: %w", err)
	}
}

// awaitQuiet waits until the place's sessions are gone.
func (s *Server) awaitQuiet(ctx context.Context, place string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		s.mu.Lock()
		open := s.live[place]
		quiet := open == nil || (open.sessions == 0 && len(open.conns) == 0)
		if quiet {
			delete(s.live, place)
		} else {
			s.closeConns(place)
		}
		s.mu.Unlock()
		if quiet {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("revoke access: sessions of the place do not end: %w", ctx.Err())
		}
	}
}

// tryLogin logs in with a probe's key, which its grant admits beside the customer's.
func (s *Server) tryLogin(ctx context.Context, user string, probe []byte) error {
	key, err := gossh.ParsePrivateKey(probe)
	if err != nil {
		return fmt.Errorf("parse probe key: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	address := net.JoinHostPort(dialable(s.cfg.Listen), strconv.Itoa(s.port()))
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("dial: %w", err)
	}
	defer conn.Close() //nolint:errcheck // nothing hangs on it
	if deadline, set := ctx.Deadline(); set {
		if err := conn.SetDeadline(deadline); err != nil {
			return fmt.Errorf("set deadline: %w", err)
		}
	}
	client, channels, requests, err := gossh.NewClientConn(conn, address, &gossh.ClientConfig{
		User: user, Auth: []gossh.AuthMethod{gossh.PublicKeys(key)}, HostKeyCallback: gossh.FixedHostKey(s.host.PublicKey()),
	})
	if err != nil {
		return err
	}
	c := gossh.NewClient(client, channels, requests)
	defer c.Close() //nolint:errcheck // nothing hangs on it
	session, err := c.NewSession()
	if err != nil {
		return fmt.Errorf("open session: %w", err)
	}
	return session.Run("true")
}

func dialable(listen string) string {
	if ip := net.ParseIP(listen); ip != nil && ip.IsUnspecified() {
		return "127.0.0.1"
	}
	return listen
}

func (s *Server) port() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.Port
}

func (s *Server) advertised() string {
	if s.cfg.Advertise != "" {
		return s.cfg.Advertise
	}
	return s.cfg.Listen
}

// Granted implements Driver.
func (s *Server) Granted(place string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, exists := s.state.Grants[place]
	return exists && g.holds(s.cfg.Now())
}
