package imaging

import (
	"bytes"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// header is the part of a QCOW2 image's header that is needed to read it (docs/interop/qcow2.txt in QEMU's sources).
type header struct {
	Magic            uint32
	Version          uint32
	BackingOffset    uint64
	BackingSize      uint32
	ClusterBits      uint32
	Size             uint64
	Crypt            uint32
	L1Entries        uint32
	L1Offset         uint64
	RefcountOffset   uint64
	RefcountClusters uint32
	Snapshots        uint32
	SnapshotsOffset  uint64
	Incompatible     uint64 // version 3
}

const (
	qcowMagic = 0x514649fb
	// Bounds of a cluster, as QEMU has them.
	minClusterBits, maxClusterBits = 9, 21
	// maxL1 bounds the first table, in entries: enough for 64 TiB in clusters of 64 KiB.
	maxL1 = 1 << 17

	flagCopied     = 1 << 63
	flagCompressed = 1 << 62
	flagZero       = 1
	offsetMask     = 0x00fffffffffffe00
	// dirty: its reference counts may be wrong, which does not matter to a reader. Any other feature changes how it is read.
	featureDirty = 1
)

// image reads a QCOW2 file.
type image struct {
	file  io.ReaderAt
	limit int64 // the file's size
	h     header
	l1    []uint64
	l2    []uint64 // the one that was used last
	l2at  uint64
}

// openImage reads the header and refuses what is not one self-contained image. One that refers to other files would read ours.
func openImage(file io.ReaderAt, limit int64) (*image, error) {
	i := &image{file: file, limit: limit}
	raw := make([]byte, binary.Size(i.h))
	if _, err := file.ReadAt(raw[:min(int64(len(raw)), limit)], 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := binary.Read(bytes.NewReader(raw), binary.BigEndian, &i.h); err != nil {
		return nil, err
	}
	if err := i.h.check(); err != nil {
		return nil, err
	}
	var err error
	i.l1, err = i.table(i.h.L1Offset, int(i.h.L1Entries))
	return i, err
}

func (h header) check() error {
	refuse := func(format string, args ...any) error { return fmt.Errorf(format+": %w", append(args, ErrFormat)...) }
	switch {
	case h.Magic != qcowMagic:
		return refuse("it is no QCOW2 image")
	case h.Version != 2 && h.Version != 3:
		return refuse("QCOW2 version %d", h.Version)
	case h.BackingOffset != 0 || h.BackingSize != 0:
		return refuse("it needs another image behind it")
	case h.Crypt != 0:
		return refuse("it is encrypted")
	case h.ClusterBits < minClusterBits || h.ClusterBits > maxClusterBits:
		return refuse("clusters of 2^%d bytes", h.ClusterBits)
	case h.Version == 3 && h.Incompatible&^featureDirty != 0:
		return refuse("features %#x, which this reader does not know", h.Incompatible)
	case h.L1Entries > maxL1:
		return refuse("a first table of %d entries", h.L1Entries)
	case h.Size > uint64(h.L1Entries)<<h.l2Bits()<<h.ClusterBits:
		return refuse("a disk of %d bytes in %d tables", h.Size, h.L1Entries)
	}
	return nil
}

func (h header) l2Bits() uint32 { return h.ClusterBits - 3 }

func (i *image) cluster() int64 { return 1 << i.h.ClusterBits }

// table reads big-endian words.
func (i *image) table(at uint64, entries int) ([]uint64, error) {
	if at >= uint64(i.limit) || int64(at)+int64(entries)*8 > i.limit { //nolint:gosec // limit is positive, and bounds at
		return nil, fmt.Errorf("a table lies outside the file: %w", ErrFormat)
	}
	raw := make([]byte, entries*8)
	if _, err := i.file.ReadAt(raw, int64(at)); err != nil { //nolint:gosec // checked
		return nil, err
	}
	words := make([]uint64, entries)
	for n := range words {
		words[n] = binary.BigEndian.Uint64(raw[n*8:])
	}
	return words, nil
}

// read reads the n-th cluster of the disk; nil is one of zeros.
func (i *image) read(n uint64) ([]byte, error) {
	table, index := n>>i.h.l2Bits(), n&(1<<i.h.l2Bits()-1)
	if table >= uint64(len(i.l1)) {
		return nil, fmt.Errorf("cluster %d has no table: %w", n, ErrFormat)
	}
	at := i.l1[table] & offsetMask
	if at == 0 {
		return nil, nil
	}
	if at != i.l2at {
		var err error
		if i.l2, err = i.table(at, 1<<i.h.l2Bits()); err != nil {
			return nil, err
		}
		i.l2at = at
	}
	entry := i.l2[index]
	switch {
	case entry&flagCompressed != 0:
		return i.inflate(entry &^ (flagCompressed | flagCopied))
	case i.h.Version == 3 && entry&flagZero != 0, entry&offsetMask == 0:
		return nil, nil
	default:
		return i.plain(entry & offsetMask)
	}
}

func (i *image) plain(at uint64) ([]byte, error) {
	if at >= uint64(i.limit) { //nolint:gosec // a size is positive
		return nil, fmt.Errorf("a cluster lies outside the file: %w", ErrFormat)
	}
	data := make([]byte, i.cluster())
	// The last cluster of the file may be cut short; what is missing is zeros.
	n := min(i.cluster(), i.limit-int64(at))     //nolint:gosec // checked
	_, err := i.file.ReadAt(data[:n], int64(at)) //nolint:gosec // checked
	return data, err
}

// inflate reads a compressed cluster: the entry's low bits are where it begins, the rest how many sectors it reaches over.
func (i *image) inflate(entry uint64) ([]byte, error) {
	split := 62 - (i.h.ClusterBits - 8)
	at := entry & (1<<split - 1)
	length := (entry>>split+1)*512 - at%512
	if at >= uint64(i.limit) { //nolint:gosec // a size is positive
		return nil, fmt.Errorf("a cluster lies outside the file: %w", ErrFormat)
	}
	packed := make([]byte, min(int64(length), i.limit-int64(at), 2*i.cluster())) //nolint:gosec // bounded
	if _, err := i.file.ReadAt(packed, int64(at)); err != nil {                  //nolint:gosec // checked
		return nil, err
	}
	data := make([]byte, i.cluster())
	if _, err := io.ReadFull(flate.NewReader(bytes.NewReader(packed)), data); err != nil {
		return nil, fmt.Errorf("a compressed cluster is damaged: %w", errors.Join(err, ErrFormat))
	}
	return data, nil
}

// qcow2 reads the file twice: once from beginning to end, for its checksum and those of its parts, and then the parts that its tables name,
// each compared with what it was the first time. So it needs no room for the file, and a server that changes it meanwhile gains nothing.
func (w *Writer) qcow2(ctx context.Context, s Source, disk Disk, progress func(done float64)) error {
	file := &parts{ctx: ctx, writer: w, source: s, kept: map[int64][]byte{}}
	sum := sha256.New()
	err := w.stream(ctx, s, sum, func(at int64, chunk []byte) error {
		progress(0.3 * float64(at) / float64(s.SizeBytes))
		file.sums = append(file.sums, sha256.Sum256(chunk))
		return nil
	})
	if err != nil {
		return err
	}
	if err := check(sum, s.SHA256); err != nil {
		return err
	}
	i, err := openImage(file, s.SizeBytes)
	if err != nil {
		return err
	}
	if i.h.Size > uint64(disk.Size()) { //nolint:gosec // a size is positive
		return fmt.Errorf("%d bytes on %d: %w", i.h.Size, disk.Size(), ErrTooLarge)
	}
	return i.pour(ctx, disk, func(done float64) { progress(0.3 + 0.7*done) })
}

// pour writes the whole disk, its first cluster last: until then it does not boot.
func (i *image) pour(ctx context.Context, disk Disk, progress func(done float64)) error {
	if err := spoil(disk); err != nil {
		return err
	}
	size, clusters := int64(i.h.Size), (i.h.Size+uint64(i.cluster())-1)>>i.h.ClusterBits //nolint:gosec // no larger than the disk
	for n := clusters; n > 0; n-- {
		if err := ctx.Err(); err != nil {
			return err
		}
		data, err := i.read(n - 1)
		if err != nil {
			return err
		}
		at := int64(n-1) << i.h.ClusterBits //nolint:gosec // no larger than the disk
		length := min(i.cluster(), size-at)
		if data == nil {
			err = disk.Zero(at, length)
		} else {
			err = put(disk, at, data[:length])
		}
		if err != nil {
			return err
		}
		progress(float64(clusters-n) / float64(clusters))
	}
	return nil
}

// parts is a file on a server whose parts' checksums are known.
type parts struct {
	ctx    context.Context //nolint:containedctx // of the one call that this reader lives for: io.ReaderAt has none
	writer *Writer
	source Source
	sums   [][sha256.Size]byte
	kept   map[int64][]byte
	order  []int64
}

// keptParts is how many parts are kept in memory, in chunks.
const keptParts = 32

// ReadAt implements io.ReaderAt.
func (p *parts) ReadAt(buffer []byte, at int64) (int, error) {
	done := 0
	for done < len(buffer) {
		place := at + int64(done)
		if place >= p.source.SizeBytes {
			return done, io.EOF
		}
		part, err := p.part(place / chunkBytes)
		if err != nil {
			return done, err
		}
		done += copy(buffer[done:], part[place%chunkBytes:])
	}
	return done, nil
}

func (p *parts) part(n int64) ([]byte, error) {
	if data, ok := p.kept[n]; ok {
		return data, nil
	}
	from, to := n*chunkBytes, min((n+1)*chunkBytes, p.source.SizeBytes)
	body, err := p.writer.open(p.ctx, p.source, from, to)
	if err != nil {
		return nil, err
	}
	defer body.Close() //nolint:errcheck // it was read to the end, or is given up
	data := make([]byte, to-from)
	if _, err := io.ReadFull(body, data); err != nil {
		return nil, fmt.Errorf("read image at %d: %w", from, err)
	}
	if sha256.Sum256(data) != p.sums[n] {
		return nil, fmt.Errorf("the image changed at %d while it was read: %w", from, ErrChecksum)
	}
	if len(p.order) == keptParts {
		delete(p.kept, p.order[0])
		p.order = p.order[1:]
	}
	p.kept[n] = data
	p.order = append(p.order, n)
	return data, nil
}
