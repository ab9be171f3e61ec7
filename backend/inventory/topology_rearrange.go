package inventory

import (
	"context"
	"fmt"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
)

// rearrange works a fabric's pods out again when the node hangs on leaves of several, since machines hold pods together and this one was
// not known when the fabric was last looked at. Call it after the transaction of the node's report, or within one that holds
// MeetReports for a fabric: it takes that lock, which comes before any row's.
func (s *Service) rearrange(ctx context.Context, node ids.Node) error {
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		apart, err := s.topo.PodsApart(ctx, node)
		if err != nil || len(apart) == 0 {
			return err
		}
		if err := s.topo.MeetReports(ctx, true); err != nil {
			return err
		}
		for _, id := range apart {
			if err := s.rearrangeFabric(ctx, id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("rearrange pods: %w", err)
	}
	return nil
}

func (s *Service) rearrangeFabric(ctx context.Context, id ids.Fabric) error {
	fabric, err := s.places.Fabric(ctx, id)
	if err != nil {
		return err
	}
	switches, err := s.topo.Switches(ctx, id)
	if err != nil {
		return err
	}
	links, err := s.topo.Links(ctx, id)
	if err != nil {
		return err
	}
	var t protocol.Topology
	if t.Ports, err = s.topo.SeenPorts(ctx, id); err != nil {
		return err
	}
	for _, w := range switches {
		t.Switches = append(t.Switches, protocol.Switch{GUID: w.GUID, Name: w.Name, Ports: w.Ports})
	}
	for _, l := range links {
		t.Links = append(t.Links, protocol.Link{FromGUID: l.FromGUID, FromPort: l.FromPort, ToGUID: l.ToGUID, ToPort: l.ToPort, RateGbps: l.RateGbps})
	}
	if t, err = s.arrange(ctx, fabric, t); err != nil {
		return err
	}
	if err := s.topo.SaveSwitches(ctx, id, t.Switches); err != nil {
		return err
	}
	return s.topo.LocateFabric(ctx, id, s.clock.Now())
}
