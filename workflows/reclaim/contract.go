// Package reclaim is the process of one node that is tested again after a quarantine: the Temporal workflow node/<id>. What leases that
// are long over left on it is closed, seen clear and wiped once more, and then the node comes back to the market, or goes back to
// quarantine.
//
// As in package leasing, PostgreSQL holds every fact, and a nudge means "look again".
package reclaim

import (
	"context"

	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/ids"
)

// What starters and senders need to know.
const (
	// WorkflowType is the registered name of the workflow.
	WorkflowType = "node"
	// NudgeSignal tells a workflow that rows it depends on have changed. It carries nothing.
	NudgeSignal = "nudge"
	// Version of the process; see leasing.Version.
	Version = 1
)

// WorkflowID is the identity of a node's workflow: at most one of them runs.
func WorkflowID(node ids.Node) string { return "node/" + node.String() }

// Input starts the workflow, and starts it anew.
type Input struct {
	Node ids.Node `json:"node"`
}

// Reclaim is what the process has done. Each method may run twice; delivery.Reclaim implements it and documents them.
//
// Refusals are faults that no retry can heal; Unavailable, Exhausted and Internal may be retried.
type Reclaim interface {
	Begin(ctx context.Context, node ids.Node) (delivery.Progress, error)
	Revoke(ctx context.Context, node ids.Node) (delivery.Progress, error)
	Clear(ctx context.Context, node ids.Node) (delivery.Progress, error)
	Observe(ctx context.Context, node ids.Node) (delivery.Progress, error)
	Wipe(ctx context.Context, node ids.Node) (delivery.Progress, error)
	Conclude(ctx context.Context, node ids.Node, trouble string) (delivery.Progress, error)
}
