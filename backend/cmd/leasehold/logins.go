package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// logins is what `leasehold dev` tells its user, in a file with mode 0600.
type logins struct {
	URL      string `json:"url"`
	Customer login  `json:"customer"`
	Provider login  `json:"provider"`
	Admin    login  `json:"admin"`
}

type login struct {
	Email    string `json:"email"`
	Password string `json:"password"`
}

const loginsFile = "demo-logins.json"

var errNotRunning = errors.New("no instance runs on this data directory")

func (l logins) write(dataDir string) error {
	raw, err := json.MarshalIndent(l, "", "  ") //nolint:gosec // demo passwords are what the file is for; mode 0600
	if err != nil {
		return fmt.Errorf("write demo log-ins: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dataDir, loginsFile), append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("write demo log-ins: %w", err)
	}
	return nil
}

// storedLogins reads the file whether or not an instance runs; the zero value when there is none.
func storedLogins(dataDir string) (logins, error) {
	raw, err := os.ReadFile(filepath.Join(dataDir, loginsFile)) //nolint:gosec // our own data directory
	if errors.Is(err, os.ErrNotExist) {
		return logins{}, nil
	}
	if err != nil {
		return logins{}, fmt.Errorf("read demo log-ins: %w", err)
	}
	var l logins
	if err := json.Unmarshal(raw, &l); err != nil {
		return logins{}, fmt.Errorf("read demo log-ins: %w", err)
	}
	return l, nil
}

// readLogins returns the log-ins of a running instance, or errNotRunning.
func readLogins(dataDir string) (logins, error) {
	l, err := storedLogins(dataDir)
	if err != nil {
		return logins{}, err
	}
	if l.URL == "" {
		return logins{}, errNotRunning
	}
	response, err := (&http.Client{Timeout: 3 * time.Second}).Get(l.URL + "/readyz") //nolint:noctx // bounded by its time-out
	if err != nil {
		return logins{}, errNotRunning
	}
	defer response.Body.Close() //nolint:errcheck // read-only
	if response.StatusCode != http.StatusOK {
		return logins{}, fmt.Errorf("the instance at %s is not ready: %s", l.URL, response.Status)
	}
	return l, nil
}

// services is where a running instance keeps its data, for commands that look at it directly; mode 0600, since it holds a password.
type services struct {
	DatabaseURL       string `json:"database_url"`
	TemporalAddress   string `json:"temporal_address"`
	TemporalNamespace string `json:"temporal_namespace"`
}

const servicesFile = "services.json"

func writeServices(dataDir string, s services) error {
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write services: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dataDir, servicesFile), append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("write services: %w", err)
	}
	return nil
}

// readServices returns errNotRunning when no instance has run on the data directory.
func readServices(dataDir string) (services, error) {
	raw, err := os.ReadFile(filepath.Join(dataDir, servicesFile)) //nolint:gosec // our own data directory
	if errors.Is(err, os.ErrNotExist) {
		return services{}, fmt.Errorf("%w: %s; start one with: leasehold dev", errNotRunning, dataDir)
	}
	if err != nil {
		return services{}, fmt.Errorf("read services: %w", err)
	}
	var s services
	if err := json.Unmarshal(raw, &s); err != nil {
		return services{}, fmt.Errorf("read services: %w", err)
	}
	return s, nil
}
