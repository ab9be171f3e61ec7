package catalog

import (
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/money"
)

// PriceVersion is what an instance type costs at a site from ValidFrom until ValidTo (zero: until further notice), with the rules
// that come with it. It never changes: a new price is a new version.
type PriceVersion struct {
	ID             ids.Price
	InstanceType   ids.Instance
	Site           ids.Site
	Rate           money.Rate // per rated unit and hour
	ValidFrom      time.Time
	ValidTo        time.Time
	MinDuration    time.Duration
	MaxDuration    time.Duration
	Notice         time.Duration // a reserved lease is booked at least this long before its start
	Refunds        []lease.RefundStep
	EarlyRefundBPS int64
	CreatedAt      time.Time
}

// Terms freezes the version's rules as a customer agrees to them.
func (p PriceVersion) Terms(t InstanceType, policy lease.FailurePolicy) lease.Terms {
	return lease.Terms{
		RatedPer: string(t.RatedPer), UnitsPerInstance: t.UnitsPerInstance(),
		MinDurationSeconds: int64(p.MinDuration.Seconds()), MaxDurationSeconds: int64(p.MaxDuration.Seconds()), NoticeSeconds: int64(p.Notice.Seconds()),
		RefundSchedule: p.Refunds, EarlyRefundBPS: p.EarlyRefundBPS, FailurePolicy: policy,
	}
}

// Cost is a stretch of time for instances at a rate, with tax: the worst case, in which everything is delivered.
type Cost struct {
	Subtotal money.Amount
	Tax      money.Amount
	Total    money.Amount
}

// CostOf prices instances for a duration: one rounding for the subtotal, one for the tax.
//
// It returns an Invalid fault, code "price-range", for a sum that no amount can hold.
func CostOf(rate money.Rate, units int64, d time.Duration, taxBPS int) (Cost, error) {
	subtotal, err := rate.Cost(money.UnitMillis(units, d))
	if err != nil {
		return Cost{}, fault.New(fault.Invalid, "price-range", "that much for so long has no price: %w", err)
	}
	tax := subtotal.Share(int64(taxBPS))
	return Cost{Subtotal: subtotal, Tax: tax, Total: subtotal.Add(tax)}, nil
}
