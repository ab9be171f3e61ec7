// Package booking turns a wish into a lease: what is free and where it fits best, what it costs at worst, a quote that is firm in
// price, and the one transaction that takes capacity and money together or neither; then extension, cancellation and early end.
package booking

import (
	"cmp"
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// Topology is how close together the instances of a lease must be.
type Topology string

// The demands that a booking can make.
const (
	Anywhere Topology = "any"
	SameLeaf Topology = "same_leaf"
	SamePod  Topology = "same_pod"
)

// Pool is a set of machines that the instances of one lease may share: those of a fabric, or, for types without InfiniBand, of a
// site.
type Pool struct {
	Site       ids.Site
	SiteName   string
	Fabric     ids.Fabric // zero for types without InfiniBand
	FabricName string
	Spares     int // wholly free machines that a booking must leave
	Machines   []Machine
}

// Machine is a node as placement sees it.
type Machine struct {
	Node      ids.Node
	Leaf      ids.Switch // zero for types without InfiniBand
	Pod       string
	Slots     int
	Blemishes int // conditions that do not prevent allocation
	Busy      []Busy
}

// Busy is a part of a machine's slot line that is taken for a time.
type Busy struct {
	Slots lease.Slots
	Time  lease.Window
}

// Forever is the time of slots that are not to be had until somebody clears them: conditions, quarantine, overruns.
func Forever() lease.Window {
	return lease.Window{Start: time.Time{}, End: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}
}

// Demand is what must be placed.
type Demand struct {
	Type      catalog.InstanceType
	Instances int
	Occupied  lease.Window // lead and turnaround included
	Topology  Topology
	// Seed breaks ties, so that many who ask at once are not all sent to the same machine first.
	Seed uint64
}

// Spot is where one instance goes.
type Spot struct {
	Node  ids.Node    `json:"node"`
	Slots lease.Slots `json:"slots"`
}

// Placement is where all instances of a lease go: as many spots as instances, all in one pool.
type Placement struct {
	Site   ids.Site
	Fabric ids.Fabric
	Spots  []Spot
	Nodes  int // machines under the spots
	Leaves int // leaf switches under the machines, per rail; 0 without InfiniBand
	score  score
}

// score orders placements, the smaller the better, its fields in falling weight.
type score struct {
	leaves    int           // switches spanned
	broken    int           // slots of the free blocks that the spots break open: fragmentation in space
	remainder int           // what stays free on the leaves: the tightest fit leaves big ones whole
	slack     time.Duration // idle time left before and after: fragmentation in time
	blemishes int
	tie       uint64
}

func (a score) compare(b score) int {
	return cmp.Or(cmp.Compare(a.leaves, b.leaves), cmp.Compare(a.broken, b.broken), cmp.Compare(a.remainder, b.remainder), cmp.Compare(a.slack, b.slack),
		cmp.Compare(a.blemishes, b.blemishes), cmp.Compare(a.tie, b.tie))
}

// Place finds the best placement in each pool that has room for all instances, best pool first. It reads nothing but its
// arguments.
func Place(d Demand, pools []Pool) []Placement {
	var found []Placement
	for _, p := range pools {
		if placed, ok := placeInPool(d, p); ok {
			found = append(found, placed)
		}
	}
	slices.SortStableFunc(found, func(a, b Placement) int { return a.score.compare(b.score) })
	return found
}

// Room counts the instances that a pool has room for, wherever they come to lie.
func Room(d Demand, p Pool) int {
	room := 0
	for _, c := range candidates(d, p) {
		room += c.capacity
	}
	return room
}

func placeInPool(d Demand, p Pool) (Placement, bool) {
	free := candidates(d, p)
	leaves := byLeaf(free)
	var best Placement
	found := false
	for _, near := range neighbourhoods(d.Topology, leaves) {
		placed, ok := placeNear(d, near)
		if ok && (!found || placed.score.compare(best.score) < 0) {
			best, found = placed, true
		}
	}
	best.Site, best.Fabric = p.Site, p.Fabric
	if p.Fabric.IsZero() {
		best.Leaves = 0
		found = found && d.Topology != SameLeaf // nothing is known to hang on one leaf
	}
	return best, found
}

// leaf is the machines behind one leaf switch that have room.
type leaf struct {
	id       ids.Switch
	pod      string
	capacity int
	machines []*candidate
}

func byLeaf(free []*candidate) []*leaf {
	index := map[ids.Switch]*leaf{}
	var leaves []*leaf
	for _, c := range free {
		l, ok := index[c.machine.Leaf]
		if !ok {
			l = &leaf{id: c.machine.Leaf, pod: c.machine.Pod}
			index[c.machine.Leaf] = l
			leaves = append(leaves, l)
		}
		l.capacity += c.capacity
		l.machines = append(l.machines, c)
	}
	return leaves
}

// neighbourhoods splits the leaves into the sets that the demand confines the instances to.
func neighbourhoods(t Topology, leaves []*leaf) [][]*leaf {
	switch t {
	case SameLeaf:
		sets := make([][]*leaf, len(leaves))
		for i, l := range leaves {
			sets[i] = []*leaf{l}
		}
		return sets
	case SamePod:
		return byPod(leaves)
	case Anywhere:
	}
	return [][]*leaf{leaves}
}

func byPod(leaves []*leaf) [][]*leaf {
	index := map[string]int{}
	var sets [][]*leaf
	for _, l := range leaves {
		at, ok := index[l.pod]
		if !ok {
			at = len(sets)
			index[l.pod] = at
			sets = append(sets, nil)
		}
		sets[at] = append(sets[at], l)
	}
	return sets
}

// placeNear places the demand on the fewest of the leaves. When one leaf suffices, every one that does is tried; else the largest
// are taken, and the last of them is the tightest that still completes the set.
func placeNear(d Demand, leaves []*leaf) (Placement, bool) {
	var best Placement
	found := false
	for _, l := range leaves {
		if l.capacity < d.Instances {
			continue
		}
		if placed := fill(d, l); !found || placed.score.compare(best.score) < 0 {
			best, found = placed, true
		}
	}
	if found {
		return best, true
	}
	set, ok := fewest(d, leaves)
	if !ok {
		return Placement{}, false
	}
	return fill(d, set...), true
}

func fewest(d Demand, leaves []*leaf) ([]*leaf, bool) {
	largest := slices.Clone(leaves)
	slices.SortStableFunc(largest, func(a, b *leaf) int {
		return cmp.Or(cmp.Compare(b.capacity, a.capacity), cmp.Compare(tie(d.Seed, a.id.UUID()), tie(d.Seed, b.id.UUID())))
	})
	missing := d.Instances
	for i, l := range largest {
		if l.capacity < missing {
			missing -= l.capacity
			continue
		}
		last := l
		for _, tighter := range largest[i:] { // in falling order: the last that suffices is the tightest
			if tighter.capacity >= missing {
				last = tighter
			}
		}
		return append(slices.Clone(largest[:i]), last), true
	}
	return nil, false
}

// tie spreads equals by the seed, and without one keeps one order on every machine.
func tie(seed uint64, uuid [16]byte) uint64 {
	h := seed ^ 0x9e3779b97f4a7c15
	for _, b := range uuid {
		h = (h ^ uint64(b)) * 0x100000001b3 // FNV-1a's prime
	}
	h ^= h >> 29
	return h * 0xbf58476d1ce4e5b9
}
