package fabric

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
)

// sweepStep is the kind of the steps that a fabric owns: one operation each.
const sweepStep = "sweep"

// sweepsKnown is how many of the latest sweeps are looked at for how often they failed in a row.
const sweepsKnown = 8

// Plan has the fabric's agent make everything that is pending true, in one operation, unless one is in flight. It returns whether one
// is, and when to look again though nobody nudges; the zero instant when nothing is due.
//
// It returns a NotFound fault.
func (s *Service) Plan(ctx context.Context, id ids.Fabric) (bool, time.Time, error) {
	var inFlight bool
	var lookAt time.Time
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		subnet, err := s.Partitions.SubnetForUpdate(ctx, id)
		if err != nil {
			return err
		}
		if err := s.absorb(ctx, subnet); err != nil { // else what has just come in would be asked for again
			return err
		}
		inFlight, lookAt, err = s.plan(ctx, subnet)
		return err
	})
	if err != nil {
		return false, time.Time{}, fmt.Errorf("plan sweep: %w", err)
	}
	return inFlight, lookAt, nil
}

func (s *Service) plan(ctx context.Context, subnet Subnet) (bool, time.Time, error) {
	now := s.Clock.Now()
	sweeps, err := s.Partitions.Sweeps(ctx, subnet.ID, sweepStep, sweepsKnown)
	if err != nil {
		return false, time.Time{}, err
	}
	audits, err := s.Partitions.Sweeps(ctx, subnet.ID, auditStep, 1)
	if err != nil {
		return false, time.Time{}, err
	}
	for _, last := range [][]Sweep{sweeps, audits} {
		if len(last) > 0 && !last[0].State.Final() {
			return true, last[0].deadline(), nil
		}
	}
	drift, err := s.Partitions.OpenDrift(ctx, subnet.ID)
	if err != nil {
		return false, time.Time{}, err
	}
	live, err := s.live(ctx, subnet.ID, heldKeys(drift), now)
	if err != nil {
		return false, time.Time{}, err
	}
	members, err := s.Partitions.Members(ctx, idsOf(live))
	if err != nil {
		return false, time.Time{}, err
	}
	a := survey(live, members, now, s.Policy)
	a.mend(drift, now, s.Policy)
	at := now.Add(s.Policy.PickUpWithin + time.Second)
	suspected, err := s.Partitions.Suspected(ctx, subnet.ID)
	if err != nil {
		return false, time.Time{}, err
	}
	audit, late := s.auditDue(subnet, audits, suspected, now)
	if due, lookAt := s.due(subnet, a, sweeps, now); !late && (due || !audit) {
		if !due {
			return false, lookAt, nil
		}
		return true, at, s.sweep(ctx, subnet, a, sweeps)
	}
	return true, at, s.orderAudit(ctx, subnet, now)
}

// deadline is when the sweep's next deadline has passed, with a moment for that to be noticed.
func (s Sweep) deadline() time.Time {
	if s.State == fleet.Queued {
		return s.PickUpBy.Add(time.Second)
	}
	return s.DoneBy.Add(time.Second)
}

// agenda is what a fabric needs.
type agenda struct {
	set     []protocol.Partition // the whole desired set
	pending bool                 // some member was not seen right, or some former one not gone
	observe []protocol.GUID      // the ports that this is about
	again   []protocol.GUID      // former members whose second look is due
	againAt time.Time            // when the next second look, or the end of a key's rest, is due; zero: none
	leaving map[protocol.GUID]bool
	mending bool            // drift is to be repaired now
	repair  []protocol.GUID // the ports that this is about; none: the manager's configuration
}

// mend adds the drift whose repair is due.
func (a *agenda) mend(drift []Drift, now time.Time, policy Policy) {
	for _, d := range drift {
		at, ever := d.repairAt(policy)
		switch {
		case !ever:
		case now.Before(at):
			a.wakeAt(at)
		default:
			a.mending = true
			if d.Port != 0 {
				a.repair = append(a.repair, d.Port)
			}
		}
	}
}

// survey says what the fabric needs, from its rows.
func survey(live []Partition, members []Member, now time.Time, policy Policy) agenda {
	a := agenda{leaving: map[protocol.GUID]bool{}, set: []protocol.Partition{}}
	of := map[ids.Partition][]Member{}
	for _, m := range members {
		of[m.Partition] = append(of[m.Partition], m)
	}
	for _, p := range live {
		a.add(p, of[p.ID], now, policy)
	}
	for _, list := range []*[]protocol.GUID{&a.observe, &a.again} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return a
}

func (a *agenda) add(p Partition, members []Member, now time.Time, policy Policy) {
	wanted := protocol.Partition{PKey: p.PKey, Name: nameOf(p), Members: []protocol.GUID{}}
	for _, m := range members {
		switch {
		case m.Wanted:
			wanted.Members = append(wanted.Members, m.GUID)
			if p.State == Desired || p.State == Programmed {
				a.pending, a.observe = true, append(a.observe, m.GUID)
			}
		case m.LeftAt.IsZero():
			a.pending, a.observe = true, append(a.observe, m.GUID)
			a.leaving[m.GUID] = true
		case p.State == Draining && !m.LeftAt.Before(p.UpdatedAt):
			a.observe = append(a.observe, m.GUID) // so that one observation shows them all gone
		}
	}
	switch {
	case p.wanted() && len(wanted.Members) > 0:
		a.set = append(a.set, wanted)
	case p.State == Draining && len(members) == 0:
		a.pending = true
	case p.State == Clear && now.Before(p.UpdatedAt.Add(policy.SecondLook)):
		a.wakeAt(p.UpdatedAt.Add(policy.SecondLook))
	case p.State == Clear:
		for _, m := range members {
			a.again = append(a.again, m.GUID)
		}
	case p.State == Quarantined:
		a.wakeAt(p.ReusableAfter)
	}
}

func (a *agenda) wakeAt(at time.Time) {
	if a.againAt.IsZero() || at.Before(a.againAt) {
		a.againAt = at
	}
}

// nameOf is the partition's name in the manager's configuration.
func nameOf(p Partition) string { return strings.ReplaceAll(p.Lease.String(), "_", "-") }

// due says whether a sweep is to be asked for now, else when to look again. A change is swept at once; what a sweep could not bring
// about is tried again with growing pauses.
func (s *Service) due(subnet Subnet, a agenda, sweeps []Sweep, now time.Time) (bool, time.Time) {
	swept, failures := int64(0), 0
	for _, sweep := range sweeps {
		if sweep.Kind == protocol.ApplyPartitions {
			swept = max(swept, sweep.Epoch)
		}
	}
	for _, sweep := range sweeps {
		if sweep.State == fleet.Succeeded {
			break
		}
		failures++
	}
	if a.pending && subnet.Epoch > swept {
		return true, time.Time{}
	}
	if !a.pending && !a.mending && len(a.again) == 0 {
		return false, a.againAt
	}
	if len(sweeps) == 0 {
		return true, time.Time{}
	}
	at := sweeps[0].FinishedAt.Add(s.Policy.pause(failures))
	if failures == 0 && !a.pending { // a second look has waited for its time already
		at = now
	}
	if now.Before(at) {
		if !a.againAt.IsZero() && a.againAt.Before(at) {
			at = a.againAt
		}
		return false, at
	}
	return true, time.Time{}
}

// pause is how long to wait after failures in a row.
func (p Policy) pause(failures int) time.Duration {
	pause := p.Retry
	for range failures - 1 {
		if pause *= 2; pause >= p.RetryCap {
			return p.RetryCap
		}
	}
	return pause
}

// sweep asks for it: to apply the set when something is pending, else only to look.
func (s *Service) sweep(ctx context.Context, subnet Subnet, a agenda, sweeps []Sweep) error {
	attempt := 1
	if len(sweeps) > 0 {
		attempt = sweeps[0].Attempt + 1
	}
	nonce := rand.Text()
	work := fleet.Work{
		Fabric: subnet.ID, Kind: protocol.ObserveFabric, Epoch: subnet.Epoch, Spec: protocol.ObserveFabricSpec{Nonce: nonce, Ports: a.again},
		PickUpWithin: s.Policy.PickUpWithin, DoneWithin: s.Policy.PickUpWithin + s.Policy.SweepWithin,
	}
	if a.pending || a.mending {
		placed, found, err := s.Partitions.LastPlaced(ctx, subnet.ID)
		if err != nil {
			return err
		}
		observe, repair := slices.Concat(a.observe, a.again), a.repair
		if found && placed.Epoch == subnet.Epoch {
			repair = slices.Concat(repair, a.observe) // the manager was told once, and may believe that it was done
		}
		slices.Sort(observe)
		slices.Sort(repair)
		work.Kind = protocol.ApplyPartitions
		work.Spec = protocol.ApplyPartitionsSpec{
			Nonce: nonce, Partitions: a.set, ManagedLow: subnet.Low, ManagedHi: subnet.High, Observe: nonNil(slices.Compact(observe)),
			AllowShrink: found && mustShrink(setOf(placed), a), Reserved: subnet.Reserved, Repair: slices.Compact(repair),
		}
	}
	_, err := s.Work.Issue(ctx, fleet.Step{Fabric: subnet.ID, Kind: sweepStep, Attempt: attempt}, []fleet.Work{work})
	return err
}

// setOf is the set that a sweep asked for.
func setOf(sweep Sweep) []protocol.Partition {
	var spec protocol.ApplyPartitionsSpec
	if json.Unmarshal(sweep.Spec, &spec) != nil {
		return nil
	}
	return spec.Partitions
}

// mustShrink reports whether agents must be told that a set which drops most of the members is meant so. An agent refuses to drop more
// than half of them at once, one whole partition aside, since such a set may be a mistake. It is none only when rows explain every
// port that goes; and the leave to shrink is given only where it is needed, so that the agent's guard stays up otherwise.
func mustShrink(before []protocol.Partition, a agenda) bool {
	stays, remains := map[protocol.GUID]bool{}, map[protocol.PKey]bool{}
	for _, p := range a.set {
		remains[p.PKey] = true
		for _, port := range p.Members {
			stays[port] = true
		}
	}
	var members, dropped, exempt int
	for _, p := range before {
		members += len(p.Members)
		if !remains[p.PKey] {
			exempt = max(exempt, len(p.Members))
		}
		for _, port := range p.Members {
			if stays[port] {
				continue
			}
			if !a.leaving[port] {
				return false // nobody wanted that
			}
			dropped++
		}
	}
	exempt = min(exempt, dropped)
	return 2*(dropped-exempt) > members-exempt
}

func idsOf(all []Partition) []ids.Partition {
	out := make([]ids.Partition, len(all))
	for i, p := range all {
		out[i] = p.ID
	}
	return out
}

func nonNil[T any](in []T) []T {
	if in == nil {
		return []T{}
	}
	return in
}
