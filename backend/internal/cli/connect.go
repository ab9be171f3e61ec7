// Package cli is the customer's side of the leasehold command: it talks to a server through the generated client, prints tables for
// people and JSON for scripts, and ends with a documented exit status.
package cli

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/client"
)

// DefaultServer is where `leasehold dev` listens.
const DefaultServer = "http://127.0.0.1:8080"

const (
	envServer = "LEASEHOLD_URL"
	envAPIKey = "LEASEHOLD_API_KEY" //nolint:gosec // the variable's name, not a key
	envConfig = "LEASEHOLD_CONFIG"
	// refreshBefore is how long before its end an access token is traded for a new one.
	refreshBefore = time.Minute
	refreshCookie = "leasehold_refresh"
)

// credentials is what a log-in leaves behind, in a file that only its owner can read.
type credentials struct {
	Server      string    `json:"server"`
	AccessToken string    `json:"access_token,omitempty"`
	ExpiresAt   time.Time `json:"expires_at"`
	Refresh     string    `json:"refresh,omitempty"`
}

func configPath() (string, error) {
	if path := os.Getenv(envConfig); path != "" {
		return path, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("find the configuration directory: %w", err)
	}
	return filepath.Join(dir, "leasehold", "credentials.json"), nil
}

func loadCredentials() (credentials, error) {
	path, err := configPath()
	if err != nil {
		return credentials{}, err
	}
	raw, err := os.ReadFile(path) //nolint:gosec // the user's own file
	if errors.Is(err, fs.ErrNotExist) {
		return credentials{Server: DefaultServer}, nil
	}
	if err != nil {
		return credentials{}, fmt.Errorf("read credentials: %w", err)
	}
	var c credentials
	if err := json.Unmarshal(raw, &c); err != nil {
		return credentials{}, fmt.Errorf("read credentials in %s: %w; log in again: leasehold login", path, err)
	}
	return c, nil
}

func (c credentials) save() error {
	path, err := configPath()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("save credentials: %w", err)
	}
	raw, err := json.MarshalIndent(c, "", "  ") //nolint:gosec // saving the token is what a log-in is for; mode 0600
	if err != nil {
		return fmt.Errorf("save credentials: %w", err)
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, raw, 0o600); err != nil {
		return fmt.Errorf("save credentials: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("save credentials: %w", err)
	}
	return nil
}

// connection is an authenticated client.
type connection struct {
	*client.ClientWithResponses
	server    string
	authorize client.RequestEditorFn
}

// connect returns a client with the credential that the environment or the last log-in gives.
func connect(ctx context.Context, server string) (*connection, error) {
	saved, err := loadCredentials()
	if err != nil {
		return nil, err
	}
	server = firstOf(server, os.Getenv(envServer), saved.Server, DefaultServer)
	if key := os.Getenv(envAPIKey); key != "" {
		return dial(server, key)
	}
	if saved.AccessToken == "" || saved.Server != server {
		return nil, &Problem{Status: http.StatusUnauthorized, Title: "Not logged in", Detail: "run: leasehold login --server " + server}
	}
	if time.Until(saved.ExpiresAt) < refreshBefore {
		if saved, err = refresh(ctx, saved); err != nil {
			return nil, err
		}
	}
	return dial(server, saved.AccessToken)
}

func dial(server, bearer string) (*connection, error) {
	if !strings.HasPrefix(server, "http://") && !strings.HasPrefix(server, "https://") {
		return nil, usagef("a server's address begins with http:// or https://, e.g. %s; it is %q", DefaultServer, server)
	}
	authorize := func(_ context.Context, r *http.Request) error {
		if bearer != "" {
			r.Header.Set("Authorization", "Bearer "+bearer)
		}
		return nil
	}
	// Long polls last a minute; nothing of ours takes longer.
	api, err := client.NewClientWithResponses(server, client.WithHTTPClient(&http.Client{Timeout: 90 * time.Second}),
		client.WithRequestEditorFn(authorize))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", server, err)
	}
	return &connection{ClientWithResponses: api, server: server, authorize: authorize}, nil
}

func refresh(ctx context.Context, saved credentials) (credentials, error) {
	api, err := dial(saved.Server, "")
	if err != nil {
		return saved, err
	}
	answer, err := api.RefreshSessionWithResponse(ctx, &client.RefreshSessionParams{}, func(_ context.Context, r *http.Request) error {
		r.AddCookie(&http.Cookie{Name: refreshCookie, Value: saved.Refresh}) //nolint:gosec // attributes belong to Set-Cookie
		return nil
	})
	if err != nil {
		return saved, unreachable(saved.Server, err)
	}
	session, err := take(answer.JSON201, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
	if err != nil {
		return saved, err
	}
	saved.keep(session, answer.HTTPResponse)
	return saved, saved.save()
}

// keep takes over what an answer with a session carries.
func (c *credentials) keep(session *client.Session, response *http.Response) {
	c.AccessToken, c.ExpiresAt = session.AccessToken, session.ExpiresAt
	for _, cookie := range response.Cookies() {
		if cookie.Name == refreshCookie {
			c.Refresh = cookie.Value
		}
	}
}

// fresh returns a new idempotency key.
func fresh() string { return rand.Text() }

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// pages asks for page after page until there is no next one, and hands every page to add.
func pages[R any](fetch func(cursor *string) (*R, *http.Response, error), add func(*R)) error {
	var cursor *string
	for {
		page, response, err := fetch(cursor) //nolint:bodyclose // the generated client has read and closed it
		if err != nil {
			return err
		}
		add(page)
		next := client.NextCursor(response)
		if next == "" {
			return nil
		}
		cursor = &next
	}
}
