package httpapi

import (
	"context"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/ratelimit"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/power"
)

// UsageReader says how a lease stands with its bill. It returns a NotFound fault.
type UsageReader interface {
	Usage(ctx context.Context, id ids.Lease) (billing.LeaseUsage, error)
}

// Power switches machines that are leased whole; package power says with which faults.
type Power interface {
	Tenancy(ctx context.Context, lease ids.Lease, allocation ids.Allocation) (power.Tenancy, error)
	Wish(ctx context.Context, lease ids.Lease, allocation ids.Allocation, goal power.Goal) (ids.Operation, error)
}

// Leases is what is rented.
type Leases struct {
	Leases *lease.Service
	Usage  UsageReader
	Sales  *booking.Service
	// Metrics is what agents measure.
	Metrics Metrics
	Clock   clock.Clock
	// Power switches machines that are leased whole.
	Power Power
	// Proofs bounds how many proofs of one lease's isolation are made at will: each costs a look at every port; nil: no bound.
	Proofs *ratelimit.Limiter
}
