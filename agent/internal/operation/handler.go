// Package operation runs the control plane's operations on this machine: journalled before they start, fenced by epoch,
// reported until the report is acknowledged.
package operation

import (
	"context"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Handler does one kind of operation. It must be idempotent: after a crash the same operation is handled again.
//
// An error that is a *Refusal carries a stable code; any other error is reported as code "failed", retryable.
// Evidence is reported also when an error is returned.
type Handler interface {
	Handle(ctx context.Context, op protocol.Operation, progress func(percent int, phase string)) (Outcome, error)
}

// Outcome is what an operation leaves behind.
type Outcome struct {
	// Evidence is the kind's evidence type of package protocol.
	Evidence any
	// PayloadType, if set, has the evidence signed with the agent's key as a DSSE payload of that type.
	PayloadType string
}

// Refusal is a failure with a stable kebab-case code.
type Refusal struct {
	Code      string
	Detail    string
	Retryable bool
}

// Error implements error.
func (r *Refusal) Error() string { return r.Detail }
