package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/outbox"
)

// Bounds of one heartbeat.
const (
	maxConditions = 1_000
	maxSamples    = 20_000
	maxText       = 4_096 // bytes, of one condition's evidence
	maxName       = 256   // bytes, of names and devices
)

// Heartbeat takes a sign of life with the node's conditions and meters. A sequence that was seen before in the same boot is answered
// and otherwise ignored. Meters are kept only while somebody rents the node.
//
// It returns an Invalid fault for a report that makes no sense.
func (s *Service) Heartbeat(ctx context.Context, caller Caller, report protocol.Heartbeat) (protocol.HeartbeatReply, error) {
	if err := checkHeartbeat(report); err != nil {
		return protocol.HeartbeatReply{}, err
	}
	beat := Beat{Agent: caller.ID, Node: caller.Node, BootID: report.BootID, Sequence: report.Sequence, At: s.Clock.Now()}
	pulse, err := s.beat(ctx, caller, beat)
	if err != nil {
		return protocol.HeartbeatReply{}, fmt.Errorf("take heartbeat: %w", err)
	}
	if pulse.Fresh && caller.Kind == protocol.NodeAgent {
		if err := s.takeHealth(ctx, beat, pulse, report); err != nil {
			return protocol.HeartbeatReply{}, fmt.Errorf("take heartbeat: %w", err)
		}
	}
	return protocol.HeartbeatReply{ServerTime: s.Clock.Now(), OperationsPending: pulse.Pending, InventoryWanted: !pulse.Reported || pulse.Rebooted}, nil
}

func (s *Service) beat(ctx context.Context, caller Caller, beat Beat) (Pulse, error) {
	if caller.Kind == protocol.NodeAgent {
		return s.pulses.ask(ctx, beat)
	}
	var pulse Pulse
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		pulse, err = s.Beats.BeatFabric(ctx, beat)
		return err
	})
	return pulse, err
}

func checkHeartbeat(r protocol.Heartbeat) error {
	problem := fault.New(fault.Invalid, "heartbeat", "the heartbeat makes no sense")
	if r.BootID == "" || len(r.BootID) > maxBootID {
		problem = problem.At("/boot_id", fmt.Sprintf("1 to %d bytes", maxBootID))
	}
	if r.Sequence < 0 {
		problem = problem.At("/sequence", "it counts up from 0")
	}
	if len(r.Conditions) > maxConditions {
		problem = problem.At("/conditions", fmt.Sprintf("at most %d", maxConditions))
	}
	if len(r.Samples) > maxSamples {
		problem = problem.At("/samples", fmt.Sprintf("at most %d", maxSamples))
	}
	for i, c := range r.Conditions {
		if detail := conditionProblem(c); detail != "" {
			problem = problem.At(fmt.Sprintf("/conditions/%d", i), detail)
		}
	}
	if len(problem.Fields) > 0 {
		return problem
	}
	return nil
}

func conditionProblem(c protocol.Condition) string {
	classes := []protocol.ConditionClass{protocol.PreventsAllocation, protocol.Degrades, protocol.Informs}
	switch {
	case c.Name == "" || len(c.Name) > maxName || len(c.Device) > maxName || len(c.Exit) > maxName:
		return fmt.Sprintf("a name is needed; name, device and exit have at most %d bytes", maxName)
	case len(c.Evidence) > maxText:
		return fmt.Sprintf("evidence has at most %d bytes", maxText)
	case !slices.Contains(classes, c.Class):
		return fmt.Sprintf("class %q is not known", c.Class)
	case c.Onset.IsZero():
		return "an onset is needed"
	default:
		return ""
	}
}

// takeHealth writes what has changed about the node's health, and its meters if somebody pays for them.
func (s *Service) takeHealth(ctx context.Context, beat Beat, pulse Pulse, report protocol.Heartbeat) error {
	conditions := pulse.Conditions || len(report.Conditions) > 0
	chunks, err := chunksOf(report.Samples, beat.At)
	if err != nil {
		return err
	}
	if !pulse.Leased {
		chunks = nil
	}
	if !conditions && len(chunks) == 0 {
		return nil
	}
	return s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		for _, c := range chunks {
			if err := s.Beats.AppendSamples(ctx, beat.Node, c.minute, c.compressed); err != nil {
				return err
			}
		}
		if !conditions {
			return nil
		}
		return s.takeConditions(ctx, beat, report.Conditions)
	})
}

// takeConditions keeps the reported conditions. One that forbids to sell the node, on a node that is in use, is news for the leases
// there and for the operator.
func (s *Service) takeConditions(ctx context.Context, beat Beat, reported []protocol.Condition) error {
	fresh, err := s.Beats.SetConditions(ctx, beat.Node, reported, beat.At)
	if err != nil {
		return err
	}
	fresh = slices.DeleteFunc(fresh, func(c protocol.Condition) bool { return c.Class != protocol.PreventsAllocation })
	if len(fresh) == 0 {
		return nil
	}
	slices.SortFunc(fresh, func(a, b protocol.Condition) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Device, b.Device))
	})
	tenants, err := s.Beats.Tenants(ctx, beat.Node)
	if err != nil {
		return err
	}
	for _, lease := range tenants {
		if err := s.Outbox.Put(ctx, outbox.LeaseNudge, lease.String(), nil, beat.At); err != nil {
			return err
		}
	}
	alarm := map[string]any{"event": "node.condition", "node": beat.Node, "conditions": fresh, "leases": tenants, "at": beat.At}
	return s.Outbox.Put(ctx, outbox.Notify, "operator", alarm, beat.At)
}
