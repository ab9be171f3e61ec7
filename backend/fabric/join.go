package fabric

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/outbox"
)

// Status is how far a lease's isolation is.
type Status string

// The statuses.
const (
	None     Status = "none"     // it has no partition: none is wanted, or none was wanted yet
	Pending  Status = "pending"  // some member was not seen right yet
	Isolated Status = "verified" // every member was seen right at both ends
	Leaving  Status = "draining" // some former member was not seen clear yet
	Gone     Status = "clear"    // every former member was seen clear at both ends
	Broken   Status = "failed"   // it is tried on, but something is wrong; the words say what
)

// Join wants the ports of the lease's allocations that are being prepared or are in use in a partition of the lease's own, and ports
// that it had and that are not among them out of it. What keeps it from that is in Status. Asking twice changes nothing.
//
// It returns a NotFound fault, and a Conflict fault, code "partition-state", when the lease's partition is going already.
func (s *Service) Join(ctx context.Context, id ids.Lease) error {
	err := s.onFabric(ctx, id, func(ctx context.Context, l lease.Lease, subnet Subnet) error {
		ports, err := s.Partitions.Ports(ctx, id, inPlace())
		if err != nil {
			return err
		}
		p, found, err := s.Partitions.OfLease(ctx, id)
		if err != nil {
			return err
		}
		if found && !p.wanted() {
			return fault.New(fault.Conflict, "partition-state", "the lease's partition is %s", p.State)
		}
		if !found {
			if p, found, err = s.allocate(ctx, l, subnet, ports); err != nil || !found {
				return err
			}
		}
		return s.setMembers(ctx, p, subnet, ports)
	})
	if err != nil {
		return fmt.Errorf("join partition: %w", err)
	}
	return nil
}

// inPlace are the states in which an allocation's ports belong to its lease.
func inPlace() []lease.AllocationState { return []lease.AllocationState{lease.Preparing, lease.InUse} }

// onFabric runs fn under the fabric's lock; not at all for a lease that comes without a fabric.
func (s *Service) onFabric(ctx context.Context, id ids.Lease, fn func(ctx context.Context, l lease.Lease, subnet Subnet) error) error {
	return s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		l, err := s.Leases.Get(ctx, id)
		if err != nil || l.Fabric.IsZero() {
			return err
		}
		subnet, err := s.Partitions.SubnetForUpdate(ctx, l.Fabric)
		if err != nil {
			return err
		}
		return fn(ctx, l, subnet)
	})
}

// allocate makes the lease's partition with the lowest free key, and returns false when something stands in the way.
func (s *Service) allocate(ctx context.Context, l lease.Lease, subnet Subnet, ports []Port) (Partition, bool, error) {
	now := s.Clock.Now()
	drift, err := s.Partitions.OpenDrift(ctx, subnet.ID)
	if err != nil {
		return Partition{}, false, err
	}
	live, err := s.live(ctx, subnet.ID, heldKeys(drift), now)
	if err != nil {
		return Partition{}, false, err
	}
	key := lowestFree(subnet, live, heldKeys(drift))
	why, err := s.obstacle(ctx, subnet, ports, key)
	if err != nil || why != "" {
		return Partition{}, false, err
	}
	p := Partition{
		ID: ids.Make[ids.Partition](), Org: l.Org, Fabric: subnet.ID, Lease: l.ID, PKey: key, State: Desired, CreatedAt: now, UpdatedAt: now,
	}
	return p, true, s.Partitions.Insert(ctx, p)
}

// live lists the partitions that are not free, after it has freed those whose key has rested and is held by no port.
func (s *Service) live(ctx context.Context, id ids.Fabric, held map[protocol.PKey]bool, now time.Time) ([]Partition, error) {
	all, err := s.Partitions.Live(ctx, id)
	if err != nil {
		return nil, err
	}
	live := all[:0]
	for _, p := range all {
		if !p.rested(now) || held[p.PKey] {
			live = append(live, p)
			continue
		}
		if err := p.MoveTo(Free, now); err != nil {
			return nil, err
		}
		if err := s.Partitions.Update(ctx, p); err != nil {
			return nil, err
		}
	}
	return live, nil
}

// rested reports whether the partition's key may be used again, as far as its former members are concerned.
func (p Partition) rested(now time.Time) bool {
	return p.State == Quarantined && !now.Before(p.ReusableAfter)
}

// lowestFree returns the lowest key of ours that no partition has and no port holds; 0 when there is none.
func lowestFree(subnet Subnet, live []Partition, held map[protocol.PKey]bool) protocol.PKey {
	taken := maps.Clone(held)
	for _, p := range live {
		taken[p.PKey] = true
	}
	for _, key := range subnet.Reserved {
		taken[key] = true
	}
	for key := int(subnet.Low); key <= int(subnet.High); key++ {
		if free := protocol.PKey(key); !taken[free] { //nolint:gosec // the range is within 15 bits by the schema
			return free
		}
	}
	return 0
}

// keysOnAPort is how many entries a member's table has: its own key and the default one.
const keysOnAPort = 2

// obstacle says why the lease cannot have a partition; "" when it can. Booking does not place on ports that are full; they may have become
// so since.
func (s *Service) obstacle(ctx context.Context, subnet Subnet, ports []Port, key protocol.PKey) (string, error) {
	switch barred := subnet.barred(); {
	case barred != "":
		return barred, nil
	case len(ports) == 0:
		return "none of its machines has a port on the fabric", nil
	case key == 0:
		return "all keys of the fabric are in use or at rest", nil
	case subnet.MaxPKeysPerPort < keysOnAPort:
		return fmt.Sprintf("its ports hold %d keys at most", subnet.MaxPKeysPerPort), nil
	}
	all := make([]ids.HCAPort, len(ports))
	for i, p := range ports {
		all[i] = p.ID
	}
	full, err := s.Partitions.Full(ctx, all)
	if err != nil || len(full) == 0 {
		return "", err
	}
	return "the tables of its ports are full of foreign keys: " + list(guids(full)), nil
}

// setMembers makes the ports the partition's members, as far as they are in no other partition. A change raises the fabric's epoch and
// wakes its workflow.
func (s *Service) setMembers(ctx context.Context, p Partition, subnet Subnet, ports []Port) error {
	known, err := s.Partitions.Members(ctx, []ids.Partition{p.ID})
	if err != nil {
		return err
	}
	changed := changes(p, known, ports)
	if len(changed) == 0 {
		return nil
	}
	busy, err := s.Partitions.Elsewhere(ctx, portsOf(changed), p.ID)
	if err != nil || len(busy) > 0 {
		return err // Status names them; the hand-over check keeps this from lasting
	}
	if err := s.Partitions.PutMembers(ctx, changed); err != nil {
		return err
	}
	if p.State != Desired {
		if err := p.MoveTo(Desired, s.Clock.Now()); err != nil {
			return err
		}
		if err := s.Partitions.Update(ctx, p); err != nil {
			return err
		}
	}
	return s.changed(ctx, subnet.ID)
}

// changes lists the members that must become wanted, and those that must not be any more.
func changes(p Partition, known []Member, ports []Port) []Member {
	byPort := make(map[ids.HCAPort]Member, len(known))
	for _, m := range known {
		byPort[m.Port] = m
	}
	var changed []Member
	for _, port := range ports {
		m, there := byPort[port.ID]
		delete(byPort, port.ID)
		if there && m.Wanted && m.Allocation == port.Allocation {
			continue
		}
		changed = append(changed, Member{
			Partition: p.ID, Port: port.ID, GUID: port.GUID, Allocation: port.Allocation, Node: port.Node, NodeName: port.NodeName, Org: p.Org, Wanted: true,
		})
	}
	for _, m := range known {
		if _, remains := byPort[m.Port]; remains && m.Wanted {
			m.Wanted = false
			changed = append(changed, m)
		}
	}
	return changed
}

func portsOf(members []Member) []ids.HCAPort {
	var ports []ids.HCAPort
	for _, m := range members {
		if m.Wanted {
			ports = append(ports, m.Port)
		}
	}
	return ports
}

// changed counts a change of the fabric's desired set and wakes who carries it out.
func (s *Service) changed(ctx context.Context, id ids.Fabric) error {
	if _, err := s.Partitions.RaiseEpoch(ctx, id); err != nil {
		return err
	}
	return s.Outbox.Put(ctx, outbox.FabricNudge, id.String(), nil, s.Clock.Now())
}

// Leave wants the lease's ports out of its partition, and the partition gone. A lease without one has nothing to leave. Asking twice
// changes nothing.
func (s *Service) Leave(ctx context.Context, id ids.Lease) error {
	err := s.onFabric(ctx, id, func(ctx context.Context, _ lease.Lease, subnet Subnet) error {
		p, found, err := s.Partitions.OfLease(ctx, id)
		if err != nil || !found || !p.wanted() {
			return err
		}
		members, err := s.Partitions.Members(ctx, []ids.Partition{p.ID})
		if err != nil {
			return err
		}
		for i := range members {
			members[i].Wanted = false
		}
		if err := s.Partitions.PutMembers(ctx, members); err != nil {
			return err
		}
		p.ClearSeen, p.Witness = 0, ids.Operation{}
		if err := p.MoveTo(Draining, s.Clock.Now()); err != nil {
			return err
		}
		if err := s.Partitions.Update(ctx, p); err != nil {
			return err
		}
		return s.changed(ctx, subnet.ID)
	})
	if err != nil {
		return fmt.Errorf("leave partition: %w", err)
	}
	return nil
}

// Status says how far the lease's isolation is, with words where something is wrong.
func (s *Service) Status(ctx context.Context, id ids.Lease) (Status, string, error) {
	status, words := None, ""
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		l, err := s.Leases.Get(ctx, id)
		if err != nil || l.Fabric.IsZero() {
			return err
		}
		p, found, err := s.Partitions.OfLease(ctx, id)
		switch {
		case err != nil:
			return err
		case !found:
			status, words, err = s.withoutPartition(ctx, l)
			return err
		case p.wanted():
			status, words, err = s.standing(ctx, p)
			return err
		case p.State == Draining:
			status, words = Leaving, p.Reason
			return nil
		default:
			status = Gone
			return nil
		}
	})
	if err != nil {
		return None, "", fmt.Errorf("read isolation: %w", err)
	}
	return status, words, nil
}

// withoutPartition tells a lease that has no partition yet from one that cannot have one.
func (s *Service) withoutPartition(ctx context.Context, l lease.Lease) (Status, string, error) {
	subnet, err := s.Partitions.Subnet(ctx, l.Fabric)
	if err != nil {
		return None, "", err
	}
	if l.State != lease.Provisioning && l.State != lease.Active {
		return None, "", nil
	}
	ports, err := s.Partitions.Ports(ctx, l.ID, inPlace())
	if err != nil {
		return None, "", err
	}
	live, err := s.Partitions.Live(ctx, l.Fabric)
	if err != nil {
		return None, "", err
	}
	drift, err := s.Partitions.OpenDrift(ctx, l.Fabric)
	if err != nil {
		return None, "", err
	}
	if open := openness(drift); open != "" {
		return Broken, open, nil
	}
	held, now := heldKeys(drift), s.Clock.Now()
	live = slices.DeleteFunc(live, func(p Partition) bool { return p.rested(now) && !held[p.PKey] })
	why, err := s.obstacle(ctx, subnet, ports, lowestFree(subnet, live, held))
	if err != nil || why == "" {
		return None, "", err
	}
	return Broken, why, nil
}

// standing is the status of a partition that is wanted. It is verified only while its members are the lease's ports of now.
func (s *Service) standing(ctx context.Context, p Partition) (Status, string, error) {
	ports, err := s.Partitions.Ports(ctx, p.Lease, inPlace())
	if err != nil {
		return None, "", err
	}
	members, err := s.Partitions.Members(ctx, []ids.Partition{p.ID})
	if err != nil {
		return None, "", err
	}
	missing := changes(p, members, ports)
	if len(missing) > 0 {
		busy, err := s.Partitions.Elsewhere(ctx, portsOf(missing), p.ID)
		if err != nil {
			return None, "", err
		}
		if len(busy) > 0 {
			return Broken, "ports have not left an earlier partition: " + list(guids(busy)), nil
		}
		return Pending, "", nil
	}
	drift, err := s.Partitions.OpenDrift(ctx, p.Fabric)
	if err != nil {
		return None, "", err
	}
	open := openness(drift)
	switch {
	case open != "" && (p.State == Verified || p.Reason == ""):
		return Broken, open, nil
	case p.State == Verified:
		return Isolated, "", nil
	case p.Reason != "":
		return Broken, p.Reason, nil
	default:
		return Pending, "", nil
	}
}

func guids(all []protocol.GUID) []string {
	out := make([]string, len(all))
	for i, g := range all {
		out[i] = g.String()
	}
	return out
}
