package netdiscover

import (
	"fmt"
	"slices"

	"github.com/leasehold/leasehold/agent/protocol"
)

// joiner puts the two ends of cables together.
type joiner struct {
	blocks  map[string]*block
	format  Format
	defects Defects
}

func (j *joiner) reject(line int, format string, args ...any) {
	j.defects = append(j.defects, Defect{Line: line, Reason: fmt.Sprintf(format, args...)})
}

// join makes the graph of the blocks.
func join(blocks []*block, format Format) (Graph, error) {
	j := &joiner{blocks: make(map[string]*block, len(blocks)), format: format}
	j.unique(blocks)
	var cables []Cable
	if len(j.defects) == 0 {
		for _, b := range blocks {
			cables = append(cables, j.cablesOf(b)...)
		}
	}
	if len(j.defects) == 0 {
		j.nameGUIDs(blocks)
	}
	if len(j.defects) > 0 {
		slices.SortStableFunc(j.defects, func(a, b Defect) int { return a.Line - b.Line })
		return Graph{}, j.defects[:min(len(j.defects), maxDefects)]
	}
	return newGraph(format, blocks, cables), nil
}

// unique: no two blocks have one name or one GUID.
func (j *joiner) unique(blocks []*block) {
	guids := map[protocol.GUID]*block{}
	for _, b := range blocks {
		if other := guids[b.GUID]; other != nil {
			j.reject(b.Line, "GUID %v is that of line %d as well", b.GUID, other.Line)
			continue
		}
		guids[b.GUID] = b
		if other := j.blocks[b.file]; other != nil {
			j.reject(b.Line, "%q is the name of line %d as well", b.file, other.Line)
			continue
		}
		j.blocks[b.file] = b
		if len(b.lines) == 0 && j.format == Ibnetdiscover {
			j.reject(b.Line, "%q has no cable, and nothing is discovered without one: the file may be cut off", b.file)
		}
		if want := discoveredName(b.Device); j.format == Ibnetdiscover && b.file != want {
			j.reject(b.Line, "%q is not what a %s with GUID %v is called: %q", b.file, b.Kind, b.GUID, want)
		}
	}
}

// cablesOf are the cables whose first-named end is the block's.
func (j *joiner) cablesOf(b *block) []Cable {
	var out []Cable
	for _, line := range b.lines {
		peer := j.blocks[line.peer]
		if line.implied || !j.plausible(b, line, peer) {
			continue
		}
		var back portLine
		i, both := peer.at[line.peerPort]
		if both {
			back = peer.lines[i]
		}
		switch {
		case both && (back.peer != b.file || back.peerPort != line.port):
			j.reject(line.line, "%q[%d] is cabled to %q[%d], which is cabled to %q[%d] (line %d)",
				b.file, line.port, line.peer, line.peerPort, back.peer, back.peerPort, back.line)
		case !both && j.format == Ibnetdiscover:
			j.reject(line.line, "%q[%d] is cabled to %q[%d], and the block of that (line %d) does not say so", b.file, line.port, line.peer, line.peerPort, peer.Line)
		case !both:
			// A netlist may leave the other end out; nobody else may use it then.
			back = portLine{port: line.peerPort, peer: b.file, peerPort: line.port, line: line.line, implied: true}
			peer.at[line.peerPort] = len(peer.lines)
			peer.lines = append(peer.lines, back)
			out = append(out, newCable(b, line, peer, back))
		case line.line <= back.line:
			out = append(out, newCable(b, line, peer, back))
		}
	}
	return out
}

// plausible rejects a line whose other end cannot be.
func (j *joiner) plausible(b *block, line portLine, peer *block) bool {
	switch {
	case peer == nil:
		j.reject(line.line, "%q[%d] is cabled to %q, which the file does not describe: it may be cut off", b.file, line.port, line.peer)
	case peer == b:
		j.reject(line.line, "%q[%d] is cabled to %q itself", b.file, line.port, b.file)
	case line.peerPort > peer.Ports:
		j.reject(line.line, "%q[%d] is cabled to port %d of %q, which has %d", b.file, line.port, line.peerPort, line.peer, peer.Ports)
	case b.Kind == Switch && line.ownGUID != 0:
		j.reject(line.line, "port %d of switch %q has a GUID, which only adapters' and routers' have", line.port, b.file)
	case b.Kind != Switch && line.ownGUID == 0 && j.format == Ibnetdiscover:
		j.reject(line.line, "port %d of %q has no GUID", line.port, b.file)
	case peer.Kind == Switch && line.peerGUID != 0:
		j.reject(line.line, "port %d of switch %q has a GUID, which only adapters' and routers' have", line.peerPort, line.peer)
	default:
		return true
	}
	return false
}

func newCable(a *block, at portLine, b *block, back portLine) Cable {
	c := Cable{A: End{a.GUID, at.port}, B: End{b.GUID, back.port}, Line: at.line, Width: at.link.width, RateGbps: at.link.rateGbps}
	if back.linked && (!at.linked || back.link.rateGbps < at.link.rateGbps) { // read at different moments: what both can do
		c.Width, c.RateGbps = back.link.width, back.link.rateGbps
	}
	if c.Width == "" {
		c.Width = back.link.width
	}
	if c.B.GUID < c.A.GUID {
		c.A, c.B = c.B, c.A
	}
	return c
}

// nameGUIDs gives adapters' and routers' ports their GUIDs: as the line has it, and the other end's line agrees; in a netlist without
// one, as the simulator numbers them: the device's GUID and the port's number.
func (j *joiner) nameGUIDs(blocks []*block) {
	taken := map[protocol.GUID]*block{}
	for _, b := range blocks {
		if b.Kind == Switch {
			continue
		}
		for _, line := range b.lines {
			far := j.blocks[line.peer]
			said := far.lines[far.at[line.peerPort]].peerGUID
			guid := line.ownGUID
			if guid != 0 && said != 0 && guid != said {
				j.reject(line.line, "port %d of %q has GUID %v, and line %d says %v", line.port, b.file, guid, far.lines[far.at[line.peerPort]].line, said)
				continue
			}
			if guid == 0 {
				guid = said
			}
			if guid == 0 {
				guid = b.GUID + protocol.GUID(line.port) //nolint:gosec // 1 to 254
			}
			if other := taken[guid]; other != nil {
				j.reject(line.line, "port GUID %v is that of a port of %q as well", guid, other.file)
				continue
			}
			taken[guid], b.PortGUIDs[line.port] = b, guid
			if line.lid != 0 {
				b.LIDs[line.port] = line.lid
			}
		}
	}
}
