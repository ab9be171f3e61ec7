// Package uplink is the agent's side of the line to the control plane: always dialled from here, every request signed.
package uplink

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/leasehold/leasehold/agent/internal/identity"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

const (
	// maxAnswer bounds what is read of an answer, so that a broken server cannot fill this host's memory.
	maxAnswer = 8 << 20
	// callTimeout bounds every call but the long poll.
	callTimeout = 30 * time.Second
	// gzipFrom is the size from which a body is worth compressing.
	gzipFrom = 1 << 10
)

// StatusError is an answer that is not a success.
type StatusError struct {
	Method, Path string
	Status       int
	Detail       string // the beginning of the body
}

// Error implements error.
func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s: %d %s: %s", e.Method, e.Path, e.Status, http.StatusText(e.Status), e.Detail)
}

// Is makes answers that will not change by trying again match operation.ErrUnwanted.
func (e *StatusError) Is(target error) bool {
	if target != operation.ErrUnwanted { //nolint:errorlint // this is the method that errors.Is calls
		return false
	}
	switch e.Status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusConflict, http.StatusGone, http.StatusRequestEntityTooLarge,
		http.StatusUnprocessableEntity:
		return true
	default:
		return false
	}
}

// Client speaks the agent protocol for one identity. It is safe for concurrent use.
type Client struct {
	base   *url.URL
	http   *http.Client
	id     *identity.Identity
	now    func() time.Time
	offset atomic.Int64 // the control plane's clock minus ours, nanoseconds
}

// NewClient returns a client for the control plane at server. Plain http is for loopback only, unless insecure says otherwise.
func NewClient(server string, hc *http.Client, id *identity.Identity, now func() time.Time, insecure bool) (*Client, error) {
	base, err := url.Parse(strings.TrimRight(server, "/"))
	if err != nil {
		return nil, fmt.Errorf("parse server address: %w", err)
	}
	switch {
	case base.Host == "" || (base.Scheme != "https" && base.Scheme != "http"):
		return nil, fmt.Errorf("server address %q is not an http(s) URL", server)
	case base.Scheme == "http" && !insecure && !loopback(base.Hostname()):
		return nil, fmt.Errorf("server address %q is not https: plain http is accepted for loopback only", server)
	}
	return &Client{base: base, http: hc, id: id, now: now}, nil
}

func loopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return host == "localhost" || (err == nil && address.IsLoopback())
}

// Now is the control plane's time as far as it is known here.
func (c *Client) Now() time.Time { return c.now().Add(time.Duration(c.offset.Load())).UTC() }

// Enroll trades the token for an identity, which is kept. The same token and key may be tried again.
func (c *Client) Enroll(ctx context.Context, request protocol.EnrollRequest) error {
	request.PublicKey = c.id.PublicKey()
	var answer protocol.EnrollResponse
	if err := c.do(ctx, call{method: http.MethodPost, path: protocol.PathEnroll, in: request, out: &answer, unsigned: true}); err != nil {
		return fmt.Errorf("enroll %s: %w", request.Name, err)
	}
	if answer.AgentID == "" || (answer.NodeID == "") == (answer.FabricID == "") {
		return fmt.Errorf("enroll %s: the answer names no agent, or not exactly one of node and fabric", request.Name)
	}
	return c.id.Enroll(identity.Record{
		AgentID: answer.AgentID, Kind: request.Kind, Name: request.Name, NodeID: answer.NodeID, FabricID: answer.FabricID,
		Server: c.base.String(), HeartbeatSeconds: answer.HeartbeatSeconds, EnrolledAt: c.Now(),
	})
}

// PutInventory sends a full report.
func (c *Client) PutInventory(ctx context.Context, inventory protocol.Inventory) (protocol.InventoryReply, error) {
	var reply protocol.InventoryReply
	err := c.do(ctx, call{method: http.MethodPut, path: protocol.PathInventory, in: inventory, out: &reply, pack: true})
	return reply, err
}

// Heartbeat says that this agent lives.
func (c *Client) Heartbeat(ctx context.Context, beat protocol.Heartbeat) (protocol.HeartbeatReply, error) {
	var reply protocol.HeartbeatReply
	err := c.do(ctx, call{method: http.MethodPost, path: protocol.PathHeartbeat, in: beat, out: &reply, pack: true})
	return reply, err
}

// Poll waits up to wait for operations.
func (c *Client) Poll(ctx context.Context, wait time.Duration) ([]protocol.Operation, error) {
	var answer protocol.Operations
	path := protocol.PathOperations + "?wait=" + url.QueryEscape(wait.String())
	err := c.do(ctx, call{method: http.MethodGet, path: path, out: &answer, timeout: wait + callTimeout/2})
	return answer.Operations, err
}

// Progress implements operation.Reporter.
func (c *Client) Progress(ctx context.Context, id string, p protocol.Progress) error {
	return c.do(ctx, call{method: http.MethodPost, path: operationPath(protocol.PathProgress, id), in: p})
}

// Result implements operation.Reporter.
func (c *Client) Result(ctx context.Context, id string, r protocol.Result) error {
	return c.do(ctx, call{method: http.MethodPost, path: operationPath(protocol.PathResult, id), in: r})
}

func operationPath(template, id string) string {
	return strings.Replace(template, "{id}", url.PathEscape(id), 1)
}

// call is one request and where its answer goes.
type call struct {
	method, path string // path with query
	in, out      any    // nil: no body, answer ignored
	unsigned     bool
	pack         bool          // compress the body when that is worth it
	timeout      time.Duration // 0: callTimeout
}

// do makes the call. A 401 is tried once more at once, since it told the server's time and our clock may have been wrong.
func (c *Client) do(ctx context.Context, k call) error {
	body, encoding, err := encode(k.in, k.pack)
	if err != nil {
		return fmt.Errorf("encode body of %s %s: %w", k.method, k.path, err)
	}
	err = c.once(ctx, k, body, encoding)
	var status *StatusError
	if errors.As(err, &status) && status.Status == http.StatusUnauthorized && !k.unsigned {
		err = c.once(ctx, k, body, encoding)
	}
	return err
}

func (c *Client) once(ctx context.Context, k call, body []byte, encoding string) error {
	if k.timeout == 0 {
		k.timeout = callTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, k.method, c.base.String()+k.path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	if len(body) > 0 {
		request.Header.Set("Content-Type", "application/json")
	}
	if encoding != "" {
		request.Header.Set("Content-Encoding", encoding)
	}
	if !k.unsigned {
		token, err := c.id.Token(k.method, request.URL.RequestURI(), body, c.Now())
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+token)
	}
	sent := c.now()
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("%s %s: %w", k.method, k.path, err)
	}
	defer response.Body.Close() //nolint:errcheck // nothing depends on it: the body was read, or the answer is an error
	if !strings.HasPrefix(k.path, protocol.PathOperations+"?") {
		c.learnOffset(response, sent) // a long poll's round trip says nothing about the clock
	} else if response.StatusCode == http.StatusUnauthorized {
		c.learnOffset(response, sent)
	}
	return read(response, k)
}

// learnOffset compares the server's clock with ours at the middle of the round trip.
func (c *Client) learnOffset(response *http.Response, sent time.Time) {
	server, err := time.Parse(time.RFC3339Nano, response.Header.Get(protocol.HeaderServerTime))
	if err != nil {
		return
	}
	middle := sent.Add(c.now().Sub(sent) / 2)
	c.offset.Store(int64(server.Sub(middle)))
}

func read(response *http.Response, k call) error {
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read answer to %s %s: %w", k.method, k.path, err)
	}
	if response.StatusCode/100 != 2 {
		return &StatusError{Method: k.method, Path: k.path, Status: response.StatusCode, Detail: string(body[:min(len(body), 300)])}
	}
	if k.out == nil {
		return nil
	}
	if err := json.Unmarshal(body, k.out); err != nil {
		return fmt.Errorf("decode answer to %s %s: %w", k.method, k.path, err)
	}
	return nil
}

// encode returns the bytes as they travel and their Content-Encoding.
func encode(in any, pack bool) ([]byte, string, error) {
	if in == nil {
		return nil, "", nil
	}
	body, err := json.Marshal(in)
	if err != nil || !pack || len(body) < gzipFrom {
		return body, "", err
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err = w.Write(body)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, "", err
	}
	return packed.Bytes(), "gzip", nil
}
