package httpapi

import (
	"context"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/ratelimit"
	"github.com/leasehold/leasehold/backend/lease"
)

// UsageReader says how a lease stands with its bill. It returns a NotFound fault.
type UsageReader interface {
	Usage(ctx context.Context, id ids.Lease) (billing.LeaseUsage, error)
}

// Leases is what is rented.
type Leases struct {
	Leases *lease.Service
	Usage  UsageReader
	Sales  *booking.Service
	// Metrics is what agents measure.
	Metrics Metrics
	Clock   clock.Clock
	// Proofs bounds how many proofs of one lease's isolation are made at will: each costs a look at every port; nil: no bound.
	Proofs *ratelimit.Limiter
}
