package fabric

import (
	"fmt"
	"slices"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Judge tells whether links hold what a desired set says. Keys outside the managed range are neither asked for nor objected to,
// save for full membership of the default partition, which joins everybody.
type Judge struct {
	managed Range
	keyOf   map[protocol.GUID]protocol.PKey
}

// NewJudge returns a judge for the set.
func NewJudge(d Desired) Judge { return Judge{managed: d.Managed, keyOf: d.KeyOf()} }

// Disagreement says what is wrong with a link, or "" when both ends hold exactly what they should. An end that could not be
// read disagrees: unknown is not clear.
func (j Judge) Disagreement(link protocol.LinkState) string {
	want := j.keyOf[link.GUID]
	if fault := j.endFault(link.HCA, want); fault != "" {
		return "HCA port: " + fault
	}
	if want != 0 && link.HCA.Keys[0] != want|protocol.FullMember {
		return fmt.Sprintf("HCA port: index 0 holds %v, want %v", link.HCA.Keys[0], want|protocol.FullMember)
	}
	if fault := j.endFault(link.Switch, want); fault != "" {
		return "switch port: " + fault
	}
	return ""
}

func (j Judge) endFault(table protocol.PortTable, want protocol.PKey) string {
	if !table.Readable {
		return "could not be read"
	}
	if !slices.Contains(table.Keys, protocol.DefaultLimited) {
		return fmt.Sprintf("%v is missing", protocol.DefaultLimited)
	}
	full := want | protocol.FullMember
	if want != 0 && !slices.Contains(table.Keys, full) {
		return fmt.Sprintf("%v is missing", full)
	}
	for _, key := range table.Keys {
		switch {
		case key == 0, key == protocol.DefaultLimited, want != 0 && key == full:
		case key == protocol.DefaultFull:
			return "full member of the default partition"
		case j.managed.Contains(key):
			return fmt.Sprintf("holds %v, which it should not", key)
		}
	}
	return ""
}

// Foreign lists the partitions outside the managed range that the links hold, sorted.
func (j Judge) Foreign(links []protocol.LinkState) []protocol.PKey {
	foreign := make([]protocol.PKey, 0)
	for _, link := range links {
		for _, key := range slices.Concat(link.HCA.Keys, link.Switch.Keys) {
			base := key.Base()
			if base != 0 && base != protocol.DefaultLimited && !j.managed.Contains(key) && !slices.Contains(foreign, base) {
				foreign = append(foreign, base)
			}
		}
	}
	slices.Sort(foreign)
	return foreign
}
