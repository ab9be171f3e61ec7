package fleet

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// proofs says what each kind of operation must bring: the type of its evidence, and for witnesses the type of the signed payload.
func proofs(kind protocol.OperationKind) (evidence any, payloadType string) {
	switch kind {
	case protocol.Prepare:
		return &protocol.PrepareEvidence{}, ""
	case protocol.Grant:
		return &protocol.GrantEvidence{}, ""
	case protocol.Revoke:
		return &protocol.RevokeEvidence{}, ""
	case protocol.Wipe:
		return &protocol.WipeEvidence{}, protocol.PayloadWipeEvidence
	case protocol.ObservePKeys:
		return &protocol.PKeyObservation{}, protocol.PayloadPKeyObservation
	case protocol.ApplyPartitions, protocol.ObserveFabric:
		return &protocol.FabricObservation{}, protocol.PayloadFabricObservation
	default:
		return nil, ""
	}
}

// examine turns an agent's result into how the operation ends. What is kept is only what could be read, in its normal form, and for
// witnesses only what carries the agent's own signature.
//
// It returns an Invalid fault when a success does not bring the proof that its kind demands; the operation has then failed.
func examine(agent Agent, o Operation, r protocol.Result) (Ended, error) {
	ended := Ended{State: State(r.State), Fault: r.Fault}
	switch r.State {
	case protocol.Succeeded:
		ended.Fault = nil
	case protocol.Failed, protocol.Fenced:
		if ended.Fault == nil {
			ended.Fault = &protocol.Fault{Code: "unspecified", Detail: "the agent gave no reason", Retryable: r.State == protocol.Failed}
		}
	default:
		return Ended{}, fault.New(fault.Invalid, "result", "the result makes no sense").At("/state", "succeeded, failed or fenced")
	}
	evidence, signed, err := prove(agent, o.Kind, r)
	if err != nil && r.State == protocol.Succeeded {
		problem := fault.New(fault.Invalid, "evidence", "the evidence does not hold: %w", err)
		return Ended{State: Failed, Fault: &protocol.Fault{Code: "evidence-refused", Detail: problem.Detail, Retryable: true}}, problem
	}
	if err == nil { // a failure's evidence is kept as far as it holds
		ended.Evidence, ended.Signed = evidence, signed
	}
	return ended, nil
}

// prove reads evidence and verifies its signature.
func prove(agent Agent, kind protocol.OperationKind, r protocol.Result) (json.RawMessage, *protocol.Envelope, error) {
	evidence, payloadType := proofs(kind)
	raw := []byte(r.Evidence)
	if payloadType != "" {
		if r.Signed == nil {
			return nil, nil, fault.New(fault.Invalid, "evidence-unsigned", "%s needs signed evidence", kind)
		}
		if err := verify(agent.ID, agent.PublicKey, *r.Signed, payloadType); err != nil {
			return nil, nil, err
		}
		if !sameJSON(raw, r.Signed.Payload) {
			return nil, nil, fault.New(fault.Invalid, "evidence-differs", "the evidence is not what was signed")
		}
	}
	if evidence == nil || len(raw) == 0 {
		return nil, nil, fault.New(fault.Invalid, "evidence-missing", "%s needs evidence", kind)
	}
	if err := json.Unmarshal(raw, evidence); err != nil {
		return nil, nil, fmt.Errorf("read evidence: %w", err)
	}
	normal, err := json.Marshal(evidence)
	if err != nil {
		return nil, nil, fmt.Errorf("write evidence: %w", err)
	}
	if payloadType == "" {
		return normal, nil, nil
	}
	return normal, r.Signed, nil
}

// verify checks that the agent's key has signed the payload as that type (DSSE). Exactly one signature is expected: the agent's own.
func verify(agent ids.Agent, key ed25519.PublicKey, e protocol.Envelope, payloadType string) error {
	if e.PayloadType != payloadType {
		return fault.New(fault.Invalid, "evidence-type", "the signed payload is %q, not %q", e.PayloadType, payloadType)
	}
	if len(e.Signatures) != 1 || e.Signatures[0].KeyID != agent.String() {
		return fault.New(fault.Invalid, "evidence-signature", "the evidence needs the agent's own signature, and no other")
	}
	if !ed25519.Verify(key, protocol.PAE(e.PayloadType, e.Payload), e.Signatures[0].Sig) {
		return fault.New(fault.Invalid, "evidence-signature", "the signature is not by the agent's key")
	}
	return nil
}

// sameJSON reports whether both are the same JSON, whatever their spacing and escapes.
func sameJSON(a, b []byte) bool {
	var compactA, compactB bytes.Buffer
	if json.Compact(&compactA, a) == nil && json.Compact(&compactB, b) == nil && bytes.Equal(compactA.Bytes(), compactB.Bytes()) {
		return true // the common case, and the cheap one: a fabric's evidence is large
	}
	var x, y any
	if decodeNumbers(a, &x) != nil || decodeNumbers(b, &y) != nil {
		return false
	}
	return reflect.DeepEqual(x, y)
}

// decodeNumbers keeps numbers as they are written, so that large ones are not rounded into equality.
func decodeNumbers(raw []byte, into *any) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	return decoder.Decode(into)
}
