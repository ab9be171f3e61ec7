package sim

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Hardware is a site's machines and fabrics, as its plan says. The same plan gives the same hardware, to the last GUID, serial and
// UUID, in every process.
type Hardware struct {
	Nodes   []Machine
	Fabrics []Subnet
}

// Machine is a node with what an inventory of it shows.
type Machine struct {
	Inventory protocol.NodeInventory
	Fabric    string // name; "" for none
}

// Subnet is a fabric.
type Subnet struct {
	Name     string
	Topology protocol.Topology
}

// pciBuses are where the eight bays of an HGX-like machine sit; their adapters share the switch, one bus number below.
func pciBuses() []int {
	return []int{0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf, 0xe1, 0xe3, 0xe5, 0xe7, 0xe9, 0xeb, 0xed, 0xef}
}

// Generate builds the site's hardware.
func Generate(site Site) (Hardware, error) {
	if err := site.Validate(); err != nil {
		return Hardware{}, fmt.Errorf("generate site: %w", err)
	}
	var h Hardware
	trees := map[string]*tree{}
	var order []string
	for number, group := range site.Groups {
		for index := range group.Count {
			m := machineOf(site, group, index)
			if group.Fabric != "" {
				if trees[group.Fabric] == nil {
					trees[group.Fabric] = &tree{site: siteByte(site.Name), fabric: uint64(len(order))}
					order = append(order, group.Fabric)
				}
				trees[group.Fabric].attach(&m.Inventory, number, group, index)
			}
			h.Nodes = append(h.Nodes, m)
		}
	}
	for _, name := range order {
		h.Fabrics = append(h.Fabrics, Subnet{Name: name, Topology: trees[name].topology()})
	}
	return h, nil
}

func machineOf(site Site, group Group, index int) Machine {
	m, _ := modelOf(group.GPU)
	name := nodeName(group, index)
	inventory := protocol.NodeInventory{
		Hostname: name, Serial: "SIM" + short(site.Name, name, "chassis", 10), Manufacturer: m.manufacturer, Product: m.product,
		CPUModel: m.cpu, CPUCores: m.cores, MemoryBytes: m.machine.memoryBytes, Kernel: "6.8.0-85-generic", Driver: m.driver,
		GPUs: []protocol.GPU{}, HCAs: []protocol.HCA{}, Disks: []protocol.Disk{},
	}
	for bay := range group.GPUs {
		inventory.GPUs = append(inventory.GPUs, protocol.GPU{
			UUID: gpuUUID(site.Name, name, bay), Vendor: m.vendor, Model: m.name, Serial: digits(site.Name, name, bay), MemoryBytes: m.memoryBytes,
			PCIAddress: fmt.Sprintf("0000:%02x:00.0", pciBuses()[bay]), NUMANode: bay * 2 / group.GPUs, MIGCapable: m.mig, MIGEnabled: group.MIG,
			VBIOS: m.vbios, NVLinkDomain: nvlinkDomain(m, name),
		})
	}
	for disk := range m.disks {
		inventory.Disks = append(inventory.Disks, protocol.Disk{
			Name: fmt.Sprintf("nvme%dn1", disk), Model: "SAMSUNG MZQL23T8HCLS-00A07", Serial: "S" + short(site.Name, name, fmt.Sprint("disk", disk), 13),
			Firmware: "GDC5902Q", SizeBytes: 3840755982336,
		})
	}
	return Machine{Inventory: inventory, Fabric: group.Fabric}
}

func nodeName(group Group, index int) string {
	width := max(2, len(fmt.Sprint(group.Count)))
	return fmt.Sprintf("gpu-%s-%0*d", group.Name, width, index+1)
}

func nvlinkDomain(m model, node string) string {
	if m.nvlink {
		return node
	}
	return ""
}

// digest spreads names into numbers that look like a maker's.
func digest(parts ...any) [32]byte { return sha256.Sum256(fmt.Append(nil, parts...)) }

func short(site, node, part string, length int) string {
	sum := digest(site, "/", node, "/", part)
	const letters = "0123456789ABCDEFGHJKLMNPQRSTUVWX"
	out := make([]byte, length)
	for i := range out {
		out[i] = letters[int(sum[i])%len(letters)]
	}
	return string(out)
}

func digits(site, node string, bay int) string {
	sum := digest(site, "/", node, "/gpu/", bay)
	return fmt.Sprintf("165%010d", binary.BigEndian.Uint64(sum[:8])%10_000_000_000)
}

func gpuUUID(site, node string, bay int) string {
	sum := digest(site, "/", node, "/gpu/", bay, "/uuid")
	h := hex.EncodeToString(sum[:16])
	return fmt.Sprintf("GPU-%s-%s-%s-%s-%s", h[:8], h[8:12], h[12:16], h[16:20], h[20:])
}

func siteByte(name string) uint64 {
	sum := digest("site/", name)
	return uint64(sum[0])
}
