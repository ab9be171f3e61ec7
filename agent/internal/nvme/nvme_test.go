package nvme

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
)

func noon() time.Time { return time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC) }

// drive is a simulated drive of one namespace.
type drive struct {
	blocks  []byte
	oacs    uint16
	fna     byte
	sanicap uint32
	flbas   byte
	did     []Command
	refuse  uint16 // status that it answers to what would erase
	idle    bool   // it says that it has erased and has not
	noise   bool   // what is read after an erasure is noise
	fails   bool   // its sanitize operation ends in failure
	rounds  int    // of the sanitize operation under way
	deaf    bool   // what is written is not kept
}

func (d *drive) Do(_ context.Context, c Command) error {
	switch c.Opcode {
	case opIdentify:
		copy(c.Data[4:24], "SN42                ")
		copy(c.Data[24:64], "Drive")
		binary.LittleEndian.PutUint16(c.Data[256:], d.oacs)
		binary.LittleEndian.PutUint32(c.Data[328:], d.sanicap)
		c.Data[524] = d.fna
		if c.CDW10 == cnsNamespace {
			clear(c.Data)
			c.Data[26] = d.flbas
		}
		return nil
	case opLogPage:
		state := uint16(sanitizeInProgress)
		if d.rounds++; d.rounds > 1 {
			state = sanitizeDone
			if d.fails {
				state = sanitizeFailed
			}
		}
		binary.LittleEndian.PutUint16(c.Data[2:], state)
		return nil
	}
	d.did = append(d.did, c)
	if d.refuse != 0 {
		return &StatusError{Status: d.refuse}
	}
	if !d.idle && !d.fails {
		d.erase()
	}
	return nil
}

func (d *drive) erase() {
	for i := range d.blocks {
		d.blocks[i] = 0
		if d.noise {
			d.blocks[i] = byte(i*i>>3 ^ 0xa5)
		}
	}
}

func (d *drive) Namespaces() []uint32        { return []uint32{1} }
func (d *drive) Open(uint32) (Blocks, error) { return d, nil }
func (d *drive) Close() error                { return nil }
func (d *drive) Flush() error                { return nil }
func (d *drive) Size() int64                 { return int64(len(d.blocks)) }

func (d *drive) ReadAt(p []byte, at int64) (int, error) { return copy(p, d.blocks[at:]), nil }

func (d *drive) WriteAt(p []byte, at int64) (int, error) {
	if d.deaf {
		return len(p), nil
	}
	return copy(d.blocks[at:], p), nil
}

func used(d drive) *drive {
	d.blocks = make([]byte, 8<<20)
	copy(d.blocks, "a partition table")
	return &d
}

const formats = 1 << 1

func TestADriveIsErasedByTheBestOfItsOwnWays(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]drive{
		"sanitize: crypto erase":  {oacs: formats, fna: 1 << 2, sanicap: 0b111},
		"sanitize: block erase":   {oacs: formats, sanicap: 0b110},
		"format: crypto erase":    {oacs: formats, fna: 1 << 2, sanicap: 0b100},
		"format: user data erase": {oacs: formats},
		"sanitize: overwrite":     {sanicap: 0b100},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			for _, noise := range []bool{false, true} {
				d := used(d)
				d.noise = noise
				c, err := Identify(t.Context(), d)
				require.NoError(t, err)
				w, err := Watch(d)
				require.NoError(t, err)
				method, err := Erase(t.Context(), d, c, d.Namespaces(), time.Millisecond)
				require.NoError(t, err)
				require.Equal(t, want, method)
				read, dirty, err := w.Compare(d)
				require.NoError(t, err)
				require.Zero(t, dirty)
				require.Greater(t, read, samples)
			}
		})
	}
}

func TestAFormatKeepsTheSizeOfBlocksAndNamesItsErase(t *testing.T) {
	t.Parallel()
	d := used(drive{oacs: formats, flbas: 0b0100_0011, fna: 1})
	_, err := Erase(t.Context(), d, Controller{Formats: true, FormatsAll: true}, d.Namespaces(), time.Millisecond)
	require.NoError(t, err)
	require.Len(t, d.did, 1)
	require.Equal(t, uint32(0x2003|eraseUserData<<9), d.did[0].CDW10)
	require.Equal(t, uint32(allNamespaces), d.did[0].Namespace)
}

func TestOnlyAnErasureThatIsShownCountsAsWiped(t *testing.T) {
	t.Parallel()
	for name, is := range map[string]struct {
		drive
		want   protocol.WipeStatus
		detail string
	}{
		"done":                      {drive{oacs: formats}, protocol.Wiped, ""},
		"done, with noise":          {drive{oacs: formats, noise: true}, protocol.Wiped, ""},
		"claims to be done":         {drive{oacs: formats, idle: true}, protocol.WipeFailed, "still there"},
		"refuses":                   {drive{oacs: formats, refuse: 0x20}, protocol.WipeFailed, "write protected"},
		"cannot":                    {drive{}, protocol.WipeUnsupported, "neither"},
		"sanitize ends in failure":  {drive{sanicap: 1, fails: true}, protocol.WipeFailed, "failed"},
		"keeps nothing in any case": {drive{oacs: formats, deaf: true}, protocol.WipeFailed, "cannot be read again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row := Wipe(t.Context(), used(is.drive), "nvme0", noon)
			require.Equal(t, is.want, row.Status, "%+v", row)
			require.Contains(t, row.Detail, is.detail)
			require.Equal(t, "SN42", row.Identity)
			if is.want == protocol.Wiped {
				require.Positive(t, row.ReadBackSamples)
			}
		})
	}
}

func TestASanitizeThatNeverEndsEndsWithItsTime(t *testing.T) {
	t.Parallel()
	d := used(drive{sanicap: 1})
	d.rounds = -1 << 40
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := Erase(ctx, d, Controller{SanitizeCrypto: true}, d.Namespaces(), time.Millisecond)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestTheKernelsCommandHasItsSize(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, 72, unsafe.Sizeof(passThrough{}))
}

func TestABlockOfOneByteSaysNothing(t *testing.T) {
	t.Parallel()
	var block [blockBytes]byte
	for _, b := range []byte{0, 0xff, 0x5a} {
		copy(block[:], slices.Repeat([]byte{b}, blockBytes))
		require.True(t, uniform(&block))
		block[blockBytes-1] ^= 1
		require.False(t, uniform(&block))
	}
}
