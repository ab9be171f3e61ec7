package stripe_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/stripe"
	"github.com/leasehold/leasehold/backend/money"
)

const webhookSecret = "whsec_for_tests"

func newTestGateway() *stripe.TestGateway {
	return stripe.NewTestGateway(stripe.NewMemory(), webhookSecret, "http://portal.example/test-gateway/")
}

func charge(key, method string) billing.Charge {
	return billing.Charge{
		Key: key, EffectKey: "top_up:1", Payment: ids.Make[ids.Payment](), Org: ids.Make[ids.Org](), Amount: money.Of(2_500, money.USD),
		Method: method, Memo: "Top-up",
	}
}

func TestTestCardsDoWhatStripeDocuments(t *testing.T) {
	t.Parallel()
	g := newTestGateway()
	for method, want := range map[string]struct {
		state   billing.PaymentState
		failure string
	}{
		"pm_card_visa":                                 {billing.PaymentSucceeded, ""},
		"pm_card_mastercard":                           {billing.PaymentSucceeded, ""},
		"pm_card_chargeDeclined":                       {billing.PaymentFailed, "Your card was declined."},
		"pm_card_visa_chargeDeclined":                  {billing.PaymentFailed, "Your card was declined."},
		"pm_card_visa_chargeDeclinedInsufficientFunds": {billing.PaymentFailed, "Your card has insufficient funds."},
		"pm_card_chargeDeclinedExpiredCard":            {billing.PaymentFailed, "Your card has expired."},
		"pm_card_threeDSecure2Required":                {billing.PaymentRequiresAction, ""},
	} {
		intent, err := g.Charge(t.Context(), charge("key "+method, method))
		require.NoError(t, err, method)
		require.Equal(t, want.state, intent.State, method)
		require.Equal(t, want.failure, intent.Failure, method)
		require.Equal(t, want.state == billing.PaymentRequiresAction, intent.ActionURL != "", method)
		again, err := g.Intent(t.Context(), intent.Ref)
		require.NoError(t, err)
		require.Equal(t, intent, again, "it keeps its state")
	}
	_, err := g.Charge(t.Context(), charge("key", "pm_card_imaginary"))
	require.Equal(t, "payment-refused", fault.CodeOf(err))
	_, err = g.Intent(t.Context(), "pi_test_none")
	require.True(t, fault.Is(err, fault.NotFound))
}

func TestWithoutAKeyNoRealMoneyMoves(t *testing.T) {
	t.Parallel()
	require.Equal(t, "test", stripe.Choose(stripe.Config{}, newTestGateway()).Name())
	require.Equal(t, "stripe", stripe.Choose(stripe.Config{SecretKey: "sk_test_x"}, newTestGateway()).Name())
}

func TestTheSameKeyIsTheSamePayment(t *testing.T) {
	t.Parallel()
	g := newTestGateway()
	one, err := g.Charge(t.Context(), charge("k", "pm_card_visa"))
	require.NoError(t, err)
	two, err := g.Charge(t.Context(), charge("k", "pm_card_visa"))
	require.NoError(t, err)
	require.Equal(t, one, two)
	other, err := g.Charge(t.Context(), charge("another", "pm_card_visa"))
	require.NoError(t, err)
	require.NotEqual(t, one.Ref, other.Ref)
	_, err = g.Charge(t.Context(), charge("k", "pm_card_mastercard"))
	require.ErrorContains(t, err, "other parameters")
}

func TestAPaymentIsFoundByItsEffectWhicheverAttemptMadeIt(t *testing.T) {
	t.Parallel()
	g := newTestGateway()
	_, err := g.Find(t.Context(), "top_up:1", epoch)
	require.True(t, fault.Is(err, fault.NotFound))
	made, err := g.Charge(t.Context(), charge("top_up:1:3", "pm_card_visa"))
	require.NoError(t, err)
	found, err := g.Find(t.Context(), "top_up:1", epoch)
	require.NoError(t, err)
	require.Equal(t, made, found)
}

func TestThePageStandsInForTheBank(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[string]billing.PaymentState{"complete": billing.PaymentSucceeded, "fail": billing.PaymentFailed} {
		g := newTestGateway()
		intent, err := g.Charge(t.Context(), charge("k", "pm_card_threeDSecure2Required"))
		require.NoError(t, err)
		at, err := url.Parse(intent.ActionURL)
		require.NoError(t, err)
		ask := func(method, path, body string) *httptest.ResponseRecorder {
			r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			w := httptest.NewRecorder()
			g.Page().ServeHTTP(w, r)
			return w
		}
		shown := ask(http.MethodGet, at.Path, "")
		require.Equal(t, http.StatusOK, shown.Code)
		require.Contains(t, shown.Body.String(), "25.00 USD")
		require.Contains(t, shown.Body.String(), "No real money moves")
		require.Equal(t, http.StatusOK, ask(http.MethodPost, at.Path, "outcome="+outcome).Code)
		after, err := g.Intent(t.Context(), intent.Ref)
		require.NoError(t, err)
		require.Equal(t, want, after.State)
		require.Equal(t, http.StatusConflict, ask(http.MethodPost, at.Path, "outcome=complete").Code, "only once")
		require.Equal(t, http.StatusNotFound, ask(http.MethodGet, "/test-gateway/pi_none", "").Code)
		require.Equal(t, http.StatusMethodNotAllowed, ask(http.MethodPut, at.Path, "").Code)
	}
}
