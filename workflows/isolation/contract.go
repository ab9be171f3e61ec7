// Package isolation is the process of one fabric: the Temporal workflow isolation/<id>. It brings the fabric's partitions to what
// the rows want, everything that is pending in one sweep at a time, and so hundreds of leases that start on the hour cost one sweep.
package isolation

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
)

// What starters and senders need to know.
const (
	// WorkflowType is the registered name of the workflow.
	WorkflowType = "isolation"
	// NudgeSignal tells that something is pending, or that the fabric's agent has answered. It carries nothing.
	NudgeSignal = "nudge"
	// Version of the process; see leasing.Version.
	Version = 1
)

// WorkflowID is the identity of a fabric's workflow: at most one of them runs, so at most one sweep is in flight.
func WorkflowID(fabric ids.Fabric) string { return "isolation/" + fabric.String() }

// Input starts the workflow, and starts it anew.
type Input struct {
	Fabric ids.Fabric `json:"fabric"`
}

// Fabric is what the process has done; both methods are short transactions and may run twice.
type Fabric interface {
	// Absorb takes the finished sweep's observation, if there is one that was not taken yet, and wakes the leases that waited.
	Absorb(ctx context.Context, fabric ids.Fabric) error
	// Plan asks the fabric's agent for one sweep of everything that is pending, unless one is in flight. It returns whether one is,
	// and when to look again; the zero instant: not before somebody nudges.
	Plan(ctx context.Context, fabric ids.Fabric) (inFlight bool, lookAt time.Time, err error)
}

// Work is what Plan found.
type Work struct {
	InFlight bool      `json:"in_flight,omitempty"`
	LookAt   time.Time `json:"look_at,omitzero"`
}
