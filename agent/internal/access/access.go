// Package access lets a tenant's people in and out of a machine by SSH, place by place: a place is a lease's share of the machine,
// and a lease may have several on one. The driver is an SSH server inside the agent; what tenants talk to
// behind it is a container's shell, or for simulated nodes a small built-in one.
package access

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
)

// ErrInvalid says that a grant cannot be understood, e.g. that a key is not in authorized_keys form.
var ErrInvalid = errors.New("invalid grant")

// Driver controls who can log in. It is safe for concurrent use.
type Driver interface {
	// Grant lets the holders of exactly these keys in until NotAfter, and proves by logging in that it works. It replaces the
	// place's earlier grant; sessions of keys that are no longer in it end. ErrInvalid.
	Grant(ctx context.Context, g Grant) (protocol.GrantEvidence, error)
	// Revoke ends the place's access and its sessions, and proves by trying that a log-in is refused. A place that has no
	// access is no error.
	Revoke(ctx context.Context, place string) (protocol.RevokeEvidence, error)
	// Granted reports whether somebody can log in to the place now.
	Granted(place string) bool
}

// Grant is who may log in to a place.
type Grant struct {
	Place string `json:"place"`
	// User is the log-in name that is wanted. A second place on one machine gets one of its own, so that name and key always say
	// which place is meant, also when one person has several.
	User     string    `json:"user"`
	Keys     []string  `json:"keys"` // authorized_keys form
	NotAfter time.Time `json:"not_after"`
	// Seed is what a tenant's own system is told; for drivers that let people in by it.
	Seed *protocol.Seed `json:"seed,omitempty"`
}

// Sessions is what tenants talk to once they are logged in. It is safe for concurrent use.
type Sessions interface {
	// Serve runs one session to its end and returns its exit status, 127 for an unknown command. It ends soon after ctx does.
	Serve(ctx context.Context, place string, s Session) int
}

// Machine is Sessions with a whole machine behind: files can be transferred with its own programs, and what listens in the tenant's place,
// e.g. a notebook's web server, can be reached. For other Sessions both are refused.
type Machine interface {
	Sessions
	// Dial connects to a port of the place's own loopback interface.
	Dial(ctx context.Context, place string, port int) (net.Conn, error)
}

// Session is one session of a tenant: a command, or a log-in shell.
type Session struct {
	Command  string // "" is a log-in shell
	SFTP     bool   // instead of a command: the file transfer protocol on In and Out; a Machine's only
	Terminal *Terminal
	In       io.Reader
	Out, Err io.Writer
}

// Terminal is a tenant's terminal.
type Terminal struct {
	Name    string // e.g. xterm-256color
	Size    Size
	Resizes <-chan Size // closed with the session
}

// Size is a terminal's, in characters.
type Size struct{ Columns, Rows int }

// Shell is a line at a time of a tenant's session. It never is the host's.
type Shell interface {
	// Prompt is shown before each line of an interactive session, Welcome before the first.
	Prompt(place string) string
	Welcome(place string) string
	// Run runs one line and returns its exit status, 127 for an unknown command. done ends the session.
	Run(ctx context.Context, place, line string, out, errs io.Writer) (status int, done bool)
}
