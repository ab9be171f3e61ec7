// Package uplinktest is a control plane for tests: it enrolls agents, verifies every request as package protocol says, hands
// out operations and keeps what it is told; and it can be slow, wrong, cut off or late by the clock.
package uplinktest

import (
	"crypto/ed25519"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Token is the enrolment token that the server takes, any number of times.
const Token = "test-token"

const patience = 20 * time.Second

// Agent is what the server knows of one agent.
type Agent struct {
	ID, NodeID, FabricID string
	Request              protocol.EnrollRequest
	Inventories          []protocol.Inventory
	Heartbeats           []protocol.Heartbeat
}

// Server is the control plane.
type Server struct {
	URL string

	mu         sync.Mutex
	changed    chan struct{}
	skew       time.Duration
	agents     map[string]*Agent // by id
	queue      map[string][]protocol.Operation
	owner      map[string]string // operation → agent
	progress   map[string][]protocol.Progress
	results    map[string][]protocol.Result
	tokensSeen map[string]bool
	refusals   []string
	faults     []*Fault
	wanted     bool
}

// Fault makes the next Times requests whose path begins with Path misbehave.
type Fault struct {
	Path   string
	Times  int
	Status int           // answer with it
	Cut    bool          // close the connection without an answer
	Late   bool          // with Cut: only after the request was carried out
	Delay  time.Duration // answer later
}

// New starts a server that ends with the test.
func New(t testing.TB) *Server {
	t.Helper()
	s := &Server{
		changed: make(chan struct{}), agents: map[string]*Agent{}, queue: map[string][]protocol.Operation{}, owner: map[string]string{},
		progress: map[string][]protocol.Progress{}, results: map[string][]protocol.Result{}, tokensSeen: map[string]bool{},
	}
	h := httptest.NewServer(s.handler())
	s.URL = h.URL
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
	})
	return s
}

// Now is the server's time.
func (s *Server) Now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now()
}

func (s *Server) now() time.Time { return time.Now().Add(s.skew).UTC() } //nolint:forbidigo // a server for tests has the real time

// Skew sets the server's clock off from the agents'.
func (s *Server) Skew(d time.Duration) { s.with(func() { s.skew = d }) }

// Inject adds a fault.
func (s *Server) Inject(f Fault) { s.with(func() { s.faults = append(s.faults, &f) }) }

// WantInventory makes the next heartbeat's answer ask for an inventory.
func (s *Server) WantInventory() { s.with(func() { s.wanted = true }) }

// Queue hands op to the named agent; see Agent.Request.Name.
func (s *Server) Queue(t testing.TB, name string, op protocol.Operation) {
	t.Helper()
	id := s.Agent(t, name).ID
	s.with(func() {
		s.queue[id] = append(s.queue[id], op)
		s.owner[op.ID] = id
	})
}

// Agent waits until the named agent has enrolled, and returns a copy of what is known of it.
func (s *Server) Agent(t testing.TB, name string) Agent {
	t.Helper()
	var found Agent
	s.Await(t, "enrolment of "+name, func() bool {
		for _, a := range s.agents {
			if a.Request.Name == name {
				found = *a
				return true
			}
		}
		return false
	})
	return found
}

// AwaitInventory waits until the named agent has sent an inventory, and returns the last one.
func (s *Server) AwaitInventory(t testing.TB, name string) protocol.Inventory {
	t.Helper()
	id := s.Agent(t, name).ID
	var last protocol.Inventory
	s.Await(t, "inventory of "+name, func() bool {
		all := s.agents[id].Inventories
		if len(all) > 0 {
			last = all[len(all)-1]
		}
		return len(all) > 0
	})
	return last
}

// AwaitHeartbeat waits for a heartbeat of the named agent that satisfies ok.
func (s *Server) AwaitHeartbeat(t testing.TB, name string, ok func(protocol.Heartbeat) bool) protocol.Heartbeat {
	t.Helper()
	id := s.Agent(t, name).ID
	var found protocol.Heartbeat
	s.Await(t, "heartbeat of "+name, func() bool {
		for _, beat := range s.agents[id].Heartbeats {
			if ok(beat) {
				found = beat
				return true
			}
		}
		return false
	})
	return found
}

// AwaitResult waits for the result of an operation.
func (s *Server) AwaitResult(t testing.TB, op string) protocol.Result {
	t.Helper()
	var result protocol.Result
	s.Await(t, "result of "+op, func() bool {
		if len(s.results[op]) > 0 {
			result = s.results[op][0]
		}
		return len(s.results[op]) > 0
	})
	return result
}

// Results returns how often a result was taken in, Progress what progress was reported, Refusals why requests got a 401.
func (s *Server) Results(op string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.results[op])
}

// Progress returns what progress of an operation was reported.
func (s *Server) Progress(op string) []protocol.Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]protocol.Progress(nil), s.progress[op]...)
}

// Refusals returns why requests got a 401.
func (s *Server) Refusals() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.refusals...)
}

// Do runs an operation on the named agent to its end.
func (s *Server) Do(t testing.TB, name string, op protocol.Operation) protocol.Result {
	t.Helper()
	s.Queue(t, name, op)
	return s.AwaitResult(t, op.ID)
}

// Verify fails the test unless the result's evidence is signed by the agent.
func (s *Server) Verify(t testing.TB, name string, result protocol.Result) {
	t.Helper()
	agent := s.Agent(t, name)
	require.NotNil(t, result.Signed)
	require.Len(t, result.Signed.Signatures, 1)
	require.Equal(t, agent.ID, result.Signed.Signatures[0].KeyID)
	require.JSONEq(t, string(result.Evidence), string(result.Signed.Payload))
	pae := protocol.PAE(result.Signed.PayloadType, result.Signed.Payload)
	require.True(t, ed25519.Verify(agent.Request.PublicKey, pae, result.Signed.Signatures[0].Sig), "signature does not verify")
}

// Await waits until done, which is called with the server's lock held, is true.
func (s *Server) Await(t testing.TB, what string, done func() bool) {
	t.Helper()
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for {
		s.mu.Lock()
		ok, changed := done(), s.changed
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-timeout.C:
			require.FailNow(t, "waited in vain for "+what, fmt.Sprint(s.Refusals()))
		}
	}
}

// with changes the server's state and wakes who waits for it.
func (s *Server) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// fault takes a fault that applies to the path, if there is one.
func (s *Server) fault(path string) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		if f.Times > 0 && len(path) >= len(f.Path) && path[:len(f.Path)] == f.Path {
			f.Times--
			return *f
		}
	}
	return Fault{}
}

func (s *Server) misbehave(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f := s.fault(r.URL.Path)
		w.Header().Set(protocol.HeaderServerTime, protocol.FormatServerTime(s.Now()))
		if f.Delay > 0 {
			timer := time.NewTimer(f.Delay)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-r.Context().Done():
				return
			}
		}
		switch {
		case f.Cut && f.Late:
			next.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler) //nolint:forbidigo // net/http's way to cut a connection
		case f.Cut:
			panic(http.ErrAbortHandler) //nolint:forbidigo // net/http's way to cut a connection
		case f.Status != 0:
			http.Error(w, "injected", f.Status)
		default:
			next.ServeHTTP(w, r)
		}
	})
}
