package booking

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// Replace holds another machine's slots for one of a lease's allocations, from now until that one's time is over: on the same fabric, within
// the topology that was promised, and as near to the lease's other machines as can be. Machines that bookings must leave are there for this.
// What becomes of the allocation that is replaced is the caller's affair.
//
// It is for the platform, within a transaction that has locked the lease. It returns an Unavailable fault, code "no-replacement", when there
// is none now, and NotFound for an allocation that is not a lease's.
func (s *Service) Replace(ctx context.Context, instead ids.Allocation) (ids.Allocation, error) {
	var made lease.Allocation
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		made, err = s.replace(ctx, instead)
		return err
	})
	if err != nil {
		return ids.Allocation{}, fmt.Errorf("replace allocation: %w", err)
	}
	return made.ID, nil
}

func (s *Service) replace(ctx context.Context, instead ids.Allocation) (lease.Allocation, error) {
	lost, err := s.Allocations.Get(ctx, instead)
	if err != nil {
		return lease.Allocation{}, err
	}
	l, err := s.Leases.GetForUpdate(ctx, lost.Lease)
	if err != nil {
		return lease.Allocation{}, err
	}
	own, err := s.Allocations.ByLeaseForUpdate(ctx, l.ID)
	if err != nil {
		return lease.Allocation{}, err
	}
	now := s.Clock.Now()
	held := lease.Window{Start: maxTime(lost.Occupied.Start, now), End: lost.Occupied.End}
	if !held.Start.Before(held.End) {
		return lease.Allocation{}, errNoReplacement()
	}
	spot, err := s.placeNearby(ctx, l, lost, own, held, now)
	if err != nil {
		return lease.Allocation{}, err
	}
	made := lease.Allocation{
		ID: ids.Make[ids.Allocation](), Node: spot.Node, Lease: l.ID, Ordinal: lost.Ordinal, Slots: spot.Slots, Occupied: held, State: lease.Held, CreatedAt: now,
	}
	return made, s.Allocations.Insert(ctx, made)
}

func errNoReplacement() error {
	return fault.New(fault.Unavailable, "no-replacement", "no other machine is free for the rest of the lease")
}

// placeNearby looks twice, as booking does: without locks, then again at the machine that it has locked.
func (s *Service) placeNearby(ctx context.Context, l lease.Lease, lost lease.Allocation, own []lease.Allocation, held lease.Window, now time.Time) (Spot, error) {
	t, err := s.Catalog.TypeByID(ctx, l.InstanceType)
	if err != nil {
		return Spot{}, err
	}
	quote, err := s.Quotes.Quote(ctx, l.Quote)
	if err != nil {
		return Spot{}, err
	}
	query := PoolQuery{Type: t, Site: l.Site, Time: around(held), Now: now, HeardSince: heardSince(held, now)}
	pools, err := s.Market.Pools(ctx, query)
	if err != nil {
		return Spot{}, err
	}
	demand := Demand{Type: t, Instances: 1, Occupied: held, Topology: Anywhere}
	for _, pool := range pools {
		if pool.Site != l.Site || pool.Fabric != l.Fabric {
			continue
		}
		for _, near := range nearby(pool, lost.Node, own, quote.Topology) {
			placed := Place(demand, []Pool{near})
			if len(placed) == 0 {
				continue
			}
			return s.secure(ctx, demand, query, placed[0])
		}
	}
	return Spot{}, errNoReplacement()
}

// secure locks the machine and makes sure that the spot is still free.
func (s *Service) secure(ctx context.Context, d Demand, q PoolQuery, placed Placement) (Spot, error) {
	q.Nodes = nodesOf(placed)
	if err := s.Market.LockNodes(ctx, q.Nodes); err != nil {
		return Spot{}, err
	}
	pools, err := s.Market.Pools(ctx, q)
	if err != nil {
		return Spot{}, err
	}
	for i := range pools {
		pools[i].Spares = 0
	}
	again := Place(d, pools)
	if len(again) == 0 {
		return Spot{}, errNoReplacement() // somebody was faster; the caller looks again later
	}
	return again[0].Spots[0], nil
}

// nearby narrows a pool to where a replacement may lie, the best first: under the leaf switches of the lease's other machines, in their
// pods, anywhere; as far as the topology that was promised allows. The lost machine is never among them.
func nearby(p Pool, lost ids.Node, own []lease.Allocation, promised Topology) []Pool {
	p.Spares = 0
	var others []Machine
	for _, m := range p.Machines {
		if m.Node != lost && slices.ContainsFunc(own, func(a lease.Allocation) bool {
			return a.Node == m.Node && a.Serves()
		}) {
			others = append(others, m)
		}
	}
	narrowed := func(fits func(m, other Machine) bool) Pool {
		near := p
		near.Machines = nil
		for _, m := range p.Machines {
			if m.Node != lost && (len(others) == 0 || slices.ContainsFunc(others, func(o Machine) bool { return fits(m, o) })) {
				near.Machines = append(near.Machines, m)
			}
		}
		return near
	}
	all := []Pool{
		narrowed(func(m, o Machine) bool { return m.Leaf == o.Leaf }),
		narrowed(func(m, o Machine) bool { return m.Pod == o.Pod }),
		narrowed(func(Machine, Machine) bool { return true }),
	}
	switch promised {
	case SameLeaf:
		return all[:1]
	case SamePod:
		return all[:2]
	case Anywhere:
	}
	return all
}
