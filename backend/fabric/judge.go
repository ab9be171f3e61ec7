package fabric

import (
	"fmt"
	"slices"
	"strings"

	"github.com/leasehold/leasehold/agent/protocol"
)

// bounds is the inclusive range of the keys that are ours; others are foreign, and only full membership of the default partition is
// our business there.
type bounds struct {
	low, high protocol.PKey
	reserved  []protocol.PKey // foreign although within
}

func (b bounds) contain(key protocol.PKey) bool {
	return key.Base() >= b.low && key.Base() <= b.high && !slices.Contains(b.reserved, key.Base())
}

// finding is what a table, or a link, was seen to hold, as far as it was seen.
type finding struct {
	verdict protocol.Verdict // true: as it should be; false: seen to be otherwise; unknown: not seen
	detail  string
}

func good() finding { return finding{verdict: protocol.True} }

func wrong(format string, args ...any) finding {
	return finding{verdict: protocol.False, detail: fmt.Sprintf(format, args...)}
}

func unseen(format string, args ...any) finding {
	return finding{verdict: protocol.Unknown, detail: fmt.Sprintf(format, args...)}
}

// worse returns the worse finding: false before unknown before true.
func worse(a, b finding) finding {
	rank := map[protocol.Verdict]int{protocol.True: 0, protocol.Unknown: 1, protocol.False: 2}
	if rank[b.verdict] > rank[a.verdict] {
		return b
	}
	return a
}

// holds judges a table that should hold the key as a full member, the default key as a limited one, and nothing else that is ours; at
// index 0 where first says so, since common software looks there only.
func (b bounds) holds(table protocol.PortTable, key protocol.PKey, first bool) finding {
	want := key | protocol.FullMember
	switch {
	case !table.Readable:
		return unseen("could not be read%s", because(table.Detail))
	case !slices.Contains(table.Keys, want):
		return wrong("lacks %s", want)
	case first && table.Keys[0] != want:
		return wrong("holds %s at index 0, not %s", table.Keys[0], want)
	case !slices.Contains(table.Keys, protocol.DefaultLimited):
		return wrong("lacks %s", protocol.DefaultLimited)
	}
	return b.nothingBut(table, want)
}

// empty judges a table that should hold nothing of ours.
func (b bounds) empty(table protocol.PortTable) finding {
	if !table.Readable {
		return unseen("could not be read%s", because(table.Detail))
	}
	return b.nothingBut(table, 0)
}

// nothingBut finds what is ours and not the one key, and full membership of the default partition, which joins everybody.
func (b bounds) nothingBut(table protocol.PortTable, allowed protocol.PKey) finding {
	for _, key := range table.Keys {
		switch {
		case key == 0, key == protocol.DefaultLimited, allowed != 0 && key == allowed:
		case key == protocol.DefaultFull:
			return wrong("is a full member of the default partition")
		case b.contain(key):
			return wrong("holds %s, which it should not", key)
		}
	}
	return good()
}

// lacks judges a table that should not hold the key, in whatever form; what else it holds is another partition's affair.
func lacks(table protocol.PortTable, key protocol.PKey) finding {
	if !table.Readable {
		return unseen("could not be read%s", because(table.Detail))
	}
	for _, held := range table.Keys {
		if held != 0 && held.Base() == key {
			return wrong("still holds %s", held)
		}
	}
	return good()
}

// joined judges both ends of a member's link.
func (b bounds) joined(link protocol.LinkState, key protocol.PKey) finding {
	return worse(b.holds(link.HCA, key, true).at("HCA port"), b.holds(link.Switch, key, false).at("switch port"))
}

// left judges both ends of a former member's link.
func left(link protocol.LinkState, key protocol.PKey) finding {
	return worse(lacks(link.HCA, key).at("HCA port"), lacks(link.Switch, key).at("switch port"))
}

// vacant judges both ends of a link that should hold nothing of ours.
func (b bounds) vacant(link protocol.LinkState) finding {
	return worse(b.empty(link.HCA).at("HCA port"), b.empty(link.Switch).at("switch port"))
}

// at says where it was found.
func (f finding) at(where string) finding {
	if f.detail != "" {
		f.detail = where + " " + f.detail
	}
	return f
}

func because(detail string) string {
	if detail == "" {
		return ""
	}
	return " (" + detail + ")"
}

// list joins a few of many.
func list(items []string) string {
	const most = 5
	if len(items) > most {
		return strings.Join(items[:most], ", ") + fmt.Sprintf(" and %d more", len(items)-most)
	}
	return strings.Join(items, ", ")
}
