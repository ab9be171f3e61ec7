package leasing_test

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// verdict is how a scripted agent answers; zero: it does the work.
type verdict int

const (
	works     verdict = iota
	failsOnce         // and says that it may pass later
	failsForGood
	silent      // never answers: the operation expires
	lies        // reports success with evidence that does not show it
	failsAlways // each time, and says that it may pass later
	dawdles     // works, but takes very long
)

// script says how the n-th node (from 0) answers a kind of operation.
type script map[string]verdict

func on(kind protocol.OperationKind, node int) string { return fmt.Sprintf("%s/%d", kind, node) }

const (
	agentTakes = time.Second
	expiresIn  = 61 * time.Second
	dawdling   = 10 * time.Minute
)

type agents struct{ *world }

// Issue implements delivery.Agents: the agents answer a second later, and only the last answer or a failure nudges.
func (a agents) Issue(_ context.Context, step delivery.Step, orders []delivery.Order, limits delivery.Limits) error {
	a.issued[step.Kind]++
	for _, o := range orders {
		spec, err := json.Marshal(o.Spec)
		if err != nil {
			return err
		}
		a.ask(step.Kind, delivery.Operation{
			ID: ids.Make[ids.Operation](), Attempt: step.Attempt, Allocation: o.Allocation, Node: o.Node, Epoch: o.Epoch,
			State: delivery.Queued, Spec: spec, DoneBy: a.now().Add(limits.DoneWithin),
		}, o.Kind)
	}
	return nil
}

func (w *world) ask(step string, o delivery.Operation, kind protocol.OperationKind) {
	w.rows.operations = append(w.rows.operations, o)
	w.steps[o.ID] = step
	how := w.script[on(kind, w.nodeNumber(o.Node))]
	delay := agentTakes
	switch how { //nolint:exhaustive // the others take what agents take
	case silent:
		delay = expiresIn
	case dawdles:
		delay = dawdling
	}
	w.afterCommit(func() { w.later(delay, func() { w.answer(o, kind, how) }) })
}

func (w *world) nodeNumber(node ids.Node) int {
	for n, i := range w.rows.instances {
		if i.Node == node {
			return n
		}
	}
	return -1
}

// answer is an agent's result, or the sweep that expires what has none.
func (w *world) answer(o delivery.Operation, kind protocol.OperationKind, how verdict) {
	w.mu.Lock()
	attempt, remaining := 0, 0
	for n := range w.rows.operations {
		p := &w.rows.operations[n]
		if p.Allocation == o.Allocation && w.steps[p.ID] == w.steps[o.ID] {
			attempt++
		}
		if p.ID == o.ID {
			w.finish(p, kind, how, attempt)
			o = *p
		}
	}
	for _, p := range w.rows.operations {
		if w.steps[p.ID] == w.steps[o.ID] && p.Attempt == o.Attempt && (p.State == delivery.Queued || p.State == delivery.Running) {
			remaining++
		}
	}
	w.mu.Unlock()
	if remaining == 0 || o.State != delivery.Succeeded {
		w.nudge()
	}
}

func (w *world) finish(o *delivery.Operation, kind protocol.OperationKind, how verdict, attempt int) {
	o.FinishedAt, o.State = w.now(), delivery.Succeeded
	switch {
	case how == silent:
		o.State = delivery.Expired
	case how == failsForGood:
		o.State, o.Fault = delivery.Failed, &protocol.Fault{Code: "gpu-lost", Detail: "a GPU fell off the bus"}
	case how == failsAlways, how == failsOnce && attempt == 1:
		o.State, o.Fault = delivery.Failed, &protocol.Fault{Code: "busy", Detail: "the disk is busy", Retryable: true}
	default:
		o.Evidence = w.evidence(*o, kind, how)
		o.Signed = &protocol.Envelope{Payload: o.Evidence}
	}
}

func (w *world) evidence(o delivery.Operation, kind protocol.OperationKind, how verdict) json.RawMessage {
	var evidence any = struct{}{}
	switch kind { //nolint:exhaustive // the others' evidence is not looked at
	case protocol.Grant:
		evidence = protocol.GrantEvidence{Host: "10.0.0.1", Port: 22, User: "lease", HostKeys: []string{"ssh-ed25519 BBBB"}}
	case protocol.Revoke:
		evidence = protocol.RevokeEvidence{LoginRefused: how != lies}
	case protocol.Wipe:
		var spec protocol.WipeSpec
		_ = json.Unmarshal(o.Spec, &spec)
		status := protocol.Wiped
		if how == lies {
			status = protocol.WipeUnsupported
		}
		evidence = protocol.WipeEvidence{
			LeaseID: spec.LeaseID, NodeID: o.Node.String(), Nonce: spec.Nonce, Slots: protocol.Slots{From: 0, To: 64},
			Devices: []protocol.DeviceWipe{{Kind: "nvme", Identity: "S1", Status: status, ReadBackSamples: 16}},
		}
	}
	body, err := json.Marshal(evidence)
	if err != nil {
		panic(err)
	}
	return body
}

// subnet is a fabric that takes a second to change.
type subnet struct{ *world }

func (s subnet) Join(context.Context, ids.Lease) error {
	if s.isolation == delivery.NoPartition {
		s.isolation = delivery.Pending
		s.afterCommit(func() { s.later(agentTakes, func() { s.become(delivery.Verified, s.joinFails) }) })
	}
	return nil
}

func (s subnet) Leave(context.Context, ids.Lease) error {
	if s.isolation != delivery.Clear && s.isolation != delivery.Draining && s.isolation != delivery.NoPartition {
		s.isolation = delivery.Draining
		s.afterCommit(func() { s.later(agentTakes, func() { s.become(delivery.Clear, s.leaveFails) }) })
	}
	return nil
}

func (w *world) become(next delivery.Isolation, fails bool) {
	w.mu.Lock()
	if !fails {
		w.isolation = next
	}
	w.mu.Unlock()
	w.nudge()
}

func (s subnet) Status(context.Context, ids.Lease) (delivery.Isolation, string, error) {
	return s.isolation, "", nil
}

func (s subnet) Witness(_ context.Context, _ ids.Lease, occasion delivery.Occasion, attempt int) error {
	for _, i := range s.rows.instances {
		if i.State == lease.Preparing || i.State == lease.InUse || i.State == lease.Cleaning {
			s.ask(s.WitnessStep(occasion), delivery.Operation{
				ID: ids.Make[ids.Operation](), Attempt: attempt, Allocation: i.ID, Node: i.Node, Epoch: i.Epoch, State: delivery.Queued,
				DoneBy: s.now().Add(time.Minute),
			}, protocol.ObservePKeys)
		}
	}
	return nil
}

func (subnet) WitnessStep(occasion delivery.Occasion) string { return "witness_" + string(occasion) }

func (s subnet) Attest(_ context.Context, _ ids.Lease, occasion delivery.Occasion) (ids.Attestation, delivery.Verdict, error) {
	if s.verdicts[occasion] != "" {
		return ids.Make[ids.Attestation](), s.verdicts[occasion], nil
	}
	return ids.Make[ids.Attestation](), delivery.Isolated, nil
}

// Unproved implements delivery.Fabric: the ports that are in the way, all of them unless the world says which.
func (s subnet) Unproved(context.Context, ids.Attestation) ([]protocol.GUID, error) {
	return s.Uncleared(context.Background(), s.rows.lease.ID)
}

// Uncleared implements delivery.Fabric.
func (s subnet) Uncleared(context.Context, ids.Lease) ([]protocol.GUID, error) {
	if s.dirty != nil {
		return s.dirty, nil
	}
	var all []protocol.GUID
	for _, i := range s.rows.instances {
		all = append(all, i.Ports...)
	}
	return all, nil
}
