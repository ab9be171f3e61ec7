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
	case g.LeaseID == "" || g.User == "":
		return fmt.Errorf("a grant needs a lease and a user: %w", ErrInvalid)
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
	before, existed := s.state.Grants[g.LeaseID]
	if existed && !before.Revoked {
		h.User = before.User
	} else {
		h.User = s.distinctUser(g)
	}
	s.state.Grants[g.LeaseID] = h
	if err := s.save(); err != nil {
		return h, err
	}
	if existed && !subset(before.Keys, g.Keys) {
		s.closeConns(g.LeaseID) // whoever still may comes back
	}
	s.expireAt(g.LeaseID, g.NotAfter)
	return h, s.listen()
}

// distinctUser gives a second lease on a shared node a log-in name of its own, so that name and key always say which lease is
// meant, also when one person has several.
func (s *Server) distinctUser(g Grant) string {
	for lease, other := range s.state.Grants {
		if lease != g.LeaseID && !other.Revoked && other.User == g.User {
			return g.User + "-" + g.LeaseID[max(0, len(g.LeaseID)-8):]
		}
	}
	return g.User
}

func subset(some, all []string) bool {
	return !slices.ContainsFunc(some, func(k string) bool { return !slices.Contains(all, k) })
}

// expireAt ends the lease's access at an instant, also when nobody revokes it: a node that is cut off does not stay open.
func (s *Server) expireAt(lease string, at time.Time) {
	if timer := s.timers[lease]; timer != nil {
		timer.Stop()
	}
	s.timers[lease] = time.AfterFunc(max(at.Sub(s.cfg.Now()), 0), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if g, exists := s.state.Grants[lease]; exists && !g.holds(s.cfg.Now()) {
			s.cfg.Log.Info("access ended by itself", "lease", lease)
			s.closeConns(lease)
		}
	})
}

// closeConns ends everything that the lease has open and returns how many sessions that were. The caller holds the lock.
func (s *Server) closeConns(lease string) int {
	open := s.live[lease]
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
func (s *Server) Revoke(ctx context.Context, leaseID string) (protocol.RevokeEvidence, error) {
	h, ended, err := s.take(leaseID)
	if err != nil {
		return protocol.RevokeEvidence{}, fmt.Errorf("revoke access: %w", err)
	}
	evidence := protocol.RevokeEvidence{SessionsEnded: ended, ProcessesEnded: ended}
	if err := s.awaitQuiet(ctx, leaseID); err != nil {
		return evidence, err
	}
	evidence.LoginRefused, err = refused(s.tryLogin(ctx, h.User, h.Probe))
	if err != nil {
		return evidence, fmt.Errorf("revoke access: %w", err)
	}
	return evidence, nil
}

// take ends the lease's grant, durably, and returns it with the number of sessions that it had open. For a lease that never had
// one it returns a stranger's, so that a log-in can be tried all the same; the server listens for it.
func (s *Server) take(leaseID string) (held, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, existed := s.state.Grants[leaseID]
	if !existed {
		stranger, err := newKey()
		return held{Grant: Grant{User: "lease"}, Probe: stranger}, 0, errors.Join(err, s.listen())
	}
	h.Revoked, h.Keys = true, nil
	s.state.Grants[leaseID] = h
	s.forgetRevoked()
	if timer := s.timers[leaseID]; timer != nil {
		timer.Stop()
		delete(s.timers, leaseID)
	}
	err := s.save()
	return h, s.closeConns(leaseID), errors.Join(err, s.listen())
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
		delete(s.state.Grants, h.LeaseID)
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

// awaitQuiet waits until the lease's sessions are gone.
func (s *Server) awaitQuiet(ctx context.Context, lease string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		s.mu.Lock()
		open := s.live[lease]
		quiet := open == nil || (open.sessions == 0 && len(open.conns) == 0)
		if quiet {
			delete(s.live, lease)
		} else {
			s.closeConns(lease)
		}
		s.mu.Unlock()
		if quiet {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("revoke access: sessions of the lease do not end: %w", ctx.Err())
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
func (s *Server) Granted(leaseID string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, exists := s.state.Grants[leaseID]
	return exists && g.holds(s.cfg.Now())
}
