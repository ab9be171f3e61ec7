package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/leasehold/leasehold/backend/internal/local"
)

// claim is who runs on a data directory. The lock beside it is what counts, since it ends with its process; the claim is for people.
type claim struct {
	PID   int       `json:"pid"`
	URL   string    `json:"url"` // "" while it starts
	Since time.Time `json:"since"`
}

const (
	claimFile = "running.json"
	claimLock = "running.lock"
)

// claimDataDir makes the directory this process's until release. It returns an error that says who has it, and what to do, when another
// process does.
func claimDataDir(dataDir string, now time.Time) (release func(), err error) {
	unlock, err := local.TryLock(filepath.Join(dataDir, claimLock))
	if errors.Is(err, local.ErrLocked) {
		return nil, errClaimed(dataDir)
	}
	if err != nil {
		return nil, fmt.Errorf("claim data directory: %w", err)
	}
	if err := (claim{PID: os.Getpid(), Since: now}).write(dataDir); err != nil {
		unlock()
		return nil, err
	}
	return func() {
		_ = os.Remove(filepath.Join(dataDir, claimFile))
		unlock()
	}, nil
}

func (c claim) write(dataDir string) error {
	raw, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("write claim: %w", err)
	}
	temporary := filepath.Join(dataDir, claimFile+".new")
	if err := os.WriteFile(temporary, raw, 0o600); err != nil {
		return fmt.Errorf("write claim: %w", err)
	}
	if err := os.Rename(temporary, filepath.Join(dataDir, claimFile)); err != nil {
		return fmt.Errorf("write claim: %w", err)
	}
	return nil
}

func errClaimed(dataDir string) error {
	who := "another process"
	var c claim
	raw, err := os.ReadFile(filepath.Join(dataDir, claimFile)) //nolint:gosec // our own data directory
	if err == nil && json.Unmarshal(raw, &c) == nil && c.PID != 0 {
		who = fmt.Sprintf("process %d, since %s", c.PID, c.Since.Local().Format("15:04:05"))
		if c.URL != "" {
			who += ", at " + c.URL
		}
	}
	return fmt.Errorf(`an instance runs already on %s (%s).
Use that one; or stop it with Ctrl-C where it runs; or start another one beside it, with its own data and port:
  leasehold dev --data-dir %s --listen 127.0.0.1:0`, dataDir, who, filepath.Clean(dataDir)+"-2")
}
