package fabric

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/outbox"
)

// DriftKind says in which way a port deviates from what the rows want.
type DriftKind string

// The kinds of drift.
const (
	FailOpen      DriftKind = "fail_open"      // a host port is a full member of the default partition: it reaches everybody
	Configuration DriftKind = "configuration"  // the manager may make all ports that at its next sweep
	UnexpectedKey DriftKind = "unexpected_key" // a key of ours that the port should not have
	MissingKey    DriftKind = "missing_key"
	MisplacedKey  DriftKind = "misplaced_key" // not at index 0
	UnknownPort   DriftKind = "unknown_port"  // a port of no machine that we know
	Unreadable    DriftKind = "unreadable"    // what it holds is unknown, which is not clean
)

// DriftKinds lists every kind.
func DriftKinds() []DriftKind {
	return []DriftKind{FailOpen, Configuration, UnexpectedKey, MissingKey, MisplacedKey, UnknownPort, Unreadable}
}

// opens reports whether, while it lasts, no lease may be handed over on the fabric.
func (k DriftKind) opens() bool { return k == FailOpen || k == Configuration }

// repairable reports whether the manager can be told to put it right.
func (k DriftKind) repairable() bool { return k != UnknownPort && k != Unreadable }

// Deviation is one thing that is otherwise than the rows want it.
type Deviation struct {
	Port protocol.GUID // 0: the fabric itself
	Kind DriftKind
	PKey protocol.PKey // the base that it is about; 0: none
	What string
}

// Drift is a deviation from when it was first seen until it was seen to be over.
type Drift struct {
	ID     ids.Drift
	Fabric ids.Fabric
	Deviation
	Onset    time.Time
	SeenAt   time.Time // when it was last seen
	Repair   string    // what was done about it, in words
	Attempts int       // repairs that were tried
	TriedAt  time.Time // when the last one was; zero: none
	GaveUpAt time.Time // repairs did not help; zero: they may yet
	EndedAt  time.Time // zero: it lasts
}

// repairAt is when the manager is to be told next; false: never, unless somebody asks.
func (d Drift) repairAt(policy Policy) (time.Time, bool) {
	if !d.Kind.repairable() || !d.GaveUpAt.IsZero() {
		return time.Time{}, false
	}
	if d.TriedAt.IsZero() {
		return d.Onset, true
	}
	return d.TriedAt.Add(policy.pause(d.Attempts)), true
}

// openness says why no lease is handed over on a fabric with that drift, in words that a tenant may read; "" when one may.
func openness(all []Drift) string {
	d, open := opening(all)
	if !open {
		return ""
	}
	repair := "repair is under way"
	if !d.GaveUpAt.IsZero() {
		repair = "repairs did not help"
	}
	return fmt.Sprintf("the fabric does not keep tenants apart since %s; %s", d.Onset.UTC().Format(time.RFC3339), repair)
}

// opening is the first drift that opens the fabric. Which port it is, and what it holds, is the operator's business.
func opening(all []Drift) (Drift, bool) {
	for _, d := range all {
		if d.Kind.opens() {
			return d, true
		}
	}
	return Drift{}, false
}

// opennessInFull is openness for the operator.
func opennessInFull(all []Drift) string {
	d, open := opening(all)
	if !open {
		return ""
	}
	where := ""
	if d.Port != 0 {
		where = fmt.Sprintf("port %s: ", d.Port)
	}
	return openness(all) + " (" + where + d.What + ")"
}

// heldKeys are the keys of ours that ports hold without leave: not to be given to anybody.
func heldKeys(all []Drift) map[protocol.PKey]bool {
	held := map[protocol.PKey]bool{}
	for _, d := range all {
		if d.Kind == UnexpectedKey {
			held[d.PKey] = true
		}
	}
	return held
}

// expectation is what the rows say about one port.
type expectation struct {
	key     protocol.PKey   // 0: none
	settled bool            // it was seen there before, so it must be there
	flux    []protocol.PKey // keys on their way in or out: neither demanded nor objected to
	manager bool            // a manager's host: a full member of the default partition while it rules
}

func expectations(subnet Subnet, live []Partition, members []Member) map[protocol.GUID]expectation {
	of := make(map[ids.Partition]Partition, len(live))
	for _, p := range live {
		of[p.ID] = p
	}
	all := make(map[protocol.GUID]expectation, len(members))
	for _, m := range members {
		p, e := of[m.Partition], all[m.GUID]
		switch {
		case m.Wanted && p.wanted() && !m.JoinedAt.IsZero():
			e.key, e.settled = p.PKey, true
		case m.Wanted && p.wanted(), m.LeftAt.IsZero():
			e.flux = append(e.flux, p.PKey)
		}
		all[m.GUID] = e
	}
	for _, port := range subnet.Managers {
		e := all[port]
		e.manager = true
		all[port] = e
	}
	return all
}

// examine lists what is wrong with a link, and the foreign keys on it.
func (b bounds) examine(link protocol.LinkState, want expectation) ([]Deviation, []protocol.PKey) {
	var found []Deviation
	var foreign []protocol.PKey
	for _, end := range []struct {
		name  string
		table protocol.PortTable
		first bool
	}{{"HCA port", link.HCA, true}, {"switch port", link.Switch, false}} {
		add := func(kind DriftKind, key protocol.PKey, format string, args ...any) {
			found = append(found, Deviation{Port: link.GUID, Kind: kind, PKey: key.Base(), What: end.name + " " + fmt.Sprintf(format, args...)})
		}
		if !end.table.Readable {
			add(Unreadable, 0, "could not be read")
			continue
		}
		keys, full := end.table.Keys, want.key|protocol.FullMember
		for _, key := range slices.Compact(slices.Sorted(slices.Values(keys))) {
			switch {
			case key == 0, key == protocol.DefaultLimited, want.key != 0 && key == full:
			case key == protocol.DefaultFull && want.manager:
			case key == protocol.DefaultFull:
				add(FailOpen, key, "is a full member of the default partition")
			case !b.contain(key):
				foreign = append(foreign, key.Base())
			case !slices.Contains(want.flux, key.Base()):
				add(UnexpectedKey, key, "holds %s, which it should not", key)
			}
		}
		if !slices.Contains(keys, protocol.DefaultLimited) && !slices.Contains(keys, protocol.DefaultFull) {
			add(MissingKey, protocol.DefaultLimited, "lacks %s", protocol.DefaultLimited)
		}
		switch {
		case !want.settled:
		case !slices.Contains(keys, full):
			add(MissingKey, full, "lacks %s", full)
		case end.first && keys[0] != full:
			add(MisplacedKey, full, "holds %s at index 0, not %s", keys[0], full)
		}
	}
	slices.Sort(foreign)
	return found, slices.Compact(foreign)
}

// comparison is what one sight says about a fabric as a whole.
type comparison struct {
	deviations []Deviation
	foreign    map[protocol.GUID][]protocol.PKey
	read       map[protocol.GUID]bool // ports both of whose ends were read
	clean      int                    // of those, how many have nothing wrong
	configured protocol.Verdict       // whether the manager's configuration keeps hosts apart; "": it was not said
}

// compare holds what was seen against what the rows want. Only a sight of the whole fabric tells strangers and ports that are missing.
func (v sight) compare(wanted map[protocol.GUID]expectation, known map[protocol.GUID]bool) comparison {
	c := comparison{foreign: map[protocol.GUID][]protocol.PKey{}, read: map[protocol.GUID]bool{}}
	for _, guid := range slices.Sorted(maps.Keys(v.links)) {
		link := v.links[guid]
		found, foreign := v.examine(link, wanted[guid])
		if link.HCA.Readable && link.Switch.Readable {
			c.read[guid], c.foreign[guid] = true, foreign
			if len(found) == 0 && (known[guid] || wanted[guid].manager || !v.whole) {
				c.clean++
			}
		}
		if v.whole && !known[guid] && !wanted[guid].manager {
			found = append(found, Deviation{Port: guid, Kind: UnknownPort, What: "is a port of no machine that we know"})
		}
		c.deviations = append(c.deviations, found...)
	}
	if v.whole {
		for _, guid := range slices.Sorted(maps.Keys(known)) {
			if _, seen := v.links[guid]; !seen {
				c.deviations = append(c.deviations, Deviation{Port: guid, Kind: Unreadable, What: "was not seen on the fabric"})
			}
		}
	}
	for _, check := range v.posture {
		if check.Item != postureDefaultLimited {
			continue
		}
		if c.configured = check.Verdict; check.Verdict == protocol.False {
			c.deviations = append(c.deviations, Deviation{Kind: Configuration, What: firstOf(check.Detail, "hosts are not limited members of the default partition")})
		}
	}
	return c
}

// isOver reports whether a deviation that the sight does not show any more is over; one that it could not see is not.
func (c comparison) isOver(v sight, d Drift, known map[protocol.GUID]bool) bool {
	switch {
	case d.Kind == Configuration:
		return c.configured == protocol.True
	case d.Kind == UnknownPort:
		return v.whole
	case d.Kind == Unreadable && v.whole && !known[d.Port]:
		_, seen := v.links[d.Port]
		return !seen // it is neither ours nor there
	default:
		return c.read[d.Port]
	}
}

// note makes what the comparison shows the open drift: new rows for what is new, an end for what is over, an alarm where people are to be
// told. tried are the ports that the sweep was to repair.
func (s *Service) note(ctx context.Context, subnet Subnet, v sight, c comparison, known map[protocol.GUID]bool) error {
	open, err := s.Partitions.OpenDrift(ctx, subnet.ID)
	if err != nil {
		return err
	}
	type key struct {
		port protocol.GUID
		what string
	}
	found := make(map[key]Deviation, len(c.deviations))
	for _, d := range c.deviations {
		// Sights of a part are taken while ports are on their way; that some do not answer is in their partitions' reasons.
		if v.whole || d.Kind != Unreadable {
			found[key{d.Port, d.What}] = d
		}
	}
	var changed, fresh, hopeless, lasting []Drift
	for _, d := range open {
		at := key{d.Port, d.What}
		_, lasts := found[at]
		delete(found, at)
		tried := d.Kind.repairable() && d.GaveUpAt.IsZero() && v.applied && (d.Port == 0 || v.repair[d.Port])
		over := !lasts && c.isOver(v, d, known)
		if !lasts && !over && !tried {
			continue
		}
		if tried {
			d.Attempts, d.TriedAt = d.Attempts+1, v.at
			d.Repair = fmt.Sprintf("the manager was told to write it anew, %d times", d.Attempts)
		}
		switch {
		case over:
			d.EndedAt = v.at
		case lasts:
			if d.Kind == UnknownPort && d.SeenAt.Sub(d.Onset) < s.Policy.StrangerAfter && v.at.Sub(d.Onset) >= s.Policy.StrangerAfter {
				lasting = append(lasting, d)
			}
			d.SeenAt = v.at
		}
		if !over && tried && d.Attempts >= s.Policy.Repairs {
			d.GaveUpAt = v.at
			hopeless = append(hopeless, d)
		}
		changed = append(changed, d)
	}
	for _, d := range found {
		fresh = append(fresh, Drift{ID: ids.Make[ids.Drift](), Fabric: subnet.ID, Deviation: d, Onset: v.at, SeenAt: v.at})
	}
	slices.SortFunc(fresh, func(a, b Drift) int { return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.What, b.What)) })
	if err := s.Partitions.PutDrift(ctx, slices.Concat(changed, fresh)); err != nil {
		return err
	}
	told := slices.DeleteFunc(slices.Clone(fresh), func(d Drift) bool { return d.Kind == UnknownPort })
	if err := s.alarm(ctx, subnet, "fabric.drift", append(told, lasting...), v.at); err != nil {
		return err
	}
	if err := s.alarm(ctx, subnet, "fabric.repair_failed", hopeless, v.at); err != nil {
		return err
	}
	return s.released(ctx, subnet, open, changed, fresh, v.at)
}

// alarm tells the operator's people, in one message for each kind: a fabric that fails open has as many deviations as ports.
func (s *Service) alarm(ctx context.Context, subnet Subnet, event string, about []Drift, at time.Time) error {
	for _, kind := range DriftKinds() {
		var ports, what []string
		for _, d := range about {
			if d.Kind != kind || kind == Unreadable { // a host that is switched off is no alarm
				continue
			}
			what = append(what, d.What)
			if d.Port != 0 {
				ports = append(ports, d.Port.String())
			}
		}
		if len(what) == 0 {
			continue
		}
		slices.Sort(ports)
		slices.Sort(what)
		ports = slices.Compact(ports)
		payload := map[string]any{
			"event": event, "fabric": subnet.ID, "fabric_name": subnet.Name, "kind": kind, "ports": list(ports), "count": len(ports),
			"what": list(slices.Compact(what)), "at": at,
		}
		if err := s.Outbox.Put(ctx, outbox.Notify, "operator", payload, at); err != nil {
			return err
		}
	}
	return nil
}

// released wakes the leases that waited for the fabric to be safe again, or that must wait from now on.
func (s *Service) released(ctx context.Context, subnet Subnet, open, changed, fresh []Drift, at time.Time) error {
	ended := map[ids.Drift]bool{}
	for _, d := range changed {
		ended[d.ID] = !d.EndedAt.IsZero()
	}
	after := slices.Clone(fresh)
	for _, d := range open {
		if !ended[d.ID] {
			after = append(after, d)
		}
	}
	if (openness(open) == "") == (openness(after) == "") {
		return nil
	}
	live, err := s.Partitions.Live(ctx, subnet.ID)
	if err != nil {
		return err
	}
	for _, p := range live {
		if !p.wanted() {
			continue
		}
		if err := s.Outbox.Put(ctx, outbox.LeaseNudge, p.Lease.String(), nil, at); err != nil {
			return err
		}
	}
	return nil
}
