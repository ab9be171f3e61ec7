package inventory

import (
	"context"
	"fmt"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// WriteOffs gives up what leases left behind on a node that is leaving for good.
type WriteOffs interface {
	// WriteOff returns an Invalid fault, code "retire-reason", when there is something to give up and no reason.
	WriteOff(ctx context.Context, id ids.Node, reason string) error
}

// UseWriteOffs says who gives up what is quarantined on nodes that are retired. Without anybody, such nodes cannot be retired. It is
// for the composition: who writes off works with leases, whose services need this one.
func (s *Service) UseWriteOffs(w WriteOffs) { s.scrap = w }

// minds keeps an admin's step from passing over slots that are not clean: it wakes the node's own process where that has something to
// do or to undo, and refuses to sell a node whose every slot is quarantined.
//
// It returns a Conflict fault, code "node-not-clean".
func (s *Service) minds(ctx context.Context, n Node, m Move) error {
	unclean, err := s.nodes.Unclean(ctx, n.ID)
	if err != nil || len(unclean) == 0 {
		return err
	}
	for _, h := range unclean {
		if m.To == Available && h.Slots.Width() == n.Slots {
			return fault.New(fault.Conflict, "node-not-clean", "%s; have it tested again (verifying) first, or retire it", h.words())
		}
	}
	return s.nodes.Wake(ctx, n.ID, s.clock.Now())
}

// Verify looks at a node that is being verified: it comes to the market when nothing speaks against it, and else says what it waits
// for. It returns whether it still is being verified, and a NotFound fault.
func (s *Service) Verify(ctx context.Context, id ids.Node) (bool, error) {
	verifying := false
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		node, err := s.nodes.NodeForUpdate(ctx, id)
		if err != nil || node.State != Verifying {
			return err
		}
		before := node
		if err := s.verify(ctx, &node); err != nil {
			return err
		}
		verifying = node.State == Verifying
		if verifying && node.StateReason == before.StateReason {
			return nil
		}
		return s.nodes.UpdateNode(ctx, node)
	})
	if err != nil {
		return false, fmt.Errorf("verify node: %w", err)
	}
	return verifying, nil
}

// words says what is the matter with slots that are not clean.
func (h Held) words() string {
	state := "are quarantined"
	if h.State == lease.Cleaning {
		state = "are being cleaned again"
	}
	words := fmt.Sprintf("slots [%d, %d) %s", h.Slots.From, h.Slots.To, state)
	if h.Reason != "" {
		words += ": " + h.Reason
	}
	return words
}
