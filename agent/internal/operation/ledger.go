package operation

import (
	"fmt"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
)

const (
	// keepFinished is how many acknowledged operations are remembered, so that one that is delivered again is answered
	// from memory and not run again.
	keepFinished = 256
	// compactAfter is how many records the journal may have more than twice what it needs.
	compactAfter = 1024
)

// entry is one operation that was accepted or refused here.
type entry struct {
	op      protocol.Operation
	begunAt time.Time
	result  *protocol.Result
	acked   bool
	resumed bool // was begun by an earlier process that did not end it
	refused bool // was never begun: its epoch raised no fence
}

// ledger is the journal's content in memory: the fence and the operations, oldest first.
type ledger struct {
	journal *journal
	fence   fence
	whole   bool // every operation covers the whole of what the agent stands beside (a fabric)
	entries map[string]*entry
	order   []string
}

func openLedger(path string, open openFile, whole bool) (*ledger, error) {
	j, records, err := openJournal(path, open)
	if err != nil {
		return nil, err
	}
	l := &ledger{journal: j, whole: whole, entries: map[string]*entry{}}
	for _, r := range records {
		l.apply(r)
	}
	l.forgetOldest()
	for _, e := range l.entries {
		e.resumed = e.result == nil
	}
	return l, nil
}

func (l *ledger) apply(r record) {
	switch r.Type {
	case recordFence:
		for _, m := range r.Fence {
			l.fence.raise(m.Slots, m.Epoch)
		}
	case recordBegin:
		l.add(&entry{op: *r.Op, begunAt: r.At})
		l.fence.raise(l.scope(*r.Op), r.Op.Epoch)
	case recordRefuse:
		l.add(&entry{op: *r.Op, begunAt: r.At, result: r.Result, refused: true})
	case recordEnd:
		if e := l.entries[r.ID]; e != nil {
			e.result = r.Result
		}
	case recordAck:
		if e := l.entries[r.ID]; e != nil {
			e.acked = true
		}
	}
}

func (l *ledger) add(e *entry) {
	if l.entries[e.op.ID] == nil {
		l.order = append(l.order, e.op.ID)
	}
	l.entries[e.op.ID] = e
}

// scope is the range of slots that an operation is fenced by.
func (l *ledger) scope(op protocol.Operation) protocol.Slots {
	if l.whole {
		return protocol.Slots{From: 0, To: 1}
	}
	return op.Slots
}

// begin makes it durable that op is about to start.
func (l *ledger) begin(op protocol.Operation, at time.Time) (*entry, error) {
	if err := l.journal.append(record{Type: recordBegin, At: at, Op: &op}); err != nil {
		return nil, err
	}
	e := &entry{op: op, begunAt: at}
	l.add(e)
	l.fence.raise(l.scope(op), op.Epoch)
	return e, nil
}

// refuse makes it durable that op was not started and why. It raises no fence: an operation that is too old for one of its
// slots must not close the others to their own tenants.
func (l *ledger) refuse(op protocol.Operation, result protocol.Result) (*entry, error) {
	if err := l.journal.append(record{Type: recordRefuse, At: result.StartedAt, Op: &op, Result: &result}); err != nil {
		return nil, err
	}
	e := &entry{op: op, begunAt: result.StartedAt, result: &result, refused: true}
	l.add(e)
	return e, nil
}

// end makes the result durable; from then on it is reported until it is acknowledged.
func (l *ledger) end(e *entry, result protocol.Result) error {
	if err := l.journal.append(record{Type: recordEnd, At: result.FinishedAt, ID: e.op.ID, Result: &result}); err != nil {
		return err
	}
	e.result = &result
	return nil
}

// ack makes it durable that the control plane has the result, and compacts the journal when it has grown.
func (l *ledger) ack(e *entry, at time.Time) error {
	if err := l.journal.append(record{Type: recordAck, At: at, ID: e.op.ID}); err != nil {
		return err
	}
	e.acked = true
	l.forgetOldest()
	if l.journal.records > 2*l.needed()+compactAfter {
		return l.compact()
	}
	return nil
}

func (l *ledger) forgetOldest() {
	acked := 0
	for _, id := range l.order {
		if l.entries[id].acked {
			acked++
		}
	}
	kept := l.order[:0]
	for _, id := range l.order {
		if acked > keepFinished && l.entries[id].acked {
			delete(l.entries, id)
			acked--
			continue
		}
		kept = append(kept, id)
	}
	l.order = kept
}

func (l *ledger) needed() int { return 3*len(l.order) + 1 }

func (l *ledger) compact() error {
	records := []record{{Type: recordFence, Fence: l.fence.marks()}}
	for _, id := range l.order {
		e := l.entries[id]
		records = append(records, e.records()...)
	}
	return l.journal.compact(records)
}

// records is the entry as the journal tells it.
func (e *entry) records() []record {
	var records []record
	switch {
	case e.refused:
		records = append(records, record{Type: recordRefuse, At: e.begunAt, Op: &e.op, Result: e.result})
	case e.result != nil:
		records = append(records, record{Type: recordBegin, At: e.begunAt, Op: &e.op}, record{Type: recordEnd, At: e.result.FinishedAt, ID: e.op.ID, Result: e.result})
	default:
		records = append(records, record{Type: recordBegin, At: e.begunAt, Op: &e.op})
	}
	if e.acked {
		records = append(records, record{Type: recordAck, ID: e.op.ID})
	}
	return records
}

// allows reports whether op's epoch is high enough, and if not, says why.
func (l *ledger) allows(op protocol.Operation) (bool, string) {
	seen := l.fence.highest(l.scope(op))
	if op.Epoch >= seen {
		return true, ""
	}
	return false, fmt.Sprintf("epoch %d is below %d, which this agent has seen on these slots", op.Epoch, seen)
}
