package uplinktest

import (
	"bytes"
	"compress/gzip"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/leasehold/leasehold/agent/protocol"
)

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+protocol.PathEnroll, s.enroll)
	mux.HandleFunc("PUT "+protocol.PathInventory, s.signed(s.inventory))
	mux.HandleFunc("POST "+protocol.PathHeartbeat, s.signed(s.heartbeat))
	mux.HandleFunc("GET "+protocol.PathOperations, s.signed(s.poll))
	mux.HandleFunc("POST "+protocol.PathProgress, s.signed(s.takeProgress))
	mux.HandleFunc("POST "+protocol.PathResult, s.signed(s.takeResult))
	return s.misbehave(mux)
}

// signedHandler gets the agent that signed and the body, unpacked.
type signedHandler func(w http.ResponseWriter, r *http.Request, agent *Agent, body []byte)

func (s *Server) signed(next signedHandler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		wire, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		agent, err := s.verify(r, wire)
		if err != nil {
			s.with(func() { s.refusals = append(s.refusals, r.Method+" "+r.URL.Path+": "+err.Error()) })
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		body, err := unpack(r, wire)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		next(w, r, agent, body)
	}
}

func unpack(r *http.Request, wire []byte) ([]byte, error) {
	if r.Header.Get("Content-Encoding") != "gzip" {
		return wire, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(wire))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(z, 8<<20))
}

// verify checks a request's token against everything that package protocol says of it.
func (s *Server) verify(r *http.Request, wire []byte) (*Agent, error) {
	bearer, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !found {
		return nil, errors.New("no bearer token")
	}
	var agent *Agent
	claims := jwt.MapClaims{}
	_, err := jwt.ParseWithClaims(bearer, claims, func(*jwt.Token) (any, error) {
		issuer, err := claims.GetIssuer()
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if agent = s.agents[issuer]; agent == nil {
			return nil, fmt.Errorf("unknown agent %q", issuer)
		}
		return ed25519.PublicKey(agent.Request.PublicKey), nil
	}, jwt.WithValidMethods([]string{"EdDSA"}), jwt.WithTimeFunc(s.Now), jwt.WithIssuedAt(), jwt.WithExpirationRequired())
	if err != nil {
		return nil, err
	}
	return agent, s.checkClaims(r, wire, agent.ID, claims)
}

func (s *Server) checkClaims(r *http.Request, wire []byte, agent string, claims jwt.MapClaims) error {
	issued, err := claims.GetIssuedAt()
	if err != nil || issued == nil {
		return errors.New("no iat")
	}
	expires, err := claims.GetExpirationTime()
	if err != nil || expires.Sub(issued.Time) > protocol.MaxTokenAge {
		return errors.New("lives too long")
	}
	want := map[string]string{
		"sub": agent, protocol.ClaimMethod: r.Method, protocol.ClaimPath: r.URL.RequestURI(), protocol.ClaimBody: protocol.BodyHash(wire),
	}
	for claim, value := range want {
		if claims[claim] != value {
			return fmt.Errorf("%s is %v, not %s", claim, claims[claim], value)
		}
	}
	id, _ := claims["jti"].(string) //nolint:errcheck // an absent id is an empty one
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == "" || s.tokensSeen[id] {
		return errors.New("jti missing or replayed")
	}
	s.tokensSeen[id] = true
	return nil
}

func (s *Server) enroll(w http.ResponseWriter, r *http.Request) {
	var request protocol.EnrollRequest
	if !decode(w, r.Body, &request) {
		return
	}
	if request.Token != Token || len(request.PublicKey) != ed25519.PublicKeySize || request.Name == "" {
		http.Error(w, "token refused", http.StatusForbidden)
		return
	}
	var agent Agent
	s.with(func() {
		n := len(s.agents) + 1
		for _, a := range s.agents {
			if bytes.Equal(a.Request.PublicKey, request.PublicKey) {
				agent = *a
				return
			}
		}
		agent = Agent{ID: fmt.Sprintf("agent_%d", n), Request: request}
		if request.Kind == protocol.FabricAgent {
			agent.FabricID = fmt.Sprintf("fabric_%d", n)
		} else {
			agent.NodeID = fmt.Sprintf("node_%d", n)
		}
		s.agents[agent.ID] = &agent
	})
	answer(w, protocol.EnrollResponse{AgentID: agent.ID, NodeID: agent.NodeID, FabricID: agent.FabricID, ServerTime: s.Now(), HeartbeatSeconds: 10})
}

func (s *Server) inventory(w http.ResponseWriter, _ *http.Request, agent *Agent, body []byte) {
	var report protocol.Inventory
	if decode(w, bytes.NewReader(body), &report) {
		s.with(func() { agent.Inventories = append(agent.Inventories, report) })
		answer(w, protocol.InventoryReply{Changes: []string{}, State: "available"})
	}
}

func (s *Server) heartbeat(w http.ResponseWriter, _ *http.Request, agent *Agent, body []byte) {
	var beat protocol.Heartbeat
	if !decode(w, bytes.NewReader(body), &beat) {
		return
	}
	reply := protocol.HeartbeatReply{ServerTime: s.Now()}
	s.with(func() {
		agent.Heartbeats = append(agent.Heartbeats, beat)
		reply.InventoryWanted, s.wanted = s.wanted, false
		reply.OperationsPending = len(s.pending(agent.ID))
	})
	answer(w, reply)
}

// pending is what was queued and not picked up yet. The caller holds the lock.
func (s *Server) pending(agent string) []protocol.Operation {
	return slices.DeleteFunc(slices.Clone(s.queue[agent]), func(op protocol.Operation) bool {
		return len(s.progress[op.ID])+len(s.results[op.ID]) > 0
	})
}

func (s *Server) poll(w http.ResponseWriter, r *http.Request, agent *Agent, _ []byte) {
	wait, err := time.ParseDuration(r.URL.Query().Get("wait"))
	if err != nil {
		http.Error(w, "bad wait", http.StatusBadRequest)
		return
	}
	timeout := time.NewTimer(wait)
	defer timeout.Stop()
	for {
		s.mu.Lock()
		pending, changed := s.pending(agent.ID), s.changed
		s.mu.Unlock()
		if len(pending) > 0 {
			answer(w, protocol.Operations{Operations: pending})
			return
		}
		select {
		case <-changed:
		case <-timeout.C:
			answer(w, protocol.Operations{Operations: []protocol.Operation{}})
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (s *Server) takeProgress(w http.ResponseWriter, r *http.Request, agent *Agent, body []byte) {
	var p protocol.Progress
	if s.mine(w, r, agent) && decode(w, bytes.NewReader(body), &p) {
		s.with(func() { s.progress[r.PathValue("id")] = append(s.progress[r.PathValue("id")], p) })
		w.WriteHeader(http.StatusNoContent)
	}
}

func (s *Server) takeResult(w http.ResponseWriter, r *http.Request, agent *Agent, body []byte) {
	var result protocol.Result
	if s.mine(w, r, agent) && decode(w, bytes.NewReader(body), &result) {
		s.with(func() { s.results[r.PathValue("id")] = append(s.results[r.PathValue("id")], result) })
		w.WriteHeader(http.StatusNoContent)
	}
}

func (s *Server) mine(w http.ResponseWriter, r *http.Request, agent *Agent) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner[r.PathValue("id")] != agent.ID {
		http.Error(w, "no such operation", http.StatusNotFound)
		return false
	}
	return true
}

func decode(w http.ResponseWriter, body io.Reader, v any) bool {
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) //nolint:errcheck // the agent hung up
}
