package operation

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/agent/protocol"
)

// death is how much of the fatal write reaches the disk.
type death string

const (
	before death = "before the write"
	torn   death = "in the middle of the write"
	after  death = "after the write, before anybody knew"
)

var errDead = errors.New("the process is dead")

// mortal counts the journal's writes and dies at one of them, taking the way to the control plane with it.
type mortal struct {
	mu    sync.Mutex
	left  int
	how   death
	plane *controlPlane
}

type mortalFile struct {
	*os.File
	m *mortal
}

func (m *mortal) open(path string) (appendFile, error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	return &mortalFile{File: f, m: m}, err
}

func (f *mortalFile) Write(p []byte) (int, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.m.left--
	if f.m.left > 0 {
		return f.File.Write(p)
	}
	if f.m.left == 0 {
		f.m.plane.setDown(errDead)
		switch f.m.how {
		case before:
		case torn:
			_, _ = f.File.Write(p[:len(p)/2])
		case after:
			_, _ = f.File.Write(p)
		}
	}
	return 0, errDead
}

// The journal of one operation is written three times: begin, end, ack.
func TestACrashAtAnyPointOfTheJournalLosesNothingAndRepeatsOnlyTheUnfinished(t *testing.T) {
	t.Parallel()
	for point, name := range []string{"begin", "end", "ack"} {
		for _, how := range []death{before, torn, after} {
			t.Run(name+" "+string(how), func(t *testing.T) {
				t.Parallel()
				d := newDesk(t)
				d.open = (&mortal{left: point + 1, how: how, plane: d.plane}).open
				p := d.start()
				p.Deliver(ops(op("a", 3, 0, 8)))
				require.ErrorIs(t, <-p.done, errDead)

				d.plane.setDown(nil)
				d.open = nil
				p = d.start()
				p.Deliver(ops(op("a", 3, 0, 8), op("stale", 2, 0, 8))) // not acknowledged, so the control plane delivers it again
				require.Equal(t, protocol.Succeeded, d.plane.result(t, "a").State)
				require.Equal(t, protocol.Fenced, d.plane.result(t, "stale").State)
				d.acked(p)
				d.stop(p)

				endIsDurable := name == "ack" || (name == "end" && how == after)
				if endIsDurable || name == "begin" {
					require.Equal(t, 1, d.count("a"))
				} else {
					require.Equal(t, 2, d.count("a"), "the handler ran, and nobody knows: it runs again")
				}
			})
		}
	}
}

func TestAnAgentThatCannotJournalDoesNotAct(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.open = (&mortal{left: 1, how: before, plane: d.plane}).open
	p := d.start()
	p.Deliver(ops(op("a", 1, 0, 8)))
	require.ErrorIs(t, <-p.done, errDead)
	require.Zero(t, d.count("a"))
	require.Zero(t, p.Deliver(ops(op("b", 1, 0, 8))))
	require.Zero(t, d.count("b"))
}

func journalOf(t *testing.T, records ...record) []byte {
	t.Helper()
	var data []byte
	for _, r := range records {
		line, err := encodeRecord(r)
		require.NoError(t, err)
		data = append(data, line...)
	}
	return data
}

func TestAJournalCutAnywhereGivesTheWholeRecordsBeforeTheCut(t *testing.T) {
	t.Parallel()
	o := op("a", 1, 0, 8)
	data := journalOf(t, record{Type: recordBegin, ID: "a", Op: &o}, record{Type: recordAck, ID: "a"}, record{Type: recordAck, ID: "b"})
	whole, _, err := decodeRecords(data)
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		cut := rapid.IntRange(0, len(data)).Draw(t, "cut")
		records, good, err := decodeRecords(data[:cut])
		require.NoError(t, err)
		require.LessOrEqual(t, good, cut)
		if len(records) > 0 {
			require.Equal(t, whole[:len(records)], records)
		}
		again, _, err := decodeRecords(data[:good])
		require.NoError(t, err)
		require.Len(t, again, len(records))
	})
}

func TestDamageBeforeTheEndOfTheJournalIsNotPassedOver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := journalOf(t, record{Type: recordAck, ID: "a"}, record{Type: recordAck, ID: "b"})
	data[12] ^= 1
	require.NoError(t, os.WriteFile(filepath.Join(dir, "journal"), data, 0o600))
	_, err := Open(Config{Dir: dir})
	require.ErrorIs(t, err, errCorrupt)
}

func FuzzAJournalOfGarbageNeverPanics(f *testing.F) {
	f.Add([]byte("00000000 {}\n"))
	f.Add([]byte("garbage"))
	f.Fuzz(func(t *testing.T, data []byte) {
		records, good, err := decodeRecords(data)
		if err == nil {
			require.LessOrEqual(t, good, len(data), fmt.Sprint(len(records)))
		}
	})
}
