package delivery

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// handOverEpoch names the present set of nodes: it rises with every hand-over, so a proof that names it is about these nodes.
func (t *turn) handOverEpoch() string {
	var epoch int64
	for _, i := range t.instances {
		if i.State == lease.Preparing || i.State == lease.InUse {
			epoch = max(epoch, i.Epoch)
		}
	}
	return strconv.FormatInt(epoch, 10)
}

// proved reports whether isolation was proved for the present set of nodes.
func (t *turn) proved(ctx context.Context) (bool, error) {
	known, err := t.Work.Recorded(ctx, t.lease.ID, lease.EventIsolated, "epoch")
	if err != nil {
		return false, err
	}
	return slices.Contains(known, t.handOverEpoch()), nil
}

// mustBeProved refuses to go on before both witnesses have agreed on the present set of nodes.
func (t *turn) mustBeProved(ctx context.Context) error {
	if t.lease.Fabric.IsZero() {
		return nil
	}
	proved, err := t.proved(ctx)
	if err != nil || proved {
		return err
	}
	return fault.New(fault.Conflict, "not-isolated", "isolation was not proved yet")
}

// Witness has the lease's nodes read their own ports' tables: the second witness.
func (s *Service) Witness(ctx context.Context, id ids.Lease, occasion Occasion) (Progress, error) {
	if occasion == AfterRelease {
		return s.step(ctx, id, "witness", []lease.State{lease.Releasing}, func(ctx context.Context, t *turn) (Progress, error) {
			if _, away := splitAway(t.onFabric(lease.Cleaning)); len(away) > 0 {
				// The second witness is the node itself, and its agent comes with the service OS.
				if _, progress, err := t.undo(ctx, t.serviceTask("witness", true), away); err != nil || !progress.Done {
					return progress, err
				}
			}
			return t.witness(ctx, occasion, t.onFabric(lease.Cleaning), t.Policy.UndoAttempts)
		})
	}
	return s.provisioning(ctx, id, "witness", func(ctx context.Context, t *turn) (Progress, error) {
		if proved, err := t.proved(ctx); err != nil || proved {
			return Progress{Done: proved}, err
		}
		return t.witness(ctx, occasion, t.onFabric(lease.Preparing), t.Policy.Attempts)
	})
}

// onFabric returns the instances in that state that have ports.
func (t *turn) onFabric(state lease.AllocationState) []Instance {
	var found []Instance
	for _, i := range t.in(state) {
		if len(i.Ports) > 0 {
			found = append(found, i)
		}
	}
	return found
}

// witness asks for a round of observations unless one is under way. It is done when the round has ended, whatever it found: the
// verdict is Attest's, and what a node could not say counts as unknown there.
func (t *turn) witness(ctx context.Context, occasion Occasion, instances []Instance, rounds int) (Progress, error) {
	if len(instances) == 0 {
		return Progress{Done: true}, nil
	}
	asked, err := t.Work.LastRound(ctx, t.lease.ID, t.Fabric.WitnessStep(occasion))
	if err != nil {
		return Progress{}, err
	}
	round, refused := lastAttempt(asked), 0
	if round > 0 {
		ended := true
		for _, o := range asked {
			if o.Attempt == round && o.inFlight() {
				ended = false
			}
		}
		if !ended {
			return Progress{LookAt: t.now.Add(t.Policy.Recheck)}, nil
		}
		if refused, err = t.refusals(ctx, occasion); err != nil {
			return Progress{}, err
		}
	}
	if round > refused || refused >= rounds {
		return Progress{Done: true}, nil // this round awaits its verdict, or no more rounds are had
	}
	return Progress{LookAt: t.now.Add(t.Policy.PickUpWithin)}, t.Fabric.Witness(ctx, t.lease.ID, occasion, round+1)
}

// awaitFabric waits, with the reason for everybody to see, while the fabric does not keep the lease apart: what was proved of its own ports
// is worth nothing while other hosts' ports are open.
func (t *turn) awaitFabric(ctx context.Context) (Progress, bool, error) {
	if t.lease.Fabric.IsZero() {
		return Progress{}, false, nil
	}
	status, words, err := t.Fabric.Status(ctx, t.lease.ID)
	if err != nil || status != Broken {
		return Progress{}, false, err
	}
	return Progress{LookAt: t.now.Add(t.Policy.Recheck)}, true, t.explain(ctx, "the fabric cannot isolate it yet: "+words)
}

// refusals counts the rounds of witnesses whose verdict was not "isolated".
func (t *turn) refusals(ctx context.Context, occasion Occasion) (int, error) {
	known, err := t.Work.Recorded(ctx, t.lease.ID, lease.EventIsolationFailed, "occasion")
	if err != nil {
		return 0, err
	}
	n := 0
	for _, o := range known {
		if o == string(occasion) {
			n++
		}
	}
	return n, nil
}

// Attest compares what the subnet manager's side and the nodes say, and signs it. Before a lease is active, anything but
// "isolated" asks for another round and in the end fails the lease; after it, it quarantines the nodes.
func (s *Service) Attest(ctx context.Context, id ids.Lease, occasion Occasion) (Progress, error) {
	if occasion == AfterRelease {
		return s.step(ctx, id, "attest", []lease.State{lease.Releasing}, func(ctx context.Context, t *turn) (Progress, error) {
			return t.attestClear(ctx)
		})
	}
	return s.provisioning(ctx, id, "attest", func(ctx context.Context, t *turn) (Progress, error) {
		return t.attestIsolated(ctx)
	})
}

// AttestOnDemand answers the oldest open request for a proof while the lease runs: one round of witnesses, whose verdict is signed and kept
// whatever it is. Anything but "isolated" is told to the operator at once.
func (s *Service) AttestOnDemand(ctx context.Context, id ids.Lease) (Progress, error) {
	return s.step(ctx, id, "attest on demand", []lease.State{lease.Active}, func(ctx context.Context, t *turn) (Progress, error) {
		request, err := s.openRequest(ctx, id)
		if err != nil || request == 0 || t.lease.Fabric.IsZero() {
			return Progress{Done: true}, err
		}
		asked, err := t.Work.LastRound(ctx, id, t.Fabric.WitnessStep(OnDemand))
		if err != nil {
			return Progress{}, err
		}
		if lastAttempt(asked) < request {
			return Progress{LookAt: t.now.Add(t.Policy.PickUpWithin)}, t.Fabric.Witness(ctx, id, OnDemand, request)
		}
		if slices.ContainsFunc(asked, func(o Operation) bool { return o.Attempt == request && o.inFlight() }) {
			return Progress{LookAt: t.now.Add(t.Policy.Recheck)}, nil
		}
		return t.answerRequest(ctx, request)
	})
}

// openRequest returns the number of the oldest request for a proof that has no answer, 0 when there is none.
func (s *Service) openRequest(ctx context.Context, id ids.Lease) (int, error) {
	asked, err := s.Work.Recorded(ctx, id, lease.EventAttestAsked, "request")
	if err != nil || len(asked) == 0 {
		return 0, err
	}
	answered, err := s.Work.Recorded(ctx, id, lease.EventAttested, "request")
	if err != nil || len(answered) == len(asked) {
		return 0, err
	}
	return len(answered) + 1, nil
}

func (t *turn) answerRequest(ctx context.Context, request int) (Progress, error) {
	attestation, verdict, err := t.Fabric.Attest(ctx, t.lease.ID, OnDemand)
	if err != nil {
		return Progress{}, err
	}
	data := map[string]any{"request": strconv.Itoa(request), "attestation": attestation.String(), "verdict": string(verdict)}
	if err := t.record(ctx, lease.EventAttested, data); err != nil || verdict == Isolated {
		return Progress{Done: true}, err
	}
	return Progress{Done: true}, t.alert(ctx, lease.EventAttested, data)
}

func (t *turn) attestIsolated(ctx context.Context) (Progress, error) {
	if t.lease.Fabric.IsZero() {
		return Progress{Done: true}, nil
	}
	if proved, err := t.proved(ctx); err != nil || proved {
		return Progress{Done: proved}, err
	}
	if progress, waits, err := t.awaitFabric(ctx); err != nil || waits {
		return progress, err
	}
	attestation, verdict, err := t.Fabric.Attest(ctx, t.lease.ID, BeforeActive)
	if err != nil {
		return Progress{}, err
	}
	if verdict == Isolated {
		data := map[string]any{"attestation": attestation.String(), "epoch": t.handOverEpoch()}
		return Progress{Done: true}, t.record(ctx, lease.EventIsolated, data)
	}
	refused, err := t.refuse(ctx, BeforeActive, attestation, verdict)
	if err != nil {
		return Progress{}, err
	}
	reason := fmt.Sprintf("its isolation could not be proved: the witnesses' verdict is %s", verdict)
	if refused >= t.Policy.Attempts {
		return Progress{Ending: &Ending{lease.FailedOutcome, reason}}, nil
	}
	return Progress{Again: true}, t.explain(ctx, reason)
}

// attestClear is done when the emptied ports were proved clear. Where that cannot be had, the nodes whose ports they are are quarantined
// instead; the others go on.
func (t *turn) attestClear(ctx context.Context) (Progress, error) {
	instances := t.onFabric(lease.Cleaning)
	known, err := t.Work.Recorded(ctx, t.lease.ID, lease.EventPartitionClear, "attestation")
	if err != nil || len(known) > 0 || len(instances) == 0 {
		return Progress{Done: err == nil}, err
	}
	attestation, verdict, err := t.Fabric.Attest(ctx, t.lease.ID, AfterRelease)
	if err != nil {
		return Progress{}, err
	}
	if verdict == Isolated {
		return Progress{Done: true}, t.record(ctx, lease.EventPartitionClear, map[string]any{"attestation": attestation.String()})
	}
	refused, err := t.refuse(ctx, AfterRelease, attestation, verdict)
	if err != nil {
		return Progress{}, err
	}
	if refused < t.Policy.UndoAttempts {
		return Progress{Again: true}, nil
	}
	reason := fmt.Sprintf("its ports were not proved clear of the tenant's partition: the witnesses' verdict is %s", verdict)
	unproved, err := t.Fabric.Unproved(ctx, attestation)
	if err != nil {
		return Progress{}, err
	}
	return Progress{Done: true}, t.quarantine(ctx, reason, withAny(instances, unproved)...)
}

// withAny returns the instances that have any of the ports.
func withAny(instances []Instance, ports []protocol.GUID) []Instance {
	var found []Instance
	for _, i := range instances {
		if slices.ContainsFunc(i.Ports, func(p protocol.GUID) bool { return slices.Contains(ports, p) }) {
			found = append(found, i)
		}
	}
	return found
}

// refuse records a verdict that is not good enough, and returns how many there were.
func (t *turn) refuse(ctx context.Context, occasion Occasion, attestation ids.Attestation, verdict Verdict) (int, error) {
	data := map[string]any{"occasion": string(occasion), "attestation": attestation.String(), "detail": "verdict " + string(verdict)}
	if err := t.record(ctx, lease.EventIsolationFailed, data); err != nil {
		return 0, err
	}
	return t.refusals(ctx, occasion)
}
