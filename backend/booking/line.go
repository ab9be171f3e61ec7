package booking

import (
	"cmp"
	"container/heap"
	"math/bits"
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// maxSlots is the longest slot line that placement handles: 16 GPUs in one machine.
const maxSlots = 128

// line is a set of slots.
type line [maxSlots / 64]uint64

func rangeOf(s lease.Slots) line {
	var l line
	for word := range l {
		from, to := max(s.From-64*word, 0), min(s.To-64*word, 64)
		if from < to {
			l[word] = (^uint64(0) >> (64 - (to - from))) << from
		}
	}
	return l
}

func (l line) overlaps(o line) bool { return l[0]&o[0] != 0 || l[1]&o[1] != 0 }

func (l line) with(o line) line { return line{l[0] | o[0], l[1] | o[1]} }

func (l line) empty() bool { return l[0]|l[1] == 0 }

// slackMargin is how far around its time a placement looks for neighbours: a gap that is wider counts as open.
const slackMargin = 6 * time.Hour

// candidate is a machine while spots are being taken from it.
type candidate struct {
	machine  *Machine
	taken    line
	starts   []int // where an instance may begin, free in the demand's time
	capacity int
	tie      uint64
	next     choice // the best spot that is left
}

// choice is one spot with what speaks for and against it.
type choice struct {
	slots  lease.Slots
	broken int
	slack  time.Duration
}

// candidates lists the pool's machines that have room, without the wholly free ones that are kept back as spares. Those come from
// the leaves with the fewest, so that the large ones stay whole.
func candidates(d Demand, p Pool) []*candidate {
	var out, whole []*candidate
	starts := map[int][]int{}
	for i := range p.Machines {
		m := &p.Machines[i]
		if m.Slots > maxSlots {
			continue
		}
		if _, known := starts[m.Slots]; !known {
			starts[m.Slots] = d.Type.Starts(m.Slots)
		}
		c := newCandidate(d, m, starts[m.Slots])
		switch {
		case c.capacity == 0:
		case c.taken.empty() && p.Spares > 0:
			whole = append(whole, c)
		default:
			out = append(out, c)
		}
	}
	return append(out, withoutSpares(whole, p.Spares)...)
}

func withoutSpares(whole []*candidate, spares int) []*candidate {
	if spares <= 0 {
		return whole
	}
	if spares >= len(whole) {
		return nil
	}
	count := map[ids.Switch]int{}
	for _, c := range whole {
		count[c.machine.Leaf]++
	}
	slices.SortStableFunc(whole, func(a, b *candidate) int {
		return cmp.Or(cmp.Compare(count[a.machine.Leaf], count[b.machine.Leaf]), slices.Compare(bytesOf(a.machine.Leaf), bytesOf(b.machine.Leaf)),
			cmp.Compare(a.machine.Blemishes, b.machine.Blemishes), slices.Compare(bytesOf(a.machine.Node), bytesOf(b.machine.Node)))
	})
	return whole[spares:]
}

func bytesOf(id interface{ UUID() [16]byte }) []byte {
	u := id.UUID()
	return u[:]
}

func newCandidate(d Demand, m *Machine, starts []int) *candidate {
	c := &candidate{machine: m, tie: tie(d.Seed, m.Node.UUID())}
	for _, b := range m.Busy {
		if b.Time.Overlaps(d.Occupied) {
			c.taken = c.taken.with(rangeOf(b.Slots))
		}
	}
	if c.taken.empty() {
		c.starts = starts
		c.capacity = len(starts)
		return c
	}
	for _, at := range starts {
		if !c.taken.overlaps(rangeOf(lease.Slots{From: at, To: at + d.Type.Width})) {
			c.starts = append(c.starts, at)
		}
	}
	c.capacity = len(c.starts)
	return c
}

// choose finds the machine's best spot. It reports whether there is one.
func (c *candidate) choose(d Demand) bool {
	if c.taken.empty() && len(c.machine.Busy) == 0 && len(c.starts) > 0 { // all spots are alike
		slots := lease.Slots{From: c.starts[0], To: c.starts[0] + d.Type.Width}
		c.next = choice{slots: slots, broken: c.block(slots), slack: 2 * slackMargin}
		return true
	}
	found := false
	for _, at := range c.starts {
		slots := lease.Slots{From: at, To: at + d.Type.Width}
		if c.taken.overlaps(rangeOf(slots)) {
			continue
		}
		next := choice{slots: slots, broken: c.block(slots)}
		if found && next.broken > c.next.broken {
			continue
		}
		next.slack = c.slack(d, slots)
		if !found || cmp.Or(cmp.Compare(next.broken, c.next.broken), cmp.Compare(next.slack, c.next.slack)) < 0 {
			c.next, found = next, true
		}
		if next.broken <= d.Type.Width && next.slack == 0 {
			break // there is nothing better
		}
	}
	return found
}

// block is the size of the largest free block around the spot that doubling it can reach: a slice's bay, a pair of GPUs, half a
// machine. Taking the spot breaks that block open.
func (c *candidate) block(s lease.Slots) int {
	size := s.Width()
	for next := ceilPow2(size); next <= c.machine.Slots; next *= 2 {
		from := s.From / next * next
		if from+next > c.machine.Slots || s.To > from+next || c.taken.overlaps(rangeOf(lease.Slots{From: from, To: from + next})) {
			break
		}
		size = next
	}
	return size
}

func ceilPow2(n int) int { return 1 << bits.Len(uint(n-1)) } //nolint:gosec // a width is positive and small

// slack is how long the spot's slots stay idle before and after the demand's time, each at most slackMargin.
func (c *candidate) slack(d Demand, s lease.Slots) time.Duration {
	before, after := slackMargin, slackMargin
	for _, b := range c.machine.Busy {
		if !b.Slots.Overlaps(s) {
			continue
		}
		if gap := d.Occupied.Start.Sub(b.Time.End); gap >= 0 {
			before = min(before, gap)
		}
		if gap := b.Time.Start.Sub(d.Occupied.End); gap >= 0 {
			after = min(after, gap)
		}
	}
	return before + after
}

// queue hands out machines by their next spot, best first. It implements heap.Interface.
type queue []*candidate

func (q queue) Len() int      { return len(q) }
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(*candidate)) } //nolint:forcetypeassert,errcheck // ours alone
func (q queue) Less(i, j int) bool {
	a, b := q[i], q[j]
	return cmp.Or(cmp.Compare(a.next.broken, b.next.broken), cmp.Compare(a.next.slack, b.next.slack),
		cmp.Compare(a.machine.Blemishes, b.machine.Blemishes), cmp.Compare(a.tie, b.tie)) < 0
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

// fill takes the demand's spots one by one from the leaves, which have room for all of them: always the spot that breaks the
// smallest free block.
func fill(d Demand, leaves ...*leaf) Placement {
	var q queue
	placed := Placement{Spots: make([]Spot, 0, d.Instances)}
	for _, l := range leaves {
		placed.score.remainder += l.capacity
		for _, c := range l.machines {
			fresh := *c // a leaf may be tried more than once
			if fresh.choose(d) {
				q = append(q, &fresh)
			}
		}
	}
	placed.score.remainder -= d.Instances
	heap.Init(&q)
	nodes, used := map[ids.Node]bool{}, map[ids.Switch]bool{}
	for len(placed.Spots) < d.Instances {
		c := q[0]
		placed.Spots = append(placed.Spots, Spot{Node: c.machine.Node, Slots: c.next.slots})
		placed.score.broken += c.next.broken
		placed.score.slack += c.next.slack
		if !nodes[c.machine.Node] {
			nodes[c.machine.Node] = true
			placed.score.blemishes += c.machine.Blemishes
			placed.score.tie ^= c.tie
		}
		used[c.machine.Leaf] = true
		c.taken = c.taken.with(rangeOf(c.next.slots))
		if c.choose(d) {
			heap.Fix(&q, 0)
		} else {
			heap.Pop(&q)
		}
	}
	placed.Nodes, placed.Leaves, placed.score.leaves = len(nodes), len(used), len(used)
	return placed
}
