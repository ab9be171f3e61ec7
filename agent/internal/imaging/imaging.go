// Package imaging writes a tenant's disk image to a drive and gives it a seed, from which the tenant's system configures itself. Nothing
// of an image is mounted or run here: it is the tenant's, and this is the operator's service OS.
package imaging

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"time"
)

// Format is how an image's file is laid out.
type Format string

// The formats.
const (
	Raw   Format = "raw"
	QCOW2 Format = "qcow2"
)

// Source is where an image comes from, and how it is known to be the right one.
type Source struct {
	URL       string
	Format    Format
	SHA256    string // of the file, in hex
	SizeBytes int64  // of the file
}

// Errors of images.
var (
	ErrChecksum = errors.New("the image's checksum is wrong")
	ErrTooLarge = errors.New("the image is larger than the disk")
	ErrFormat   = errors.New("the image is not what it is said to be")
)

// Disk is the drive that is written.
type Disk interface {
	io.ReaderAt
	io.WriterAt
	// Zero makes a range read as zeros.
	Zero(at, length int64) error
	Sync() error
	Size() int64
}

// chunkBytes is how much is moved at a time; a chunk of zeros is not sent to the disk.
const chunkBytes = 1 << 20

// stallAfter is how long a server may send nothing.
const stallAfter = time.Minute

// Writer writes images.
type Writer struct {
	Client *http.Client
	// Stall overrides stallAfter, 0: not.
	Stall time.Duration
}

// Write brings the image onto the disk and returns its digest, "sha256:…". progress gets the share that is done, 0…1. When it fails, what
// is on the disk does not boot.
func (w *Writer) Write(ctx context.Context, s Source, disk Disk, progress func(done float64)) (string, error) {
	if _, err := hex.DecodeString(s.SHA256); err != nil || len(s.SHA256) != 2*sha256.Size || s.SizeBytes <= 0 {
		return "", fmt.Errorf("it has no proper checksum or size: %w", ErrFormat)
	}
	var err error
	switch s.Format {
	case Raw:
		err = w.raw(ctx, s, disk, progress)
	case QCOW2:
		err = w.qcow2(ctx, s, disk, progress)
	default:
		err = fmt.Errorf("format %q: %w", s.Format, ErrFormat)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("write image: %w", err), spoil(disk))
	}
	if err := disk.Sync(); err != nil {
		return "", fmt.Errorf("write image: %w", err)
	}
	return "sha256:" + s.SHA256, nil
}

// spoil takes away what firmware would boot.
func spoil(disk Disk) error { return disk.Zero(0, min(chunkBytes, disk.Size())) }

// raw writes an image as it comes. Its first chunk, with what would boot, goes last, after the checksum.
func (w *Writer) raw(ctx context.Context, s Source, disk Disk, progress func(done float64)) error {
	if s.SizeBytes > disk.Size() {
		return fmt.Errorf("%d bytes on %d: %w", s.SizeBytes, disk.Size(), ErrTooLarge)
	}
	sum := sha256.New()
	var head []byte
	err := w.stream(ctx, s, sum, func(at int64, chunk []byte) error {
		progress(float64(at) / float64(s.SizeBytes))
		if at == 0 {
			head = bytes.Clone(chunk)
			return spoil(disk)
		}
		return put(disk, at, chunk)
	})
	if err != nil {
		return err
	}
	if err := check(sum, s.SHA256); err != nil {
		return err
	}
	return put(disk, 0, head)
}

func check(sum hash.Hash, want string) error {
	if got := hex.EncodeToString(sum.Sum(nil)); got != want {
		return fmt.Errorf("sha256 %s instead of %s: %w", got, want, ErrChecksum)
	}
	return nil
}

// put writes a chunk, which may be shorter than a sector at the image's end.
func put(disk Disk, at int64, chunk []byte) error {
	if len(bytes.TrimLeft(chunk, "\x00")) == 0 {
		return disk.Zero(at, int64(len(chunk)))
	}
	_, err := disk.WriteAt(chunk, at)
	return err
}

// stream reads the file from its beginning to its end in chunks, all full but the last, and sums it up.
func (w *Writer) stream(ctx context.Context, s Source, sum hash.Hash, take func(at int64, chunk []byte) error) error {
	body, err := w.open(ctx, s, 0, s.SizeBytes)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // it was read to the end, or is given up
	chunk := make([]byte, chunkBytes)
	for at := int64(0); at < s.SizeBytes; at += chunkBytes {
		n := min(chunkBytes, s.SizeBytes-at)
		if _, err := io.ReadFull(body, chunk[:n]); err != nil {
			return fmt.Errorf("the image ends at %d of %d bytes: %w", at, s.SizeBytes, err)
		}
		sum.Write(chunk[:n])
		if err := take(at, chunk[:n]); err != nil {
			return err
		}
	}
	if n, err := io.CopyN(io.Discard, body, 1); n > 0 || !errors.Is(err, io.EOF) {
		return fmt.Errorf("the image is longer than its %d bytes: %w", s.SizeBytes, ErrChecksum)
	}
	return nil
}

// open asks for a part of the file. What it returns fails when nothing comes for too long.
func (w *Writer) open(ctx context.Context, s Source, from, to int64) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, http.NoBody)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("ask for image: %w", err)
	}
	part := from > 0 || to < s.SizeBytes
	if part {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, to-1))
	}
	stall := w.Stall
	if stall == 0 {
		stall = stallAfter
	}
	timer := time.AfterFunc(stall, cancel)
	response, err := w.Client.Do(request)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("ask for image: %w", err)
	}
	want := http.StatusOK
	if part {
		want = http.StatusPartialContent
	}
	if response.StatusCode != want {
		cancel()
		return nil, errors.Join(fmt.Errorf("ask for image: the server answered %s", response.Status), response.Body.Close())
	}
	return &watched{ReadCloser: response.Body, timer: timer, stall: stall, cancel: cancel}, nil
}

// watched is a body that must not stall.
type watched struct {
	io.ReadCloser
	timer  *time.Timer
	stall  time.Duration
	cancel context.CancelFunc
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if n > 0 {
		w.timer.Reset(w.stall)
	}
	return n, err
}

func (w *watched) Close() error {
	w.timer.Stop()
	err := w.ReadCloser.Close()
	w.cancel()
	return err
}
