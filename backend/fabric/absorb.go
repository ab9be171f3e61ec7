package fabric

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
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
	asked     map[protocol.PKey]map[protocol.GUID]bool // the members that it was to program; nil: it was to look only
	links     map[protocol.GUID]protocol.LinkState
	trouble   string // why it saw nothing; "" when it did see
	at        time.Time
}

// see reads a sweep's signed observation. One that answers another question is none.
func see(subnet Subnet, sweep Sweep, now time.Time) sight {
	v := sight{
		bounds: bounds{subnet.Low, subnet.High}, operation: sweep.ID, links: map[protocol.GUID]protocol.LinkState{}, at: now,
		asked: map[protocol.PKey]map[protocol.GUID]bool{},
	}
	spec, err := specOf(sweep)
	if err != nil {
		v.trouble = "the sweep's order cannot be read"
		return v
	}
	for _, p := range spec.Partitions {
		v.asked[p.PKey] = map[protocol.GUID]bool{}
		for _, port := range p.Members {
			v.asked[p.PKey][port] = true
		}
	}
	observation, err := observed(subnet.ID, sweep)
	if err != nil {
		v.trouble = err.Error()
		return v
	}
	for _, link := range observation.Ports {
		v.links[link.GUID] = link
	}
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
		if sweep.Fault != nil && sweep.Fault.Detail != "" {
			return seen, fmt.Errorf("%s", sweep.Fault.Detail)
		}
		return seen, fmt.Errorf("the fabric's agent has seen nothing")
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
	d := drifts{wrong: map[protocol.GUID]string{}}
	for _, p := range live {
		d.look(v, p, of[p.ID])
		if err := s.settle(ctx, v, p, of[p.ID]); err != nil {
			return err
		}
	}
	return s.Partitions.Drift(ctx, subnet.ID, d.seen, d.wrong, v.at)
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
		touched, err = v.cleared(&p, members, s.Policy.Rest)
	case Quarantined, Free:
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
	if _, swept := v.asked[p.PKey]; swept {
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
func (v sight) cleared(p *Partition, members []Member, rest time.Duration) ([]Member, error) {
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
	switch all.verdict {
	case protocol.True:
		p.ClearSeen++
		p.ReusableAfter = v.at.Add(rest)
		return nil, p.MoveTo(Quarantined, v.at)
	case protocol.False:
		err := p.MoveTo(Draining, v.at)
		p.ClearSeen, p.Witness, p.Reason = 0, ids.Operation{}, all.detail
		return back, err
	case protocol.Unknown:
	}
	return nil, nil
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

// drifts collects members that had joined and hold something else now.
type drifts struct {
	seen  []protocol.GUID
	wrong map[protocol.GUID]string
}

func (d *drifts) look(v sight, p Partition, members []Member) {
	if !p.wanted() || v.trouble != "" {
		return
	}
	for _, m := range members {
		link, there := v.links[m.GUID]
		if !there || !m.Wanted || m.JoinedAt.IsZero() || !v.asked[p.PKey][m.GUID] && len(v.asked) > 0 {
			continue
		}
		d.seen = append(d.seen, m.GUID)
		if f := v.joined(link, p.PKey); f.verdict == protocol.False {
			d.wrong[m.GUID] = f.detail
		}
	}
	slices.Sort(d.seen)
}
