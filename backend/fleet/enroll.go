package fleet

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/inventory"
	"github.com/leasehold/leasehold/backend/outbox"
	"github.com/leasehold/leasehold/backend/power"
)

const (
	tokenPrefix = "lhe_"
	// Bounds of what an agent says about itself, in bytes.
	maxBootID  = 128
	maxSerial  = 128
	maxVersion = 64
)

// CreateToken lets agents of the site enrol, maxUses times within ttl. The secret is in this answer and nowhere else.
//
// It returns an Invalid fault for a use count or a life that is not positive.
func (s *Service) CreateToken(ctx context.Context, site ids.Site, maxUses int, ttl time.Duration) (ids.Enrollment, string, time.Time, error) {
	if maxUses < 1 || ttl <= 0 {
		return ids.Enrollment{}, "", time.Time{}, fault.New(fault.Invalid, "enrollment-token", "a token needs at least one use and some time")
	}
	now, secret := s.Clock.Now(), tokenPrefix+rand.Text()+rand.Text()
	token := Token{
		ID: ids.Make[ids.Enrollment](), Site: site, Hash: hashOf(secret), MaxUses: maxUses, ExpiresAt: now.Add(ttl), CreatedAt: now,
	}
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error { return s.Agents.InsertToken(ctx, token) })
	if err != nil {
		return ids.Enrollment{}, "", time.Time{}, fmt.Errorf("create enrolment token: %w", err)
	}
	return token.ID, secret, token.ExpiresAt, nil
}

func hashOf(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}

// Enroll trades a token for an identity. The node, or the fabric, is found by its name within the token's site, or made. The same
// key may come again with the same token when the answer was lost, and gets the same identity.
//
// It returns an Invalid fault for a request that names nothing proper, a Forbidden fault for a token that is not good, and a Conflict
// fault, code "second-identity", when another living agent stands there: that is also an audit event and the operator's alarm.
func (s *Service) Enroll(ctx context.Context, r protocol.EnrollRequest) (protocol.EnrollResponse, error) {
	if err := checkEnroll(r); err != nil {
		return protocol.EnrollResponse{}, err
	}
	var agent Agent
	var place string
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		agent, place, err = s.enroll(ctx, r)
		return err
	})
	if fault.CodeOf(err) == codeSecondIdentity {
		if alarmErr := s.refusedIdentity(ctx, r, place); alarmErr != nil {
			return protocol.EnrollResponse{}, fmt.Errorf("enroll: %w", alarmErr)
		}
	}
	if err != nil {
		return protocol.EnrollResponse{}, fmt.Errorf("enroll: %w", err)
	}
	return protocol.EnrollResponse{
		AgentID: agent.ID.String(), NodeID: agent.Node.String(), FabricID: agent.Fabric.String(), ServerTime: s.Clock.Now(),
		HeartbeatSeconds: int(protocol.HeartbeatEvery / time.Second),
	}, nil
}

// names are what nodes and fabrics may be called; the schema says the same.
func names(kind protocol.AgentKind) *regexp.Regexp {
	if kind == protocol.FabricAgent {
		return regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)
	}
	return regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,252}$`)
}

func checkEnroll(r protocol.EnrollRequest) error {
	invalid := fault.New(fault.Invalid, "enrollment", "the request is not proper")
	if r.Kind != protocol.NodeAgent && r.Kind != protocol.FabricAgent {
		return invalid.At("/kind", "node or fabric")
	}
	problem := invalid
	if !names(r.Kind).MatchString(r.Name) {
		problem = problem.At("/name", "lower-case letters, digits, dots and dashes, beginning with a letter or digit")
	}
	if len(r.PublicKey) != ed25519.PublicKeySize {
		problem = problem.At("/public_key", "the 32 bytes of an Ed25519 key")
	}
	for pointer, text := range map[string]struct {
		value string
		most  int
	}{"/serial": {r.Serial, maxSerial}, "/boot_id": {r.BootID, maxBootID}, "/agent_version": {r.AgentVersion, maxVersion}} {
		if len(text.value) > text.most {
			problem = problem.At(pointer, fmt.Sprintf("at most %d bytes", text.most))
		}
	}
	if len(problem.Fields) > 0 {
		return problem
	}
	return nil
}

const codeSecondIdentity = "second-identity"

// enroll also returns the id of the node or fabric that it is about, for the alarm.
func (s *Service) enroll(ctx context.Context, r protocol.EnrollRequest) (Agent, string, error) {
	if s.boots != nil && r.Kind == protocol.NodeAgent && strings.HasPrefix(r.Token, power.ServicePrefix) {
		return s.enrollBoot(ctx, r)
	}
	token, err := s.Agents.TokenForUpdate(ctx, hashOf(r.Token))
	if fault.Is(err, fault.NotFound) {
		return Agent{}, "", fault.New(fault.Forbidden, "enrollment-token", "the enrolment token is not known")
	}
	if err != nil {
		return Agent{}, "", err
	}
	now := s.Clock.Now()
	if !now.Before(token.ExpiresAt) {
		return Agent{}, "", fault.New(fault.Forbidden, "enrollment-token-expired", "the enrolment token has expired")
	}
	node, fabric, err := s.place(ctx, token.Site, r)
	if err != nil {
		return Agent{}, "", err
	}
	place := node.String() + fabric.String()
	living, found, err := s.Agents.Living(ctx, node, fabric)
	switch {
	case err != nil:
		return Agent{}, place, err
	case found && bytes.Equal(living.PublicKey, r.PublicKey):
		return living, place, nil // its first answer was lost
	case found:
		return Agent{}, place, fault.New(fault.Conflict, codeSecondIdentity, "%s has an agent already; revoke it first", r.Name)
	case token.Uses >= token.MaxUses:
		return Agent{}, place, fault.New(fault.Forbidden, "enrollment-token-used", "the enrolment token is used up")
	}
	agent := Agent{
		ID: ids.Make[ids.Agent](), Kind: r.Kind, Site: token.Site, Node: node, Fabric: fabric, PublicKey: r.PublicKey, Version: r.AgentVersion, CreatedAt: now,
	}
	if err := s.Agents.UseToken(ctx, token.ID); err != nil {
		return Agent{}, place, err
	}
	if err := s.Agents.InsertAgent(ctx, agent); err != nil {
		return Agent{}, place, err
	}
	return agent, place, s.Audit.Record(ctx, "agent.enrolled", agent.ID.String(), nil, map[string]any{
		"kind": r.Kind, "name": r.Name, "place": place, "token": token.ID, "serial": r.Serial,
	})
}

// place finds or makes what the agent stands beside.
func (s *Service) place(ctx context.Context, site ids.Site, r protocol.EnrollRequest) (ids.Node, ids.Fabric, error) {
	if r.Kind == protocol.FabricAgent {
		fabric, err := s.Hardware.AddFabric(ctx, site, r.Name)
		return ids.Node{}, fabric.ID, err
	}
	node, err := s.Hardware.AddNode(ctx, site, r.Name, r.Serial)
	if err == nil && node.State == inventory.Retired {
		err = fault.New(fault.Conflict, "node-retired", "%s was retired", r.Name)
	}
	return node.ID, ids.Fabric{}, err
}

// refusedIdentity tells of somebody who claims to be an agent that lives. It has a transaction of its own: the claim's was undone.
func (s *Service) refusedIdentity(ctx context.Context, r protocol.EnrollRequest, place string) error {
	return s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		claim := map[string]any{"kind": r.Kind, "name": r.Name, "serial": r.Serial, "boot_id": r.BootID, "public_key": r.PublicKey}
		if err := s.Audit.Record(ctx, "agent.second_identity_refused", place, nil, claim); err != nil {
			return err
		}
		claim["event"], claim["place"] = "agent.second_identity_refused", place
		return s.Outbox.Put(ctx, outbox.Notify, "operator", claim, s.Clock.Now())
	})
}

// Revoke ends an agent's identity: its next request is refused, and what it was asked to do has failed. Its node or fabric may then
// enrol again. Revoking twice changes nothing.
//
// It returns a NotFound fault.
func (s *Service) Revoke(ctx context.Context, id ids.Agent) error {
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		now := s.Clock.Now()
		if err := s.Agents.Revoke(ctx, id, now); err != nil {
			return err
		}
		open, err := s.Operations.OfAgent(ctx, id, []State{Queued, Running}, time.Time{}, 0)
		if err != nil {
			return err
		}
		gone := &protocol.Fault{Code: "agent-revoked", Detail: "its agent's identity was revoked", Retryable: true}
		if err := s.endAll(ctx, open, func(Operation) *protocol.Fault { return gone }, now); err != nil {
			return err
		}
		return s.Audit.Record(ctx, "agent.revoked", id.String(), nil, nil)
	})
	if err != nil {
		return fmt.Errorf("revoke agent: %w", err)
	}
	return nil
}

// List lists a site's agents, of all sites when it is zero.
func (s *Service) List(ctx context.Context, site ids.Site) ([]Agent, error) {
	var found []Agent
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		found, err = s.Agents.List(ctx, site)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list agents: %w", err)
	}
	return found, nil
}
