package inventory

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
)

// gone is what a part that is no longer reported became.
const gone = "gone"

// Compare lists how a report differs from what was accepted, in the parts that identify a machine: serials, UUIDs, GUIDs and
// firmware. What only moves with the weather, such as a link's state, is no difference.
func Compare(accepted, reported protocol.NodeInventory, at time.Time) []Change {
	before, after := identity(accepted), identity(reported)
	var changes []Change
	for what, was := range before {
		is, ok := after[what]
		if !ok {
			is = gone
		}
		if is != was {
			changes = append(changes, Change{What: what, Before: was, After: is, State: Pending, ObservedAt: at})
		}
	}
	for what, is := range after {
		if _, ok := before[what]; !ok {
			changes = append(changes, Change{What: what, Before: "absent", After: is, State: Pending, ObservedAt: at})
		}
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.What, b.What) })
	return changes
}

// identity flattens a report into named facts. A GPU is named by its PCI address, an adapter by its device, a disk by its name.
func identity(n protocol.NodeInventory) map[string]string {
	facts := map[string]string{"serial": n.Serial, "product": n.Product}
	for _, g := range n.GPUs {
		part := "gpu " + g.PCIAddress
		facts[part+" uuid"], facts[part+" serial"], facts[part+" model"], facts[part+" firmware"] = g.UUID, g.Serial, g.Model, g.VBIOS
	}
	for _, h := range n.HCAs {
		part := "hca " + h.Device
		facts[part+" node guid"], facts[part+" board"], facts[part+" firmware"] = h.NodeGUID.String(), h.BoardID, h.Firmware
		for _, p := range h.Ports {
			facts[fmt.Sprintf("%s port %d guid", part, p.Number)] = p.GUID.String()
		}
	}
	for _, d := range n.Disks {
		facts["disk "+d.Name+" serial"], facts["disk "+d.Name+" firmware"] = d.Serial, d.Firmware
	}
	return facts
}

// Words renders the change for people.
func (c Change) Words() string { return fmt.Sprintf("%s: %q became %q", c.What, c.Before, c.After) }
