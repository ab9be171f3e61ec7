// Package daemon puts one agent together: identity, line to the control plane, runner of operations.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/leasehold/leasehold/agent/internal/backoff"
	"github.com/leasehold/leasehold/agent/internal/identity"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/internal/uplink"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Line is how to reach the control plane; agents of one process share it.
type Line struct {
	Server    string
	Insecure  bool // plain http to other machines than this one
	Transport http.RoundTripper
	Heartbeat time.Duration // 0: as enrolment says
	Retry     backoff.Policy
	Now       func() time.Time
}

// Parts is what an agent does and reports.
type Parts struct {
	Source   uplink.Source
	Handlers map[protocol.OperationKind]operation.Handler
	// Whole makes every operation cover the same scope, as a fabric agent's do.
	Whole bool
}

// Agent is one identity's agent.
type Agent struct {
	Line

	Identity *identity.Identity
	Enroll   protocol.EnrollRequest
	BootID   string
	Sequence func() int64
	Log      *slog.Logger
	// Build makes the parts once the identity is enrolled. now is the control plane's time as far as it is known.
	Build func(now func() time.Time) (Parts, error)
	// Turn is waited for before enrolment and gives back what ends the turn; may be nil.
	Turn func(ctx context.Context) (func(), error)
	// Enrolled is called when the identity is known to the control plane; may be nil.
	Enrolled func()
}

// Run works until ctx ends, which is no error.
func (a *Agent) Run(ctx context.Context) error {
	err := a.run(ctx)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

func (a *Agent) run(ctx context.Context) error {
	client, err := uplink.NewClient(a.Server, &http.Client{Transport: a.Transport}, a.Identity, a.Now, a.Insecure)
	if err != nil {
		return err
	}
	config := uplink.Config{
		Client: client, Identity: a.Identity, Enroll: a.Enroll, BootID: a.BootID, Sequence: a.Sequence, Every: a.Heartbeat, Retry: a.Retry, Log: a.Log,
	}
	if err := a.enroll(ctx, config); err != nil {
		return err
	}
	parts, err := a.Build(client.Now)
	if err != nil {
		return fmt.Errorf("build agent %s: %w", a.Enroll.Name, err)
	}
	config.Source = parts.Source
	config.Runner, err = operation.Open(operation.Config{
		Dir: a.Identity.Dir(), Handlers: parts.Handlers, Signer: a.Identity, Reporter: client, Now: client.Now, Log: a.Log, Whole: parts.Whole, Retry: a.Retry,
	})
	if err != nil {
		return fmt.Errorf("open journal of %s: %w", a.Enroll.Name, err)
	}
	return uplink.New(config).Run(ctx)
}

func (a *Agent) enroll(ctx context.Context, config uplink.Config) error {
	if a.Turn != nil {
		end, err := a.Turn(ctx)
		if err != nil {
			return err
		}
		defer end()
	}
	if err := uplink.Enroll(ctx, config); err != nil {
		return err
	}
	if a.Enrolled != nil {
		a.Enrolled()
	}
	return nil
}
