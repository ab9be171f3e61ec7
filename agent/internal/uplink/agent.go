package uplink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/agent/internal/backoff"
	"github.com/leasehold/leasehold/agent/internal/identity"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Source is the machine or the fabric that an agent stands beside.
type Source interface {
	// Inventory returns a report with exactly one of Node and Fabric set.
	Inventory(ctx context.Context) (protocol.Inventory, error)
	// Health returns all conditions that hold now and the meters' readings since the last call.
	Health(ctx context.Context) ([]protocol.Condition, []protocol.Sample, error)
}

// Config is what an agent is made of.
type Config struct {
	Client   *Client
	Identity *identity.Identity
	Runner   *operation.Runner
	Source   Source
	Enroll   protocol.EnrollRequest // used once, by an identity that is not enrolled yet
	BootID   string
	// Sequence returns a number that grows from call to call within a boot, also across restarts of the agent in it.
	Sequence func() int64
	// Every overrides the enrolment's heartbeat interval when it is not 0.
	Every    time.Duration
	PollWait time.Duration // 0: 30 s
	Retry    backoff.Policy
	Log      *slog.Logger
}

// Agent keeps one identity's line to the control plane.
type Agent struct {
	cfg   Config
	nudge chan struct{} // the heartbeat's answer says that operations wait: poll at once
}

// New returns an agent that Run brings to life.
func New(cfg Config) *Agent {
	if cfg.PollWait == 0 {
		cfg.PollWait = 30 * time.Second
	}
	return &Agent{cfg: cfg, nudge: make(chan struct{}, 1)}
}

// Run enrolls if need be, then reports and works until ctx ends, which is no error. It fails when the token is refused or the
// journal breaks; a control plane that is away is waited for.
func (a *Agent) Run(ctx context.Context) error {
	if err := Enroll(ctx, a.cfg); err != nil {
		return ignoreEnd(ctx, err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.cfg.Runner.Run(ctx) })
	group.Go(func() error { return a.beats(ctx) })
	group.Go(func() error { return a.polls(ctx) })
	return ignoreEnd(ctx, group.Wait())
}

func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// Enroll enrolls the identity unless it is enrolled already, and waits for a control plane that is away. Only Client, Identity,
// Enroll, Retry and Log of cfg are used: what else an agent is made of may depend on the ids that enrolment gives. It fails when
// the token is missing or refused.
func Enroll(ctx context.Context, cfg Config) error {
	retry := backoff.New(cfg.Retry)
	for !cfg.Identity.Enrolled() {
		if cfg.Enroll.Token == "" {
			return fmt.Errorf("enroll %s: not enrolled yet and no token was given", cfg.Enroll.Name)
		}
		err := cfg.Client.Enroll(ctx, cfg.Enroll)
		if err == nil {
			cfg.Log.Info("enrolled", "agent", cfg.Identity.Record().AgentID)
			return nil
		}
		if refused(err) {
			return err
		}
		cfg.Log.Warn("enrolment failed, trying again", "failures", retry.Failures()+1, "error", err)
		if err := retry.Pause(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

// refused reports whether trying again with the same token is pointless.
func refused(err error) bool {
	var status *StatusError
	return errors.As(err, &status) && status.Status/100 == 4 &&
		status.Status != http.StatusRequestTimeout && status.Status != http.StatusTooManyRequests
}

// polls asks for operations for ever. The first poll does not wait: what an earlier process left unfinished is resumed when the
// control plane has spoken.
func (a *Agent) polls(ctx context.Context) error {
	retry := backoff.New(a.cfg.Retry)
	wait := time.Duration(0)
	for ctx.Err() == nil {
		ops, err := a.cfg.Client.Poll(ctx, wait)
		if err != nil {
			if ctx.Err() == nil {
				a.cfg.Log.Warn("poll failed", "failures", retry.Failures()+1, "error", err)
			}
			_ = retry.Pause(ctx, a.nudge) //nolint:errcheck // the loop looks at ctx itself
			continue
		}
		wait = a.cfg.PollWait
		if fresh := a.cfg.Runner.Deliver(ops); fresh == 0 && len(ops) > 0 {
			// The control plane repeats what is in hand already: asking again at once would turn this loop into a fire.
			_ = retry.Pause(ctx, nil) //nolint:errcheck // the loop looks at ctx itself
			continue
		}
		retry.Reset()
	}
	return ctx.Err()
}

func (a *Agent) wakePoll() {
	select {
	case a.nudge <- struct{}{}:
	default:
	}
}
