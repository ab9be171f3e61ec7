// Package leasing is the process of one lease, from a little before its start until its books are closed: the Temporal
// workflow lease/<id>.
//
// PostgreSQL holds every fact; the workflow only decides when to look at the rows again and in which order things are done. A
// nudge means "look again", so a lost, late or doubled one is harmless.
package leasing

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/ids"
)

// What starters and senders need to know.
const (
	// WorkflowType is the registered name of the workflow.
	WorkflowType = "lease"
	// NudgeSignal tells a workflow that rows it depends on have changed. It carries nothing.
	NudgeSignal = "nudge"
	// Version of the process. A change that a recorded history could not replay raises it, guards the old way with
	// workflow.GetVersion, and records a history under testdata/histories; a test fails without one.
	Version = 1
)

// WorkflowID is the identity of a lease's workflow: at most one of them runs.
func WorkflowID(lease ids.Lease) string { return "lease/" + lease.String() }

// Input starts the workflow, and starts it anew for the next phase.
type Input struct {
	Lease ids.Lease `json:"lease"`
}

// Delivery is what the process has done. Each method is one short transaction that re-reads the lease under its row's lock,
// so that all may run twice; delivery.Service implements it and documents them.
//
// Refusals are faults that no retry can heal; Unavailable, Exhausted and Internal may be retried.
type Delivery interface {
	Load(ctx context.Context, lease ids.Lease) (delivery.Standing, error)
	HandOver(ctx context.Context, lease ids.Lease) (delivery.Progress, error)
	Prepare(ctx context.Context, lease ids.Lease) (delivery.Progress, error)
	Isolate(ctx context.Context, lease ids.Lease) (delivery.Progress, error)
	Witness(ctx context.Context, lease ids.Lease, occasion delivery.Occasion) (delivery.Progress, error)
	Attest(ctx context.Context, lease ids.Lease, occasion delivery.Occasion) (delivery.Progress, error)
	Grant(ctx context.Context, lease ids.Lease) (delivery.Progress, error)
	Activate(ctx context.Context, lease ids.Lease) (delivery.Progress, error)

	AttestOnDemand(ctx context.Context, lease ids.Lease) (delivery.Progress, error)
	Notify(ctx context.Context, lease ids.Lease, remaining time.Duration) error
	Accrue(ctx context.Context, lease ids.Lease, until time.Time) error

	Release(ctx context.Context, lease ids.Lease, ending delivery.Ending) error
	Revoke(ctx context.Context, lease ids.Lease) (delivery.Progress, error)
	Leave(ctx context.Context, lease ids.Lease) (delivery.Progress, error)
	Wipe(ctx context.Context, lease ids.Lease) (delivery.Progress, error)
	Quarantine(ctx context.Context, lease ids.Lease, reason string) error
	Settle(ctx context.Context, lease ids.Lease) error
}
