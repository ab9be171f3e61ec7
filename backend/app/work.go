package app

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/doctor"
	"github.com/leasehold/leasehold/backend/internal/courier"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/outbox"
	"github.com/leasehold/leasehold/backend/webhook"
	"github.com/leasehold/leasehold/workflows"
	"github.com/leasehold/leasehold/workflows/relay"
)

const taskQueue = workflows.TaskQueue

// Work runs workflows, the outbox relay and the reconciler until ctx ends.
func (a *App) Work(ctx context.Context) error {
	worker := workflows.NewWorker(a.temporal, workflows.Deps{Delivery: a.delivery, Fabric: a.fabric, Reclaim: a.reclaim})
	if err := worker.Start(); err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	defer worker.Stop()
	group, ctx := errgroup.WithContext(ctx)
	wake, done := a.hub.Subscribe(outbox.Channel, "")
	defer done()
	carrier := &relay.Relay{
		Outbox: a.box, Leases: a.work, Temporal: a.temporal, TaskQueue: taskQueue, Clock: a.clock, Log: a.log, Wake: wake,
	}
	group.Go(func() error { return carrier.Run(ctx) })
	group.Go(func() error { return a.reconciler().Run(ctx) })
	group.Go(func() error { return a.power.Run(ctx) })
	group.Go(func() error { return (&relay.Herald{Outbox: a.box, Clock: a.clock, Log: a.log}).Run(ctx) })
	couriers := &webhook.Courier{
		Tx: a.db, Rounds: postgres.NewWebhooks(a.db), Sender: courier.New(a.clock, a.config.Lab), Vault: a.vault, Audit: a.audit, Notices: a.box,
		Clock: a.clock, Log: a.log,
	}
	group.Go(func() error { return couriers.Run(ctx) })
	chainer := audit.Chainer{Tx: a.db, Chains: postgres.NewAuditEvents(a.db)}
	group.Go(func() error { return a.every(ctx, chainEvery, "chain the audit log", chainer.Chain) })
	group.Go(func() error {
		return a.every(ctx, sweepEvery, "sweep payments", func(ctx context.Context) error { return a.payments.Sweep(ctx, sweepBatch) })
	})
	group.Go(func() error {
		return a.every(ctx, retainEvery, "forget old samples", func(ctx context.Context) error { return a.fleet.Retain(ctx, a.clock.Now()) })
	})
	group.Go(func() error { return a.every(ctx, retainEvery, "forget old requests", a.forgetRequests) })
	group.Go(func() error { return a.every(ctx, watchEvery, "watch running leases", a.delivery.Watch) })
	if err := group.Wait(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("work: %w", err)
	}
	return nil
}

const (
	sweepEvery  = 3 * time.Second // payments under way are fetched again: webhooks and 3-D Secure are booked there, and only there
	sweepBatch  = 100
	chainEvery  = time.Second
	retainEvery = time.Hour
	watchEvery  = 5 * time.Second     // how soon an outage is in its lease's log
	keepKeys    = 7 * 24 * time.Hour  // how long an Idempotency-Key is remembered
	keepTokens  = 30 * 24 * time.Hour // as long as a session lives without being refreshed: after that its tokens are refused anyway
	forgetBatch = 1_000
)

// forgetRequests deletes what keeps requests from being done twice or too often, once nobody can need it.
func (a *App) forgetRequests(ctx context.Context) error {
	now := a.clock.Now()
	if err := postgres.NewRateLimits(a.db).Forget(ctx, now.Add(-retainEvery)); err != nil {
		return err
	}
	if err := postgres.NewTenants(a.db).ForgetDeviceGrants(ctx, now.Add(-retainEvery)); err != nil {
		return err
	}
	for {
		gone, err := postgres.NewTenants(a.db).ForgetTokens(ctx, now.Add(-keepTokens), forgetBatch)
		if err != nil {
			return err
		}
		if gone < forgetBatch {
			break
		}
	}
	for {
		gone, err := postgres.NewIdempotency(a.db).Forget(ctx, now.Add(-keepKeys), forgetBatch)
		if err != nil || gone < forgetBatch {
			return err
		}
	}
}

// every does something now and then until ctx ends. Trouble is logged and tried again next time.
func (a *App) every(ctx context.Context, period time.Duration, what string, do func(ctx context.Context) error) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := do(ctx); err != nil && ctx.Err() == nil {
			a.log.WarnContext(ctx, "a periodic task failed", "task", what, "error", err)
		}
	}
}

// Doctor checks every invariant on the live database, writes what it found, and reports whether all hold.
func (a *App) Doctor(ctx context.Context, out io.Writer) (bool, error) {
	findings, err := a.doctor.Run(ctx)
	if err != nil {
		return false, fmt.Errorf("examine: %w", err)
	}
	broken := map[int][]string{}
	for _, f := range findings {
		broken[f.Invariant] = append(broken[f.Invariant], f.String())
	}
	for i, claim := range doctor.Invariants() {
		verdict := "ok    "
		if len(broken[i+1]) > 0 {
			verdict = "BROKEN"
		}
		fmt.Fprintln(out, strconv.Itoa(i+1), verdict, claim)
		if len(broken[i+1]) > 0 {
			fmt.Fprintln(out, "    "+strings.Join(broken[i+1], "\n    "))
		}
	}
	return len(findings) == 0, nil
}
