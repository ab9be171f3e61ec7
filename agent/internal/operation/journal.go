package operation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/leasehold/leasehold/agent/internal/durable"
	"github.com/leasehold/leasehold/agent/protocol"
)

// recordType says what a line of the journal means.
type recordType string

// The types of record, in the order of an operation's life.
const (
	recordFence  recordType = "fence"  // a compacted journal begins with it
	recordBegin  recordType = "begin"  // before the operation starts; raises the fence
	recordRefuse recordType = "refuse" // not started, with the result that says why
	recordEnd    recordType = "end"    // the result, before it is reported
	recordAck    recordType = "ack"    // the control plane has the result
)

// record is one line of the journal: its CRC-32 in hex, a space, JSON, a newline.
type record struct {
	Type   recordType          `json:"type"`
	At     time.Time           `json:"at,omitzero"`
	ID     string              `json:"id,omitempty"`
	Op     *protocol.Operation `json:"op,omitempty"`
	Result *protocol.Result    `json:"result,omitempty"`
	Fence  []mark              `json:"fence,omitempty"`
}

// appendFile is the part of *os.File that a journal writes through; tests put one in between that dies.
type appendFile interface {
	io.WriteCloser
	Sync() error
}

type openFile func(path string) (appendFile, error)

func openAppend(path string) (appendFile, error) {
	return os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
}

// journal is an append-only file of records. After a failed append it refuses all others: what is on the disk is unknown.
type journal struct {
	path    string
	open    openFile
	file    appendFile
	records int
	broken  error
}

var errCorrupt = errors.New("journal is corrupt")

// openJournal reads the journal at path and opens it for appending. A torn last record is what a crash leaves behind: it is
// cut off. Damage anywhere else is an error, since an operation could be lost with it.
func openJournal(path string, open openFile) (*journal, []record, error) {
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("read journal: %w", err)
	}
	records, good, err := decodeRecords(data)
	if err != nil {
		return nil, nil, fmt.Errorf("read journal %s: %w", path, err)
	}
	if good < len(data) {
		if err := os.Truncate(path, int64(good)); err != nil {
			return nil, nil, fmt.Errorf("cut torn record off the journal: %w", err)
		}
	}
	file, err := open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("open journal: %w", err)
	}
	if err := durable.SyncDir(filepath.Dir(path)); err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	return &journal{path: path, open: open, file: file, records: len(records)}, records, nil
}

// decodeRecords returns the records and how many bytes of data they take. It stops without an error at a torn end.
func decodeRecords(data []byte) ([]record, int, error) {
	var records []record
	good := 0
	for good < len(data) {
		end := bytes.IndexByte(data[good:], '\n')
		if end < 0 {
			return records, good, nil
		}
		r, err := decodeRecord(data[good : good+end])
		if err != nil {
			if good+end+1 == len(data) {
				return records, good, nil
			}
			return nil, 0, fmt.Errorf("%w at byte %d: %w", errCorrupt, good, err)
		}
		records = append(records, r)
		good += end + 1
	}
	return records, good, nil
}

func decodeRecord(line []byte) (record, error) {
	var r record
	sum, body, found := bytes.Cut(line, []byte(" "))
	if !found || string(sum) != checksum(body) {
		return r, errors.New("checksum does not match")
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return r, fmt.Errorf("decode record: %w", err)
	}
	return r, nil
}

func checksum(body []byte) string { return fmt.Sprintf("%08x", crc32.ChecksumIEEE(body)) }

func encodeRecord(r record) ([]byte, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return fmt.Appendf(nil, "%s %s\n", checksum(body), body), nil
}

// append makes records durable, all with one fsync.
func (j *journal) append(records ...record) error {
	if j.broken != nil {
		return j.broken
	}
	var lines []byte
	for _, r := range records {
		line, err := encodeRecord(r)
		if err != nil {
			return err
		}
		lines = append(lines, line...)
	}
	_, err := j.file.Write(lines)
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		j.broken = fmt.Errorf("append to journal: %w", err)
		return j.broken
	}
	j.records += len(records)
	return nil
}

// compact replaces the journal by these records.
func (j *journal) compact(records []record) error {
	if j.broken != nil {
		return j.broken
	}
	var lines []byte
	for _, r := range records {
		line, err := encodeRecord(r)
		if err != nil {
			return err
		}
		lines = append(lines, line...)
	}
	if err := durable.WriteFile(j.path, lines, 0o600); err != nil {
		return fmt.Errorf("compact journal: %w", err)
	}
	file, err := j.open(j.path)
	if err != nil {
		j.broken = fmt.Errorf("reopen journal: %w", err)
		return j.broken
	}
	err = j.file.Close()
	j.file, j.records = file, len(records)
	if err != nil {
		return fmt.Errorf("close old journal: %w", err)
	}
	return nil
}

func (j *journal) close() error { return j.file.Close() }
