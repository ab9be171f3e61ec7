// Package stripe collects money: through Stripe, or, where no key is configured, through a test gateway that behaves like it. It is
// the only package that knows stripe-go. We rate and invoice; Stripe only collects.
package stripe

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/paymentintent"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/money"
)

// The metadata that each of our objects at Stripe carries.
const (
	metaEffect  = "leasehold_effect"
	metaPayment = "leasehold_payment"
	metaOrg     = "leasehold_organization"
)

// callTimeout is how long one call to Stripe may take.
const callTimeout = 25 * time.Second

// Config is what Stripe wants to know.
type Config struct {
	SecretKey     string // sk_test_…, sk_live_…
	WebhookSecret string // whsec_…; "" refuses every webhook
	ReturnURL     string // where a customer comes back to after 3-D Secure
	BaseURL       string // "" is Stripe's own; tests put a double here
	HTTPClient    *http.Client
}

// Gateway is Stripe.
type Gateway struct {
	intents paymentintent.Client
	config  Config
}

var _ billing.Gateway = (*Gateway)(nil)

// New returns Stripe behind billing's port.
func New(config Config) *Gateway {
	if config.HTTPClient == nil {
		config.HTTPClient = &http.Client{Timeout: callTimeout}
	}
	backend := &stripe.BackendConfig{
		HTTPClient: config.HTTPClient, LeveledLogger: &stripe.LeveledLogger{Level: stripe.LevelNull},
		EnableTelemetry: new(false), MaxNetworkRetries: new(int64(0)), // the domain tries again, with the same key
	}
	if config.BaseURL != "" {
		backend.URL = new(config.BaseURL)
	}
	return &Gateway{
		intents: paymentintent.Client{B: stripe.GetBackendWithConfig(stripe.APIBackend, backend), Key: config.SecretKey}, config: config,
	}
}

// Name implements billing.Gateway.
func (g *Gateway) Name() string { return "stripe" }

// live reports whether real money moves.
func (g *Gateway) live() bool {
	return strings.HasPrefix(g.config.SecretKey, "sk_live_") || strings.HasPrefix(g.config.SecretKey, "rk_live_")
}

// Charge implements billing.Gateway.
func (g *Gateway) Charge(ctx context.Context, c billing.Charge) (billing.Intent, error) {
	params := &stripe.PaymentIntentParams{
		Amount: new(c.Amount.Minor), Currency: new(strings.ToLower(string(c.Amount.Currency))), Confirm: new(true),
		PaymentMethod: new(c.Method), PaymentMethodTypes: stripe.StringSlice([]string{"card"}), Description: new(c.Memo),
	}
	if g.config.ReturnURL != "" {
		params.ReturnURL = new(g.config.ReturnURL)
	}
	params.Context = ctx
	params.SetIdempotencyKey(c.Key)
	params.AddMetadata(metaEffect, c.EffectKey)
	params.AddMetadata(metaPayment, c.Payment.String())
	params.AddMetadata(metaOrg, c.Org.String())
	made, err := g.intents.New(params)
	if refused := refusedIntent(err); refused != nil {
		return toIntent(refused), nil
	}
	if err != nil {
		return billing.Intent{}, fmt.Errorf("create payment intent: %w", toFault(err))
	}
	return toIntent(made), nil
}

// Intent implements billing.Gateway.
func (g *Gateway) Intent(ctx context.Context, ref string) (billing.Intent, error) {
	params := &stripe.PaymentIntentParams{}
	params.Context = ctx
	found, err := g.intents.Get(ref, params)
	if err != nil {
		return billing.Intent{}, fmt.Errorf("fetch payment intent: %w", toFault(err))
	}
	return toIntent(found), nil
}

// Find implements billing.Gateway: by listing, since Stripe's search does not see what was just written.
func (g *Gateway) Find(ctx context.Context, effectKey string, since time.Time) (billing.Intent, error) {
	const skew = 5 * time.Minute // between Stripe's clock and ours
	params := &stripe.PaymentIntentListParams{CreatedRange: &stripe.RangeQueryParams{GreaterThanOrEqual: since.Add(-skew).Unix()}}
	params.Context = ctx
	params.Limit = new(int64(100))
	list := g.intents.List(params)
	for list.Next() {
		if pi := list.PaymentIntent(); pi.Metadata[metaEffect] == effectKey {
			return toIntent(pi), nil
		}
	}
	if err := list.Err(); err != nil {
		return billing.Intent{}, fmt.Errorf("list payment intents: %w", toFault(err))
	}
	return billing.Intent{}, errNoIntent()
}

func errNoIntent() error {
	return fault.New(fault.NotFound, "intent-not-found", "the payment gateway has no such payment")
}

func toIntent(pi *stripe.PaymentIntent) billing.Intent {
	intent := billing.Intent{
		Ref: pi.ID, EffectKey: pi.Metadata[metaEffect], Amount: money.Of(pi.Amount, money.Currency(strings.ToUpper(string(pi.Currency)))),
		State: billing.PaymentPending,
	}
	switch pi.Status {
	case stripe.PaymentIntentStatusSucceeded:
		intent.State = billing.PaymentSucceeded
	case stripe.PaymentIntentStatusRequiresAction:
		intent.State = billing.PaymentRequiresAction
		if next := pi.NextAction; next != nil && next.RedirectToURL != nil {
			intent.ActionURL = next.RedirectToURL.URL
		}
	case stripe.PaymentIntentStatusRequiresPaymentMethod, stripe.PaymentIntentStatusCanceled:
		intent.State, intent.Failure = billing.PaymentFailed, "The payment was not completed."
		if pi.LastPaymentError != nil && pi.LastPaymentError.Msg != "" {
			intent.Failure = pi.LastPaymentError.Msg
		}
	case stripe.PaymentIntentStatusProcessing, stripe.PaymentIntentStatusRequiresConfirmation, stripe.PaymentIntentStatusRequiresCapture:
	default: // a status of a later API version: it is fetched again
	}
	return intent
}
