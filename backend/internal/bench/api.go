package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/leasehold/leasehold/backend/app"
	"github.com/leasehold/leasehold/backend/ids"
)

// api is the real server on the loopback interface, and its clients.
type api struct {
	app       *app.App
	server    *http.Server
	address   string
	client    *http.Client
	customers []customer
	sent      *recorder
}

// unlimited requests a minute: the limits are for strangers, and the benchmark asks as fast as it can.
const unlimited = 10_000_000

// serve starts the API as `leasehold serve` does. No worker runs: a booking waits for none.
func serve(ctx context.Context, url, dir string, customers []customer) (*api, error) {
	s := &api{customers: customers, sent: &recorder{}}
	var err error
	s.app, err = app.Open(ctx, app.Config{
		DatabaseURL: url, KeysDir: filepath.Join(dir, "keys"), PublicURL: "http://127.0.0.1", Environment: environment, QuoteTTL: time.Hour,
		LogFile: filepath.Join(dir, "api.log"), CredentialRequests: unlimited, OrganizationRequests: unlimited, Tracer: s.sent,
	})
	if err != nil {
		return nil, err
	}
	if s.server, err = s.app.Server(ctx); err != nil {
		return nil, errors.Join(err, s.app.Close())
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, s.app.Close())
	}
	s.address = "http://" + listener.Addr().String()
	s.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: clients, DisableCompression: true}}
	go s.server.Serve(listener) //nolint:errcheck // ends with close
	return s, nil
}

func (s *api) close(ctx context.Context) {
	s.client.CloseIdleConnections()
	if err := errors.Join(s.server.Shutdown(context.WithoutCancel(ctx)), s.app.Close()); err != nil {
		say("close API: " + err.Error())
	}
}

// post returns the status and the answer. The key is unique; that it looks like a lease's id means nothing.
func (s *api) post(ctx context.Context, c int, path string, key ids.Lease, body any) (int, []byte, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return 0, nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.address+path, bytes.NewReader(raw))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+s.customers[c].key)
	request.Header.Set("Idempotency-Key", key.String())
	response, err := s.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close() //nolint:errcheck // read to its end
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// quote asks for one instance from start on, and returns the quote's id.
func (s *api) quote(ctx context.Context, c, kind int, start time.Time) (string, error) {
	status, answer, err := s.post(ctx, c, "/v1/quotes", ids.Make[ids.Lease](), map[string]any{
		"instance_type": typeName(kind), "instances": 1, "window": map[string]any{"start": start, "end": start.Add(leased)},
	})
	if err != nil {
		return "", err
	}
	var made struct {
		ID string `json:"id"`
	}
	if status != http.StatusCreated || json.Unmarshal(answer, &made) != nil {
		return "", fmt.Errorf("quote: %d %.500s", status, answer)
	}
	return made.ID, nil
}

func (s *api) book(ctx context.Context, c int, key ids.Lease, quote string) (int, []byte, error) {
	return s.post(ctx, c, "/v1/leases", key, map[string]any{"quote_id": quote, "ssh_key_ids": []string{s.customers[c].sshKey.String()}, "name": "bench"})
}

// record books so many quotes of one window, and records what one more sends. What only first requests do is thereby done: statements
// are prepared, the key's last use is noted, its requests are drawn.
func (s *api) record(ctx context.Context, kind int, start time.Time, before, want int) (recording, error) {
	r := recording{start: start}
	quotes := make([]string, before+1)
	for i := range quotes {
		var err error
		if quotes[i], err = s.quote(ctx, r.client, kind, start); err != nil {
			return r, err
		}
	}
	for _, q := range quotes[:before] {
		if status, answer, err := s.book(ctx, r.client, ids.Make[ids.Lease](), q); err != nil || status != http.StatusCreated {
			return r, fmt.Errorf("book: %d %.500s: %w", status, answer, err)
		}
	}
	id, err := ids.Read[ids.Quote](quotes[before])
	if err != nil {
		return r, err
	}
	key := ids.Make[ids.Lease]()
	r.quote, r.key, r.since = id.UUID(), key.UUID(), time.Now().UTC()
	s.sent.start()
	status, answer, err := s.book(ctx, r.client, key, quotes[before])
	r.statements = s.sent.stop()
	if err == nil && status != want {
		err = fmt.Errorf("book: %d %.500s", status, answer)
	}
	return r, err
}

// quotes makes so many for each client, all clients at once.
func (s *api) quotes(ctx context.Context, each int, of func(client, i int) (kind int, start time.Time)) ([][]string, error) {
	made := make([][]string, clients)
	failed := make([]error, clients)
	var group sync.WaitGroup
	for c := range clients {
		made[c] = make([]string, each)
		group.Go(func() {
			for i := range each {
				kind, start := of(c, i)
				if made[c][i], failed[c] = s.quote(ctx, c, kind, start); failed[c] != nil {
					return
				}
			}
		})
	}
	group.Wait()
	return made, errors.Join(failed...)
}

// answers counts what became of bookings.
type answers struct {
	byStatus map[int]int
	took     time.Duration
	sent     int64 // statements
	trips    int64
}

func (a answers) count() int {
	n := 0
	for _, k := range a.byStatus {
		n += k
	}
	return n
}

// bookAll books all clients' quotes, each client one after the other.
func (s *api) bookAll(ctx context.Context, quotes [][]string) (answers, error) {
	var mu sync.Mutex
	a := answers{byStatus: map[int]int{}}
	failed := make([]error, len(quotes))
	var group sync.WaitGroup
	sent, trips, began := s.sent.count.Load(), s.sent.trips.Load(), time.Now()
	for c, own := range quotes {
		group.Go(func() {
			for _, q := range own {
				status, _, err := s.book(ctx, c, ids.Make[ids.Lease](), q)
				if err != nil {
					failed[c] = err
					return
				}
				mu.Lock()
				a.byStatus[status]++
				mu.Unlock()
			}
		})
	}
	group.Wait()
	a.took, a.sent, a.trips = time.Since(began), s.sent.count.Load()-sent, s.sent.trips.Load()-trips
	return a, errors.Join(failed...)
}
