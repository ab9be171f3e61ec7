package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/leasehold/leasehold/agent/internal/access"
	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

// grant lets the lease's people in to its place on these slots, once that is ready.
func (n *Node) grant(ctx context.Context, op protocol.Operation, progress step) (operation.Outcome, error) {
	var spec protocol.GrantSpec
	if err := firstError(decode(op, &spec), needSlots(op)); err != nil {
		return operation.Outcome{}, err
	}
	if n.cfg.Access == nil || n.cfg.Runtime == nil {
		return operation.Outcome{}, refuse(CodeUnsupported, "this host has no access driver")
	}
	t, found := n.Tenancy(placeOf(spec.LeaseID, op.Slots))
	if !found || t.State == Preparing {
		return operation.Outcome{}, refuse(CodeNotPrepared, "lease %q has no prepared place on slots [%d, %d)", spec.LeaseID, op.Slots.From, op.Slots.To)
	}
	// Recorded before anybody can come in: from here on the slots count as written to.
	if err := firstError(n.moveTo(t, InUse), n.cfg.Enter(ctx, t)); err != nil {
		return operation.Outcome{}, fmt.Errorf("grant to lease %s: %w", spec.LeaseID, err)
	}
	progress(50, "keys")
	evidence, err := n.cfg.Access.Grant(ctx, access.Grant{Place: t.Place(), User: spec.User, Keys: spec.AuthorizedKeys, NotAfter: spec.NotAfter, Seed: spec.Seed})
	if errors.Is(err, access.ErrInvalid) {
		return operation.Outcome{}, refuse(CodeInvalidSpec, "%v", err)
	}
	if err != nil {
		return operation.Outcome{}, err
	}
	return operation.Outcome{Evidence: evidence}, nil
}

// revoke shuts the lease's people out of its place on these slots, and shows that they are.
func (n *Node) revoke(ctx context.Context, op protocol.Operation, progress step) (operation.Outcome, error) {
	var spec protocol.RevokeSpec
	if err := firstError(decode(op, &spec), needSlots(op)); err != nil {
		return operation.Outcome{}, err
	}
	if spec.LeaseID == "" {
		return operation.Outcome{}, refuse(CodeInvalidSpec, "revoke names no lease")
	}
	if n.cfg.Access == nil {
		return operation.Outcome{}, refuse(CodeUnsupported, "this host has no access driver")
	}
	progress(20, "sessions")
	evidence, err := n.cfg.Access.Revoke(ctx, placeOf(spec.LeaseID, op.Slots))
	if err != nil {
		return operation.Outcome{Evidence: evidence}, err
	}
	if !evidence.LoginRefused {
		return operation.Outcome{Evidence: evidence}, postpone(CodeLoginPossible, "a log-in for lease %s still works", spec.LeaseID)
	}
	return n.leave(ctx, placeOf(spec.LeaseID, op.Slots), evidence, progress)
}

// leave ends what the tenant left running: nobody can log in any more, and nothing of theirs works on.
func (n *Node) leave(ctx context.Context, place string, evidence protocol.RevokeEvidence, progress step) (operation.Outcome, error) {
	t, found := n.Tenancy(place)
	if !found || n.cfg.Runtime == nil {
		return operation.Outcome{Evidence: evidence}, nil
	}
	progress(60, "processes")
	ended, err := n.cfg.Leave(ctx, t)
	evidence.ProcessesEnded += ended
	if err != nil {
		return operation.Outcome{Evidence: evidence}, fmt.Errorf("end what lease %s left running: %w", t.LeaseID, err)
	}
	return operation.Outcome{Evidence: evidence}, nil
}
