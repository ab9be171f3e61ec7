package container

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Machine is what there is to share out.
type Machine struct {
	Nodes []NUMANode
	// Bays is the NUMA node of each bay's GPU, by bay; one that is not known (−1) counts for the first node.
	Bays []int
	// ScratchBytes is how much disk tenants may have together.
	ScratchBytes int64
	Processes    int64 // and how many processes and threads
}

// NUMANode is a part of the machine whose cores and memory are near each other.
type NUMANode struct {
	ID          int
	Cores       []Core // what the host keeps for itself is not among them
	MemoryBytes int64  // likewise
}

// Core is the logical processors of one physical core. They are given away together, since they see each other's caches.
type Core []int

// Limits is what a place has.
type Limits struct {
	CPUs string `json:"cpus"` // as cpuset wants it: 0-3,8
	Mems string `json:"mems"` // NUMA nodes, likewise
	// QuotaMicros is the processor time that it has in each tenth of a second, and Weight its share when time is short: 1024 is one
	// processor's worth.
	QuotaMicros  int64  `json:"quota_micros"`
	Weight       uint64 `json:"weight"`
	MemoryBytes  int64  `json:"memory_bytes"`
	Processes    int64  `json:"processes"`
	ScratchBytes int64  `json:"scratch_bytes"`
}

const (
	// periodMicros is the time that a quota is counted in.
	periodMicros = 100_000
	// leastQuotaMicros is a quarter of a processor: below it a shell is no fun. Weights keep neighbours' shares when time is short.
	leastQuotaMicros = periodMicros / 4
	// processesPerSlot bounds processes and threads where the machine would have more: 8192 for a GPU is several times what a large
	// training process with its data loaders needs.
	processesPerSlot = 1024
	leastScratch     = 64 << 20
	weightPerCPU     = 1024
	leastWeight      = 2
	mostWeight       = 262_144 // what the kernel takes
)

// ShareOf says what slots are worth: of each NUMA node the share that they are of the slots of the GPUs on it. Places that do not overlap
// share no core, except where a slice is worth less than one.
func (m Machine) ShareOf(slots protocol.Slots) (Limits, error) {
	total := len(m.Bays) * gpu.SlotsPerBay
	if slots.From < 0 || slots.To <= slots.From || slots.To > total || len(m.Nodes) == 0 {
		return Limits{}, fmt.Errorf("slots [%d, %d) are not of this machine's %d, or nothing is known of it", slots.From, slots.To, total)
	}
	var limits Limits
	var cpus, mems []int
	var processors float64
	for _, node := range m.Nodes {
		mine, of := m.on(node.ID, slots)
		if mine.To == mine.From {
			continue
		}
		cores := node.share(mine, of)
		for _, core := range cores {
			cpus = append(cpus, core...)
		}
		mems = append(mems, node.ID)
		processors += float64(node.processors()) * float64(mine.To-mine.From) / float64(of)
		limits.MemoryBytes += node.MemoryBytes / int64(of) * int64(mine.To-mine.From)
	}
	if len(cpus) == 0 {
		return Limits{}, fmt.Errorf("no core is left for slots [%d, %d)", slots.From, slots.To)
	}
	width := int64(slots.To - slots.From)
	limits.CPUs, limits.Mems = listOf(cpus), listOf(mems)
	limits.QuotaMicros = max(int64(processors*periodMicros), leastQuotaMicros)
	limits.Weight = uint64(min(max(processors*weightPerCPU, leastWeight), mostWeight))
	limits.Processes = max(min(m.Processes/int64(total), processesPerSlot)*width, 1)
	limits.ScratchBytes = max(m.ScratchBytes/int64(total)*width, leastScratch)
	return limits, nil
}

// on returns which of the slots on a NUMA node, counted from the node's first, the range covers, and how many there are.
func (m Machine) on(node int, slots protocol.Slots) (protocol.Slots, int) {
	known := map[int]bool{}
	for _, n := range m.Nodes {
		known[n.ID] = true
	}
	var mine protocol.Slots
	seen, begun := 0, false
	for bay, at := range m.Bays {
		if !known[at] {
			at = m.Nodes[0].ID
		}
		if at != node {
			continue
		}
		start := bay * gpu.SlotsPerBay
		from, to := max(slots.From-start, 0), min(slots.To-start, gpu.SlotsPerBay)
		if from < to {
			if !begun {
				mine.From, begun = seen+from, true
			}
			mine.To = seen + to
		}
		seen += gpu.SlotsPerBay
	}
	return mine, seen
}

func (n NUMANode) processors() int {
	sum := 0
	for _, c := range n.Cores {
		sum += len(c)
	}
	return sum
}

// share returns the whole cores within the slots' share, or the one that a smaller share lies in.
func (n NUMANode) share(mine protocol.Slots, of int) []Core {
	if len(n.Cores) == 0 {
		return nil
	}
	from, to := mine.From*len(n.Cores)/of, mine.To*len(n.Cores)/of
	if from == to {
		to = from + 1
	}
	return n.Cores[from:to]
}

// listOf writes numbers as the kernel's lists are written.
func listOf(numbers []int) string {
	numbers = slices.Compact(slices.Sorted(slices.Values(numbers)))
	var out []string
	for i := 0; i < len(numbers); {
		last := i
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}
		if last == i {
			out = append(out, strconv.Itoa(numbers[i]))
		} else {
			out = append(out, fmt.Sprintf("%d-%d", numbers[i], numbers[last]))
		}
		i = last + 1
	}
	return strings.Join(out, ",")
}

// parseList reads a kernel's list.
func parseList(text string) ([]int, error) {
	var numbers []int
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		if part == "" {
			continue
		}
		low, high, ranged := strings.Cut(part, "-")
		first, err := strconv.Atoi(low)
		if err != nil {
			return nil, fmt.Errorf("read list %q: %w", text, err)
		}
		last := first
		if ranged {
			if last, err = strconv.Atoi(high); err != nil {
				return nil, fmt.Errorf("read list %q: %w", text, err)
			}
		}
		if last < first || last > maxCPU {
			return nil, fmt.Errorf("read list %q: not a range of processors", text)
		}
		for n := first; n <= last; n++ {
			numbers = append(numbers, n)
		}
	}
	return numbers, nil
}

// maxCPU bounds what a list can make us count: the kernel's own limit is 8192.
const maxCPU = 1 << 16

// coresOf groups processors by their siblings, in the order of their lowest number.
func coresOf(siblings map[int][]int) []Core {
	byFirst := map[int]Core{}
	for cpu, core := range siblings {
		first := cpu
		if len(core) > 0 {
			first = slices.Min(core)
		}
		byFirst[first] = append(byFirst[first], cpu)
	}
	cores := make([]Core, 0, len(byFirst))
	for _, first := range slices.Sorted(maps.Keys(byFirst)) {
		slices.SortFunc(byFirst[first], cmp.Compare[int])
		cores = append(cores, byFirst[first])
	}
	return cores
}
