package booking

import (
	"context"
	"fmt"
	"strconv"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/tenant"
)

// AskProof asks for an attestation of a running lease's isolation as it is now, and returns the request's number, from 1. The lease's log
// answers with an event of type "isolation.attested" and that number. While one request is open, asking again is the same request.
//
// It returns NotFound, Conflict, code "lease-not-active", and Invalid, code "no-fabric", for a lease that comes without InfiniBand.
func (s *Service) AskProof(ctx context.Context, id ids.Lease) (int, error) {
	number := 0
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		actor, err := tenant.MustAct(ctx)
		if err != nil {
			return err
		}
		l, err := s.Leases.GetForUpdate(ctx, id)
		if err != nil {
			return err
		}
		switch {
		case !actor.Project.IsZero() && l.Project != actor.Project:
			return fault.New(fault.NotFound, "lease-not-found", "there is no such lease")
		case l.Fabric.IsZero():
			return fault.New(fault.Invalid, "no-fabric", "this lease comes without InfiniBand: there is nothing to isolate")
		case l.State != lease.Active:
			return fault.New(fault.Conflict, "lease-not-active", "the lease is %s; a proof on demand is of a running lease", l.State)
		}
		asked, err := s.Leases.Recorded(ctx, id, lease.EventAttestAsked, "request")
		if err != nil {
			return err
		}
		answered, err := s.Leases.Recorded(ctx, id, lease.EventAttested, "request")
		if err != nil {
			return err
		}
		if number = len(asked); number > len(answered) {
			return nil
		}
		number++
		if err := s.record(ctx, l, lease.EventAttestAsked, map[string]any{"request": strconv.Itoa(number)}); err != nil {
			return err
		}
		if err := s.Audit.Record(ctx, "lease.attestation_asked", id.String(), nil, map[string]any{"request": number}); err != nil {
			return err
		}
		return s.nudge(ctx, id)
	})
	if err != nil {
		return 0, fmt.Errorf("ask for a proof: %w", err)
	}
	return number, nil
}
