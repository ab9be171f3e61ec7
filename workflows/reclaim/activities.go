package reclaim

import (
	"context"

	"go.temporal.io/sdk/temporal"

	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Activities are the process's steps. Temporal knows them by name, hence the noun in each.
type Activities struct{ Reclaim Reclaim }

// BeginReclaim takes the node's slots out of quarantine into cleaning.
func (a *Activities) BeginReclaim(ctx context.Context, node ids.Node) (delivery.Progress, error) {
	return answer(a.Reclaim.Begin(ctx, node))
}

// RevokeAgain ends what access there may still be.
func (a *Activities) RevokeAgain(ctx context.Context, node ids.Node) (delivery.Progress, error) {
	return answer(a.Reclaim.Revoke(ctx, node))
}

// AwaitClear waits until the fabric's agent has seen the ports clear.
func (a *Activities) AwaitClear(ctx context.Context, node ids.Node) (delivery.Progress, error) {
	return answer(a.Reclaim.Clear(ctx, node))
}

// ObserveAgain has the node read its own ports.
func (a *Activities) ObserveAgain(ctx context.Context, node ids.Node) (delivery.Progress, error) {
	return answer(a.Reclaim.Observe(ctx, node))
}

// WipeAgain erases the slots and gives the clean ones back.
func (a *Activities) WipeAgain(ctx context.Context, node ids.Node) (delivery.Progress, error) {
	return answer(a.Reclaim.Wipe(ctx, node))
}

// ConcludeReclaim puts the node on the market, or what is not clean back into quarantine.
func (a *Activities) ConcludeReclaim(ctx context.Context, node ids.Node, trouble string) (delivery.Progress, error) {
	return answer(a.Reclaim.Conclude(ctx, node, trouble))
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
	case fault.Invalid, fault.Unauthenticated, fault.Unfunded, fault.Forbidden, fault.NotFound, fault.Conflict, fault.Expired, fault.Stale:
		return temporal.NewNonRetryableApplicationError(err.Error(), string(kind), err)
	case fault.Unavailable, fault.Exhausted, fault.Internal:
		return err
	default:
		return err
	}
}
