package httpapi_test

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/internal/httpapi"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/internal/moneytest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/internal/stripe"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/ledger"
	"github.com/leasehold/leasehold/backend/metering"
)

// newBilling is the area of billing on the world's database, with the test gateway.
func newBilling(w *world) httpapi.Billing {
	books := ledger.New(w.db, postgres.NewLedger(w.db), w.clock)
	payments := billing.NewPayments(w.db, postgres.NewPayments(w.db), testGateway(w), books, w.clock)
	payments.Audited(audit.New(postgres.NewAuditEvents(w.db), w.clock))
	return httpapi.Billing{
		Bills:    billing.New(w.db, books, postgres.NewMetering(w.db), postgres.NewInvoices(w.db), w.clock),
		Payments: payments,
		Draw: func(w io.Writer, s billing.Statement, notice string) error {
			_, err := fmt.Fprintf(w, "%%PDF of %s for %s: %s", s.ID, s.Customer.Name, notice)
			return err
		},
	}
}

func testGateway(w *world) *stripe.TestGateway {
	return stripe.NewTestGateway(postgres.NewTestGatewayVault(w.db), "whsec_test", "http://portal.test/test-gateway/")
}

func topUp(minor int, method string) map[string]any {
	return map[string]any{"amount": map[string]any{"amount": minor, "currency": "USD"}, "payment_method": method}
}

// decode reads an answer.
func decode[T any](t *testing.T, got answer) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal(got.body, &v), got.text())
	return v
}

func (c caller) balance(t *testing.T) api.Balance {
	t.Helper()
	got := c.do(http.MethodGet, "/v1/billing/balance", nil)
	require.Equal(t, http.StatusOK, got.status, got.text())
	return decode[api.Balance](t, got)
}

func TestMoneyIsPaidInOnceUnderItsKeyAndShows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada := w.logIn(0)
	require.Equal(t, "test", string(ada.balance(t).Gateway), "it says that no real money moves")
	for range 2 {
		got := ada.do(http.MethodPost, "/v1/billing/top-ups", topUp(2_500, "pm_card_visa"), withKey("k1"))
		require.Equal(t, http.StatusCreated, got.status, got.text())
		require.Equal(t, "succeeded", got.member("state"))
	}
	require.Equal(t, int64(2_500), ada.balance(t).Cash.Amount)
	require.Equal(t, int64(2_500), ada.balance(t).Available.Amount)
	require.Zero(t, w.logIn(1).balance(t).Cash.Amount)

	books := ada.do(http.MethodGet, "/v1/billing/ledger", nil)
	require.Contains(t, books.text(), `"kind":"top_up"`)
	require.Contains(t, books.text(), `"entries":[{"account":"cash","amount":{"amount":2500,"currency":"USD"}}]`, "more money is positive to the customer")
}

func TestACardThatIsRefusedOrUnknownIsSaid(t *testing.T) {
	t.Parallel()
	ada := newWorld(t).logIn(0)
	got := ada.do(http.MethodPost, "/v1/billing/top-ups", topUp(2_500, "pm_card_chargeDeclinedInsufficientFunds"))
	require.Equal(t, http.StatusCreated, got.status, got.text())
	require.Equal(t, "failed", got.member("state"))
	require.Equal(t, "Your card has insufficient funds.", got.member("failure"))
	euro := topUp(2_500, "pm_card_visa")
	euro["amount"] = map[string]any{"amount": 5, "currency": "EUR"}
	requireProblem(t, ada.do(http.MethodPost, "/v1/billing/top-ups", euro), http.StatusUnprocessableEntity, "currency-differs")
	require.Zero(t, ada.balance(t).Cash.Amount)
}

func TestAWebhookIsKeptWhenItsSignatureIsRight(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada, gateway := w.logIn(0), testGateway(w)
	got := ada.do(http.MethodPost, "/v1/billing/top-ups", topUp(700, "pm_card_threeDSecure2Required"))
	require.Equal(t, "requires_action", got.member("state"), got.text())
	ref := got.member("action_url")[strings.LastIndex(got.member("action_url"), "/")+1:]
	intent, err := gateway.Authenticate(t.Context(), ref, true)
	require.NoError(t, err)

	body, signature := gateway.Hint("evt_1", intent)
	send := func(signature string) answer {
		return w.nobody().do(http.MethodPost, "/v1/webhooks/stripe", body, withHeader("Stripe-Signature", signature))
	}
	requireProblem(t, send("t=1,v1=00"), http.StatusUnprocessableEntity, "webhook-signature")
	for range 2 {
		require.Equal(t, http.StatusNoContent, send(signature).status)
	}
	require.Zero(t, ada.balance(t).Cash.Amount, "a webhook is a hint: nothing is booked from it")
	require.NoError(t, newBilling(w).Payments.Sweep(t.Context(), 10))
	require.Equal(t, int64(700), ada.balance(t).Cash.Amount)
}

// heldLease is Ada's lease of one node for nine minutes from now, with its money held.
func (w *world) heldLease(t *testing.T, ada caller, area httpapi.Billing) (*moneytest.World, lease.Lease) {
	t.Helper()
	money := moneytest.On(t, w.db, w.database.Pool(t), 1_000)
	require.Equal(t, http.StatusCreated, ada.do(http.MethodPost, "/v1/billing/top-ups", topUp(10_000, "pm_card_visa")).status)
	start := w.clock.Now()
	segment := moneytest.Segment(1, start, start.Add(9*time.Minute), 20_000_000, 1_900, 8)
	l := money.Lease(t, w.seeded[0].Org, 1, segment)
	total, err := metering.Total([]lease.Segment{segment}, 1)
	require.NoError(t, err)
	require.NoError(t, area.Bills.Hold(t.Context(), l.ID, l.Org, total))
	return money, l
}

func TestUsageAndInvoicesAreOnesOwnAndPaged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada, bob, area := w.logIn(0), w.logIn(1), newBilling(w)
	money, l := w.heldLease(t, ada, area)
	money.Is(t, l, lease.Active, lease.NoOutcome)
	money.Happens(t, l, l.Start, lease.EventActive, nil)
	for range 3 {
		require.NoError(t, area.Bills.Accrue(t.Context(), l.ID, w.clock.Advance(3*time.Minute)))
	}

	first := ada.do(http.MethodGet, "/v1/billing/usage?limit=2&lease_id="+l.ID.String(), nil)
	require.Equal(t, http.StatusOK, first.status, first.text())
	lines := decode[api.ChargeLineList](t, first)
	require.Len(t, lines.Items, 2)
	next, _, _ := strings.Cut(strings.TrimPrefix(first.header.Get("Link"), "<"), ">")
	rest := decode[api.ChargeLineList](t, ada.do(http.MethodGet, next, nil))
	require.Len(t, rest.Items, 1)
	require.Equal(t, 1, rest.Items[0].Seq)
	require.Empty(t, decode[api.ChargeLineList](t, bob.do(http.MethodGet, "/v1/billing/usage", nil)).Items)

	money.Happens(t, l, l.End, lease.EventReleasing, nil)
	money.Is(t, l, lease.Releasing, lease.Completed)
	invoice, err := area.Bills.Settle(t.Context(), l.ID)
	require.NoError(t, err)
	path := "/v1/billing/invoices/" + invoice.String()
	requireProblem(t, bob.do(http.MethodGet, path, nil), http.StatusNotFound, "invoice-not-found")
	shown := decode[api.Invoice](t, ada.do(http.MethodGet, path, nil))
	require.Equal(t, "draft", string(shown.State))
	require.Len(t, shown.Lines, 3)
	require.Equal(t, shown.Total, shown.Prepaid)
	require.Zero(t, shown.Payable.Amount)
	require.Equal(t, 10_000-shown.Total.Amount, ada.balance(t).Cash.Amount)
	listed := ada.do(http.MethodGet, "/v1/billing/invoices?lease_id="+l.ID.String(), nil)
	require.Contains(t, listed.text(), invoice.String())
	require.NotContains(t, bob.do(http.MethodGet, "/v1/billing/invoices", nil).text(), invoice.String())
}

func TestAnInvoiceIsAPaperAndRowsForCostTools(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada, bob, area := w.logIn(0), w.logIn(1), newBilling(w)
	money, l := w.heldLease(t, ada, area)
	money.Happens(t, l, l.Start, lease.EventActive, nil)
	money.Happens(t, l, l.End, lease.EventReleasing, nil)
	money.Is(t, l, lease.Releasing, lease.Completed)
	invoice, err := area.Bills.Settle(t.Context(), l.ID)
	require.NoError(t, err)

	path := "/v1/billing/invoices/" + invoice.String() + "/pdf"
	paper := ada.do(http.MethodGet, path, nil)
	require.Equal(t, http.StatusOK, paper.status, paper.text())
	require.Equal(t, "application/pdf", paper.header.Get("Content-Type"))
	require.Equal(t, `attachment; filename="draft-`+invoice.String()+`.pdf"`, paper.header.Get("Content-Disposition"))
	require.Contains(t, paper.text(), "Test gateway: no real money moved.")
	requireProblem(t, bob.do(http.MethodGet, path, nil), http.StatusNotFound, "invoice-not-found")

	start := l.Start
	export := func(who caller, from, to time.Time) answer {
		asked := url.Values{"from": {from.Format(time.RFC3339)}, "to": {to.Format(time.RFC3339)}}
		return who.do(http.MethodGet, "/v1/billing/exports/focus?"+asked.Encode(), nil)
	}
	rows := func(got answer) [][]string {
		require.Equal(t, http.StatusOK, got.status, got.text())
		read, err := csv.NewReader(strings.NewReader(got.text())).ReadAll()
		require.NoError(t, err)
		return read
	}
	require.Len(t, rows(export(ada, start, start.Add(time.Hour))), 3, "a header, a charge, its tax")
	require.Len(t, rows(export(ada, start.Add(time.Hour), start.Add(2*time.Hour))), 1, "nothing was charged in that hour")
	require.Len(t, rows(export(bob, start, start.Add(time.Hour))), 1)
	requireProblem(t, export(ada, start, start), http.StatusUnprocessableEntity, "invalid-period")
	requireProblem(t, export(ada, start, start.AddDate(1, 0, 2)), http.StatusUnprocessableEntity, "invalid-period")
}
