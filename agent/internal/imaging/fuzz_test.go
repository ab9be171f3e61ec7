package imaging

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// sparse is a disk that keeps nothing.
type sparse struct{ size int64 }

func (sparse) ReadAt(p []byte, _ int64) (int, error) {
	clear(p)
	return len(p), nil
}
func (sparse) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (sparse) Zero(int64, int64) error                { return nil }
func (sparse) Sync() error                            { return nil }
func (s sparse) Size() int64                          { return s.size }

func FuzzQCOW2(f *testing.F) {
	h := header{Magic: qcowMagic, Version: 3, ClusterBits: 16, Size: 1 << 20, L1Entries: 1, L1Offset: 1 << 16}
	var seed bytes.Buffer
	require.NoError(f, binary.Write(&seed, binary.BigEndian, h))
	f.Add(append(seed.Bytes(), make([]byte, 1<<10)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		i, err := openImage(bytes.NewReader(data), int64(len(data)))
		if err != nil || i.h.Size > 16<<20 {
			return
		}
		_ = i.pour(t.Context(), sparse{16 << 20}, func(float64) {})
	})
}

// FuzzPartitionTable has a tenant's partition table of anything, which must be refused or taken without harm.
func FuzzPartitionTable(f *testing.F) {
	gptHead := make([]byte, 34*sectorBytes)
	gptHead[510], gptHead[511] = 0x55, 0xaa
	copy(gptHead[sectorBytes:], "EFI PART")
	f.Add(gptHead)
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "disk")
		require.NoError(t, os.WriteFile(path, data, 0o600))
		require.NoError(t, os.Truncate(path, 16<<20))
		d, err := OpenDevice(path)
		require.NoError(t, err)
		defer d.Close()
		if first, err := addPartition(d); err == nil {
			require.LessOrEqual(t, int64(first)*sectorBytes+seedBytes, d.Size())
		}
	})
}
