package nvme

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"
)

// blockBytes is what is looked at in one place.
const blockBytes = 4096

// Places looked at: marks are written there before the drive is erased, samples only read. First and last mebibyte come in addition, where
// partition tables lie.
const (
	marks   = 64
	samples = 256
	edge    = 1 << 20
)

// Medium is a drive's blocks. What is read must come from the drive and not from a cache.
type Medium interface {
	io.ReaderAt
	io.WriterAt
	// Flush brings what was written to the drive, and forgets what was read.
	Flush() error
	Size() int64
}

// Witness knows what lay on a drive before it was erased.
type Witness struct {
	before map[int64][blockBytes]byte
}

// Watch writes marks all over the drive and remembers them with what lies in other places. An erasure that leaves any of that did not
// erase. Whatever was on the drive is lost by this.
func Watch(m Medium) (*Witness, error) {
	w := &Witness{before: map[int64][blockBytes]byte{}}
	if m.Size() < 2*edge {
		return nil, fmt.Errorf("the drive has %d bytes only", m.Size())
	}
	for at := int64(0); at < edge; at += blockBytes {
		for _, place := range []int64{at, m.Size()/blockBytes*blockBytes - edge + at} {
			if err := w.remember(m, place); err != nil {
				return nil, err
			}
		}
	}
	for range samples {
		place, err := anywhere(m.Size())
		if err != nil {
			return nil, err
		}
		if err := w.remember(m, place); err != nil {
			return nil, err
		}
	}
	return w, w.mark(m)
}

func (w *Witness) mark(m Medium) error {
	for range marks {
		place, err := anywhere(m.Size())
		if err != nil {
			return err
		}
		var block [blockBytes]byte
		if _, err := rand.Read(block[:]); err != nil {
			return fmt.Errorf("make a mark: %w", err)
		}
		if _, err := m.WriteAt(block[:], place); err != nil {
			return fmt.Errorf("write a mark at %d: %w", place, err)
		}
		w.before[place] = block
	}
	if err := m.Flush(); err != nil {
		return fmt.Errorf("write marks: %w", err)
	}
	var block [blockBytes]byte
	for place, mark := range w.before {
		if _, err := m.ReadAt(block[:], place); err != nil {
			return fmt.Errorf("read at %d: %w", place, err)
		}
		if block != mark {
			return fmt.Errorf("what was written at %d cannot be read again: what is missing later would prove nothing", place)
		}
	}
	return nil
}

func (w *Witness) remember(m Medium, place int64) error {
	var block [blockBytes]byte
	if _, err := m.ReadAt(block[:], place); err != nil {
		return fmt.Errorf("read at %d: %w", place, err)
	}
	w.before[place] = block
	return nil
}

// anywhere is a place that nobody can foresee.
func anywhere(size int64) (int64, error) {
	n, err := rand.Int(rand.Reader, big.NewInt(size/blockBytes))
	if err != nil {
		return 0, fmt.Errorf("pick a place: %w", err)
	}
	return n.Int64() * blockBytes, nil
}

// Compare reads all places again and returns how many there are, and how many still hold what they held. A block of one repeated byte
// says nothing either way. Whether what is there now is zero is no question: after a change of the key it is noise.
func (w *Witness) Compare(m Medium) (read, dirty int, err error) {
	if err := m.Flush(); err != nil {
		return 0, 0, fmt.Errorf("forget what was read: %w", err)
	}
	var block [blockBytes]byte
	for place, before := range w.before {
		if _, err := m.ReadAt(block[:], place); err != nil {
			return read, dirty, errors.Join(fmt.Errorf("read at %d: %w", place, err))
		}
		read++
		if block == before && !uniform(&before) {
			dirty++
		}
	}
	return read, dirty, nil
}

func uniform(block *[blockBytes]byte) bool {
	first := binary.LittleEndian.Uint64(block[:])
	if first != uint64(block[0])*0x0101010101010101 {
		return false
	}
	for at := 8; at < blockBytes; at += 8 {
		if binary.LittleEndian.Uint64(block[at:]) != first {
			return false
		}
	}
	return true
}
