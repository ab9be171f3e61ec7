package fabric

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Uncleared lists the ports that left the lease's partition, or are to, and were not seen clear of it at both ends yet.
func (s *Service) Uncleared(ctx context.Context, id ids.Lease) ([]protocol.GUID, error) {
	uncleared := []protocol.GUID{}
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		p, found, err := s.Partitions.OfLease(ctx, id)
		if err != nil || !found {
			return err
		}
		members, err := s.Partitions.Members(ctx, []ids.Partition{p.ID})
		for _, m := range members {
			if m.LeftAt.IsZero() {
				uncleared = append(uncleared, m.GUID)
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list ports that are not clear: %w", err)
	}
	return uncleared, nil
}

// Unproved lists the ports of which an attestation does not prove what it is about: those whose own verdict is not true, and the ends of
// path queries that did not find what they should.
//
// It returns a NotFound fault.
func (s *Service) Unproved(ctx context.Context, id ids.Attestation) ([]protocol.GUID, error) {
	var envelope protocol.Envelope
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		envelope, err = s.Partitions.Attestation(ctx, id)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read attestation: %w", err)
	}
	var statement Statement
	if err := json.Unmarshal(envelope.Payload, &statement); err != nil {
		return nil, fault.New(fault.Internal, "statement", "attestation %s cannot be read: %w", id, err)
	}
	unproved := []protocol.GUID{}
	for _, port := range statement.Predicate.Ports {
		if port.Verdict != protocol.True {
			unproved = append(unproved, port.GUID)
		}
	}
	for _, check := range statement.Predicate.Checks {
		if assessPath(check).verdict != protocol.True {
			unproved = append(unproved, check.From, check.To)
		}
	}
	return unproved, nil
}
