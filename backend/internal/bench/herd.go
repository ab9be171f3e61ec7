package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/crypto/ssh"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/local"
	"github.com/leasehold/leasehold/backend/internal/local/postgres"
)

// The herd: so many leases of so many nodes each start at one instant, on one fabric of a real OpenSM over its simulator. Node work takes no
// time, so what is measured is the control plane and the subnet manager.
const (
	herdNodes  = 512
	herdLeases = 100
	herdEach   = 5
	herdLead   = 60 * time.Second // from now to the start: more than the lead of the type and the bookings take
	herdWithin = 5 * time.Minute
	// herdSweeps is the aim: how often the manager may be signalled for all of them.
	herdSweeps = 3
)

const herdPlan = `name: sim-1
groups:
  - {name: h100, count: %d, gpu: h100-sxm-80gb, gpus: 8, fabric: ib-1, nodes_per_pod: 32}
`

// publicKey makes a key whose private half nobody keeps.
func publicKey() (string, error) {
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		return "", err
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return "", err
	}
	return string(ssh.MarshalAuthorizedKey(key)), nil
}

// benchHerd starts an instance of its own: `leasehold dev` without its site, and a larger site beside it.
func benchHerd(ctx context.Context, _ *postgres.Server) error {
	dir, err := os.MkdirTemp("", "leasehold-herd-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	h := &herd{dir: dir, client: &http.Client{Timeout: time.Minute}}
	defer h.stop() //nolint:contextcheck // what was started is stopped whatever became of ctx
	if err := h.start(ctx); err != nil {
		return err
	}
	return h.measure(ctx)
}

type herd struct {
	dir      string
	address  string
	client   *http.Client
	children []*local.Process
	db       *pgx.Conn
	customer string // token
}

func (h *herd) stop() {
	if h.db != nil {
		_ = h.db.Close(context.Background())
	}
	for _, child := range slices.Backward(h.children) {
		if err := child.Stop(context.Background()); err != nil {
			say("stop: " + err.Error())
		}
	}
}

func (h *herd) start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	at := listener.Addr().String()
	if err := listener.Close(); err != nil {
		return err
	}
	h.address = "http://" + at
	if err := h.run(ctx, "bin/leasehold", "dev", "--no-site", "--data-dir", h.dir, "--listen", at); err != nil {
		return err
	}
	if err := h.await(ctx, "the instance", func() (bool, error) {
		status, _, err := h.ask(ctx, http.MethodGet, "/readyz", "", nil)
		_, noLogins := os.Stat(filepath.Join(h.dir, "demo-logins.json"))
		return err == nil && status == http.StatusOK && noLogins == nil, nil
	}); err != nil {
		return err
	}
	if err := h.connect(ctx); err != nil {
		return err
	}
	return h.startSite(ctx)
}

func (h *herd) run(ctx context.Context, path string, args ...string) error {
	log := filepath.Join(h.dir, filepath.Base(path)+".out")
	child, err := local.Start(ctx, local.Spec{Name: filepath.Base(path), Path: path, Args: args, LogFile: log})
	if err != nil {
		return fmt.Errorf("%w (make bench builds the programs)", err)
	}
	h.children = append(h.children, child)
	return nil
}

func (h *herd) connect(ctx context.Context) error {
	var services struct {
		DatabaseURL string `json:"database_url"`
	}
	raw, err := os.ReadFile(filepath.Join(h.dir, "services.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, &services); err != nil {
		return err
	}
	h.db, err = pgx.Connect(ctx, services.DatabaseURL)
	return err
}

func (h *herd) startSite(ctx context.Context) error {
	admin, err := h.logIn(ctx, "admin")
	if err != nil {
		return err
	}
	var token struct{ Token string }
	if err := h.post(ctx, "/v1/admin/enrollment-tokens", admin, map[string]any{"site": "sim-1", "max_uses": 2 * herdNodes}, &token); err != nil {
		return err
	}
	plan, secret := filepath.Join(h.dir, "plan.yaml"), filepath.Join(h.dir, "token")
	err = errors.Join(os.WriteFile(plan, fmt.Appendf(nil, herdPlan, herdNodes), 0o600), os.WriteFile(secret, []byte(token.Token), 0o600))
	if err != nil {
		return err
	}
	args := []string{
		"sim", "--server", h.address, "--token-file", secret, "--state-dir", filepath.Join(h.dir, "site"), "--site", plan, "--fabric", "opensm", "--speed", "instant",
	}
	if cache, err := local.CacheDir(); err == nil {
		args = append(args, "--tool-dir", filepath.Join(cache, "debian"))
	}
	if err := h.run(ctx, "bin/leasehold-agent", args...); err != nil {
		return err
	}
	return h.await(ctx, "the site", func() (bool, error) {
		n, err := h.count(ctx, "SELECT count(*) FROM node WHERE state = 'available'")
		return n == herdNodes, err
	})
}

// await looks now and then until it is so.
func (h *herd) await(ctx context.Context, what string, so func() (bool, error)) error {
	tick, late := time.NewTicker(200*time.Millisecond), time.NewTimer(herdWithin)
	defer tick.Stop()
	defer late.Stop()
	for {
		if ok, err := so(); err != nil || ok {
			return err
		}
		select {
		case <-tick.C:
		case <-late.C:
			return fmt.Errorf("%s was not ready after %s", what, herdWithin)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (h *herd) count(ctx context.Context, sql string) (n int, err error) {
	err = h.db.QueryRow(ctx, sql).Scan(&n)
	return n, err
}

func (h *herd) logIn(ctx context.Context, who string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(h.dir, "demo-logins.json"))
	if err != nil {
		return "", err
	}
	var people map[string]json.RawMessage
	var person struct {
		Email    string `json:"email"`
		Password string `json:"password"`
	}
	if err := errors.Join(json.Unmarshal(raw, &people), json.Unmarshal(people[who], &person)); err != nil {
		return "", err
	}
	var session struct {
		AccessToken string `json:"access_token"`
	}
	err = h.post(ctx, "/v1/sessions", "", person, &session)
	return session.AccessToken, err
}

func (h *herd) post(ctx context.Context, path, token string, body, into any) error {
	status, answer, err := h.ask(ctx, http.MethodPost, path, token, body)
	if err != nil {
		return err
	}
	if status >= http.StatusMultipleChoices {
		return fmt.Errorf("POST %s: %d %.300s", path, status, answer)
	}
	return json.Unmarshal(answer, into)
}

func (h *herd) ask(ctx context.Context, method, path, token string, body any) (int, []byte, error) {
	raw := []byte{}
	var err error
	if body != nil {
		if raw, err = json.Marshal(body); err != nil {
			return 0, nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, h.address+path, bytes.NewReader(raw))
	if err != nil {
		return 0, nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	request.Header.Set("Idempotency-Key", ids.Make[ids.Lease]().String())
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := h.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close() //nolint:errcheck // read to its end
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// measure books the herd, waits until the last lease is active, and tells what it took.
func (h *herd) measure(ctx context.Context) error {
	var err error
	if h.customer, err = h.logIn(ctx, "customer"); err != nil {
		return err
	}
	public, err := publicKey()
	if err != nil {
		return err
	}
	var key, topUp struct{ ID string }
	err = errors.Join(
		h.post(ctx, "/v1/ssh-keys", h.customer, map[string]any{"name": "bench", "public_key": public}, &key),
		h.post(ctx, "/v1/billing/top-ups", h.customer, map[string]any{
			"amount": map[string]any{"amount": 50_000_00, "currency": "USD"}, "payment_method": "pm_card_visa",
		}, &topUp))
	if err != nil {
		return err
	}
	start := time.Now().UTC().Truncate(time.Second).Add(herdLead)
	if err := h.book(ctx, start, key.ID); err != nil {
		return err
	}
	err = h.await(ctx, "the herd", func() (bool, error) {
		n, err := h.count(ctx, "SELECT count(*) FROM lease WHERE active_at IS NOT NULL")
		return n == herdLeases, err
	})
	if err != nil {
		return err
	}
	return h.tell(ctx)
}

func (h *herd) book(ctx context.Context, start time.Time, key string) error {
	failed := make([]error, herdLeases)
	var group sync.WaitGroup
	turn := make(chan struct{}, 8)
	for i := range herdLeases {
		group.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			failed[i] = h.bookOne(ctx, start, key)
		})
	}
	group.Wait()
	return errors.Join(failed...)
}

// bookOne books until no race is lost.
func (h *herd) bookOne(ctx context.Context, start time.Time, key string) error {
	var err error
	for range 20 {
		var quote, lease struct{ ID string }
		err = h.post(ctx, "/v1/quotes", h.customer, map[string]any{
			"instance_type": "h100-sxm.8x.ndr", "instances": herdEach, "window": map[string]any{"start": start, "end": start.Add(10 * time.Minute)},
		}, &quote)
		if err != nil {
			return err
		}
		if err = h.post(ctx, "/v1/leases", h.customer, map[string]any{"quote_id": quote.ID, "ssh_key_ids": []string{key}}, &lease); err == nil {
			return nil
		}
		if !strings.Contains(err.Error(), "503") {
			return err
		}
	}
	return err
}

func (h *herd) tell(ctx context.Context) error {
	var sweeps, changes int
	var spread, first, last float64 // seconds
	err := h.db.QueryRow(ctx, `
		SELECT coalesce(sum((evidence->>'sweeps')::int), 0), count(*) FROM operation
		WHERE kind = 'apply_partitions' AND created_at > (SELECT min(created_at) FROM lease)`).Scan(&sweeps, &changes)
	if err != nil {
		return err
	}
	err = h.db.QueryRow(ctx, `
		SELECT extract(epoch FROM max(provisioning_at) - min(provisioning_at)), extract(epoch FROM min(active_at) - min(start_at)),
		       extract(epoch FROM max(active_at) - min(start_at)) FROM lease`).Scan(&spread, &first, &last)
	if err != nil {
		return err
	}
	tasks, err := h.count(ctx, "SELECT count(*) FROM operation WHERE lease_id IS NOT NULL")
	if err != nil {
		return err
	}
	fmt.Printf("%d leases of %d nodes with 8 HCAs each that start at one instant, on a real OpenSM over its simulator with %d nodes; node work takes no time\n",
		herdLeases, herdEach, herdNodes)
	fmt.Printf("  %d sweeps of the subnet manager (aim: at most %d) for %d changes of the set; %d operations of nodes\n", sweeps, herdSweeps, changes, tasks)
	fmt.Printf("  begun within %.1f s; first lease active %.1f s after the start, last %.1f s\n\n", spread, first, last)
	if sweeps > herdSweeps {
		return fmt.Errorf("%d sweeps were used, and %d should do", sweeps, herdSweeps)
	}
	return nil
}
