package billing_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/moneytest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/ledger"
	"github.com/leasehold/leasehold/backend/metering"
	"github.com/leasehold/leasehold/backend/money"
	"github.com/leasehold/leasehold/backend/tenant"
)

// desk is everything around the service, on a database of its own.
type desk struct {
	*billing.Service
	*moneytest.World
	books *ledger.Service
	check *postgres.Invoices
	clock *clock.Fake
}

func open(t *testing.T) desk {
	t.Helper()
	w, clk := moneytest.New(t, 1_000), clock.NewFake(moneytest.Start)
	books := ledger.New(w.DB, postgres.NewLedger(w.DB), clk)
	invoices := postgres.NewInvoices(w.DB)
	return desk{
		Service: billing.New(w.DB, books, postgres.NewMetering(w.DB), invoices, clk), World: w, books: books, check: invoices, clock: clk,
	}
}

func usd(minor int64) money.Amount { return money.Of(minor, money.USD) }

func after(d time.Duration) time.Time { return moneytest.Start.Add(d) }

// booked is a lease of two nodes of 8 GPUs for 10 h at 1 USD with 19 % tax, held: 160 USD and 30.40.
func (d desk) booked(t *testing.T, cash int64) lease.Lease {
	t.Helper()
	org := d.Org(t, 0)
	require.NoError(t, d.books.Credit(t.Context(), org, "gift:"+org.String(), usd(cash), "for the test"))
	segment := moneytest.Segment(1, moneytest.Start, after(10*time.Hour), 1_000_000, 1_900, 8)
	segment.Terms.EarlyRefundBPS = 5_000
	l := d.Lease(t, org, 2, segment)
	total, err := metering.Total([]lease.Segment{segment}, 2)
	require.NoError(t, err)
	require.Equal(t, usd(19_040), total)
	require.NoError(t, d.Hold(t.Context(), l.ID, org, total))
	return l
}

func (d desk) active(t *testing.T, l lease.Lease, at time.Duration) {
	t.Helper()
	d.Is(t, l, lease.Active, lease.NoOutcome)
	d.Happens(t, l, after(at), lease.EventActive, nil)
}

func (d desk) over(t *testing.T, l lease.Lease, at time.Duration, outcome lease.Outcome) {
	t.Helper()
	d.clock.Set(after(at))
	d.Is(t, l, lease.Releasing, outcome)
	d.Happens(t, l, after(at), lease.EventReleasing, map[string]any{"outcome": string(outcome)})
}

// cancelled is how booking leaves a lease that was cancelled before anything was touched.
func (d desk) cancelled(t *testing.T, l lease.Lease, refund int64) {
	t.Helper()
	d.Is(t, l, lease.Cancelled, lease.CancelledOutcome)
	d.Happens(t, l, d.clock.Now(), lease.EventCancelAsked, map[string]any{"refund_minor": refund})
	d.Happens(t, l, d.clock.Now(), lease.EventCancelled, nil)
}

func (d desk) has(t *testing.T, org ids.Org, cash, held int64) {
	t.Helper()
	b, err := d.Balance(t.Context(), org)
	require.NoError(t, err)
	require.Equal(t, []int64{cash, held}, []int64{b.Cash.Minor, b.Held.Minor}, "cash, held")
}

func (d desk) sound(t *testing.T) {
	t.Helper()
	breaches, err := d.check.Check(t.Context())
	require.NoError(t, err)
	require.Empty(t, breaches)
	breaches, err = d.Audit(tenant.AsPlatform(t.Context()))
	require.NoError(t, err)
	require.Empty(t, breaches)
}

func TestALeaseIsAccruedSettledAndInvoicedFromItsHold(t *testing.T) {
	t.Parallel()
	d := open(t)
	l := d.booked(t, 20_000)
	d.has(t, l.Org, 960, 19_040)
	d.active(t, l, time.Hour) // an hour late
	for hour := 1; hour <= 9; hour++ {
		d.clock.Set(after(time.Duration(hour) * time.Hour))
		for range 2 {
			require.NoError(t, d.Accrue(t.Context(), l.ID, d.clock.Now()))
		}
		d.sound(t)
	}
	d.has(t, l.Org, 960, 19_040-8*1_904)
	usage, err := d.Usage(t.Context(), l.ID)
	require.NoError(t, err)
	require.Len(t, usage.Lines, 8)
	require.Equal(t, usd(8*1_904), usage.Charged)
	require.Equal(t, usd(9*1_904), usage.Forecast)
	require.Len(t, usage.Intervals, 4, "provisioning and billable of two nodes")

	d.over(t, l, 10*time.Hour, lease.Completed)
	id, err := d.Settle(t.Context(), l.ID)
	require.NoError(t, err)
	d.has(t, l.Org, 960+1_904, 0)
	again, err := d.Settle(t.Context(), l.ID)
	require.NoError(t, err)
	require.Equal(t, id, again)
	require.NoError(t, d.Accrue(t.Context(), l.ID, d.clock.Now()), "a late accrual finds nothing")
	d.has(t, l.Org, 960+1_904, 0)

	invoice, err := d.Invoice(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, billing.Draft, invoice.State)
	require.Equal(t, []int64{14_400, 2_736, 17_136, 17_136, 0}, []int64{
		invoice.Subtotal.Minor, invoice.Tax.Minor, invoice.Total.Minor, invoice.Prepaid.Minor, invoice.Payable.Minor,
	})
	require.Len(t, invoice.Lines, 9)
	require.Equal(t, "2 × h100-sxm.8x at 1.00 USD per gpu-hour", invoice.Lines[0].Description)
	require.Equal(t, int64(12_960), d.sum(t, ledger.Payable), "the provider's share: what was earned less a tenth")
	require.Equal(t, int64(1_440), d.sum(t, ledger.Fees))
	d.sound(t)
}

// sum adds up a kind of account over everybody, credits minus debits.
func (d desk) sum(t *testing.T, kind ledger.AccountKind) int64 {
	t.Helper()
	var sum int64
	require.NoError(t, d.Pool.QueryRow(t.Context(), `SELECT coalesce(-sum(e.amount_minor), 0)::bigint FROM ledger_entry e
		JOIN ledger_account a ON a.id = e.account_id WHERE a.kind = $1`, string(kind)).Scan(&sum))
	return sum
}

func TestAccrualNeverRunsAheadOfTheClock(t *testing.T) {
	t.Parallel()
	d := open(t)
	l := d.booked(t, 20_000)
	d.active(t, l, 0)
	d.clock.Set(after(time.Hour))
	require.NoError(t, d.Accrue(t.Context(), l.ID, after(10*time.Hour)))
	d.has(t, l.Org, 960, 19_040-1_904)
}

func TestManyAccrualsAtOnceChargeOnce(t *testing.T) {
	t.Parallel()
	d := open(t)
	l := d.booked(t, 20_000)
	d.active(t, l, 0)
	d.clock.Set(after(3 * time.Hour))
	var wg sync.WaitGroup
	errs := make([]error, 6)
	for i := range errs {
		wg.Go(func() { errs[i] = d.Accrue(t.Context(), l.ID, after(3*time.Hour)) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	d.has(t, l.Org, 960, 19_040-3*1_904)
	d.sound(t)
}

func TestManySettlementsAtOnceMakeOneInvoice(t *testing.T) {
	t.Parallel()
	d := open(t)
	l := d.booked(t, 20_000)
	d.active(t, l, 0)
	d.over(t, l, 10*time.Hour, lease.Completed)
	var wg sync.WaitGroup
	found, errs := make([]ids.Invoice, 6), make([]error, 6)
	for i := range errs {
		wg.Go(func() { found[i], errs[i] = d.Settle(t.Context(), l.ID) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	for _, id := range found {
		require.Equal(t, found[0], id)
	}
	d.has(t, l.Org, 960, 0)
	d.sound(t)
}

func TestASettlementThatFailsHalfWayLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	d := open(t)
	l := d.booked(t, 20_000)
	d.active(t, l, 0)
	d.over(t, l, 10*time.Hour, lease.Completed)
	died := errors.New("died before the commit")
	err := d.DB.WithinTx(t.Context(), func(ctx context.Context) error {
		if _, err := d.Settle(ctx, l.ID); err != nil {
			return err
		}
		return died
	})
	require.ErrorIs(t, err, died)
	d.has(t, l.Org, 960, 19_040)
	_, err = d.Settle(t.Context(), l.ID)
	require.NoError(t, err)
	d.has(t, l.Org, 960, 0)
	d.sound(t)
}

func TestALeaseThatRunsIsNotSettled(t *testing.T) {
	t.Parallel()
	d := open(t)
	l := d.booked(t, 20_000)
	d.active(t, l, 0)
	_, err := d.Settle(t.Context(), l.ID)
	require.Equal(t, "lease-not-over", fault.CodeOf(err))
}

func TestAnEarlyEndGivesBackWhatTheTermsSay(t *testing.T) {
	t.Parallel()
	d := open(t)
	l := d.booked(t, 19_040)
	d.active(t, l, 0)
	d.clock.Set(after(2 * time.Hour))
	require.NoError(t, d.Accrue(t.Context(), l.ID, d.clock.Now()))
	d.Wants(t, l, after(4*time.Hour))
	d.over(t, l, 4*time.Hour, lease.Terminated)
	id, err := d.Settle(t.Context(), l.ID)
	require.NoError(t, err)
	invoice, err := d.Invoice(t.Context(), id)
	require.NoError(t, err)
	require.Len(t, invoice.Lines, 3)
	fee := invoice.Lines[2]
	require.Equal(t, metering.Fee, fee.Kind)
	require.Equal(t, usd(4_800), fee.Amount, "half of six hours of sixteen GPUs")
	require.Equal(t, usd(6_400+4_800), invoice.Subtotal)
	require.Equal(t, usd(0), invoice.Payable)
	d.has(t, l.Org, 19_040-invoice.Total.Minor, 0)
	require.Equal(t, after(4*time.Hour), invoice.To)
	d.sound(t)
}

func TestALeaseThatFailedCostsNothingAndItsInvoiceSaysSo(t *testing.T) {
	t.Parallel()
	d := open(t)
	l := d.booked(t, 19_040)
	d.over(t, l, time.Hour, lease.FailedOutcome)
	id, err := d.Settle(t.Context(), l.ID)
	require.NoError(t, err)
	invoice, err := d.Invoice(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, usd(0), invoice.Total)
	require.Empty(t, invoice.Lines)
	d.has(t, l.Org, 19_040, 0)
	d.sound(t)
}

func TestACancellationKeepsWhatTheCustomerWasTold(t *testing.T) {
	t.Parallel()
	d := open(t)
	l := d.booked(t, 19_040)
	as := tenant.WithActor(t.Context(), tenant.Actor{Org: l.Org, Role: tenant.Owner}) // it happens in the customer's own request
	d.cancelled(t, l, 9_519)
	require.Equal(t, "hold-exceeded", fault.CodeOf(d.Cancel(as, l.ID, usd(19_041))))
	for range 2 {
		require.NoError(t, d.Cancel(as, l.ID, usd(9_521)))
		d.has(t, l.Org, 9_519, 0)
	}
	require.Equal(t, "already-settled", fault.CodeOf(d.Cancel(as, l.ID, usd(1))))
	invoices, err := d.Invoices(as, billing.InvoiceFilter{Org: l.Org, Lease: l.ID})
	require.NoError(t, err)
	require.Len(t, invoices, 1)
	require.Equal(t, usd(9_521), invoices[0].Total)
	require.Equal(t, metering.Fee, invoices[0].Lines[0].Kind)

	free := d.booked(t, 19_040)
	d.cancelled(t, free, 19_040)
	require.NoError(t, d.Cancel(t.Context(), free.ID, usd(0)))
	d.has(t, free.Org, 19_040, 0)
	d.sound(t)
}

func TestAnExtensionIsHeldAndChargedAtItsOwnPrice(t *testing.T) {
	t.Parallel()
	d := open(t)
	org := d.Org(t, 0)
	require.NoError(t, d.books.Credit(t.Context(), org, "gift", usd(10_000), ""))
	one := moneytest.Segment(1, moneytest.Start, after(2*time.Hour), 1_000_000, 0, 8)
	two := moneytest.Segment(2, after(2*time.Hour), after(3*time.Hour), 2_000_000, 2_000, 8)
	l := d.Lease(t, org, 1, one, two)
	require.NoError(t, d.Hold(t.Context(), l.ID, org, usd(1_600)))
	require.NoError(t, d.Raise(t.Context(), l.ID, usd(1_920)))
	d.active(t, l, 0)
	d.over(t, l, 3*time.Hour, lease.Completed)
	id, err := d.Settle(t.Context(), l.ID)
	require.NoError(t, err)
	invoice, err := d.Invoice(t.Context(), id)
	require.NoError(t, err)
	require.Len(t, invoice.Lines, 2)
	require.Equal(t, usd(3_520), invoice.Total)
	d.has(t, org, 10_000-3_520, 0)
	d.sound(t)
}

func TestFinalInvoicesAreNumberedWithoutGapsAndFrozen(t *testing.T) {
	t.Parallel()
	d := open(t)
	drafts := make([]ids.Invoice, 5)
	for i := range drafts {
		l := d.booked(t, 19_040)
		d.clock.Set(moneytest.Start)
		d.active(t, l, 0)
		d.over(t, l, time.Duration(i+1)*time.Hour, lease.FailedOutcome)
		var err error
		drafts[i], err = d.Settle(t.Context(), l.ID)
		require.NoError(t, err)
	}
	// One that fails after it drew its number gives the number back.
	died := errors.New("died before the commit")
	require.ErrorIs(t, d.DB.WithinTx(t.Context(), func(ctx context.Context) error {
		_, err := d.Finalize(ctx, drafts[0])
		return errors.Join(err, died)
	}), died)

	var wg sync.WaitGroup
	errs := make([]error, 2*len(drafts))
	for i := range errs {
		wg.Go(func() { _, errs[i] = d.Finalize(t.Context(), drafts[i%len(drafts)]) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	numbers := map[string]bool{}
	for _, id := range drafts {
		invoice, err := d.Invoice(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, billing.Final, invoice.State)
		require.NoError(t, invoice.Verify(), "as the database gives it back")
		numbers[invoice.Number] = true
		invoice.Snapshot = []byte(`{"number": "LH-000009"}`)
		require.Error(t, invoice.Verify())
	}
	for i := range drafts {
		require.True(t, numbers[fmt.Sprintf("LH-%06d", i+1)], "%v", numbers)
	}
	d.sound(t)
}

func TestATenantSeesItsOwnBillOnly(t *testing.T) {
	t.Parallel()
	d := open(t)
	l, other := d.booked(t, 19_040), d.booked(t, 19_040)
	for _, it := range []lease.Lease{l, other} {
		d.clock.Set(moneytest.Start)
		d.active(t, it, 0)
		for hour := 1; hour <= 3; hour++ {
			d.clock.Set(after(time.Duration(hour) * time.Hour))
			require.NoError(t, d.Accrue(t.Context(), it.ID, d.clock.Now()))
		}
	}
	as := tenant.WithActor(t.Context(), tenant.Actor{Org: l.Org})
	all, err := d.Lines(as, billing.LineFilter{Org: l.Org, Limit: 10})
	require.NoError(t, err)
	require.Len(t, all, 3)
	require.True(t, all[0].From.After(all[1].From), "newest first")
	page, err := d.Lines(as, billing.LineFilter{Org: l.Org, After: all[0].ID, Limit: 1})
	require.NoError(t, err)
	require.Equal(t, all[1:2], page)
	window, err := d.Lines(as, billing.LineFilter{Org: l.Org, From: after(time.Hour), To: after(2 * time.Hour)})
	require.NoError(t, err)
	require.Equal(t, all[1:2], window)

	foreign, err := d.Lines(as, billing.LineFilter{Org: other.Org})
	require.NoError(t, err)
	require.Empty(t, foreign)
	_, err = d.Usage(as, other.ID)
	require.True(t, fault.Is(err, fault.NotFound))
	usage, err := d.Usage(as, l.ID)
	require.NoError(t, err)
	require.Len(t, usage.Intervals, 2)
}

func TestTheCheckSeesWhatIsWrong(t *testing.T) {
	t.Parallel()
	d := open(t)
	l := d.booked(t, 19_040)
	d.active(t, l, 0)
	d.over(t, l, 10*time.Hour, lease.Completed)
	id, err := d.Settle(t.Context(), l.ID)
	require.NoError(t, err)
	d.sound(t)
	for claim, damage := range map[string]string{
		"every guarded balance is the sum of its entries":                          `UPDATE ledger_balance SET balance_minor = balance_minor + 1 WHERE kind = 'cash'`,
		"every lease's charge lines are what was captured from its hold":           `UPDATE charge_line SET amount_minor = amount_minor - 1`,
		"all charge lines together are the invoices and what is not invoiced":      `UPDATE invoice SET subtotal_minor = subtotal_minor + 1, total_minor = total_minor + 1, prepaid_minor = prepaid_minor + 1`,
		"every invoice is the sum of its lines":                                    `UPDATE charge_line SET invoice_id = NULL`,
		"invoice numbers have no gaps":                                             `INSERT INTO invoice_counter VALUES ('leasehold', 3)`,
		"what is held is what the holds have left":                                 `UPDATE hold SET amount_minor = amount_minor + 5, closed_at = NULL`,
		"no balance is below its floor, and the floor of cash is the credit limit": `UPDATE organization SET credit_limit_minor = 7`,
		"top-ups in the books are the payments that succeeded": `INSERT INTO payment (id, org_id, kind, currency, amount_minor, state, gateway, effect_key, created_by, created_at, updated_at)
			SELECT gen_random_uuid(), org_id, 'top_up', 'USD', 1, 'succeeded', 'test', 'x', 'test', now(), now() FROM invoice`,
		"every lease that is over is settled: its hold is closed": `WITH h AS (UPDATE hold SET closed_at = NULL) UPDATE lease SET state = 'closed'`,
	} {
		tx, err := d.Pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), damage)
		require.NoError(t, err, claim)
		require.NoError(t, tx.Commit(t.Context()))
		breaches, err := d.check.Check(t.Context())
		require.NoError(t, err)
		claims := map[string]bool{}
		for _, b := range breaches {
			claims[b.Claim] = true
		}
		require.True(t, claims[claim], "%s: %v", claim, breaches)
	}
	require.False(t, id.IsZero())
}

func TestAChargeThatTheFactsDoNotSayIsFound(t *testing.T) {
	t.Parallel()
	d := open(t)
	l := d.booked(t, 20_000)
	d.active(t, l, time.Hour)
	d.clock.Set(after(3 * time.Hour))
	require.NoError(t, d.Accrue(t.Context(), l.ID, d.clock.Now()))
	d.over(t, l, 10*time.Hour, lease.Completed)
	_, err := d.Settle(t.Context(), l.ID)
	require.NoError(t, err)
	d.sound(t)
	d.Happens(t, l, after(5*time.Hour), lease.EventOutageBegan, nil) // somebody writes into the log of a settled lease
	breaches, err := d.Audit(tenant.AsPlatform(t.Context()))
	require.NoError(t, err)
	require.Len(t, breaches, 1)
	require.Equal(t, l.ID.String(), breaches[0].What)
	require.Contains(t, breaches[0].Found, "segment 1 is charged")
}
