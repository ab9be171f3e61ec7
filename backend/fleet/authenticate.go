package fleet

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// maxTokenID bounds a token's id, in bytes.
const maxTokenID = 64

// Caller is an agent whose request was shown to be its own.
type Caller struct {
	Agent
	token   string
	expires time.Time
	body    string // the hash of the body that was signed
}

// Authenticate establishes which agent makes a request, from its token alone, so that nobody's body is read before that; CheckBody
// then binds the body.
//
// It returns an Unauthenticated fault: for a token that is missing, forged, of an unknown or revoked agent, for another request, or
// out of its time.
func (s *Service) Authenticate(ctx context.Context, token, method, uri string) (Caller, error) {
	if token == "" {
		return Caller{}, fault.New(fault.Unauthenticated, "token-missing", "sign the request: Authorization: Bearer …")
	}
	var agent Agent
	claims, err := s.Tokens.Verify(token, func(id ids.Agent) (ed25519.PublicKey, error) {
		var err error
		agent, err = s.identity(ctx, id)
		return agent.PublicKey, err
	})
	if err != nil {
		return Caller{}, fmt.Errorf("authenticate agent: %w", err)
	}
	switch {
	case claims.Agent != agent.ID:
		return Caller{}, fault.New(fault.Unauthenticated, "token-invalid", "the token is another agent's")
	case claims.ExpiresAt.Sub(claims.IssuedAt) > protocol.MaxTokenAge:
		return Caller{}, fault.New(fault.Unauthenticated, "token-too-long", "a token lives for at most %s", protocol.MaxTokenAge)
	case claims.Method != method, claims.URI != uri:
		return Caller{}, fault.New(fault.Unauthenticated, "token-for-another-request", "the token is for another method or path")
	case claims.ID == "" || len(claims.ID) > maxTokenID:
		return Caller{}, fault.New(fault.Unauthenticated, "token-invalid", "the token needs an id of at most %d bytes", maxTokenID)
	}
	return Caller{Agent: agent, token: claims.ID, expires: claims.ExpiresAt, body: claims.BodyHash}, nil
}

// CheckBody returns an Unauthenticated fault unless the body, as it travelled, is the one that was signed.
func (c Caller) CheckBody(body []byte) error {
	if protocol.BodyHash(body) != c.body {
		return fault.New(fault.Unauthenticated, "token-for-another-body", "the token is for another body")
	}
	return nil
}

// identity finds a living agent.
func (s *Service) identity(ctx context.Context, id ids.Agent) (Agent, error) {
	agent, err := s.identities.ask(ctx, id)
	switch {
	case err != nil:
		return Agent{}, err
	case agent.ID.IsZero():
		return Agent{}, fault.New(fault.Unauthenticated, "agent-unknown", "there is no such agent")
	case !agent.RevokedAt.IsZero():
		return Agent{}, fault.New(fault.Unauthenticated, "agent-revoked", "this identity was revoked; enrol again")
	default:
		return agent, nil
	}
}

// lookUp answers many questions for identities; the zero value for one that is unknown.
func (s *Service) lookUp(ctx context.Context, all []ids.Agent) ([]Agent, error) {
	answers := make([]Agent, len(all))
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		found, err := s.Agents.Agents(ctx, all)
		if err != nil {
			return err
		}
		for i, id := range all {
			answers[i] = found[id]
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look agents up: %w", err)
	}
	return answers, nil
}
