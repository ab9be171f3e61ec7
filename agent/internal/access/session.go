package access

import (
	"github.com/gliderlabs/ssh"
)

// statusRefused is the exit status of a session whose grant ended between log-in and session.
const statusRefused = 255

// sftp is the one subsystem: file transfer.
const sftp = "sftp"

// terminalOf is what a session's terminal was when the session began. The library writes new sizes to where Pty reads, so it is read in
// the library's own goroutine, before the session has one of its own.
type terminalOf struct {
	ssh.Pty

	resizes <-chan ssh.Window
}

// beginning implements ssh.SessionRequestCallback.
func (s *Server) beginning(session ssh.Session, _ string) bool {
	if pty, resizes, terminal := session.Pty(); terminal {
		s.terminals.Store(session, terminalOf{Pty: pty, resizes: resizes})
	}
	return true
}

// session is one shell or one command of a tenant.
func (s *Server) session(session ssh.Session) {
	place, _ := session.Context().Value(placeKey).(string) //nolint:errcheck // without one, begin refuses
	if !s.begin(place) {
		s.terminals.Delete(session)
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
	asked := Session{Command: session.RawCommand(), SFTP: session.Subsystem() == sftp, In: session, Out: session, Err: session.Stderr()}
	if kept, terminal := s.terminals.LoadAndDelete(session); terminal {
		pty, _ := kept.(terminalOf) //nolint:errcheck // nothing else is kept there
		sizes := make(chan Size, 1)
		done := make(chan struct{})
		defer close(done)
		go passSizes(pty.resizes, sizes, done)
		asked.Terminal = &Terminal{Name: pty.Term, Size: sizeOf(pty.Window), Resizes: sizes}
	}
	return s.cfg.Sessions.Serve(session.Context(), place, asked)
}

// passSizes hands a terminal's new sizes on until the session is done.
func passSizes(from <-chan ssh.Window, to chan<- Size, done <-chan struct{}) {
	defer close(to)
	for {
		select {
		case w, open := <-from:
			if !open {
				return
			}
			select {
			case to <- sizeOf(w):
			case <-done:
				return
			}
		case <-done:
			return
		}
	}
}

func sizeOf(w ssh.Window) Size { return Size{Columns: w.Width, Rows: w.Height} }
