package imaging

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// onDisk shows a Disk as the file that the partition library wants.
type onDisk struct{ Disk }

// Stat implements fs.File: nobody asks.
func (onDisk) Stat() (fs.FileInfo, error) { return nil, errors.ErrUnsupported }

// Read implements fs.File: nobody asks.
func (onDisk) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Close implements fs.File. The disk is its owner's to close.
func (onDisk) Close() error { return nil }

// Seek implements io.Seeker, for the one question that is asked: where the end is.
func (o onDisk) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekEnd {
		return 0, errors.ErrUnsupported
	}
	return o.Size() + offset, nil
}

// maxGPTEntries bounds a partition table, which comes with the tenant's image and is not believed: its header says how much memory it takes.
const maxGPTEntries = 1024

// gptHeader is where a GPT's header says how many entries it has, and how long each is.
const (
	gptEntriesAt   = 80
	gptEntryBytes  = 128
	gptEntrySizeAt = 84
)

func checkGPT(header []byte) error {
	entries, size := binary.LittleEndian.Uint32(header[gptEntriesAt:]), binary.LittleEndian.Uint32(header[gptEntrySizeAt:])
	if entries == 0 || entries > maxGPTEntries || size != gptEntryBytes {
		return fmt.Errorf("a GPT of %d entries of %d bytes: %w", entries, size, ErrFormat)
	}
	return nil
}
