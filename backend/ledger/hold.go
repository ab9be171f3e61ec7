package ledger

import (
	"context"
	"strconv"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/money"
)

// Hold is one lease's worst-case total, taken from cash at booking. It is captured as usage accrues; what is left is released
// when the lease closes.
type Hold struct {
	ID        ids.Hold
	Org       ids.Org
	Lease     ids.Lease
	Amount    money.Amount
	Captured  money.Amount
	Released  money.Amount
	CreatedAt time.Time
	ClosedAt  time.Time // zero: open
}

// Remaining returns what can still be captured.
func (h Hold) Remaining() money.Amount { return h.Amount.Sub(h.Captured).Sub(h.Released) }

// Closed reports whether nothing can be captured any more.
func (h Hold) Closed() bool { return !h.ClosedAt.IsZero() }

// Charge is what one charge line takes from a hold. Net and Tax may be below zero: a correction gives back.
type Charge struct {
	Reference string
	Net       money.Amount
	Tax       money.Amount
	Memo      string
}

// Gross returns net and tax together.
func (c Charge) Gross() money.Amount { return c.Net.Add(c.Tax) }

// HoldOf reads a lease's hold. It returns a NotFound fault, code "hold-not-found".
func (s *Service) HoldOf(ctx context.Context, lease ids.Lease) (Hold, error) {
	var hold Hold
	err := s.within(ctx, "read hold", func(ctx context.Context) (err error) {
		hold, err = s.store.Hold(ctx, lease)
		return err
	})
	return hold, err
}

// Hold takes a lease's worst-case total from what the organization has available. The same hold again does nothing.
//
// It returns an Unfunded fault, code "insufficient-balance" with the numbers, and a Conflict fault, code "hold-differs", for a
// lease that is held with another amount.
func (s *Service) Hold(ctx context.Context, lease ids.Lease, org ids.Org, amount money.Amount) error {
	if amount.Minor < 0 {
		return fault.New(fault.Invalid, "amount-negative", "a hold is zero or more")
	}
	return s.within(ctx, "hold", func(ctx context.Context) error {
		return s.store.AsPlatform(ctx, func(ctx context.Context) error { return s.hold(ctx, lease, org, amount) })
	})
}

func (s *Service) hold(ctx context.Context, lease ids.Lease, org ids.Org, amount money.Amount) error {
	balance, err := s.store.Lock(ctx, org, amount.Currency)
	if err != nil {
		return err
	}
	switch before, err := s.store.Hold(ctx, lease); {
	case err == nil && before.Org == org && before.Amount == amount:
		return nil
	case err == nil:
		return fault.New(fault.Conflict, "hold-differs", "the lease is held with %s", before.Amount)
	case !fault.Is(err, fault.NotFound):
		return err
	}
	if balance.Available().Minor < amount.Minor {
		return insufficient(balance.Available(), amount)
	}
	none := money.Of(0, amount.Currency)
	hold := Hold{
		ID: ids.Make[ids.Hold](), Org: org, Lease: lease, Amount: amount, Captured: none, Released: none, CreatedAt: s.clock.Now(),
	}
	if err := s.store.InsertHold(ctx, hold); err != nil {
		return err
	}
	return s.postHold(ctx, hold, amount)
}

// Raise adds to a lease's hold, for an extension. Its effect happens once only together with the caller's own unique row (the
// segment) in the same transaction: raising twice raises twice.
//
// It returns an Unfunded fault, code "insufficient-balance", and a Conflict fault, code "hold-closed".
func (s *Service) Raise(ctx context.Context, lease ids.Lease, extra money.Amount) error {
	if extra.Minor < 0 {
		return fault.New(fault.Invalid, "amount-negative", "a hold never shrinks by an extension")
	}
	return s.onHold(ctx, "raise hold", lease, func(ctx context.Context, hold Hold, balance Balance) error {
		if hold.Closed() {
			return errClosed()
		}
		if balance.Available().Minor < extra.Minor {
			return insufficient(balance.Available(), extra)
		}
		hold.Amount = hold.Amount.Add(extra)
		if err := s.store.UpdateHold(ctx, hold); err != nil {
			return err
		}
		return s.postHold(ctx, hold, extra)
	})
}

func (s *Service) postHold(ctx context.Context, hold Hold, amount money.Amount) error {
	if amount.IsZero() {
		return nil
	}
	c := amount.Currency
	return s.post(ctx, Tx{
		Org: hold.Org, Kind: HoldTx, Lease: hold.Lease, Memo: "Held for a lease",
		Reference: "hold:" + hold.Lease.String() + ":" + strconv.FormatInt(hold.Amount.Minor, 10),
		Entries:   move(customers(hold.Org, Cash, c), customers(hold.Org, Held, c), amount),
	})
}

// Capture moves charges from held to earned and tax, each once by its reference.
//
// It returns a Conflict fault, code "hold-closed" or "hold-exceeded": what was promised as the worst case is never exceeded.
func (s *Service) Capture(ctx context.Context, lease ids.Lease, charges ...Charge) error {
	return s.onHold(ctx, "capture", lease, func(ctx context.Context, hold Hold, _ Balance) error {
		return s.capture(ctx, &hold, charges)
	})
}

func (s *Service) capture(ctx context.Context, hold *Hold, charges []Charge) error {
	for _, charge := range charges {
		if charge.Net.IsZero() && charge.Tax.IsZero() {
			continue
		}
		tx := captureTx(*hold, charge)
		if done, err := s.posted(ctx, tx); err != nil {
			return err
		} else if done {
			continue
		}
		captured := hold.Captured.Add(charge.Gross())
		switch {
		case hold.Closed():
			return errClosed()
		case charge.Gross().Minor > hold.Remaining().Minor, captured.Minor < 0:
			return fault.New(fault.Conflict, "hold-exceeded", "%s cannot be captured from the %s that is held", charge.Gross(), hold.Remaining())
		}
		hold.Captured = captured
		if err := s.post(ctx, tx); err != nil {
			return err
		}
		if err := s.store.UpdateHold(ctx, *hold); err != nil {
			return err
		}
	}
	return nil
}

func captureTx(hold Hold, charge Charge) Tx {
	c, held := hold.Amount.Currency, customers(hold.Org, Held, hold.Amount.Currency)
	return Tx{
		Org: hold.Org, Kind: CaptureTx, Lease: hold.Lease, Memo: charge.Memo, Reference: charge.Reference,
		Entries: merged(append(move(held, platforms(Earned, c), charge.Net), move(held, platforms(Tax, c), charge.Tax)...)),
	}
}

// Release gives the rest of a hold back to cash and closes it. A closed hold stays as it is.
func (s *Service) Release(ctx context.Context, lease ids.Lease) error {
	return s.onHold(ctx, "release hold", lease, func(ctx context.Context, hold Hold, _ Balance) error {
		return s.release(ctx, hold)
	})
}

func (s *Service) release(ctx context.Context, hold Hold) error {
	if hold.Closed() {
		return nil
	}
	rest, c := hold.Remaining(), hold.Amount.Currency
	hold.Released, hold.ClosedAt = hold.Released.Add(rest), s.clock.Now()
	if err := s.store.UpdateHold(ctx, hold); err != nil {
		return err
	}
	if rest.IsZero() {
		return nil
	}
	return s.post(ctx, Tx{
		Org: hold.Org, Kind: ReleaseTx, Lease: hold.Lease, Reference: "release:" + hold.Lease.String(), Memo: "Released from a lease",
		Entries: move(customers(hold.Org, Held, c), customers(hold.Org, Cash, c), rest),
	})
}

// onHold runs fn with the lease's hold and its organization's balances, both locked.
func (s *Service) onHold(ctx context.Context, verb string, lease ids.Lease, fn func(context.Context, Hold, Balance) error) error {
	return s.within(ctx, verb, func(ctx context.Context) error {
		whose, err := s.store.Hold(ctx, lease)
		if err != nil {
			return err
		}
		balance, err := s.store.Lock(ctx, whose.Org, whose.Amount.Currency)
		if err != nil {
			return err
		}
		hold, err := s.store.Hold(ctx, lease) // again: it may have changed until we had the lock
		if err != nil {
			return err
		}
		return fn(ctx, hold, balance)
	})
}

func errClosed() error {
	return fault.New(fault.Conflict, "hold-closed", "the lease is settled: nothing more can be held or captured")
}
