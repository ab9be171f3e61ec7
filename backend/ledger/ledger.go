package ledger

import (
	"context"
	"fmt"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/money"
)

// Transactor runs fn in a transaction that the context carries; a nested call joins the outer one.
type Transactor interface {
	WithinTx(ctx context.Context, fn func(ctx context.Context) error) error
}

// Store keeps the books. All methods want the transaction in ctx.
type Store interface {
	// AsPlatform runs fn in the platform's role within the transaction, for a posting of several steps: each write steps into that
	// role anyway, and one step there and back saves round trips.
	AsPlatform(ctx context.Context, fn func(ctx context.Context) error) error
	// Lock reads an organization's balances in one currency, opening its accounts when they are new, and keeps them locked until
	// the transaction ends. It returns a Conflict fault for an organization that does not exist.
	Lock(ctx context.Context, org ids.Org, currency money.Currency) (Balance, error)
	// Balance reads the balances in the organization's own currency without locking. It returns a NotFound fault.
	Balance(ctx context.Context, org ids.Org) (Balance, error)
	// SetCreditLimit writes the limit, also as the floor of cash. The caller holds the lock.
	SetCreditLimit(ctx context.Context, org ids.Org, limit money.Amount) error
	// Posted returns the size of the transaction with that reference, if there is one.
	Posted(ctx context.Context, reference string) (money.Amount, bool, error)
	// Post writes a transaction and moves the guarded balances that it touches, whose lock the caller holds. It returns a Conflict
	// fault, code "duplicate" for a reference that was posted, code "ledger-balance-floor" for a balance below its floor.
	Post(ctx context.Context, tx Tx) error
	// Hold reads a lease's hold. It returns a NotFound fault, code "hold-not-found".
	Hold(ctx context.Context, lease ids.Lease) (Hold, error)
	// InsertHold and UpdateHold write it. The caller holds the lock of the organization's balances.
	InsertHold(ctx context.Context, hold Hold) error
	UpdateHold(ctx context.Context, hold Hold) error
	// Transactions reads an organization's transactions with its own entries, newest first, behind the one named (zero: from the
	// first), at most limit.
	Transactions(ctx context.Context, org ids.Org, after ids.LedgerTx, limit int) ([]Tx, error)
}

// Service is the only way to post. Every method runs in a transaction of its own or joins the caller's.
type Service struct {
	tx    Transactor
	store Store
	clock clock.Clock
}

// New returns the ledger.
func New(tx Transactor, store Store, clk clock.Clock) *Service {
	return &Service{tx: tx, store: store, clock: clk}
}

// Balance reads what the organization has, in its own currency. It returns a NotFound fault.
func (s *Service) Balance(ctx context.Context, org ids.Org) (Balance, error) {
	var balance Balance
	err := s.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		balance, err = s.store.Balance(ctx, org)
		return err
	})
	if err != nil {
		return Balance{}, fmt.Errorf("read balance: %w", err)
	}
	return balance, nil
}

// Transactions lists an organization's transactions, newest first, with the entries on its own accounts.
func (s *Service) Transactions(ctx context.Context, org ids.Org, after ids.LedgerTx, limit int) ([]Tx, error) {
	var found []Tx
	err := s.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		found, err = s.store.Transactions(ctx, org, after, limit)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list ledger: %w", err)
	}
	return found, nil
}

// TopUp books money that a payment brought in.
func (s *Service) TopUp(ctx context.Context, org ids.Org, payment ids.Payment, amount money.Amount, memo string) error {
	return s.deposit(ctx, org, amount, PaymentClearing, Tx{Kind: TopUpTx, Reference: "top_up:" + payment.String(), Memo: memo})
}

// Credit gives the organization money for what was not delivered.
func (s *Service) Credit(ctx context.Context, org ids.Org, reference string, amount money.Amount, memo string) error {
	return s.deposit(ctx, org, amount, SLAExpense, Tx{Kind: CreditTx, Reference: reference, Memo: memo})
}

func (s *Service) deposit(ctx context.Context, org ids.Org, amount money.Amount, from AccountKind, tx Tx) error {
	if amount.Minor <= 0 {
		return fault.New(fault.Invalid, "amount-not-positive", "the amount must be above zero")
	}
	c := amount.Currency
	tx.Org, tx.Entries = org, move(platforms(from, c), customers(org, Cash, c), amount)
	return s.within(ctx, string(tx.Kind), func(ctx context.Context) error {
		if _, err := s.store.Lock(ctx, org, c); err != nil {
			return err
		}
		return s.postOnce(ctx, tx)
	})
}

// Refund books money that went back to the card. It never pays out credit: cash may not go below zero by it.
//
// It returns an Unfunded fault, code "insufficient-balance".
func (s *Service) Refund(ctx context.Context, org ids.Org, reference string, amount money.Amount, memo string) error {
	if amount.Minor <= 0 {
		return fault.New(fault.Invalid, "amount-not-positive", "the amount must be above zero")
	}
	c := amount.Currency
	tx := Tx{
		Org: org, Kind: RefundTx, Reference: reference, Memo: memo,
		Entries: move(customers(org, Cash, c), platforms(PaymentClearing, c), amount),
	}
	return s.within(ctx, "refund", func(ctx context.Context) error {
		balance, err := s.store.Lock(ctx, org, c)
		if err != nil {
			return err
		}
		if done, err := s.posted(ctx, tx); done || err != nil {
			return err
		}
		if balance.Cash.Minor < amount.Minor {
			return insufficient(balance.Cash, amount)
		}
		return s.post(ctx, tx)
	})
}

// SetCreditLimit changes how far cash may fall below zero.
//
// It returns a Conflict fault, code "credit-in-use", when the organization owes more than the new limit.
func (s *Service) SetCreditLimit(ctx context.Context, org ids.Org, limit money.Amount) error {
	if limit.Minor < 0 {
		return fault.New(fault.Invalid, "amount-negative", "a credit limit is zero or more")
	}
	return s.within(ctx, "set credit limit", func(ctx context.Context) error {
		balance, err := s.store.Lock(ctx, org, limit.Currency)
		if err != nil {
			return err
		}
		if balance.Cash.Add(limit).Minor < 0 {
			return fault.New(fault.Conflict, "credit-in-use", "%s of credit is in use", balance.Cash.Neg()).
				With("owed_minor", -balance.Cash.Minor)
		}
		return s.store.SetCreditLimit(ctx, org, limit)
	})
}

// Share allots what a lease earned: the provider's part becomes payable, the platform keeps feeBPS of it. Rounding favours nobody
// twice: the fee is rounded, the provider gets the rest.
func (s *Service) Share(ctx context.Context, customer, provider ids.Org, lease ids.Lease, earned money.Amount, feeBPS int64) error {
	c := earned.Currency
	fee := earned.Share(feeBPS)
	tx := Tx{
		Org: provider, Kind: ShareTx, Reference: "share:" + lease.String(), Lease: lease, Memo: "Share of a lease's earnings",
		Entries: merged(append(
			move(platforms(Earned, c), customers(provider, Payable, c), earned.Sub(fee)),
			move(platforms(Earned, c), platforms(Fees, c), fee)...)),
	}
	if len(tx.Entries) == 0 {
		return nil
	}
	return s.within(ctx, "share", func(ctx context.Context) error {
		// The customer's lock makes two settlements of one lease follow one another; the provider has no guarded balance.
		if _, err := s.store.Lock(ctx, customer, c); err != nil {
			return err
		}
		return s.postOnce(ctx, tx)
	})
}

// postOnce posts unless the reference was posted before.
func (s *Service) postOnce(ctx context.Context, tx Tx) error {
	if done, err := s.posted(ctx, tx); done || err != nil {
		return err
	}
	return s.post(ctx, tx)
}

// posted reports whether the transaction is in the books already.
func (s *Service) posted(ctx context.Context, tx Tx) (bool, error) {
	size, found, err := s.store.Posted(ctx, tx.Reference)
	if err != nil || !found {
		return false, err
	}
	if size != tx.Size() {
		return false, fault.New(fault.Conflict, "reference-reused", "%s was posted with another amount", tx.Reference)
	}
	return true, nil
}

func (s *Service) post(ctx context.Context, tx Tx) error {
	tx.ID, tx.At = ids.Make[ids.LedgerTx](), s.clock.Now()
	if err := tx.check(); err != nil {
		return err
	}
	return s.store.Post(ctx, tx)
}

func (s *Service) within(ctx context.Context, verb string, fn func(ctx context.Context) error) error {
	if err := s.tx.WithinTx(ctx, fn); err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	return nil
}

func insufficient(available, needed money.Amount) error {
	return fault.New(fault.Unfunded, "insufficient-balance", "%s is needed and %s is available", needed, available).
		With("available_minor", available.Minor).With("needed_minor", needed.Minor).With("currency", string(needed.Currency))
}
