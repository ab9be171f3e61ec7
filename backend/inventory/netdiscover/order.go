package netdiscover

import (
	"cmp"
	"slices"

	"github.com/leasehold/leasehold/agent/protocol"
)

// newGraph orders what was joined, and finds aggregation nodes that do not call themselves so: an adapter in the box of the switch that
// it hangs on.
func newGraph(format Format, blocks []*block, cables []Cable) Graph {
	g := Graph{Format: format, Cables: cables, Devices: make([]Device, len(blocks))}
	at := make(map[protocol.GUID]int, len(blocks))
	slices.SortFunc(blocks, func(a, b *block) int { return cmp.Compare(a.GUID, b.GUID) })
	for i, b := range blocks {
		g.Devices[i], at[b.GUID] = b.Device, i
	}
	for _, c := range cables {
		for _, pair := range [][2]int{{at[c.A.GUID], at[c.B.GUID]}, {at[c.B.GUID], at[c.A.GUID]}} {
			d, peer := &g.Devices[pair[0]], g.Devices[pair[1]]
			if d.Kind == HCA && peer.Kind == Switch && d.SystemGUID != 0 && d.SystemGUID == peer.SystemGUID {
				d.Aggregation = true
			}
		}
	}
	slices.SortFunc(g.Cables, func(a, b Cable) int {
		return cmp.Or(cmp.Compare(a.A.GUID, b.A.GUID), cmp.Compare(a.A.Port, b.A.Port))
	})
	return g
}
