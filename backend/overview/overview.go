// Package overview is what the operator sees across nouns: capacity, partitions, drift, operations. It only reads, and only for the
// platform: an organization's actor sees none of it.
package overview

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
)

// Capacity is what a site has of a kind of machine, in whole GPUs.
type Capacity struct {
	Site      string
	Hardware  string
	Delivered int // of all nodes that are not retired
	Healthy   int // of nodes on the market with nothing that prevents selling them
	Reserved  int // held by bookings at this moment, and not in use yet
	Active    int // in use by leases
}

// Partition is one that is not free.
type Partition struct {
	ID      ids.Partition
	PKey    uint16 // without the membership bit
	State   string
	Lease   ids.Lease
	Members int // ports that have not left
}

// Drift is a port that held something that it should not, or lacked something.
type Drift struct {
	PortGUID string // "": the fabric itself
	Kind     string
	What     string
	Onset    time.Time
	Repair   string // what was done about it
	Attempts int
	GaveUpAt time.Time // zero: repairs helped, or may yet
	EndedAt  time.Time // zero: it still does
}

// Operation is one piece of an agent's work.
type Operation struct {
	ID         ids.Operation
	Kind       string
	Lease      ids.Lease // zero: none
	State      string
	Percent    int
	Phase      string
	Epoch      int64
	Fault      *protocol.Fault // nil: none
	CreatedAt  time.Time
	FinishedAt time.Time // zero: it runs
}

// Store reads.
type Store interface {
	Capacity(ctx context.Context, now time.Time) ([]Capacity, error)
	Partitions(ctx context.Context, fabric ids.Fabric) ([]Partition, error)
	// PartitionCounts counts the partitions that are not free, of all fabrics.
	PartitionCounts(ctx context.Context) (map[ids.Fabric]int, error)
	// Drift lists what is open, then what ended last, limit at most.
	Drift(ctx context.Context, fabric ids.Fabric, limit int) ([]Drift, error)
	// Operations lists the node's latest.
	Operations(ctx context.Context, node ids.Node, limit int) ([]Operation, error)
}

// Transactor runs fn in one transaction.
type Transactor interface {
	WithinTx(ctx context.Context, fn func(ctx context.Context) error) error
}

// Service answers the operator's questions.
type Service struct {
	tx    Transactor
	store Store
	clock clock.Clock
}

// New returns the overview of store.
func New(tx Transactor, store Store, clock clock.Clock) *Service {
	return &Service{tx: tx, store: store, clock: clock}
}

const (
	maxDrift      = 200
	maxOperations = 50
)

// Capacity lists what there is now by site and hardware.
func (s *Service) Capacity(ctx context.Context) ([]Capacity, error) {
	return read(ctx, s.tx, "capacity", func(ctx context.Context) ([]Capacity, error) { return s.store.Capacity(ctx, s.clock.Now()) })
}

// Partitions lists the fabric's partitions that are not free, by PKey.
func (s *Service) Partitions(ctx context.Context, fabric ids.Fabric) ([]Partition, error) {
	return read(ctx, s.tx, "partitions", func(ctx context.Context) ([]Partition, error) { return s.store.Partitions(ctx, fabric) })
}

// PartitionCounts counts the partitions that are not free, of all fabrics.
func (s *Service) PartitionCounts(ctx context.Context) (map[ids.Fabric]int, error) {
	return read(ctx, s.tx, "partitions", s.store.PartitionCounts)
}

// Drift lists what is wrong on the fabric's ports now, then what was last.
func (s *Service) Drift(ctx context.Context, fabric ids.Fabric) ([]Drift, error) {
	return read(ctx, s.tx, "drift", func(ctx context.Context) ([]Drift, error) { return s.store.Drift(ctx, fabric, maxDrift) })
}

// Operations lists the node's latest operations.
func (s *Service) Operations(ctx context.Context, node ids.Node) ([]Operation, error) {
	return read(ctx, s.tx, "operations", func(ctx context.Context) ([]Operation, error) { return s.store.Operations(ctx, node, maxOperations) })
}

func read[T any](ctx context.Context, tx Transactor, noun string, from func(ctx context.Context) (T, error)) (T, error) {
	var found T
	err := tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		found, err = from(ctx)
		return err
	})
	if err != nil {
		return found, fmt.Errorf("read %s: %w", noun, err)
	}
	return found, nil
}
