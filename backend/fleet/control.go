package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/power"
)

var _ power.Work = (*Control)(nil)

// Control is the work that no agent does but we: switching machines through their BMCs. It is kept beside the agents' work, so that whoever
// waits for a step need not know who does it.
type Control struct{ fleet *Service }

// Control returns the work of our own.
func (s *Service) Control() *Control { return &Control{fleet: s} }

// ours reports whether operations of the kind are for no agent.
func ours(kind protocol.OperationKind) bool { return kind == power.Kind }

// Jobs implements power.Work.
func (c *Control) Jobs(ctx context.Context) ([]power.Job, error) {
	found, err := c.fleet.Operations.Ours(ctx, power.Kind)
	if err != nil {
		return nil, err
	}
	jobs := make([]power.Job, len(found))
	for i, o := range found {
		jobs[i] = power.Job{ID: o.ID, Node: o.Node, Allocation: o.Allocation, Epoch: o.Epoch, DoneBy: o.DoneBy}
		if err := json.Unmarshal(o.Spec, &jobs[i].Order); err != nil {
			return nil, fmt.Errorf("decode order of %s: %w", o.ID, err)
		}
	}
	return jobs, nil
}

// Advance implements power.Work.
func (c *Control) Advance(ctx context.Context, id ids.Operation, percent int, phase string) error {
	return c.fleet.Operations.Advance(ctx, ids.Agent{}, id, protocol.Progress{Percent: percent, Phase: phase}, c.fleet.Clock.Now())
}

// Finish implements power.Work.
func (c *Control) Finish(ctx context.Context, id ids.Operation, evidence power.Evidence, failure *protocol.Fault) error {
	o, err := c.fleet.Operations.ForUpdate(ctx, ids.Agent{}, id)
	if err != nil || o.State.Final() {
		return err
	}
	data, err := json.Marshal(evidence)
	if err != nil {
		return fmt.Errorf("encode evidence: %w", err)
	}
	ended := Ended{State: Succeeded, Evidence: data, At: c.fleet.Clock.Now()}
	if failure != nil {
		ended.State, ended.Fault = Failed, failure
	}
	return c.fleet.end(ctx, []Operation{o}, []Ended{ended})
}

// Ask implements power.Work.
func (c *Control) Ask(
	ctx context.Context, node ids.Node, allocation ids.Allocation, epoch int64, order power.Order, within time.Duration,
) (ids.Operation, error) {
	work := Work{Node: node, Allocation: allocation, Kind: power.Kind, Epoch: epoch, Spec: order, PickUpWithin: within, DoneWithin: within}
	o, err := newOperation(ids.Step{}, Step{}, work, c.fleet.Clock.Now())
	if err != nil {
		return ids.Operation{}, err
	}
	_, err = c.fleet.Operations.AddOperations(ctx, []Operation{o}, []string{"asked/" + o.ID.String()})
	return o.ID, err
}

// Outcome implements power.Work.
func (c *Control) Outcome(ctx context.Context, id ids.Operation) (bool, *protocol.Fault, error) {
	o, err := c.fleet.Operations.ForUpdate(ctx, ids.Agent{}, id)
	return o.State.Final(), o.Fault, err
}

// Dismiss implements power.Agents: the identity of the agent beside the node ends, and what it was asked to do has failed.
func (c *Control) Dismiss(ctx context.Context, node ids.Node, why string) error {
	living, found, err := c.fleet.Agents.Living(ctx, node, ids.Fabric{})
	if err != nil || !found {
		return err
	}
	now := c.fleet.Clock.Now()
	if err := c.fleet.Agents.Revoke(ctx, living.ID, now); err != nil {
		return err
	}
	open, err := c.fleet.Operations.OfAgent(ctx, living.ID, []State{Queued, Running}, time.Time{}, 0)
	if err != nil {
		return err
	}
	gone := &protocol.Fault{Code: "boot-ended", Detail: why, Retryable: true}
	if err := c.fleet.endAll(ctx, open, func(Operation) *protocol.Fault { return gone }, now); err != nil {
		return err
	}
	return c.fleet.Audit.Record(ctx, "agent.dismissed", living.ID.String(), nil, map[string]any{"node": node, "why": why})
}

// Boots knows the one-time tokens of machines' boots. Package power implements it.
type Boots interface {
	// UseBoot takes the token of one boot for the agent with that key, once. It returns a NotFound fault for a token that is not good.
	UseBoot(ctx context.Context, token string, key []byte) (ids.Node, error)
}

// UseBoots lets agents of service OSes enrol.
func (s *Service) UseBoots(boots Boots) { s.boots = boots }

// enrollBoot enrols the agent of one boot. Its machine was just switched by us, so whoever was there before is not any more.
func (s *Service) enrollBoot(ctx context.Context, r protocol.EnrollRequest) (Agent, string, error) {
	node, err := s.boots.UseBoot(ctx, r.Token, r.PublicKey)
	if fault.Is(err, fault.NotFound) {
		return Agent{}, "", fault.New(fault.Forbidden, "enrollment-token", "the boot's token is not known")
	}
	if err != nil {
		return Agent{}, "", err
	}
	living, found, err := s.Agents.Living(ctx, node, ids.Fabric{})
	if err != nil {
		return Agent{}, node.String(), err
	}
	if found && string(living.PublicKey) == string(r.PublicKey) {
		return living, node.String(), nil // its first answer was lost
	}
	if err := s.Control().Dismiss(ctx, node, "the machine was booted anew"); err != nil {
		return Agent{}, node.String(), err
	}
	site, err := s.Hardware.SiteOf(ctx, node)
	if err != nil {
		return Agent{}, node.String(), err
	}
	agent := Agent{
		ID: ids.Make[ids.Agent](), Kind: protocol.NodeAgent, Site: site, Node: node, PublicKey: r.PublicKey, Version: r.AgentVersion, CreatedAt: s.Clock.Now(),
	}
	if err := s.Agents.InsertAgent(ctx, agent); err != nil {
		return Agent{}, node.String(), err
	}
	return agent, node.String(), s.Audit.Record(ctx, "agent.enrolled", agent.ID.String(), nil, map[string]any{
		"kind": r.Kind, "name": r.Name, "place": node, "boot": r.BootID, "serial": r.Serial,
	})
}
