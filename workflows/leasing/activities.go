package leasing

import (
	"context"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Activities are the process's steps. Each is one short transaction and may run twice.
type Activities struct{ Delivery Delivery }

// Load reads where the lease stands.
func (a *Activities) Load(ctx context.Context, lease ids.Lease) (delivery.Standing, error) {
	standing, err := a.Delivery.Load(ctx, lease)
	return standing, asActivityError(err)
}

// HandOver takes the slots over from whoever had them before.
func (a *Activities) HandOver(ctx context.Context, lease ids.Lease) (delivery.Progress, error) {
	return answer(a.Delivery.HandOver(ctx, lease))
}

// Prepare readies the nodes.
func (a *Activities) Prepare(ctx context.Context, lease ids.Lease) (delivery.Progress, error) {
	return answer(a.Delivery.Prepare(ctx, lease))
}

// Isolate makes the lease's partition and waits for both ends of every link to agree.
func (a *Activities) Isolate(ctx context.Context, lease ids.Lease) (delivery.Progress, error) {
	return answer(a.Delivery.Isolate(ctx, lease))
}

// Witness has the nodes read their own ports' tables.
func (a *Activities) Witness(ctx context.Context, lease ids.Lease, occasion delivery.Occasion) (delivery.Progress, error) {
	return answer(a.Delivery.Witness(ctx, lease, occasion))
}

// Attest compares the witnesses and signs what they say.
func (a *Activities) Attest(ctx context.Context, lease ids.Lease, occasion delivery.Occasion) (delivery.Progress, error) {
	return answer(a.Delivery.Attest(ctx, lease, occasion))
}

// Grant lets the tenant in, until the lease's end as it stands.
func (a *Activities) Grant(ctx context.Context, lease ids.Lease) (delivery.Progress, error) {
	return answer(a.Delivery.Grant(ctx, lease))
}

// Activate starts the clock.
func (a *Activities) Activate(ctx context.Context, lease ids.Lease) (delivery.Progress, error) {
	return answer(a.Delivery.Activate(ctx, lease))
}

// AttestOnDemand answers whoever wants a proof of isolation while the lease runs.
func (a *Activities) AttestOnDemand(ctx context.Context, lease ids.Lease) (delivery.Progress, error) {
	return answer(a.Delivery.AttestOnDemand(ctx, lease))
}

// Notify tells the lease's people how long it has left.
func (a *Activities) Notify(ctx context.Context, lease ids.Lease, remaining time.Duration) error {
	return asActivityError(a.Delivery.Notify(ctx, lease, remaining))
}

// Accrue captures what was used so far.
func (a *Activities) Accrue(ctx context.Context, lease ids.Lease, until time.Time) error {
	return asActivityError(a.Delivery.Accrue(ctx, lease, until))
}

// Release stops the clock and begins to take back what was given.
func (a *Activities) Release(ctx context.Context, lease ids.Lease, ending delivery.Ending) error {
	return asActivityError(a.Delivery.Release(ctx, lease, ending))
}

// Revoke ends the tenant's access.
func (a *Activities) Revoke(ctx context.Context, lease ids.Lease) (delivery.Progress, error) {
	return answer(a.Delivery.Revoke(ctx, lease))
}

// Leave takes the ports out of the partition and waits until they are seen clear.
func (a *Activities) Leave(ctx context.Context, lease ids.Lease) (delivery.Progress, error) {
	return answer(a.Delivery.Leave(ctx, lease))
}

// Wipe erases the nodes and gives the clean ones back.
func (a *Activities) Wipe(ctx context.Context, lease ids.Lease) (delivery.Progress, error) {
	return answer(a.Delivery.Wipe(ctx, lease))
}

// Quarantine keeps the nodes that are not known to be clean off the market.
func (a *Activities) Quarantine(ctx context.Context, lease ids.Lease, reason string) error {
	return asActivityError(a.Delivery.Quarantine(ctx, lease, reason))
}

// Settle makes the final bill and closes the lease.
func (a *Activities) Settle(ctx context.Context, lease ids.Lease) error {
	return asActivityError(a.Delivery.Settle(ctx, lease))
}

func answer(progress delivery.Progress, err error) (delivery.Progress, error) {
	return progress, asActivityError(err)
}

// asActivityError makes refusals final and names them by their kind; what may pass later stays retryable.
func asActivityError(err error) error {
	if err == nil {
		return nil
	}
	switch kind := fault.KindOf(err); kind {
	case fault.Unavailable, fault.Exhausted, fault.Internal:
		return err
	case fault.Invalid, fault.Unauthenticated, fault.Unfunded, fault.Forbidden, fault.NotFound, fault.Conflict, fault.Expired, fault.Stale:
		return temporal.NewNonRetryableApplicationError(err.Error(), string(kind), err)
	default:
		return err
	}
}
