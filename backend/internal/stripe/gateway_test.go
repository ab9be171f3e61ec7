package stripe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/internal/stripe"
	"github.com/leasehold/leasehold/backend/money"
)

// request is what a double of Stripe was asked.
type request struct {
	method, path, key, authorization, version string
	form                                      url.Values
}

// double answers every request with status and body, and tells what it was asked.
func double(t *testing.T, status int, body any) (*stripe.Gateway, *request) {
	t.Helper()
	asked := &request{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		*asked = request{
			r.Method, r.URL.Path, r.Header.Get("Idempotency-Key"), r.Header.Get("Authorization"), r.Header.Get("Stripe-Version"), r.Form,
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}))
	t.Cleanup(server.Close)
	return stripe.New(stripe.Config{SecretKey: "sk_test_secret", ReturnURL: "https://portal.example/billing", BaseURL: server.URL}), asked
}

type object = map[string]any

func paymentIntent(status string, more object) object {
	pi := object{
		"id": "pi_1", "object": "payment_intent", "status": status, "amount": 2_500, "currency": "usd", "metadata": object{"leasehold_effect": "top_up:1"},
	}
	maps.Copy(pi, more)
	return pi
}

func TestAChargeHasItsKeyAndSaysWhatItIsFor(t *testing.T) {
	t.Parallel()
	g, asked := double(t, http.StatusOK, paymentIntent("succeeded", nil))
	c := charge("top_up:1", "pm_card_visa")
	intent, err := g.Charge(t.Context(), c)
	require.NoError(t, err)
	require.Equal(t, billing.Intent{Ref: "pi_1", EffectKey: "top_up:1", Amount: money.Of(2_500, money.USD), State: billing.PaymentSucceeded}, intent)
	require.Equal(t, http.MethodPost, asked.method)
	require.Equal(t, "/v1/payment_intents", asked.path)
	require.Equal(t, "top_up:1", asked.key)
	require.Equal(t, "Bearer sk_test_secret", asked.authorization)
	require.Equal(t, "2023-10-16", asked.version)
	require.Equal(t, url.Values{
		"amount": {"2500"}, "currency": {"usd"}, "confirm": {"true"}, "payment_method": {"pm_card_visa"}, "payment_method_types[0]": {"card"},
		"description": {"Top-up"}, "return_url": {"https://portal.example/billing"}, "metadata[leasehold_effect]": {"top_up:1"},
		"metadata[leasehold_payment]": {c.Payment.String()}, "metadata[leasehold_organization]": {c.Org.String()},
	}, asked.form)
}

func TestEveryStatusOfAnIntentIsUnderstood(t *testing.T) {
	t.Parallel()
	action := object{"next_action": object{"type": "redirect_to_url", "redirect_to_url": object{"url": "https://bank.example/3ds"}}}
	declined := object{"last_payment_error": object{"type": "card_error", "message": "Your card was declined."}}
	for status, want := range map[string]struct {
		more object
		then billing.Intent
	}{
		"succeeded":               {nil, billing.Intent{State: billing.PaymentSucceeded}},
		"requires_action":         {action, billing.Intent{State: billing.PaymentRequiresAction, ActionURL: "https://bank.example/3ds"}},
		"requires_payment_method": {declined, billing.Intent{State: billing.PaymentFailed, Failure: "Your card was declined."}},
		"canceled":                {nil, billing.Intent{State: billing.PaymentFailed, Failure: "The payment was not completed."}},
		"processing":              {nil, billing.Intent{State: billing.PaymentPending}},
		"requires_confirmation":   {nil, billing.Intent{State: billing.PaymentPending}},
		"of_a_later_version":      {nil, billing.Intent{State: billing.PaymentPending}},
	} {
		g, asked := double(t, http.StatusOK, paymentIntent(status, want.more))
		got, err := g.Intent(t.Context(), "pi_1")
		require.NoError(t, err, status)
		want.then.Ref, want.then.EffectKey, want.then.Amount = "pi_1", "top_up:1", money.Of(2_500, money.USD)
		require.Equal(t, want.then, got, status)
		require.Equal(t, "/v1/payment_intents/pi_1", asked.path)
	}
}

func TestARefusedCardIsAnIntentThatFailed(t *testing.T) {
	t.Parallel()
	g, _ := double(t, http.StatusPaymentRequired, object{"error": object{
		"type": "card_error", "code": "card_declined", "message": "Your card was declined.", "payment_intent": paymentIntent("requires_payment_method", nil),
	}})
	intent, err := g.Charge(t.Context(), charge("top_up:1", "pm_card_chargeDeclined"))
	require.NoError(t, err)
	require.Equal(t, billing.PaymentFailed, intent.State)
	require.Equal(t, "Your card was declined.", intent.Failure)
	require.Equal(t, "pi_1", intent.Ref)
}

func TestStripesErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		kind   string
		want   string
	}{
		{http.StatusInternalServerError, "api_error", "gateway-failed"},
		{http.StatusServiceUnavailable, "api_error", "gateway-failed"},
		{http.StatusTooManyRequests, "invalid_request_error", "gateway-unreachable"},
		{http.StatusConflict, "invalid_request_error", "gateway-unreachable"},
		{http.StatusUnauthorized, "invalid_request_error", "gateway-refused"},
		{http.StatusNotFound, "invalid_request_error", "intent-not-found"},
		{http.StatusBadRequest, "invalid_request_error", "payment-refused"},
		{http.StatusBadRequest, "idempotency_error", ""},
	} {
		g, _ := double(t, c.status, object{"error": object{"type": c.kind, "message": "words of Stripe"}})
		_, err := g.Charge(t.Context(), charge("k", "pm_card_visa"))
		require.Error(t, err)
		require.Equal(t, c.want, fault.CodeOf(err), "%d %s", c.status, c.kind)
		require.NotContains(t, err.Error(), "sk_test_secret")
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	g := stripe.New(stripe.Config{SecretKey: "sk_test_secret", BaseURL: gone.URL})
	_, err := g.Charge(t.Context(), charge("k", "pm_card_visa"))
	require.Equal(t, "gateway-unreachable", fault.CodeOf(err))
}

func TestFindListsFromTheTimeOfThePaymentAndMatchesTheEffect(t *testing.T) {
	t.Parallel()
	other := paymentIntent("succeeded", object{"id": "pi_0", "metadata": object{"leasehold_effect": "top_up:0"}})
	g, asked := double(t, http.StatusOK, object{"object": "list", "has_more": false, "data": []object{other, paymentIntent("succeeded", nil)}})
	found, err := g.Find(t.Context(), "top_up:1", epoch)
	require.NoError(t, err)
	require.Equal(t, "pi_1", found.Ref)
	require.Equal(t, []string{strconv.FormatInt(epoch.Add(-5*time.Minute).Unix(), 10)}, asked.form["created[gte]"])
	_, err = g.Find(t.Context(), "top_up:2", epoch)
	require.Equal(t, "intent-not-found", fault.CodeOf(err))
}

// TestRequestShapesPassStripeMock runs against a stripe-mock, which refuses parameters that Stripe's own description does not have.
// Start one with `go run github.com/stripe/stripe-mock@v0.203.0 -http-port PORT`.
func TestRequestShapesPassStripeMock(t *testing.T) {
	t.Parallel()
	address := os.Getenv("STRIPE_MOCK_URL")
	if address == "" {
		t.Skip("STRIPE_MOCK_URL is not set: request shapes were compared with the double only")
	}
	g := stripe.New(stripe.Config{SecretKey: "sk_test_123", ReturnURL: "https://portal.example/billing", BaseURL: address})
	for name, call := range map[string]func(ctx context.Context) error{
		"charge": func(ctx context.Context) error { _, err := g.Charge(ctx, charge("k", "pm_card_visa")); return err },
		"intent": func(ctx context.Context) error { _, err := g.Intent(ctx, "pi_1"); return err },
		"find": func(ctx context.Context) error {
			_, err := g.Find(ctx, "top_up:1", epoch)
			if fault.Is(err, fault.NotFound) {
				return nil // it keeps no state
			}
			return fmt.Errorf("found what was never made: %w", err)
		},
	} {
		require.NoError(t, call(t.Context()), name)
	}
}
