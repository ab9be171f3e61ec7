package fabric

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
)

// VerifyAttestation checks an attestation with nothing but the platform's public keys, by key id: that one of them has signed it, that
// its subject is the partition that it speaks of, and that its verdict is the one to which the witnesses' own signed words lead. It
// returns the statement, whose verdict may be any.
//
// It returns Invalid faults: code "envelope-type", "envelope-signature", "statement" or "verdict".
func VerifyAttestation(envelope protocol.Envelope, keys map[string]ed25519.PublicKey) (Statement, error) {
	payload, err := opened(envelope, protocol.PayloadInToto, keys)
	if err != nil {
		return Statement{}, err
	}
	var s Statement
	if err := json.Unmarshal(payload, &s); err != nil {
		return Statement{}, fault.New(fault.Invalid, "statement", "the statement cannot be read")
	}
	if s.Type != StatementType || s.PredicateType != PredicateType {
		return Statement{}, fault.New(fault.Invalid, "statement", "the statement is a %s about a %s", s.Type, s.PredicateType)
	}
	var desired bytes.Buffer
	if err := json.Compact(&desired, s.Predicate.Desired); err != nil {
		return Statement{}, fault.New(fault.Invalid, "statement", "what is wanted cannot be read")
	}
	if len(s.Subject) != 1 || s.Subject[0].Digest["sha256"] != digest(desired.Bytes()) {
		return Statement{}, fault.New(fault.Invalid, "statement", "the subject's digest is not that of the partition")
	}
	again := s.Predicate
	again.Ports = append([]AttestedPort(nil), s.Predicate.Ports...)
	if err := again.assess(); err != nil {
		return Statement{}, fault.New(fault.Invalid, "statement", "the predicate cannot be read")
	}
	if again.Verdict != s.Predicate.Verdict {
		return Statement{}, fault.New(fault.Invalid, "verdict", "it says %q, but its witnesses say %q", s.Predicate.Verdict, again.Verdict)
	}
	return s, nil
}
