// Package agenttoken reads the JWTs (EdDSA) with which agents sign their requests. It implements a port of package fleet; what the
// claims must say is decided there.
package agenttoken

import (
	"crypto/ed25519"
	"errors"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
)

const (
	// leeway is how far an agent's clock may be off, on top of what its token's life forgives.
	leeway = 5 * time.Second
	// maxLength bounds a token's text, in bytes.
	maxLength = 4_096
)

// Verifier verifies tokens.
type Verifier struct{ clock clock.Clock }

var _ fleet.Tokens = Verifier{}

// New returns a verifier that goes by clock.
func New(clock clock.Clock) Verifier { return Verifier{clock: clock} }

// claims are the token's, as package protocol names them.
type claims struct {
	jwt.RegisteredClaims
	Method string `json:"htm"`
	URI    string `json:"htu"`
	Body   string `json:"bh"`
}

// Verify implements fleet.Tokens.
func (v Verifier) Verify(token string, keyOf func(agent ids.Agent) (ed25519.PublicKey, error)) (fleet.Claims, error) {
	if len(token) > maxLength {
		return fleet.Claims{}, invalid()
	}
	var (
		said   claims
		agent  ids.Agent
		lookUp error
	)
	_, err := jwt.ParseWithClaims(token, &said, func(*jwt.Token) (any, error) {
		var err error
		if agent, err = ids.Read[ids.Agent](said.Issuer); err != nil || agent.IsZero() || said.Subject != said.Issuer {
			return nil, invalid()
		}
		key, err := keyOf(agent)
		if err != nil {
			lookUp = err
		}
		return key, err
	}, jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithExpirationRequired(), jwt.WithIssuedAt(), jwt.WithLeeway(leeway),
		jwt.WithTimeFunc(v.clock.Now), jwt.WithStrictDecoding())
	switch {
	case lookUp != nil:
		return fleet.Claims{}, lookUp
	case errors.Is(err, jwt.ErrTokenExpired), errors.Is(err, jwt.ErrTokenUsedBeforeIssued), errors.Is(err, jwt.ErrTokenNotValidYet):
		return fleet.Claims{}, fault.New(fault.Unauthenticated, "token-out-of-time",
			"the token's time has passed or not come; the server's time is in %s", protocol.HeaderServerTime)
	case err != nil, said.IssuedAt == nil:
		return fleet.Claims{}, invalid()
	}
	return fleet.Claims{
		Agent: agent, ID: said.ID, Method: said.Method, URI: said.URI, BodyHash: said.Body, IssuedAt: said.IssuedAt.Time, ExpiresAt: said.ExpiresAt.Time,
	}, nil
}

func invalid() error {
	return fault.New(fault.Unauthenticated, "token-invalid", "the token is not one that the agent has signed")
}
