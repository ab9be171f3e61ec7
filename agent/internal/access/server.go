package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gliderlabs/ssh"
	gossh "golang.org/x/crypto/ssh"

	"github.com/leasehold/leasehold/agent/internal/durable"
)

const (
	// maxConns bounds the connections to one node, logged in or not.
	maxConns = 64
	// idleTimeout ends a connection on which nothing moves.
	idleTimeout = 30 * time.Minute
	// loginWithin is how long a connection may take to log in.
	loginWithin = 20 * time.Second
	// probeTimeout bounds the log-ins that the driver tries itself.
	probeTimeout = 10 * time.Second
)

// ServerConfig is what a node's SSH server is made of.
type ServerConfig struct {
	Dir    string // keeps host key, port and grants over restarts
	Listen string // the address to listen on, without a port
	// Advertise is the host that customers are told; "" is Listen.
	Advertise string
	// Port is tried before one of the system's choosing when none is kept in Dir; 0: none.
	Port     int
	Sessions Sessions
	Now      func() time.Time
	Log      *slog.Logger
}

// Server is an SSH server with keys per place. It implements Driver.
type Server struct {
	cfg     ServerConfig
	host    gossh.Signer
	ctx     context.Context //nolint:containedctx // sessions live as long as the server
	stop    context.CancelFunc
	serving sync.WaitGroup

	terminals sync.Map // terminalOf by ssh.Session, from a session's request to its start

	mu     sync.Mutex
	state  state
	server *ssh.Server
	live   map[string]*placeSessions
	conns  int
	timers map[string]*time.Timer
}

// state is what lies in the directory.
type state struct {
	Port   int             `json:"port"`
	Grants map[string]held `json:"grants"` // by place
}

// held is a grant as it is kept. Its User is the one that was given out.
type held struct {
	Grant

	// Probe is the private key of a pair of the driver's own, with which it logs in to prove that the grant works, and after
	// the revocation that it does not.
	Probe   []byte `json:"probe"`
	Revoked bool   `json:"revoked"` // kept a while, so that a repeated revocation can try the log-in again
}

// holds reports whether somebody may log in by it now.
func (h held) holds(now time.Time) bool { return !h.Revoked && now.Before(h.NotAfter) }

// placeSessions is what a place has open.
type placeSessions struct {
	conns    map[net.Conn]bool
	sessions int
}

// NewServer opens the directory. It listens from the first grant on, or at once when a grant of an earlier process still holds.
func NewServer(ctx context.Context, cfg ServerConfig) (*Server, error) {
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make access directory: %w", err)
	}
	host, err := openSigner(filepath.Join(cfg.Dir, "ssh_host_key"))
	if err != nil {
		return nil, fmt.Errorf("open host key: %w", err)
	}
	s := &Server{cfg: cfg, host: host, live: map[string]*placeSessions{}, timers: map[string]*time.Timer{}}
	if _, err := durable.ReadJSON(s.statePath(), &s.state); err != nil {
		return nil, fmt.Errorf("open access: %w", err)
	}
	if s.state.Grants == nil {
		s.state.Grants = map[string]held{}
	}
	s.ctx, s.stop = context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	open := false
	for place, g := range s.state.Grants {
		if g.holds(cfg.Now()) {
			s.expireAt(place, g.NotAfter)
			open = true
		}
	}
	if open {
		if err := s.listen(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Server) statePath() string { return filepath.Join(s.cfg.Dir, "access.json") }

func (s *Server) save() error { return durable.WriteJSON(s.statePath(), s.state, 0o600) }

// listen starts serving if it does not serve yet. The port that was given out once is kept, since customers have it.
func (s *Server) listen() error {
	if s.server != nil {
		return nil
	}
	listener, err := s.bind()
	if err != nil {
		return fmt.Errorf("listen for SSH: %w", err)
	}
	address, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		return errors.Join(fmt.Errorf("listen for SSH: not a TCP address: %v", listener.Addr()), listener.Close())
	}
	if s.state.Port != address.Port {
		s.state.Port = address.Port
		if err := s.save(); err != nil {
			return errors.Join(err, listener.Close())
		}
	}
	s.server = s.newServer()
	s.serving.Go(func() {
		if err := s.server.Serve(listener); err != nil && !errors.Is(err, ssh.ErrServerClosed) {
			s.cfg.Log.Error("SSH server ended", "error", err)
		}
	})
	return nil
}

func (s *Server) bind() (net.Listener, error) {
	var config net.ListenConfig
	var errs []error
	for _, port := range []int{s.state.Port, s.cfg.Port, 0} {
		if port == 0 && len(errs) == 0 && (s.state.Port != 0 || s.cfg.Port != 0) {
			continue
		}
		listener, err := config.Listen(s.ctx, "tcp", net.JoinHostPort(s.cfg.Listen, strconv.Itoa(port)))
		if err == nil {
			return listener, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (s *Server) newServer() *ssh.Server {
	server := &ssh.Server{
		Version:          "Leasehold",
		HostSigners:      []ssh.Signer{s.host},
		IdleTimeout:      idleTimeout,
		ConnCallback:     s.accept,
		PublicKeyHandler: s.authenticate,
		Handler:          s.session,
		PtyCallback:      func(ssh.Context, ssh.Pty) bool { return true },

		SessionRequestCallback: s.beginning,
		ServerConfigCallback: func(ssh.Context) *gossh.ServerConfig {
			return &gossh.ServerConfig{MaxAuthTries: 6}
		},
		// Sessions only: no agents, no X11, and nothing is listened on for tenants.
		ChannelHandlers:   map[string]ssh.ChannelHandler{"session": ssh.DefaultSessionHandler},
		RequestHandlers:   map[string]ssh.RequestHandler{},
		SubsystemHandlers: map[string]ssh.SubsystemHandler{},
	}
	if _, whole := s.cfg.Sessions.(Machine); whole {
		server.ChannelHandlers["direct-tcpip"] = s.forward
		server.SubsystemHandlers[sftp] = s.session
	}
	return server
}

// contextKey is the type of this package's keys in an ssh.Context.
type contextKey string

const (
	connKey  contextKey = "conn"
	placeKey contextKey = "place"
)

// accept counts a connection in, or refuses it when there are too many. One that does not log in in time is closed.
func (s *Server) accept(ctx ssh.Context, conn net.Conn) net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns >= maxConns {
		return nil
	}
	s.conns++
	late := time.AfterFunc(loginWithin, func() {
		if ctx.Value(ssh.ContextKeyConn) == nil {
			_ = conn.Close() //nolint:errcheck // it may be closed already
		}
	})
	counted := &countedConn{Conn: conn, closed: func() {
		late.Stop()
		s.left(conn)
	}}
	ctx.SetValue(connKey, net.Conn(counted))
	return counted
}

// countedConn tells when it is closed, once.
type countedConn struct {
	net.Conn

	once   sync.Once
	closed func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.closed)
	return err
}

func (s *Server) left(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns--
	for _, open := range s.live {
		for c := range open.conns {
			if counted, ok := c.(*countedConn); ok && counted.Conn == conn {
				delete(open.conns, c)
			}
		}
	}
}

// authenticate finds the place whose user and key these are, and that has not ended.
func (s *Server) authenticate(ctx ssh.Context, key ssh.PublicKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	place, found := s.placeOf(ctx.User(), key)
	if !found {
		return false
	}
	ctx.SetValue(placeKey, place)
	if conn, ok := ctx.Value(connKey).(net.Conn); ok {
		s.sessionsOf(place).conns[conn] = true
	}
	return true
}

func (s *Server) placeOf(user string, key ssh.PublicKey) (string, bool) {
	for place, g := range s.state.Grants {
		if g.User == user && g.holds(s.cfg.Now()) && g.admits(key) {
			return place, true
		}
	}
	return "", false
}

func (h held) admits(key ssh.PublicKey) bool {
	if probe, err := gossh.ParsePrivateKey(h.Probe); err == nil && ssh.KeysEqual(key, probe.PublicKey()) {
		return true
	}
	return slices.ContainsFunc(h.Keys, func(line string) bool {
		allowed, _, _, _, err := gossh.ParseAuthorizedKey([]byte(line))
		return err == nil && ssh.KeysEqual(key, allowed)
	})
}

func (s *Server) sessionsOf(place string) *placeSessions {
	if s.live[place] == nil {
		s.live[place] = &placeSessions{conns: map[net.Conn]bool{}}
	}
	return s.live[place]
}

// Close ends all sessions and stops listening. Grants stay, for the next process.
func (s *Server) Close() error {
	s.stop()
	s.mu.Lock()
	for _, timer := range s.timers {
		timer.Stop()
	}
	server := s.server
	s.mu.Unlock()
	var err error
	if server != nil {
		err = server.Close()
	}
	s.serving.Wait()
	return err
}
