package booking_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

func noon() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

func window(fromHour, toHour int) lease.Window {
	return lease.Window{Start: noon().Add(time.Duration(fromHour) * time.Hour), End: noon().Add(time.Duration(toHour) * time.Hour)}
}

// kinds are geometries of every sort: whole nodes, aligned GPUs, slices that leave holes.
func kinds() []catalog.InstanceType {
	return []catalog.InstanceType{
		{Name: "8x", Width: 64, Stride: 64, GPUs: 8},
		{Name: "4x", Width: 32, Stride: 32, GPUs: 4},
		{Name: "2x", Width: 16, Stride: 16, GPUs: 2},
		{Name: "1x", Width: 8, Stride: 8, GPUs: 1},
		{Name: "3g", Width: 4, BayStarts: []int{0, 4}},
		{Name: "2g", Width: 2, BayStarts: []int{0, 2, 4}},
		{Name: "1g", Width: 1, BayStarts: []int{0, 1, 2, 3, 4, 5, 6}},
	}
}

// id makes the n-th id of a test, the same in every run.
func id[T any, P interface {
	*T
	Scan(src any) error
}](n int) T {
	var out T
	if err := P(&out).Scan(fmt.Sprintf("00000000-0000-7000-8000-%012x", n+1)); err != nil {
		panic(err) //nolint:forbidigo // a test's constant
	}
	return out
}

func drawPool(t *rapid.T) booking.Pool {
	p := booking.Pool{Fabric: id[ids.Fabric](0), Spares: rapid.IntRange(0, 2).Draw(t, "spares")}
	for i := range rapid.IntRange(0, 12).Draw(t, "machines") {
		leaf := rapid.IntRange(0, 4).Draw(t, "leaf")
		m := booking.Machine{
			Node: id[ids.Node](i), Leaf: id[ids.Switch](leaf), Pod: fmt.Sprint("pod-", leaf/2), Slots: 64, Blemishes: rapid.IntRange(0, 1).Draw(t, "blemishes"),
		}
		for range rapid.IntRange(0, 3).Draw(t, "busy") {
			from := rapid.IntRange(0, 63).Draw(t, "from")
			begin := rapid.IntRange(-8, 8).Draw(t, "begin")
			m.Busy = append(m.Busy, booking.Busy{
				Slots: lease.Slots{From: from, To: rapid.IntRange(from+1, 64).Draw(t, "to")},
				Time:  window(begin, begin+rapid.IntRange(1, 8).Draw(t, "hours")),
			})
		}
		p.Machines = append(p.Machines, m)
	}
	return p
}

func drawDemand(t *rapid.T) booking.Demand {
	return booking.Demand{
		Type: rapid.SampledFrom(kinds()).Draw(t, "type"), Instances: rapid.IntRange(1, 24).Draw(t, "instances"),
		Occupied: window(0, rapid.IntRange(1, 4).Draw(t, "hours")), Seed: rapid.Uint64().Draw(t, "seed"),
		Topology: rapid.SampledFrom([]booking.Topology{booking.Anywhere, booking.SameLeaf, booking.SamePod}).Draw(t, "topology"),
	}
}

func free(m booking.Machine, s lease.Slots, w lease.Window) bool {
	return !slices.ContainsFunc(m.Busy, func(b booking.Busy) bool { return b.Slots.Overlaps(s) && b.Time.Overlaps(w) })
}

func wholly(m booking.Machine, w lease.Window) bool {
	return free(m, lease.Slots{From: 0, To: m.Slots}, w)
}

// spotsOf lists where the machine has room, written as plainly as can be.
func spotsOf(d booking.Demand, m booking.Machine) []lease.Slots {
	var out []lease.Slots
	for at := range m.Slots {
		legal := d.Type.Stride > 0 && at%d.Type.Stride == 0 || slices.Contains(d.Type.BayStarts, at%lease.SlotsPerBay) && d.Type.Stride == 0
		s := lease.Slots{From: at, To: at + d.Type.Width}
		if legal && s.To <= m.Slots && free(m, s, d.Occupied) {
			out = append(out, s)
		}
	}
	return out
}

func machineOf(p booking.Pool, n ids.Node) booking.Machine {
	return p.Machines[slices.IndexFunc(p.Machines, func(m booking.Machine) bool { return m.Node == n })]
}

func TestAPlacementIsAllOrNothingAndLegal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, d := drawPool(t), drawDemand(t)
		for _, placed := range booking.Place(d, []booking.Pool{p}) {
			require.Len(t, placed.Spots, d.Instances)
			taken := map[ids.Node][]lease.Slots{}
			leaves, pods := map[ids.Switch]bool{}, map[string]bool{}
			for _, s := range placed.Spots {
				m := machineOf(p, s.Node)
				require.Contains(t, spotsOf(d, m), s.Slots)
				for _, other := range taken[s.Node] {
					require.False(t, other.Overlaps(s.Slots))
				}
				taken[s.Node] = append(taken[s.Node], s.Slots)
				leaves[m.Leaf], pods[m.Pod] = true, true
			}
			require.Equal(t, len(taken), placed.Nodes)
			require.Equal(t, len(leaves), placed.Leaves)
			require.True(t, d.Topology != booking.SameLeaf || len(leaves) == 1)
			require.True(t, d.Topology != booking.SamePod || len(pods) == 1)
		}
	})
}

func TestWhatFitsIsFoundOnTheFewestLeaves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, d := drawPool(t), drawDemand(t)
		p.Spares = 0
		perLeaf := map[ids.Switch]int{}
		podOf := map[ids.Switch]string{}
		for _, m := range p.Machines {
			perLeaf[m.Leaf] += len(spotsOf(d, m))
			podOf[m.Leaf] = m.Pod
		}
		want := fewestLeaves(perLeaf, podOf, d)
		placed := booking.Place(d, []booking.Pool{p})
		if want == 0 {
			require.Empty(t, placed)
			return
		}
		require.Len(t, placed, 1)
		require.Equal(t, want, placed[0].Leaves)
	})
}

// fewestLeaves tries every set of leaves; 0 when none suffices.
func fewestLeaves(perLeaf map[ids.Switch]int, podOf map[ids.Switch]string, d booking.Demand) int {
	var leaves []ids.Switch
	for l := range perLeaf {
		leaves = append(leaves, l)
	}
	best := 0
	for set := 1; set < 1<<len(leaves); set++ {
		room, size, pods := 0, 0, map[string]bool{}
		for i, l := range leaves {
			if set>>i&1 == 1 {
				room, size, pods[podOf[l]] = room+perLeaf[l], size+1, true
			}
		}
		near := d.Topology == booking.Anywhere || d.Topology == booking.SameLeaf && size == 1 || d.Topology == booking.SamePod && len(pods) == 1
		if near && room >= d.Instances && (best == 0 || size < best) {
			best = size
		}
	}
	return best
}

func TestSparesAreKeptBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, d := drawPool(t), drawDemand(t)
		d.Topology = booking.Anywhere
		whole, room := 0, 0
		for _, m := range p.Machines {
			if wholly(m, d.Occupied) {
				whole++
			} else {
				room += len(spotsOf(d, m))
			}
		}
		room += max(whole-p.Spares, 0) * len(d.Type.Starts(64))
		require.Equal(t, room, booking.Room(d, p))
		placed := booking.Place(d, []booking.Pool{p})
		require.Equal(t, room >= d.Instances, len(placed) == 1, "spares cost no more room than themselves")
		if len(placed) == 0 {
			return
		}
		used := map[ids.Node]bool{}
		for _, s := range placed[0].Spots {
			used[s.Node] = true
		}
		left := 0
		for _, m := range p.Machines {
			if wholly(m, d.Occupied) && !used[m.Node] {
				left++
			}
		}
		require.GreaterOrEqual(t, left, min(p.Spares, whole))
	})
}

func TestAFreeMachineIsNotBrokenWhileABrokenOneHasRoom(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, d := drawPool(t), drawDemand(t)
		d.Instances, d.Topology = 1, booking.Anywhere
		if d.Type.Width == 64 {
			return
		}
		brokenHasRoom := slices.ContainsFunc(p.Machines, func(m booking.Machine) bool { return !wholly(m, d.Occupied) && len(spotsOf(d, m)) > 0 })
		for _, placed := range booking.Place(d, []booking.Pool{p}) {
			if brokenHasRoom {
				require.False(t, wholly(machineOf(p, placed.Spots[0].Node), d.Occupied))
			}
		}
	})
}

func TestTheOrderOfMachinesDecidesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, d := drawPool(t), drawDemand(t)
		shuffled := p
		shuffled.Machines = rapid.Permutation(p.Machines).Draw(t, "order")
		require.Equal(t, booking.Place(d, []booking.Pool{p}), booking.Place(d, []booking.Pool{shuffled}))
	})
}

func pool(machines ...booking.Machine) []booking.Pool {
	for i := range machines {
		machines[i].Node, machines[i].Slots = id[ids.Node](i), 64
	}
	return []booking.Pool{{Fabric: id[ids.Fabric](0), Machines: machines}}
}

func demand(name string, instances int) booking.Demand {
	at := slices.IndexFunc(kinds(), func(k catalog.InstanceType) bool { return k.Name == name })
	return booking.Demand{Type: kinds()[at], Instances: instances, Occupied: window(0, 2), Topology: booking.Anywhere}
}

func busy(from, to int, w lease.Window) booking.Busy {
	return booking.Busy{Slots: lease.Slots{From: from, To: to}, Time: w}
}

func TestASliceGoesWhereItBreaksTheSmallestFreeBlock(t *testing.T) {
	t.Parallel()
	placed := booking.Place(demand("1g", 1), pool(booking.Machine{Busy: []booking.Busy{busy(0, 8, window(0, 2)), busy(16, 22, window(0, 2))}}))
	require.Equal(t, lease.Slots{From: 22, To: 23}, placed[0].Spots[0].Slots, "of a whole bay, a free pair of bays and two slots, the two slots")
}

func TestTheTightestLeafIsTaken(t *testing.T) {
	t.Parallel()
	large, small := id[ids.Switch](1), id[ids.Switch](2)
	machines := []booking.Machine{{Leaf: large}, {Leaf: large}, {Leaf: large}, {Leaf: small}, {Leaf: small}}
	placed := booking.Place(demand("8x", 2), pool(machines...))
	for _, s := range placed[0].Spots {
		require.Equal(t, small, machineOf(pool(machines...)[0], s.Node).Leaf)
	}
}

func TestAGapThatTheWindowFillsIsPreferred(t *testing.T) {
	t.Parallel()
	open := booking.Machine{Busy: []booking.Busy{busy(0, 64, window(5, 9))}}
	gap := booking.Machine{Busy: []booking.Busy{busy(0, 64, window(-4, 0)), busy(0, 64, window(2, 9))}}
	placed := booking.Place(demand("8x", 1), pool(open, gap, open))
	require.Equal(t, id[ids.Node](1), placed[0].Spots[0].Node)
}

func TestABlemishDecidesLast(t *testing.T) {
	t.Parallel()
	placed := booking.Place(demand("8x", 2), pool(booking.Machine{Blemishes: 1}, booking.Machine{}, booking.Machine{}))
	for _, s := range placed[0].Spots {
		require.NotEqual(t, id[ids.Node](0), s.Node)
	}
}

func TestSlotsOutOfOrderAreNeverSold(t *testing.T) {
	t.Parallel()
	broken := booking.Machine{Busy: []booking.Busy{busy(8, 16, booking.Forever())}}
	require.Empty(t, booking.Place(demand("8x", 1), pool(broken)))
	require.Empty(t, booking.Place(demand("1x", 8), pool(broken)))
	require.Len(t, booking.Place(demand("1x", 7), pool(broken)), 1)
}

func TestSeedsSpreadThoseWhoAskAtOnce(t *testing.T) {
	t.Parallel()
	first := map[ids.Node]int{}
	for seed := range uint64(400) {
		d := demand("8x", 1)
		d.Seed = seed
		placed := booking.Place(d, pool(make([]booking.Machine, 8)...))
		first[placed[0].Spots[0].Node]++
	}
	require.Len(t, first, 8)
	for _, n := range first {
		require.Greater(t, n, 20, "no machine is left out")
	}
}

func BenchmarkPlacement(b *testing.B) {
	machines := make([]booking.Machine, 10_000)
	for i := range machines {
		machines[i] = booking.Machine{Leaf: id[ids.Switch](i / 32), Pod: fmt.Sprint(i / 512)}
		if i%3 > 0 {
			machines[i].Busy = []booking.Busy{busy(0, 64, window(-30, -1)), busy(i%8*8, 64, window(i%5-2, 20))}
		}
	}
	for _, name := range []string{"8x", "1x", "1g"} {
		pools, d := pool(machines...), demand(name, 16)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				booking.Place(d, pools)
			}
		})
	}
}
