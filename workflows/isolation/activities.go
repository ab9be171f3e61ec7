package isolation

import (
	"context"

	"go.temporal.io/sdk/temporal"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Activities are the process's steps.
type Activities struct{ Fabric Fabric }

// Sweep takes what the last sweep has brought and asks for the next one if it is needed.
func (a *Activities) Sweep(ctx context.Context, fabric ids.Fabric) (Work, error) {
	if err := a.Fabric.Absorb(ctx, fabric); err != nil {
		return Work{}, asActivityError(err)
	}
	inFlight, lookAt, err := a.Fabric.Plan(ctx, fabric)
	if err != nil {
		return Work{}, asActivityError(err)
	}
	return Work{InFlight: inFlight, LookAt: lookAt}, nil
}

// asActivityError makes only "there is no such fabric" final: a fabric that cannot be isolated now must be tried for ever.
func asActivityError(err error) error {
	if fault.Is(err, fault.NotFound) {
		return temporal.NewNonRetryableApplicationError(err.Error(), string(fault.NotFound), err)
	}
	return err
}
