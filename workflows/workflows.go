// Package workflows has the processes that take longer than a request, and what runs them: `leasehold worker`.
package workflows

import (
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/leasehold/leasehold/workflows/isolation"
	"github.com/leasehold/leasehold/workflows/leasing"
	"github.com/leasehold/leasehold/workflows/reclaim"
)

// TaskQueue is where all workers of an installation take their work from.
const TaskQueue = "leasehold"

// Deps is what the processes work with.
type Deps struct {
	Delivery leasing.Delivery
	Fabric   isolation.Fabric
	Reclaim  reclaim.Reclaim
}

// Register adds every process to the worker.
func Register(to worker.Registry, deps Deps) {
	to.RegisterWorkflowWithOptions(leasing.Lease, workflow.RegisterOptions{Name: leasing.WorkflowType})
	to.RegisterActivityWithOptions(&leasing.Activities{Delivery: deps.Delivery}, activity.RegisterOptions{})
	to.RegisterWorkflowWithOptions(isolation.Isolate, workflow.RegisterOptions{Name: isolation.WorkflowType})
	to.RegisterActivityWithOptions(&isolation.Activities{Fabric: deps.Fabric}, activity.RegisterOptions{})
	to.RegisterWorkflowWithOptions(reclaim.Node, workflow.RegisterOptions{Name: reclaim.WorkflowType})
	to.RegisterActivityWithOptions(&reclaim.Activities{Reclaim: deps.Reclaim}, activity.RegisterOptions{})
}

// NewWorker returns a worker for all processes; Start and Stop it.
func NewWorker(temporal client.Client, deps Deps) worker.Worker {
	w := worker.New(temporal, TaskQueue, worker.Options{
		MaxConcurrentActivityExecutionSize:      32,
		MaxConcurrentLocalActivityExecutionSize: 32,
		WorkerStopTimeout:                       5 * time.Second,
	})
	Register(w, deps)
	return w
}
