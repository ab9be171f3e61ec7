package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// Hardware is what a report was recognised as.
type Hardware struct {
	Key       string // "" when there is a problem
	Mode      catalog.Mode
	GPUs      []GPU
	Ports     []Port
	HCAPerGPU bool
	// Problems say why the machine cannot be sold as it is.
	Problems []string
}

// Slots is the length of the machine's slot line.
func (h Hardware) Slots() int { return len(h.GPUs) * lease.SlotsPerBay }

// Recognise makes hardware of a report: GPUs get their bays by PCI address, InfiniBand ports the GPU that they sit next to.
// A GPU that we do not know, or a mix of models, is a problem; the machine is then listed and not sold.
func Recognise(report protocol.NodeInventory) Hardware {
	h := Hardware{GPUs: bays(report.GPUs)}
	h.Ports = ports(report, h.GPUs)
	h.HCAPerGPU = len(h.GPUs) > 0 && paired(h.Ports) == len(h.GPUs)
	model, problems := soleModel(report.GPUs)
	h.Problems = append(problems, repeated(h)...)
	if len(h.Problems) == 0 {
		h.Key = catalog.HardwareKey(model, len(h.GPUs))
	}
	h.Mode = modeOf(report)
	return h
}

// modeOf proposes how the machine is shared out: as a whole, unless its GPUs stand ready to be sliced or it has no fabric, where
// only tenants within one machine could share anything.
func modeOf(report protocol.NodeInventory) catalog.Mode {
	sliced := slices.ContainsFunc(report.GPUs, func(g protocol.GPU) bool { return g.MIGEnabled })
	alone := !slices.ContainsFunc(report.HCAs, func(h protocol.HCA) bool { return slices.ContainsFunc(h.Ports, onInfiniBand) })
	nvidia := len(report.GPUs) > 0 && report.GPUs[0].Vendor == "nvidia"
	if sliced || alone && nvidia {
		return catalog.Shared
	}
	return catalog.BareMetal
}

func onInfiniBand(p protocol.HCAPort) bool { return p.LinkLayer == "InfiniBand" }

func bays(reported []protocol.GPU) []GPU {
	sorted := slices.SortedFunc(slices.Values(reported), func(a, b protocol.GPU) int {
		return cmp.Or(comparePCI(a.PCIAddress, b.PCIAddress), cmp.Compare(a.UUID, b.UUID))
	})
	gpus := make([]GPU, len(sorted))
	for bay, g := range sorted {
		gpus[bay] = GPU{
			ID: ids.Make[ids.GPU](), Bay: bay, UUID: g.UUID, Vendor: g.Vendor, Model: g.Model, Serial: g.Serial, MemoryBytes: g.MemoryBytes,
			PCIAddress: g.PCIAddress, NUMANode: g.NUMANode, MIGCapable: g.MIGCapable,
		}
	}
	return gpus
}

// soleModel returns the one model of all GPUs, or why there is none.
func soleModel(gpus []protocol.GPU) (catalog.Model, []string) {
	if len(gpus) == 0 {
		return catalog.Model{}, []string{"no GPU was reported"}
	}
	var problems []string
	var first catalog.Model
	for i, g := range gpus {
		model, ok := catalog.RecogniseModel(g.Vendor, g.Model, g.MemoryBytes)
		switch {
		case !ok:
			problems = append(problems, fmt.Sprintf("GPU %s is a %q with %d bytes, which is not sold", g.PCIAddress, g.Model, g.MemoryBytes))
		case i > 0 && first.Key != "" && first.Key != model.Key:
			problems = append(problems, fmt.Sprintf("GPU %s is a %s among %s", g.PCIAddress, model.Key, first.Key))
		case first.Key == "":
			first = model
		}
	}
	return first, problems
}

// repeated finds identifiers that two parts of one machine claim.
func repeated(h Hardware) []string {
	var problems []string
	seen := map[string]bool{}
	note := func(what, id string) {
		if id != "" && seen[what+id] {
			problems = append(problems, fmt.Sprintf("two parts have the %s %s", what, id))
		}
		seen[what+id] = true
	}
	for _, g := range h.GPUs {
		note("UUID", g.UUID)
		note("PCI address", g.PCIAddress)
	}
	for _, p := range h.Ports {
		note("GUID", p.GUID.String())
	}
	return problems
}

// ports lists the InfiniBand ports with their bays and rails. Rail i is bay i's; ports of no GPU count on behind.
func ports(report protocol.NodeInventory, gpus []GPU) []Port {
	hcas := slices.SortedFunc(slices.Values(report.HCAs), func(a, b protocol.HCA) int {
		return cmp.Or(comparePCI(a.PCIAddress, b.PCIAddress), cmp.Compare(a.Device, b.Device))
	})
	hcas = slices.DeleteFunc(hcas, func(h protocol.HCA) bool { return !slices.ContainsFunc(h.Ports, onInfiniBand) })
	nearest := pair(gpus, hcas)
	var out []Port
	spare := len(gpus)
	for i, hca := range hcas {
		for _, p := range hca.Ports {
			if !onInfiniBand(p) {
				continue
			}
			port := Port{
				ID: ids.Make[ids.HCAPort](), Bay: NoBay, Device: hca.Device, Number: p.Number, NodeGUID: hca.NodeGUID, GUID: p.GUID, RateGbps: p.RateGbps,
			}
			if bay, ok := nearest[i]; ok {
				port.Bay, port.Rail = bay, bay
				delete(nearest, i) // a second port of the same adapter is not the GPU's own
			} else {
				port.Rail = spare
				spare++
			}
			out = append(out, port)
		}
	}
	return out
}

func paired(ports []Port) int {
	n := 0
	for _, p := range ports {
		if p.Bay != NoBay {
			n++
		}
	}
	return n
}

// pair gives each adapter at most one GPU: those in one PCI domain and NUMA node that are closest on the bus find each other
// first. Adapters that are left over (for storage, say) belong to nobody.
func pair(gpus []GPU, hcas []protocol.HCA) map[int]int {
	type candidate struct{ hca, bay, distance int }
	var candidates []candidate
	for i, h := range hcas {
		for _, g := range gpus {
			if d, near := distance(g, h); near {
				candidates = append(candidates, candidate{hca: i, bay: g.Bay, distance: d})
			}
		}
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(a.bay, b.bay), cmp.Compare(a.hca, b.hca))
	})
	byHCA, taken := map[int]int{}, map[int]bool{}
	for _, c := range candidates {
		if _, used := byHCA[c.hca]; !used && !taken[c.bay] {
			byHCA[c.hca], taken[c.bay] = c.bay, true
		}
	}
	return byHCA
}

// distance is how many buses lie between a GPU and an adapter; not near when they hang on different roots or sockets.
func distance(g GPU, h protocol.HCA) (int, bool) {
	a, okA := parsePCI(g.PCIAddress)
	b, okB := parsePCI(h.PCIAddress)
	if !okA || !okB || a.domain != b.domain {
		return 0, false
	}
	if g.NUMANode >= 0 && h.NUMANode >= 0 && g.NUMANode != h.NUMANode {
		return 0, false
	}
	return max(a.bus-b.bus, b.bus-a.bus), true
}

type pciAddress struct{ domain, bus, device, function int }

// parsePCI reads domain:bus:device.function, in hex.
func parsePCI(s string) (pciAddress, bool) {
	parts := strings.FieldsFunc(s, func(r rune) bool { return r == ':' || r == '.' })
	if len(parts) != 4 {
		return pciAddress{}, false
	}
	var n [4]int
	for i, p := range parts {
		v, err := strconv.ParseUint(p, 16, 32)
		if err != nil {
			return pciAddress{}, false
		}
		n[i] = int(v)
	}
	return pciAddress{n[0], n[1], n[2], n[3]}, true
}

// comparePCI orders by address, and what is none behind.
func comparePCI(a, b string) int {
	x, okX := parsePCI(a)
	y, okY := parsePCI(b)
	if okX != okY {
		if okX {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(x.domain, y.domain), cmp.Compare(x.bus, y.bus), cmp.Compare(x.device, y.device), cmp.Compare(x.function, y.function), cmp.Compare(a, b))
}
