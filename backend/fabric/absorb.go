package fabric

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/outbox"
)

// Absorb takes what finished sweeps have seen into the rows: members that have joined or left, and with them the partitions' states.
// It wakes the leases for which something has changed. Each observation is taken once.
//
// It returns a NotFound fault.
func (s *Service) Absorb(ctx context.Context, id ids.Fabric) error {
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		subnet, err := s.Partitions.SubnetForUpdate(ctx, id)
		if err != nil {
			return err
		}
		return s.absorb(ctx, subnet)
	})
	if err != nil {
		return fmt.Errorf("absorb sweep: %w", err)
	}
	return nil
}

func (s *Service) absorb(ctx context.Context, subnet Subnet) error {
	sweeps, err := s.Partitions.Unabsorbed(ctx, subnet.ID)
	if err != nil {
		return err
	}
	for _, sweep := range sweeps {
		if err := s.take(ctx, subnet, sweep); err != nil {
			return err
		}
		if err := s.Partitions.Absorbed(ctx, sweep.ID, s.Clock.Now()); err != nil {
			return err
		}
	}
	return nil
}

// sight is what one sweep has seen.
type sight struct {
	bounds
	operation ids.Operation
	applied   bool                                     // it was to program members; else it was to look only
	whole     bool                                     // it was to look at every port
	asked     map[protocol.PKey]map[protocol.GUID]bool // the members that it was to program
	repair    map[protocol.GUID]bool                   // the ports that it was to repair
	links     map[protocol.GUID]protocol.LinkState
	posture   []protocol.PostureCheck
	trouble   string    // why it saw nothing, for tenants too; "" when it did see
	inFull    string    // the same for the operator
	askedAt   time.Time // what it saw was so at that instant or later
	at        time.Time
}

// see reads a sweep's signed observation. One that answers another question is none.
func see(subnet Subnet, sweep Sweep, now time.Time) sight {
	v := sight{
		bounds: subnet.bounds(), operation: sweep.ID, links: map[protocol.GUID]protocol.LinkState{}, askedAt: sweep.CreatedAt, at: now,
		applied: sweep.Kind == protocol.ApplyPartitions, whole: wholeFabric(sweep),
		asked: map[protocol.PKey]map[protocol.GUID]bool{}, repair: map[protocol.GUID]bool{},
	}
	spec, err := specOf(sweep)
	if err != nil {
		v.trouble = "the sweep's order cannot be read"
		v.inFull = v.trouble
		return v
	}
	for _, p := range spec.Partitions {
		v.asked[p.PKey] = map[protocol.GUID]bool{}
		for _, port := range p.Members {
			v.asked[p.PKey][port] = true
		}
	}
	for _, port := range spec.Repair {
		v.repair[port] = true
	}
	observation, err := observed(subnet.ID, sweep)
	if err != nil {
		v.trouble, v.inFull = err.Error(), err.Error()
		if sweep.Fault != nil && sweep.Fault.Detail != "" {
			v.inFull = sweep.Fault.Detail
		}
		return v
	}
	for _, link := range observation.Ports {
		v.links[link.GUID] = link
	}
	v.posture = observation.Posture
	return v
}

// specOf reads what a sweep was told, as far as both kinds have it.
func specOf(sweep Sweep) (protocol.ApplyPartitionsSpec, error) {
	var spec protocol.ApplyPartitionsSpec
	if err := json.Unmarshal(sweep.Spec, &spec); err != nil {
		return spec, fmt.Errorf("decode spec: %w", err)
	}
	return spec, nil
}

// observed returns the observation that the sweep's agent has signed, if it is about this fabric, this order and this epoch. Its
// signature was verified when it came in.
func observed(fabric ids.Fabric, sweep Sweep) (protocol.FabricObservation, error) {
	var seen protocol.FabricObservation
	if sweep.Signed == nil || len(sweep.Evidence) == 0 {
		return seen, fmt.Errorf("%s", unobserved(sweep.Fault))
	}
	if err := json.Unmarshal(sweep.Signed.Payload, &seen); err != nil {
		return seen, fmt.Errorf("the observation cannot be read")
	}
	spec, err := specOf(sweep)
	if err != nil {
		return seen, err
	}
	switch {
	case seen.FabricID != fabric.String():
		return seen, fmt.Errorf("the observation is of another fabric")
	case seen.Nonce != spec.Nonce:
		return seen, fmt.Errorf("the observation answers another order")
	case sweep.Kind == protocol.ApplyPartitions && seen.Epoch != sweep.Epoch:
		return seen, fmt.Errorf("the observation is of epoch %d, not %d", seen.Epoch, sweep.Epoch)
	}
	return seen, nil
}

// unobserved says why a sweep shows nothing, in words that a tenant may read: the agent's own may name other tenants' ports, and stay with the
// operation, where the operator reads them.
func unobserved(f *protocol.Fault) string {
	switch {
	case f == nil:
		return "the fabric's agent has seen nothing"
	case f.Code == codeManagerUnavailable:
		return "the subnet manager does not answer"
	case f.Code == protocol.FaultNotPickedUp, f.Code == protocol.FaultNotDoneInTime, f.Code == codeNoAgent:
		return "the fabric's agent does not answer"
	default:
		return "the fabric's agent could not do it (" + f.Code + ")"
	}
}

// Codes of faults of a fabric's agent, and of asking it.
const (
	codeManagerUnavailable = "manager-unavailable"
	codeNoAgent            = "no-agent"
)

// take changes the rows by what one sweep has seen.
func (s *Service) take(ctx context.Context, subnet Subnet, sweep Sweep) error {
	v := see(subnet, sweep, s.Clock.Now())
	live, err := s.Partitions.Live(ctx, subnet.ID)
	if err != nil {
		return err
	}
	members, err := s.Partitions.Members(ctx, idsOf(live))
	if err != nil {
		return err
	}
	of := map[ids.Partition][]Member{}
	for _, m := range members {
		of[m.Partition] = append(of[m.Partition], m)
	}
	for _, p := range live {
		if err := s.settle(ctx, v, p, of[p.ID]); err != nil {
			return err
		}
	}
	return s.judge(ctx, subnet, sweep, v, expectations(subnet, live, members))
}

// judge holds all that was seen against what the rows wanted before it was seen.
func (s *Service) judge(ctx context.Context, subnet Subnet, sweep Sweep, v sight, wanted map[protocol.GUID]expectation) error {
	known := map[protocol.GUID]bool{}
	if v.whole {
		ports, err := s.Partitions.KnownPorts(ctx, subnet.ID)
		if err != nil {
			return err
		}
		for _, port := range ports {
			known[port] = true
		}
	}
	var c comparison
	if v.trouble == "" {
		if err := s.posted(ctx, &subnet, v); err != nil {
			return err
		}
		c = v.compare(wanted, known)
		if err := s.note(ctx, subnet, v, c, known); err != nil {
			return err
		}
		if err := s.Partitions.PutForeign(ctx, subnet.ID, c.foreign, v.at); err != nil {
			return err
		}
	}
	if !v.whole {
		return nil
	}
	return s.conclude(ctx, subnet, sweep, v, c, known)
}

// settle brings one partition to where the sight shows it, and wakes its lease when that is news.
func (s *Service) settle(ctx context.Context, v sight, p Partition, members []Member) error {
	before := p
	var touched []Member
	var err error
	switch p.State {
	case Desired, Programmed:
		touched, err = v.programmed(&p, members)
	case Verified:
		touched = v.departed(&p, members) // of nodes that were replaced
	case Draining:
		touched, err = v.drained(&p, members)
	case Clear:
		touched, err = v.cleared(&p, members, s.Policy.SecondLook, s.Policy.Rest)
	case Quarantined:
		touched, err = v.rested(&p, members)
	case Free:
		return nil
	}
	if err != nil {
		return err
	}
	if len(touched) > 0 {
		if err := s.Partitions.PutMembers(ctx, touched); err != nil {
			return err
		}
	}
	if p == before {
		return nil
	}
	if err := s.Partitions.Update(ctx, p); err != nil {
		return err
	}
	if p.State == before.State && p.Reason == before.Reason {
		return nil
	}
	return s.Outbox.Put(ctx, outbox.LeaseNudge, p.Lease.String(), nil, v.at)
}

// programmed looks for the members of a partition that was to be programmed. It is verified only by a sight that shows all of them
// right at both ends; a partition that the sweep did not have in its set yet stays as it is.
func (v sight) programmed(p *Partition, members []Member) ([]Member, error) {
	touched := v.departed(p, members)
	set, swept := v.asked[p.PKey]
	wanted, complete, reason := 0, true, ""
	for _, m := range members {
		if !m.Wanted {
			continue
		}
		wanted++
		if !swept || !set[m.GUID] {
			complete = false
			continue
		}
		f := v.judge(m.GUID, func(link protocol.LinkState) finding { return v.joined(link, p.PKey) })
		if f.verdict != protocol.True {
			complete, reason = false, firstOf(reason, fmt.Sprintf("port %s: %s", m.GUID, f.detail))
			continue
		}
		if m.JoinedAt.IsZero() {
			m.JoinedAt = v.at
			touched = append(touched, m)
		}
	}
	switch {
	case !swept, wanted == 0:
		return touched, nil
	case complete && len(set) == wanted:
		err := p.MoveTo(Verified, v.at)
		p.Witness = v.operation
		return touched, err
	case v.trouble == "" && p.State == Desired && len(set) > 0 && reason != "":
		if err := p.MoveTo(Programmed, v.at); err != nil {
			return nil, err
		}
	}
	p.Reason = reason
	return touched, nil
}

// departed looks for the former members among a partition's ports.
func (v sight) departed(p *Partition, members []Member) []Member {
	if !v.applied {
		return nil // the manager may not have been told yet: then it would put them back
	}
	var touched []Member
	for _, m := range members {
		if m.Wanted || !m.LeftAt.IsZero() || v.asked[p.PKey][m.GUID] {
			continue
		}
		if v.judge(m.GUID, func(link protocol.LinkState) finding { return left(link, p.PKey) }).verdict == protocol.True {
			m.LeftAt = v.at
			touched = append(touched, m)
		}
	}
	return touched
}

// drained looks for the former members of a partition that is to go. It is clear when each was seen gone from both ends.
func (v sight) drained(p *Partition, members []Member) ([]Member, error) {
	if _, swept := v.asked[p.PKey]; swept || !v.applied {
		return nil, nil // this sweep began before the lease left
	}
	touched := v.departed(p, members)
	gone, reason := map[ids.HCAPort]bool{}, ""
	for _, m := range touched {
		gone[m.Port] = true
	}
	for _, m := range members {
		if m.LeftAt.IsZero() && !gone[m.Port] {
			f := v.judge(m.GUID, func(link protocol.LinkState) finding { return left(link, p.PKey) })
			reason = firstOf(reason, fmt.Sprintf("port %s: %s", m.GUID, f.detail))
		}
	}
	if reason != "" {
		p.Reason = reason
		return touched, nil
	}
	err := p.MoveTo(Clear, v.at)
	p.ClearSeen, p.Witness = 1, v.operation
	return touched, err
}

// cleared takes the second look. The key rests when all former members were seen gone again; one that has it again puts the partition
// back, and what could not be read leaves it where it is.
func (v sight) cleared(p *Partition, members []Member, pause, rest time.Duration) ([]Member, error) {
	back, all := v.lookBack(*p, members)
	switch all.verdict {
	case protocol.True:
		if v.askedAt.Before(p.UpdatedAt.Add(pause)) {
			return nil, nil // too soon after the first look to be another one
		}
		p.ClearSeen++
		p.ReusableAfter = v.at.Add(rest)
		return nil, p.MoveTo(Quarantined, v.at)
	case protocol.False:
		return back, p.relapse(all.detail, v.at)
	case protocol.Unknown:
	}
	return nil, nil
}

// rested looks whether a former member has the key again while it rests.
func (v sight) rested(p *Partition, members []Member) ([]Member, error) {
	back, all := v.lookBack(*p, members)
	if all.verdict != protocol.False {
		return nil, nil
	}
	return back, p.relapse(all.detail, v.at)
}

// lookBack looks at all former members again: which have the key, and what that says together.
func (v sight) lookBack(p Partition, members []Member) ([]Member, finding) {
	all := good()
	var back []Member
	for _, m := range members {
		f := v.judge(m.GUID, func(link protocol.LinkState) finding { return left(link, p.PKey) })
		if f.verdict == protocol.False {
			m.LeftAt = time.Time{}
			back = append(back, m)
		}
		if f.detail != "" {
			f.detail = fmt.Sprintf("port %s: %s", m.GUID, f.detail)
		}
		all = worse(all, f)
	}
	return back, all
}

// relapse begins the draining anew.
func (p *Partition) relapse(why string, at time.Time) error {
	err := p.MoveTo(Draining, at)
	p.ClearSeen, p.Witness, p.ReusableAfter, p.Reason = 0, ids.Operation{}, time.Time{}, why
	return err
}

// judge judges a port's link; one that the sweep did not see is unknown.
func (v sight) judge(port protocol.GUID, by func(link protocol.LinkState) finding) finding {
	link, seen := v.links[port]
	switch {
	case v.trouble != "":
		return unseen("%s", v.trouble)
	case !seen:
		return unseen("it was not read")
	default:
		return by(link)
	}
}

func firstOf(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
