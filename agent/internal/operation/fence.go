package operation

import (
	"fmt"

	"github.com/leasehold/leasehold/agent/protocol"
)

// maxSlots bounds a node's slot line (128 bays), so that a nonsensical range cannot make the fence grow.
const maxSlots = 1024

// fence is the highest epoch ever seen on each slot. It only rises, also across restarts: the journal keeps it.
type fence []int64

// mark is a run of slots with one epoch, the form in which a fence is written to the journal.
type mark struct {
	protocol.Slots
	Epoch int64 `json:"epoch"`
}

// highest is the highest epoch seen on any slot of the range.
func (f fence) highest(s protocol.Slots) int64 {
	var epoch int64
	for slot := s.From; slot < s.To && slot < len(f); slot++ {
		epoch = max(epoch, f[slot])
	}
	return epoch
}

// raise lifts the range to epoch. Slots that are higher already stay so; what lies outside a slot line is left out.
func (f *fence) raise(s protocol.Slots, epoch int64) {
	s.From, s.To = max(s.From, 0), min(s.To, maxSlots)
	for len(*f) < s.To {
		*f = append(*f, 0)
	}
	for slot := s.From; slot < s.To; slot++ {
		(*f)[slot] = max((*f)[slot], epoch)
	}
}

func (f fence) marks() []mark {
	var marks []mark
	for slot, epoch := range f {
		if n := len(marks); n > 0 && marks[n-1].Epoch == epoch {
			marks[n-1].To = slot + 1
			continue
		}
		marks = append(marks, mark{Slots: protocol.Slots{From: slot, To: slot + 1}, Epoch: epoch})
	}
	return marks
}

func checkSlots(s protocol.Slots) error {
	if s.From < 0 || s.To < s.From || s.To > maxSlots {
		return fmt.Errorf("slots [%d, %d) are not a range within [0, %d)", s.From, s.To, maxSlots)
	}
	return nil
}
