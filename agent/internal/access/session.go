package access

import (
	"bufio"
	"context"
	"io"
	"strings"

	"github.com/gliderlabs/ssh"
	"golang.org/x/term"
)

// statusRefused is the exit status of a session whose grant ended between log-in and session.
const statusRefused = 255

// maxLine bounds a line of a session without a terminal.
const maxLine = 64 << 10

// session is one shell or one command of a tenant.
func (s *Server) session(session ssh.Session) {
	place, _ := session.Context().Value(placeKey).(string) //nolint:errcheck // without one, begin refuses
	if !s.begin(place) {
		_ = session.Exit(statusRefused) //nolint:errcheck // the peer is gone
		return
	}
	defer s.finished(place)
	_ = session.Exit(s.serve(session, place)) //nolint:errcheck // the peer is gone
}

func (s *Server) begin(place string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g, exists := s.state.Grants[place]; !exists || !g.holds(s.cfg.Now()) {
		return false
	}
	s.sessionsOf(place).sessions++
	return true
}

func (s *Server) finished(place string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if open := s.live[place]; open != nil {
		open.sessions--
	}
}

func (s *Server) serve(session ssh.Session, place string) int {
	pty, resizes, terminal := session.Pty()
	command := session.RawCommand()
	switch {
	case command == "true": // what the driver itself tries
		return 0
	case command != "":
		status, _ := s.cfg.Shell.Run(session.Context(), place, command, newlines(session, terminal), newlines(session.Stderr(), terminal))
		return status
	case terminal:
		return s.interactive(session, place, pty.Window, resizes)
	default:
		return s.script(session.Context(), place, session, session.Stderr())
	}
}

// newlines turns line ends into those that a terminal needs, when there is one.
func newlines(w io.Writer, terminal bool) io.Writer {
	if terminal {
		return crlf{w}
	}
	return w
}

type crlf struct{ io.Writer }

// Write implements io.Writer.
func (c crlf) Write(p []byte) (int, error) {
	if _, err := io.WriteString(c.Writer, strings.ReplaceAll(string(p), "\n", "\r\n")); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (s *Server) interactive(session ssh.Session, place string, window ssh.Window, resizes <-chan ssh.Window) int {
	t := term.NewTerminal(session, s.cfg.Shell.Prompt(place))
	_ = t.SetSize(window.Width, window.Height) //nolint:errcheck // a strange size is the client's affair
	go func() {
		for w := range resizes {
			_ = t.SetSize(w.Width, w.Height) //nolint:errcheck // a strange size is the client's affair
		}
	}()
	if _, err := io.WriteString(t, s.cfg.Shell.Welcome(place)); err != nil {
		return statusRefused
	}
	last := 0
	for {
		line, err := t.ReadLine()
		if err != nil {
			return last
		}
		status, done := s.cfg.Shell.Run(session.Context(), place, line, t, t)
		if last = status; done {
			return last
		}
	}
}

// script runs the lines that come without a terminal, e.g. from a pipe.
func (s *Server) script(ctx context.Context, place string, session io.ReadWriter, errs io.Writer) int {
	lines := bufio.NewScanner(session)
	lines.Buffer(nil, maxLine)
	last := 0
	for lines.Scan() {
		status, done := s.cfg.Shell.Run(ctx, place, lines.Text(), session, errs)
		if last = status; done {
			break
		}
	}
	return last
}
