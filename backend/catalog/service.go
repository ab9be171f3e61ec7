package catalog

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Repository keeps the catalogue.
type Repository interface {
	// Types reads all types that are not retired, by name.
	Types(ctx context.Context) ([]InstanceType, error)
	// TypeByName returns a NotFound fault, code "instance-type-not-found".
	TypeByName(ctx context.Context, name string) (InstanceType, error)
	// TypeByID returns a NotFound fault, code "instance-type-not-found".
	TypeByID(ctx context.Context, id ids.Instance) (InstanceType, error)
	// AddType writes a type unless one of its name is there, and returns the id that counts.
	AddType(ctx context.Context, t InstanceType) (ids.Instance, error)
	// Prices reads price versions, latest first; zero ids do not narrow, a zero instant reads all.
	Prices(ctx context.Context, instanceType ids.Instance, site ids.Site, at time.Time) ([]PriceVersion, error)
	// AddPrice ends the version that is valid at p.ValidFrom there, and writes p.
	AddPrice(ctx context.Context, p PriceVersion) error
}

// Transactor runs fn in one transaction.
type Transactor interface {
	WithinTx(ctx context.Context, fn func(ctx context.Context) error) error
}

// Service answers what is sold, and lets the operator change it.
type Service struct {
	tx    Transactor
	repo  Repository
	clock clock.Clock
}

// New returns the catalogue.
func New(tx Transactor, repo Repository, clock clock.Clock) *Service {
	return &Service{tx: tx, repo: repo, clock: clock}
}

// Types lists what is sold, by name.
func (s *Service) Types(ctx context.Context) ([]InstanceType, error) {
	var types []InstanceType
	err := s.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		types, err = s.repo.Types(ctx)
		return err
	})
	return types, err
}

// Prices lists price versions, latest first; "" and a zero site do not narrow. It returns a NotFound fault for an unknown type.
func (s *Service) Prices(ctx context.Context, typeName string, site ids.Site) ([]PriceVersion, error) {
	var prices []PriceVersion
	err := s.tx.WithinTx(ctx, func(ctx context.Context) error {
		var wanted ids.Instance
		if typeName != "" {
			t, err := s.repo.TypeByName(ctx, typeName)
			if err != nil {
				return err
			}
			wanted = t.ID
		}
		var err error
		prices, err = s.repo.Prices(ctx, wanted, site, time.Time{})
		return err
	})
	return prices, err
}

// Offer puts the listings on sale at a site from now on. What is there already stays as it is, so that it can be repeated at
// every start.
func (s *Service) Offer(ctx context.Context, site ids.Site, listings []Listing) error {
	return s.tx.WithinTx(ctx, func(ctx context.Context) error {
		for _, l := range listings {
			if err := s.offer(ctx, site, l); err != nil {
				return fmt.Errorf("offer %s: %w", l.Type.Name, err)
			}
		}
		return nil
	})
}

func (s *Service) offer(ctx context.Context, site ids.Site, l Listing) error {
	if err := l.Type.Check(); err != nil {
		return err
	}
	id, err := s.repo.AddType(ctx, l.Type)
	if err != nil {
		return err
	}
	now := s.clock.Now()
	valid, err := s.repo.Prices(ctx, id, site, now)
	if err != nil || len(valid) > 0 {
		return err
	}
	price := l.Price
	price.ID, price.InstanceType, price.Site, price.ValidFrom = ids.Make[ids.Price](), id, site, now
	return s.repo.AddPrice(ctx, price)
}

// Reprice ends the present price of a type at a site, and starts another. Quotes and leases keep the price that they locked.
//
// It returns an Invalid fault, code "price", for a version that contradicts itself or begins in the past.
func (s *Service) Reprice(ctx context.Context, p PriceVersion) error {
	now := s.clock.Now()
	if p.Rate.Micros < 0 || p.MinDuration <= 0 || p.MaxDuration < p.MinDuration || p.ValidFrom.Before(now) {
		return fault.New(fault.Invalid, "price", "a price needs a rate, a shortest and a longest duration, and begins now or later")
	}
	p.ID, p.CreatedAt = ids.Make[ids.Price](), now
	return s.tx.WithinTx(ctx, func(ctx context.Context) error { return s.repo.AddPrice(ctx, p) })
}
