// Package image is the register of disk images for machines that are leased whole: what they are called, where their files lie, and by what
// they are known to be the right ones.
package image

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
)

// Image is one disk image. A new file of the same name replaces it for leases that are prepared from then on.
type Image struct {
	Name      string
	URL       string // where machines in the service OS fetch it
	Format    string // raw, qcow2
	SHA256    string // of the file, in hex
	SizeBytes int64  // of the file
	CreatedAt time.Time
}

// Images keeps the register.
type Images interface {
	Put(ctx context.Context, i Image) error
	// Get returns a NotFound fault, code "image-not-found".
	Get(ctx context.Context, name string) (Image, error)
	List(ctx context.Context) ([]Image, error)
	Remove(ctx context.Context, name string) error
}

// Audit keeps who did what.
type Audit interface {
	Record(ctx context.Context, action, target string, before, after any) error
}

// Transactor runs fn in one transaction.
type Transactor interface {
	WithinTx(ctx context.Context, fn func(ctx context.Context) error) error
}

// Service is the register.
type Service struct {
	tx     Transactor
	images Images
	audit  Audit
	clock  clock.Clock
}

// New returns the register.
func New(tx Transactor, images Images, audit Audit, clock clock.Clock) *Service {
	return &Service{tx: tx, images: images, audit: audit, clock: clock}
}

// formats are those that the service OS can write.
func formats() []string { return []string{"raw", "qcow2"} }

// maxBytes bounds an image's file: 2 TiB.
const maxBytes = 2 << 40

func (i Image) check() error {
	problem := fault.New(fault.Invalid, "image", "the image is not described properly")
	if !regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,62}$`).MatchString(i.Name) {
		problem = problem.At("/name", "lower-case letters, digits, dots and dashes, beginning with a letter or digit")
	}
	address, err := url.Parse(i.URL)
	if err != nil || (address.Scheme != "https" && address.Scheme != "http") || address.Host == "" || address.User != nil {
		problem = problem.At("/url", "an address with https or http, with no name or password in it")
	}
	if !slices.Contains(formats(), i.Format) {
		problem = problem.At("/format", "raw or qcow2")
	}
	if sum, err := hex.DecodeString(i.SHA256); err != nil || len(sum) != 32 {
		problem = problem.At("/sha256", "64 hexadecimal digits")
	}
	if i.SizeBytes <= 0 || i.SizeBytes > maxBytes {
		problem = problem.At("/size_bytes", "the file's size")
	}
	if len(problem.Fields) > 0 {
		return problem
	}
	return nil
}

// Put registers an image, or another file under its name. It returns an Invalid fault that names every defect.
func (s *Service) Put(ctx context.Context, i Image) error {
	if err := i.check(); err != nil {
		return fmt.Errorf("register image: %w", err)
	}
	i.CreatedAt = s.clock.Now()
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if err := s.images.Put(ctx, i); err != nil {
			return err
		}
		return s.audit.Record(ctx, "image.registered", i.Name, nil, map[string]any{"url": i.URL, "sha256": i.SHA256})
	})
	if err != nil {
		return fmt.Errorf("register image: %w", err)
	}
	return nil
}

// List lists the register by name.
func (s *Service) List(ctx context.Context) ([]Image, error) {
	var found []Image
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		found, err = s.images.List(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	return found, nil
}

// Remove takes an image off the register. Leases that have it stay as they are. It returns a NotFound fault.
func (s *Service) Remove(ctx context.Context, name string) error {
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		if _, err := s.images.Get(ctx, name); err != nil {
			return err
		}
		if err := s.images.Remove(ctx, name); err != nil {
			return err
		}
		return s.audit.Record(ctx, "image.removed", name, nil, nil)
	})
	if err != nil {
		return fmt.Errorf("remove image: %w", err)
	}
	return nil
}

// Source implements delivery.Images, within the transaction that ctx carries.
func (s *Service) Source(ctx context.Context, name string) (*protocol.Image, error) {
	i, err := s.images.Get(ctx, name)
	if fault.Is(err, fault.NotFound) {
		return nil, fault.New(fault.Invalid, "image-not-found", "image %q is not on the register of disk images", name)
	}
	if err != nil {
		return nil, err
	}
	return &protocol.Image{URL: i.URL, Format: i.Format, SHA256: i.SHA256, SizeBytes: i.SizeBytes}, nil
}
