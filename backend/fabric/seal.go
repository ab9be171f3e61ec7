package fabric

import (
	"context"
	"crypto/ed25519"
	"fmt"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
)

// Sealer puts payloads into DSSE envelopes that the platform's attestation key has signed.
type Sealer struct{ Key Signer }

// Sign seals a payload.
func (s Sealer) Sign(ctx context.Context, payloadType string, payload []byte) (protocol.Envelope, error) {
	kid, err := s.Key.KeyID()
	if err != nil {
		return protocol.Envelope{}, fmt.Errorf("name signing key: %w", err)
	}
	signature, err := s.Key.Sign(ctx, protocol.PAE(payloadType, payload))
	if err != nil {
		return protocol.Envelope{}, fmt.Errorf("sign %s: %w", payloadType, err)
	}
	return protocol.Envelope{PayloadType: payloadType, Payload: payload, Signatures: []protocol.Signature{{KeyID: kid, Sig: signature}}}, nil
}

// opened returns the payload of an envelope that one of the keys has signed as that type. One good signature suffices, as DSSE has it.
func opened(e protocol.Envelope, payloadType string, keys map[string]ed25519.PublicKey) ([]byte, error) {
	if e.PayloadType != payloadType {
		return nil, fault.New(fault.Invalid, "envelope-type", "the envelope holds %q, not %q", e.PayloadType, payloadType)
	}
	message := protocol.PAE(e.PayloadType, e.Payload)
	for _, signature := range e.Signatures {
		if key := keys[signature.KeyID]; len(key) == ed25519.PublicKeySize && ed25519.Verify(key, message, signature.Sig) {
			return e.Payload, nil
		}
	}
	return nil, fault.New(fault.Invalid, "envelope-signature", "no signature of the %d in the envelope is by a known key", len(e.Signatures))
}
