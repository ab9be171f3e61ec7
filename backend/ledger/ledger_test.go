package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/moneytest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/ledger"
	"github.com/leasehold/leasehold/backend/money"
	"github.com/leasehold/leasehold/backend/tenant"
)

type books struct {
	*ledger.Service
	*moneytest.World
	store *postgres.Ledger
}

func open(t *testing.T) books {
	t.Helper()
	w := moneytest.New(t, 1_000)
	store := postgres.NewLedger(w.DB)
	return books{Service: ledger.New(w.DB, store, clock.NewFake(moneytest.Start)), World: w, store: store}
}

func usd(minor int64) money.Amount { return money.Of(minor, money.USD) }

// customer is an organization with that much paid in.
func (b books) customer(t testing.TB, minor, credit int64) ids.Org {
	t.Helper()
	org := b.Org(t, credit)
	if minor > 0 {
		require.NoError(t, b.TopUp(t.Context(), org, ids.Make[ids.Payment](), usd(minor), "card"))
	}
	return org
}

func (b books) lease(t testing.TB, org ids.Org) ids.Lease {
	t.Helper()
	return b.Lease(t, org, 1, moneytest.Plain(time.Hour)).ID
}

func (b books) has(t testing.TB, org ids.Org, cash, held int64) {
	t.Helper()
	got, err := b.Balance(t.Context(), org)
	require.NoError(t, err)
	require.Equal(t, []int64{cash, held}, []int64{got.Cash.Minor, got.Held.Minor}, "cash, held")
}

// balanceOf sums a kind of account over everybody, credits minus debits.
func (b books) sum(t testing.TB, kind ledger.AccountKind) int64 {
	t.Helper()
	var sum int64
	require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT coalesce(-sum(e.amount_minor), 0)::bigint FROM ledger_entry e
		JOIN ledger_account a ON a.id = e.account_id WHERE a.kind = $1`, string(kind)).Scan(&sum))
	return sum
}

func TestMoneyGoesFromCardToHeldToEarnedAndTheRestComesBack(t *testing.T) {
	t.Parallel()
	b := open(t)
	org := b.customer(t, 10_000, 0)
	l := b.lease(t, org)
	b.has(t, org, 10_000, 0)

	require.NoError(t, b.Hold(t.Context(), l, org, usd(6_000)))
	b.has(t, org, 4_000, 6_000)
	require.NoError(t, b.Raise(t.Context(), l, usd(1_000)))
	b.has(t, org, 3_000, 7_000)
	require.NoError(t, b.Capture(t.Context(), l, ledger.Charge{Reference: "capture:1", Net: usd(2_000), Tax: usd(380)}))
	b.has(t, org, 3_000, 4_620)
	require.NoError(t, b.Release(t.Context(), l))
	b.has(t, org, 7_620, 0)
	require.NoError(t, b.Share(t.Context(), org, b.Provider, l, usd(2_000), 1_000))

	require.Equal(t, int64(0), b.sum(t, ledger.Earned), "all of it was shared")
	require.Equal(t, int64(1_800), b.sum(t, ledger.Payable))
	require.Equal(t, int64(200), b.sum(t, ledger.Fees))
	require.Equal(t, int64(380), b.sum(t, ledger.Tax))
	require.Equal(t, int64(-10_000), b.sum(t, ledger.PaymentClearing))
	hold, err := b.HoldOf(t.Context(), l)
	require.NoError(t, err)
	require.True(t, hold.Closed())
	require.Equal(t, usd(0), hold.Remaining())
}

func TestEveryPostingHappensOnceByItsReference(t *testing.T) {
	t.Parallel()
	b := open(t)
	org, payment := b.customer(t, 0, 0), ids.Make[ids.Payment]()
	l := b.lease(t, org)
	charge := ledger.Charge{Reference: "capture:1", Net: usd(700), Tax: usd(0)}
	for range 2 {
		require.NoError(t, b.TopUp(t.Context(), org, payment, usd(5_000), "card"))
		require.NoError(t, b.Hold(t.Context(), l, org, usd(3_000)))
		require.NoError(t, b.Capture(t.Context(), l, charge))
	}
	b.has(t, org, 2_000, 2_300)
	for range 2 {
		require.NoError(t, b.Release(t.Context(), l))
		require.NoError(t, b.Capture(t.Context(), l, charge), "a repeated capture of a settled lease is still the same one")
		require.NoError(t, b.Share(t.Context(), org, b.Provider, l, usd(700), 1_000))
		require.NoError(t, b.Credit(t.Context(), org, "credit:1", usd(10), "outage"))
		require.NoError(t, b.Refund(t.Context(), org, "refund:1", usd(310), "asked for"))
	}
	b.has(t, org, 4_000, 0)

	require.Equal(t, "reference-reused", fault.CodeOf(b.TopUp(t.Context(), org, payment, usd(5_001), "card")))
	require.Equal(t, "hold-differs", fault.CodeOf(b.Hold(t.Context(), l, org, usd(3_001))))
}

func TestTooLittleMoneyIsRefusedWithTheNumbers(t *testing.T) {
	t.Parallel()
	b := open(t)
	org := b.customer(t, 1_000, 500)
	err := b.Hold(t.Context(), b.lease(t, org), org, usd(1_501))
	var f *fault.Fault
	require.ErrorAs(t, err, &f)
	require.Equal(t, fault.Unfunded, f.Kind)
	require.Equal(t, "insufficient-balance", f.Code)
	require.Equal(t, map[string]any{"available_minor": int64(1_500), "needed_minor": int64(1_501), "currency": "USD"}, f.Facts)
	b.has(t, org, 1_000, 0)

	l := b.lease(t, org)
	require.NoError(t, b.Hold(t.Context(), l, org, usd(1_500)), "the credit limit counts")
	b.has(t, org, -500, 1_500)
	require.True(t, fault.Is(b.Raise(t.Context(), l, usd(1)), fault.Unfunded))
	require.True(t, fault.Is(b.Refund(t.Context(), org, "refund", usd(1), ""), fault.Unfunded), "credit is never paid out")
	require.Equal(t, "credit-in-use", fault.CodeOf(b.SetCreditLimit(t.Context(), org, usd(499))))
	require.NoError(t, b.SetCreditLimit(t.Context(), org, usd(501)))
	require.NoError(t, b.Raise(t.Context(), l, usd(1)))
}

func TestTheDatabaseItselfRefusesABalanceBelowItsFloor(t *testing.T) {
	t.Parallel()
	b := open(t)
	org := b.customer(t, 100, 0)
	cash := ledger.Account{Org: org, Kind: ledger.Cash, Currency: money.USD}
	clearing := ledger.Account{Kind: ledger.PaymentClearing, Currency: money.USD}
	err := b.DB.WithinTx(t.Context(), func(ctx context.Context) error {
		return b.store.Post(ctx, ledger.Tx{
			ID: ids.Make[ids.LedgerTx](), Org: org, Kind: ledger.RefundTx, Reference: "x", At: moneytest.Start,
			Entries: []ledger.Entry{{Account: cash, Amount: usd(101)}, {Account: clearing, Amount: usd(-101)}},
		})
	})
	require.Equal(t, "ledger-balance-floor", fault.CodeOf(err))
	b.has(t, org, 100, 0)
}

func TestTheDatabaseItselfRefusesATransactionThatDoesNotSumToZero(t *testing.T) {
	t.Parallel()
	b := open(t)
	org := b.customer(t, 100, 0)
	cash := ledger.Account{Org: org, Kind: ledger.Cash, Currency: money.USD}
	err := b.DB.WithinTx(t.Context(), func(ctx context.Context) error {
		return b.store.Post(ctx, ledger.Tx{
			ID: ids.Make[ids.LedgerTx](), Org: org, Kind: ledger.CreditTx, Reference: "x", At: moneytest.Start,
			Entries: []ledger.Entry{{Account: cash, Amount: usd(-5)}},
		})
	})
	require.Equal(t, "ledger-tx-balanced", fault.CodeOf(err))
	b.has(t, org, 100, 0)
}

func TestAHoldIsNeverExceededNorTouchedAfterItClosed(t *testing.T) {
	t.Parallel()
	b := open(t)
	org := b.customer(t, 10_000, 0)
	l := b.lease(t, org)
	require.NoError(t, b.Hold(t.Context(), l, org, usd(1_000)))
	require.Equal(t, "hold-exceeded", fault.CodeOf(b.Capture(t.Context(), l, ledger.Charge{Reference: "a", Net: usd(1_001), Tax: usd(0)})))
	require.Equal(t, "hold-exceeded", fault.CodeOf(b.Capture(t.Context(), l, ledger.Charge{Reference: "b", Net: usd(-1), Tax: usd(0)})))
	// All or nothing: the first of two charges is not captured when the second cannot be.
	err := b.Capture(t.Context(), l, ledger.Charge{Reference: "c", Net: usd(900), Tax: usd(0)}, ledger.Charge{Reference: "d", Net: usd(90), Tax: usd(11)})
	require.Equal(t, "hold-exceeded", fault.CodeOf(err))
	b.has(t, org, 9_000, 1_000)

	require.NoError(t, b.Capture(t.Context(), l, ledger.Charge{Reference: "e", Net: usd(840), Tax: usd(160)}))
	require.NoError(t, b.Capture(t.Context(), l, ledger.Charge{Reference: "f", Net: usd(-84), Tax: usd(-16)}), "a correction gives back")
	b.has(t, org, 9_000, 100)
	require.NoError(t, b.Release(t.Context(), l))
	b.has(t, org, 9_100, 0)
	require.Equal(t, "hold-closed", fault.CodeOf(b.Capture(t.Context(), l, ledger.Charge{Reference: "g", Net: usd(1), Tax: usd(0)})))
	require.Equal(t, "hold-closed", fault.CodeOf(b.Raise(t.Context(), l, usd(1))))
	require.Equal(t, "hold-not-found", fault.CodeOf(b.Release(t.Context(), b.lease(t, org))))
}

func TestOfManyBookingsAfterTheLastHundredDollarsExactlyOneWins(t *testing.T) {
	t.Parallel()
	b := open(t)
	org := b.customer(t, 10_000, 0)
	const clients = 8
	var wg sync.WaitGroup
	errs := make([]error, clients)
	start := make(chan struct{})
	for i := range clients {
		l := b.lease(t, org)
		wg.Go(func() {
			<-start
			errs[i] = b.Hold(t.Context(), l, org, usd(10_000))
		})
	}
	close(start)
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		require.Equal(t, "insufficient-balance", fault.CodeOf(err), "%v", err)
	}
	require.Equal(t, 1, won)
	b.has(t, org, 0, 10_000)
}

func TestTheFirstPostingsOfANewOrganizationDoNotTripOverEachOther(t *testing.T) {
	t.Parallel()
	b := open(t)
	org := b.Org(t, 0)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() { errs[i] = b.TopUp(t.Context(), org, ids.Make[ids.Payment](), usd(100), "card") })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	b.has(t, org, 800, 0)
}

func TestPlatformAccountsMakeNobodyWait(t *testing.T) {
	t.Parallel()
	b := open(t)
	one, two := b.customer(t, 1_000, 0), b.customer(t, 1_000, 0)
	held := map[ids.Org]ids.Lease{}
	for _, org := range []ids.Org{one, two} {
		held[org] = b.lease(t, org)
		require.NoError(t, b.Hold(t.Context(), held[org], org, usd(500)))
	}
	charge := func(name string) ledger.Charge { return ledger.Charge{Reference: name, Net: usd(100), Tax: usd(19)} }
	// Open the platform's accounts first: only their very first postings might meet.
	require.NoError(t, b.Capture(t.Context(), held[one], charge("zero")))

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	require.NoError(t, b.DB.WithinTx(ctx, func(inner context.Context) error {
		if err := b.Capture(inner, held[one], charge("one")); err != nil {
			return err
		}
		// The other customer's capture commits while the first one's transaction is open: it would wait for ever otherwise.
		return b.Capture(ctx, held[two], charge("two"))
	}))
	require.Equal(t, int64(300), b.sum(t, ledger.Earned))
}

func TestATenantSeesItsOwnBooksOnly(t *testing.T) {
	t.Parallel()
	b := open(t)
	org, other := b.customer(t, 1_000, 0), b.customer(t, 5_000, 0)
	l := b.lease(t, org)
	as := tenant.WithActor(t.Context(), tenant.Actor{Org: org, Role: tenant.Owner})
	require.NoError(t, b.Hold(as, l, org, usd(300)), "a tenant's booking holds through the platform's functions")
	require.NoError(t, b.DB.WithinTx(as, func(ctx context.Context) error {
		if err := b.Raise(ctx, l, usd(1)); err != nil {
			return err
		}
		_, err := b.Service.Balance(ctx, other)
		require.True(t, fault.Is(err, fault.NotFound), "the role is the tenant's again after a posting")
		return nil
	}))
	found, err := b.Transactions(as, org, ids.LedgerTx{}, 10)
	require.NoError(t, err)
	require.Len(t, found, 3)
	require.Equal(t, ledger.HoldTx, found[0].Kind, "newest first")
	require.Equal(t, ledger.TopUpTx, found[2].Kind)
	require.Len(t, found[2].Entries, 1, "the platform's side is not shown")
	require.Equal(t, int64(-1_000), found[2].Entries[0].Amount.Minor, "a credit")
	rest, err := b.Transactions(as, org, found[0].ID, 1)
	require.NoError(t, err)
	require.Equal(t, found[1:2], rest)

	foreign, err := b.Transactions(as, other, ids.LedgerTx{}, 10)
	require.NoError(t, err)
	require.Empty(t, foreign)
	_, err = b.HoldOf(tenant.WithActor(t.Context(), tenant.Actor{Org: other}), l)
	require.Equal(t, "hold-not-found", fault.CodeOf(err))
}

// TestNoHistoryBreaksTheBooks runs random histories of several leases and compares the books with a plain model of them.
func TestNoHistoryBreaksTheBooks(t *testing.T) {
	t.Parallel()
	b := open(t)
	rapid.Check(t, func(r *rapid.T) {
		credit := rapid.SampledFrom([]int64{0, 0, 500}).Draw(r, "credit")
		org := b.Org(t, credit)
		leases := []ids.Lease{b.lease(t, org), b.lease(t, org)}
		m := model{credit: credit, holds: map[ids.Lease]*held{}}
		for i := range rapid.IntRange(1, 14).Draw(r, "steps") {
			b.step(t, r, &m, org, leases[rapid.IntRange(0, 1).Draw(r, "lease")], fmt.Sprintf("%s:%d", org, i))
			b.has(t, org, m.cash, m.held())
		}
		for _, l := range leases {
			if hold, err := b.HoldOf(t.Context(), l); err == nil && hold.Closed() {
				require.Equal(t, hold.Amount, hold.Captured.Add(hold.Released))
			}
		}
	})
	b.requireSound(t)
}

type held struct {
	amount, captured int64
	closed           bool
}

type model struct {
	cash, credit int64
	holds        map[ids.Lease]*held
}

func (m *model) held() int64 {
	sum := int64(0)
	for _, h := range m.holds {
		if !h.closed {
			sum += h.amount - h.captured
		}
	}
	return sum
}

// step does one random thing to the books and to the model; both must agree on whether it is allowed.
func (b books) step(t *testing.T, r *rapid.T, m *model, org ids.Org, l ids.Lease, name string) {
	t.Helper()
	amount := rapid.Int64Range(1, 400).Draw(r, "amount")
	h := m.holds[l]
	open := h != nil && !h.closed
	allowed := func(ok bool, err error) bool {
		require.Equal(t, ok, err == nil, "%v", err)
		return ok
	}
	switch rapid.SampledFrom([]string{"top-up", "hold", "raise", "capture", "give-back", "release", "refund"}).Draw(r, "do") {
	case "top-up":
		if allowed(true, b.TopUp(t.Context(), org, ids.Make[ids.Payment](), usd(amount), "")) {
			m.cash += amount
		}
	case "hold":
		if allowed(h == nil && m.cash+m.credit >= amount || h != nil && h.amount == amount, b.Hold(t.Context(), l, org, usd(amount))) && h == nil {
			m.holds[l], m.cash = &held{amount: amount}, m.cash-amount
		}
	case "raise":
		if allowed(open && m.cash+m.credit >= amount, b.Raise(t.Context(), l, usd(amount))) {
			h.amount, m.cash = h.amount+amount, m.cash-amount
		}
	case "capture":
		tax := usd(amount).Share(1_900)
		err := b.Capture(t.Context(), l, ledger.Charge{Reference: name, Net: usd(amount).Sub(tax), Tax: tax})
		if allowed(open && h.captured+amount <= h.amount, err) {
			h.captured += amount
		}
	case "give-back":
		if allowed(open && h.captured >= amount, b.Capture(t.Context(), l, ledger.Charge{Reference: name, Net: usd(-amount), Tax: usd(0)})) {
			h.captured -= amount
		}
	case "release":
		if allowed(h != nil, b.Release(t.Context(), l)) && open {
			h.closed, m.cash = true, m.cash+h.amount-h.captured
		}
	case "refund":
		if allowed(m.cash >= amount, b.Refund(t.Context(), org, name, usd(amount), "")) {
			m.cash -= amount
		}
	}
}

// requireSound checks the whole database's books against the invariants.
func (b books) requireSound(t *testing.T) {
	t.Helper()
	for claim, sql := range map[string]string{
		"every transaction sums to zero": `SELECT count(*) FROM (SELECT tx_id FROM ledger_entry GROUP BY tx_id, currency HAVING sum(amount_minor) <> 0) x`,
		"every balance is its entries": `SELECT count(*) FROM ledger_balance b WHERE balance_minor <>
			(SELECT coalesce(-sum(amount_minor), 0) FROM ledger_entry e WHERE e.account_id = b.account_id)`,
		"no balance is below its floor": `SELECT count(*) FROM ledger_balance WHERE balance_minor < floor_minor`,
		"what is held is what the holds have left": `SELECT count(*) FROM ledger_balance b WHERE kind = 'held' AND balance_minor <>
			(SELECT coalesce(sum(amount_minor - captured_minor - released_minor), 0) FROM hold h WHERE h.org_id = b.org_id AND h.currency = b.currency)`,
	} {
		var broken int
		require.NoError(t, b.Pool.QueryRow(t.Context(), sql).Scan(&broken), claim)
		require.Zero(t, broken, claim)
	}
	var transactions int
	require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT count(*) FROM ledger_tx`).Scan(&transactions))
	require.Greater(t, transactions, 100, "the histories did something")
}
