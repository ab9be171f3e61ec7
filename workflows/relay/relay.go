// Package relay carries the outbox's nudges to the workflows that wait for them, and starts those that are due. It is a plain loop,
// not a workflow; any number of relays may run at once, since claims never overlap and a nudge may arrive twice.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/outbox"
	"github.com/leasehold/leasehold/workflows/isolation"
	"github.com/leasehold/leasehold/workflows/leasing"
	"github.com/leasehold/leasehold/workflows/reclaim"
)

const (
	batch = 100
	// claimFor is how long a claimed message is this relay's; if it dies, another one delivers it then.
	claimFor = 5 * time.Second
	// pollEvery is how often the outbox and the due leases are looked at though nobody woke the relay.
	pollEvery = time.Second
	// atOnce bounds the calls to Temporal in flight.
	atOnce = 16
	// startAgain is how soon a due lease whose start had no visible effect is started again.
	startAgain = 10 * time.Second
)

// Outbox has the messages. Claims of several relays never overlap.
type Outbox interface {
	Claim(ctx context.Context, topics []string, limit int, now time.Time, lease time.Duration) ([]outbox.Message, error)
	Done(ctx context.Context, delivered []ids.Outbox, at time.Time) error
}

// Leases knows which reserved leases must begin.
type Leases interface {
	Due(ctx context.Context, now time.Time, limit int) ([]ids.Lease, error)
}

// Signaller is the part of Temporal's client that a relay uses.
type Signaller interface {
	SignalWithStartWorkflow(ctx context.Context, workflowID string, signalName string, signalArg any,
		options client.StartWorkflowOptions, workflow any, workflowArgs ...any) (client.WorkflowRun, error)
}

// Relay delivers nudges.
type Relay struct {
	Outbox    Outbox
	Leases    Leases
	Temporal  Signaller
	TaskQueue string
	Clock     clock.Clock
	Log       *slog.Logger
	// Wake tells that messages were written; nil: they are found by polling.
	Wake <-chan struct{}

	started map[ids.Lease]time.Time
}

// Run delivers until ctx ends. Trouble is logged and tried again.
func (r *Relay) Run(ctx context.Context) error {
	r.started = map[ids.Lease]time.Time{}
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	scan := true
	for {
		if err := r.deliver(ctx); err != nil && ctx.Err() == nil {
			r.Log.WarnContext(ctx, "nudges are not delivered", "error", err)
		}
		if scan {
			if err := r.startDue(ctx); err != nil && ctx.Err() == nil {
				r.Log.WarnContext(ctx, "due leases are not started", "error", err)
			}
		}
		scan = false
		select {
		case <-ctx.Done():
			return nil
		case <-r.Wake:
		case <-poll.C:
			scan = true
		}
	}
}

// deliver empties the outbox of what is due now.
func (r *Relay) deliver(ctx context.Context) error {
	for {
		messages, err := r.Outbox.Claim(ctx, []string{outbox.LeaseNudge, outbox.FabricNudge, outbox.NodeNudge}, batch, r.Clock.Now(), claimFor)
		if err != nil || len(messages) == 0 {
			return err
		}
		delivered := r.signalAll(ctx, messages)
		if err := r.Outbox.Done(ctx, delivered, r.Clock.Now()); err != nil {
			return fmt.Errorf("mark delivered: %w", err)
		}
		if len(messages) < batch {
			return nil
		}
	}
}

type target struct{ topic, key string }

// signalAll sends one signal for all messages that want the same workflow, and returns the messages that were delivered. The rest
// is claimed again when its time is over.
func (r *Relay) signalAll(ctx context.Context, messages []outbox.Message) []ids.Outbox {
	targets := map[target][]ids.Outbox{}
	for _, m := range messages {
		t := target{m.Topic, m.Key}
		targets[t] = append(targets[t], m.ID)
	}
	done := make(chan []ids.Outbox, len(targets))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for t, asked := range targets {
		group.Go(func() error {
			if err := r.signal(ctx, t); err != nil {
				r.Log.WarnContext(ctx, "a nudge is not delivered", "topic", t.topic, "key", t.key, "error", err)
				return nil
			}
			done <- asked
			return nil
		})
	}
	_ = group.Wait() // each has logged its own
	close(done)
	var delivered []ids.Outbox
	for part := range done {
		delivered = append(delivered, part...)
	}
	return delivered
}

func (r *Relay) signal(ctx context.Context, t target) error {
	switch t.topic {
	case outbox.LeaseNudge:
		lease, err := ids.Read[ids.Lease](t.key)
		if err != nil {
			return fmt.Errorf("read key: %w", err)
		}
		return NudgeLease(ctx, r.Temporal, r.TaskQueue, lease)
	case outbox.FabricNudge:
		fabric, err := ids.Read[ids.Fabric](t.key)
		if err != nil {
			return fmt.Errorf("read key: %w", err)
		}
		return NudgeFabric(ctx, r.Temporal, r.TaskQueue, fabric)
	case outbox.NodeNudge:
		node, err := ids.Read[ids.Node](t.key)
		if err != nil {
			return fmt.Errorf("read key: %w", err)
		}
		return NudgeNode(ctx, r.Temporal, r.TaskQueue, node)
	default:
		return fmt.Errorf("unknown topic %q", t.topic)
	}
}

// startDue starts the workflows of reserved leases whose slots are held as of now.
func (r *Relay) startDue(ctx context.Context) error {
	now := r.Clock.Now()
	due, err := r.Leases.Due(ctx, now, batch)
	if err != nil {
		return err
	}
	for lease, at := range r.started {
		if now.Sub(at) >= startAgain {
			delete(r.started, lease)
		}
	}
	var errs []error // one lease that cannot be started holds up no other
	for _, lease := range due {
		if _, ok := r.started[lease]; ok {
			continue
		}
		if err := NudgeLease(ctx, r.Temporal, r.TaskQueue, lease); err != nil {
			errs = append(errs, fmt.Errorf("start %s: %w", lease, err))
			continue
		}
		r.started[lease] = now
	}
	return errors.Join(errs...)
}

// NudgeLease has the lease's workflow look at the rows, and starts it if it does not run.
func NudgeLease(ctx context.Context, to Signaller, queue string, lease ids.Lease) error {
	options := startOptions(queue, leasing.WorkflowID(lease))
	_, err := to.SignalWithStartWorkflow(ctx, options.ID, leasing.NudgeSignal, nil, options, leasing.WorkflowType, leasing.Input{Lease: lease})
	if err != nil {
		return fmt.Errorf("nudge lease: %w", err)
	}
	return nil
}

// NudgeFabric likewise for a fabric's isolation workflow.
func NudgeFabric(ctx context.Context, to Signaller, queue string, fabric ids.Fabric) error {
	options := startOptions(queue, isolation.WorkflowID(fabric))
	_, err := to.SignalWithStartWorkflow(ctx, options.ID, isolation.NudgeSignal, nil, options, isolation.WorkflowType, isolation.Input{Fabric: fabric})
	if err != nil {
		return fmt.Errorf("nudge fabric: %w", err)
	}
	return nil
}

// NudgeNode likewise for a node's own workflow.
func NudgeNode(ctx context.Context, to Signaller, queue string, node ids.Node) error {
	options := startOptions(queue, reclaim.WorkflowID(node))
	_, err := to.SignalWithStartWorkflow(ctx, options.ID, reclaim.NudgeSignal, nil, options, reclaim.WorkflowType, reclaim.Input{Node: node})
	if err != nil {
		return fmt.Errorf("nudge node: %w", err)
	}
	return nil
}

func startOptions(queue, id string) client.StartWorkflowOptions {
	return client.StartWorkflowOptions{
		ID: id, TaskQueue: queue,
		WorkflowIDReusePolicy:    enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		WorkflowIDConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING,
	}
}
