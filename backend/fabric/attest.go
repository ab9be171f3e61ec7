package fabric

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// Occasion says why isolation is proved.
type Occasion string

// The occasions.
const (
	BeforeActive Occasion = "before_active"
	AfterRelease Occasion = "after_release"
	OnDemand     Occasion = "on_demand"
)

// Verdict is what the witnesses say together. Undecided never counts as isolated.
type Verdict string

// The verdicts.
const (
	Proven    Verdict = "isolated"
	Refuted   Verdict = "not_isolated"
	Undecided Verdict = "unknown"
)

// Attestation is a signed proof, whatever its verdict.
type Attestation struct {
	ID        ids.Attestation
	Org       ids.Org
	Lease     ids.Lease
	Partition ids.Partition // zero: the lease ended before it had one
	Occasion  Occasion
	Verdict   Verdict
	Envelope  protocol.Envelope
	CreatedAt time.Time
}

// WitnessStep names the lease's steps in which witnesses are heard for the occasion; the attempt counts the rounds.
func (s *Service) WitnessStep(occasion Occasion) string { return "witness-" + string(occasion) }

// heldFor are the states of the allocations whose ports the occasion is about.
func heldFor(occasion Occasion) []lease.AllocationState {
	if occasion == AfterRelease {
		return []lease.AllocationState{lease.Cleaning}
	}
	return inPlace()
}

// Witness asks the lease's nodes to read their own ports' tables, over a fresh nonce: the second witness. The first, the fabric's agent,
// has spoken with the sweep that verified or cleared the partition; it is asked again, in the same step, when its word is too old or was
// never needed. Asking for the same attempt twice changes nothing.
//
// It returns a NotFound fault.
func (s *Service) Witness(ctx context.Context, id ids.Lease, occasion Occasion, attempt int) error {
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		l, err := s.Leases.Get(ctx, id)
		if err != nil || l.Fabric.IsZero() {
			return err
		}
		ports, err := s.Partitions.Ports(ctx, id, heldFor(occasion))
		if err != nil || len(ports) == 0 {
			return err
		}
		nonce := rand.Text()
		work := s.readOwn(ports, nonce)
		fresh, err := s.firstIsFresh(ctx, id, ports)
		if err != nil {
			return err
		}
		if !fresh {
			again, err := s.readAgain(ctx, l.Fabric, ports, nonce)
			if err != nil {
				return err
			}
			work = append(work, again)
		}
		_, err = s.Work.Issue(ctx, fleet.Step{Lease: id, Kind: s.WitnessStep(occasion), Attempt: attempt}, work)
		return err
	})
	if err != nil {
		return fmt.Errorf("hear witnesses: %w", err)
	}
	return nil
}

// readOwn asks each allocation's node about its ports.
func (s *Service) readOwn(ports []Port, nonce string) []fleet.Work {
	of := map[ids.Allocation][]Port{}
	for _, p := range ports {
		of[p.Allocation] = append(of[p.Allocation], p)
	}
	var work []fleet.Work
	for _, allocation := range slices.SortedFunc(maps.Keys(of), func(a, b ids.Allocation) int { return cmp.Compare(a.String(), b.String()) }) {
		at := of[allocation][0]
		work = append(work, fleet.Work{
			Node: at.Node, Allocation: allocation, Kind: protocol.ObservePKeys, Epoch: at.Epoch, Slots: at.Slots,
			Spec:         protocol.ObservePKeysSpec{Nonce: nonce, PortGUIDs: guidsOf(of[allocation])},
			PickUpWithin: s.Policy.PickUpWithin, DoneWithin: s.Policy.PickUpWithin + s.Policy.WitnessIn,
		})
	}
	return work
}

func guidsOf(ports []Port) []protocol.GUID {
	out := make([]protocol.GUID, len(ports))
	for i, p := range ports {
		out[i] = p.GUID
	}
	return out
}

// firstIsFresh reports whether the first witness's word about the lease's partition still counts for a while, and is about all these ports:
// a node that was replaced before it joined was never looked at.
func (s *Service) firstIsFresh(ctx context.Context, id ids.Lease, ports []Port) (bool, error) {
	p, found, err := s.Partitions.OfLease(ctx, id)
	if err != nil || !found || p.Witness.IsZero() {
		return false, err
	}
	o, err := s.Partitions.Operation(ctx, p.Witness)
	if err != nil || s.Clock.Now().Sub(o.FinishedAt) >= s.Policy.FreshFor/2 {
		return false, err
	}
	var seen protocol.FabricObservation
	if err := json.Unmarshal(o.Evidence, &seen); err != nil {
		return false, nil //nolint:nilerr // what it said cannot be read: it is asked again
	}
	return !slices.ContainsFunc(ports, func(port Port) bool {
		return !slices.ContainsFunc(seen.Ports, func(l protocol.LinkState) bool { return l.GUID == port.GUID })
	}), nil
}

func (s *Service) readAgain(ctx context.Context, id ids.Fabric, ports []Port, nonce string) (fleet.Work, error) {
	subnet, err := s.Partitions.Subnet(ctx, id)
	if err != nil {
		return fleet.Work{}, err
	}
	return fleet.Work{
		Fabric: id, Kind: protocol.ObserveFabric, Epoch: subnet.Epoch, Spec: protocol.ObserveFabricSpec{Nonce: nonce, Ports: guidsOf(ports)},
		PickUpWithin: s.Policy.PickUpWithin, DoneWithin: s.Policy.PickUpWithin + s.Policy.SweepWithin,
	}, nil
}

// Attest holds the latest words of both witnesses against what is wanted and against each other, signs what comes of it, and keeps it.
//
// It returns a NotFound fault, and an Invalid fault, code "no-fabric", for a lease that comes without one.
func (s *Service) Attest(ctx context.Context, id ids.Lease, occasion Occasion) (ids.Attestation, Verdict, error) {
	a := Attestation{ID: ids.Make[ids.Attestation](), Lease: id, Occasion: occasion, CreatedAt: s.Clock.Now()}
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		l, err := s.Leases.Get(ctx, id)
		if err != nil {
			return err
		}
		if l.Fabric.IsZero() {
			return fault.New(fault.Invalid, "no-fabric", "the lease comes without a fabric: there is nothing to isolate")
		}
		a.Org = l.Org
		statement, partition, err := s.statement(ctx, l, occasion, a.CreatedAt)
		if err != nil {
			return err
		}
		payload, err := json.Marshal(statement)
		if err != nil {
			return fmt.Errorf("encode statement: %w", err)
		}
		if a.Envelope, err = (Sealer{s.Signer}).Sign(ctx, protocol.PayloadInToto, payload); err != nil {
			return err
		}
		a.Partition, a.Verdict = partition, statement.Predicate.Verdict
		return s.Partitions.InsertAttestation(ctx, a)
	})
	if err != nil {
		return ids.Attestation{}, Undecided, fmt.Errorf("attest isolation: %w", err)
	}
	return a.ID, a.Verdict, nil
}

// statement gathers what is wanted and what was said, and comes to the verdict.
func (s *Service) statement(ctx context.Context, l lease.Lease, occasion Occasion, now time.Time) (Statement, ids.Partition, error) {
	subnet, err := s.Partitions.Subnet(ctx, l.Fabric)
	if err != nil {
		return Statement{}, ids.Partition{}, err
	}
	ports, err := s.Partitions.Ports(ctx, l.ID, heldFor(occasion))
	if err != nil {
		return Statement{}, ids.Partition{}, err
	}
	p, found, err := s.Partitions.OfLease(ctx, l.ID)
	if err != nil {
		return Statement{}, ids.Partition{}, err
	}
	desired, err := s.desired(ctx, l, subnet, p, found)
	if err != nil {
		return Statement{}, ids.Partition{}, err
	}
	drift, err := s.Partitions.OpenDrift(ctx, l.Fabric)
	if err != nil {
		return Statement{}, ids.Partition{}, err
	}
	predicate := Predicate{
		Lease: l.ID, Occasion: occasion, IssuedAt: now, State: p.State, FreshFor: int64(s.Policy.FreshFor / time.Second), Desired: desired,
		Ports: []AttestedPort{}, Posture: nonNil(subnet.Posture), Override: subnet.Override, Open: openness(drift),
	}
	for _, port := range ports {
		predicate.Ports = append(predicate.Ports, AttestedPort{GUID: port.GUID, Node: port.Node, NodeName: port.NodeName})
	}
	if predicate.Witnesses, err = s.witnesses(ctx, l, p, occasion); err != nil {
		return Statement{}, ids.Partition{}, err
	}
	if err := predicate.assess(); err != nil {
		return Statement{}, ids.Partition{}, err
	}
	subject := Subject{Name: subnet.ID.String() + "/" + p.PKey.String(), Digest: map[string]string{"sha256": digest(desired)}}
	return Statement{Type: StatementType, Subject: []Subject{subject}, PredicateType: PredicateType, Predicate: predicate}, p.ID, nil
}

// desired is what is wanted of the lease's partition now, as JSON.
func (s *Service) desired(ctx context.Context, l lease.Lease, subnet Subnet, p Partition, found bool) ([]byte, error) {
	d := Wanted{Fabric: subnet.ID, Low: subnet.Low, High: subnet.High, Reserved: subnet.Reserved, Partition: protocol.Partition{Members: []protocol.GUID{}}}
	if found {
		d.Partition.PKey, d.Partition.Name = p.PKey, nameOf(p)
		members, err := s.Partitions.Members(ctx, []ids.Partition{p.ID})
		if err != nil {
			return nil, err
		}
		for _, m := range members {
			if m.Wanted && p.wanted() {
				d.Partition.Members = append(d.Partition.Members, m.GUID)
			}
		}
	} else {
		d.Partition.Name = nameOf(Partition{Lease: l.ID})
	}
	raw, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("encode what is wanted: %w", err)
	}
	return raw, nil
}

// witnesses collects the latest round of the occasion, and the sweep that showed the partition's state where the round did not ask the
// fabric's agent anew.
func (s *Service) witnesses(ctx context.Context, l lease.Lease, p Partition, occasion Occasion) ([]Witness, error) {
	round, err := s.Partitions.LastRound(ctx, l.ID, s.WitnessStep(occasion))
	if err != nil {
		return nil, err
	}
	asked := false
	var operations []fleet.Operation
	for _, o := range round {
		operations = append(operations, o.Operation)
		asked = asked || o.Kind == protocol.ObserveFabric
	}
	if !asked && !p.Witness.IsZero() {
		sweep, err := s.Partitions.Operation(ctx, p.Witness)
		if err != nil {
			return nil, err
		}
		operations = append([]fleet.Operation{sweep}, operations...)
	}
	return s.words(ctx, operations)
}

// words turns operations into witnesses.
func (s *Service) words(ctx context.Context, operations []fleet.Operation) ([]Witness, error) {
	var agents []ids.Agent
	for _, o := range operations {
		agents = append(agents, o.Agent)
	}
	known, err := s.Keys.Agents(ctx, agents)
	if err != nil {
		return nil, err
	}
	witnesses := []Witness{}
	for _, o := range operations {
		var order struct {
			Nonce string `json:"nonce"`
		}
		if err := json.Unmarshal(o.Spec, &order); err != nil {
			return nil, fmt.Errorf("decode order: %w", err)
		}
		w := Witness{
			Agent: o.Agent, PublicKey: known[o.Agent].PublicKey, Nonce: order.Nonce, AskedAt: o.CreatedAt, TakenAt: o.FinishedAt, Envelope: o.Signed,
		}
		if o.Node.IsZero() {
			w.Fabric = &o.Fabric
		} else {
			w.Node = &o.Node
		}
		if o.Signed == nil && o.Fault != nil {
			w.Trouble = o.Fault.Detail
		}
		witnesses = append(witnesses, w)
	}
	return witnesses, nil
}
