// Package access lets a lease's people in and out of a machine by SSH. The one driver so far is a real SSH server inside the
// agent for simulated nodes, whose shell is a small built-in one; a driver for the host's own sshd fits the same interface.
package access

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
)

// ErrInvalid says that a grant cannot be understood, e.g. that a key is not in authorized_keys form.
var ErrInvalid = errors.New("invalid grant")

// Driver controls who can log in. It is safe for concurrent use.
type Driver interface {
	// Grant lets the holders of exactly these keys in until NotAfter, and proves by logging in that it works. It replaces the
	// lease's earlier grant; sessions of keys that are no longer in it end. ErrInvalid.
	Grant(ctx context.Context, g Grant) (protocol.GrantEvidence, error)
	// Revoke ends the lease's access and its sessions, and proves by trying that a log-in is refused. A lease that has no
	// access is no error.
	Revoke(ctx context.Context, leaseID string) (protocol.RevokeEvidence, error)
	// Granted reports whether the lease can log in now.
	Granted(leaseID string) bool
}

// Grant is who may log in for a lease.
type Grant struct {
	LeaseID  string    `json:"lease_id"`
	User     string    `json:"user"`
	Keys     []string  `json:"keys"` // authorized_keys form
	NotAfter time.Time `json:"not_after"`
}

// Shell is what a tenant talks to. It never is the host's.
type Shell interface {
	// Prompt is shown before each line of an interactive session, Welcome before the first.
	Prompt(leaseID string) string
	Welcome(leaseID string) string
	// Run runs one line and returns its exit status, 127 for an unknown command. done ends the session.
	Run(ctx context.Context, leaseID, line string, out, errs io.Writer) (status int, done bool)
}
