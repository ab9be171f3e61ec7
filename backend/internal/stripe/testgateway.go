package stripe

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/webhook"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/money"
)

// Vault keeps the test gateway's intents, so that several processes and a restart see the same.
type Vault interface {
	// Keep writes an intent under its ref unless there is one already, and returns the one that is kept.
	Keep(ctx context.Context, ref string, intent []byte) ([]byte, error)
	// Replace writes over it.
	Replace(ctx context.Context, ref string, intent []byte) error
	// Get reads it; nil when there is none.
	Get(ctx context.Context, ref string) ([]byte, error)
}

// TestGateway is a gateway on which no real money moves. It behaves as Stripe does with its test cards, keeps state, and is idempotent
// by key. It is what runs where no Stripe key is configured.
type TestGateway struct {
	vault   Vault
	secret  string
	pageURL string
}

var _ billing.Gateway = (*TestGateway)(nil)

// NewTestGateway returns a test gateway. Webhooks are signed with secret; pageURL is where its Page is served, with a slash at the
// end, e.g. "http://127.0.0.1:8080/test-gateway/".
func NewTestGateway(vault Vault, secret, pageURL string) *TestGateway {
	return &TestGateway{vault: vault, secret: secret, pageURL: pageURL}
}

// testIntent is an intent as the vault keeps it.
type testIntent struct {
	Ref       string               `json:"ref"`
	EffectKey string               `json:"effect_key"`
	Amount    money.Amount         `json:"amount"`
	Method    string               `json:"method"`
	State     billing.PaymentState `json:"state"`
	ActionURL string               `json:"action_url"`
	Failure   string               `json:"failure"`
}

func (i testIntent) intent() billing.Intent {
	return billing.Intent{Ref: i.Ref, EffectKey: i.EffectKey, Amount: i.Amount, State: i.State, ActionURL: i.ActionURL, Failure: i.Failure}
}

// Name implements billing.Gateway.
func (g *TestGateway) Name() string { return "test" }

// Charge implements billing.Gateway.
func (g *TestGateway) Charge(ctx context.Context, c billing.Charge) (billing.Intent, error) {
	leads, known := testCard(c.Method)
	if !known {
		return billing.Intent{}, fault.New(fault.Invalid, "payment-refused", "No such PaymentMethod: '%s'", c.Method).At("/payment_method", "was refused")
	}
	wanted := testIntent{
		Ref: testRef(c.Key), EffectKey: c.EffectKey, Amount: c.Amount, Method: c.Method, State: leads.state, Failure: leads.failure,
	}
	if leads.state == billing.PaymentRequiresAction {
		wanted.ActionURL = g.pageURL + wanted.Ref
	}
	body, err := json.Marshal(wanted)
	if err != nil {
		return billing.Intent{}, fmt.Errorf("encode intent: %w", err)
	}
	body, err = g.vault.Keep(ctx, wanted.Ref, body)
	if err != nil {
		return billing.Intent{}, fmt.Errorf("keep intent: %w", err)
	}
	kept, err := readTestIntent(body)
	if err != nil {
		return billing.Intent{}, err
	}
	if kept.EffectKey != c.EffectKey || kept.Amount != c.Amount || kept.Method != c.Method {
		return billing.Intent{}, fmt.Errorf("charge %s: the key was used with other parameters", c.Key) // as Stripe refuses it
	}
	return kept.intent(), nil
}

// testRef is the same for the same key on every process.
func testRef(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "pi_test_" + hex.EncodeToString(sum[:12])
}

// Intent implements billing.Gateway.
func (g *TestGateway) Intent(ctx context.Context, ref string) (billing.Intent, error) {
	body, err := g.vault.Get(ctx, ref)
	if err != nil {
		return billing.Intent{}, fmt.Errorf("read intent: %w", err)
	}
	if body == nil {
		return billing.Intent{}, errNoIntent()
	}
	kept, err := readTestIntent(body)
	return kept.intent(), err
}

func readTestIntent(body []byte) (testIntent, error) {
	var kept testIntent
	if err := json.Unmarshal(body, &kept); err != nil {
		return testIntent{}, fmt.Errorf("read intent: %w", err)
	}
	return kept, nil
}

// Find implements billing.Gateway. The keys of an effect's attempts are known, so it looks from the last one down.
func (g *TestGateway) Find(ctx context.Context, effectKey string, _ time.Time) (billing.Intent, error) {
	const most = 20
	for attempt := most; attempt > 1; attempt-- {
		intent, err := g.Intent(ctx, testRef(effectKey+":"+strconv.Itoa(attempt)))
		if err == nil || !fault.Is(err, fault.NotFound) {
			return intent, err
		}
	}
	return g.Intent(ctx, testRef(effectKey))
}

// Authenticate ends a payment's 3-D Secure, well or not, as the customer does on Page.
//
// It returns a NotFound fault, and a Conflict fault, code "no-action-required".
func (g *TestGateway) Authenticate(ctx context.Context, ref string, well bool) (billing.Intent, error) {
	body, err := g.vault.Get(ctx, ref)
	if err != nil {
		return billing.Intent{}, fmt.Errorf("read intent: %w", err)
	}
	if body == nil {
		return billing.Intent{}, errNoIntent()
	}
	kept, err := readTestIntent(body)
	if err != nil {
		return billing.Intent{}, err
	}
	if kept.State != billing.PaymentRequiresAction {
		return billing.Intent{}, fault.New(fault.Conflict, "no-action-required", "the payment does not wait for you")
	}
	kept.State, kept.ActionURL = billing.PaymentSucceeded, ""
	if !well {
		kept.State, kept.Failure = billing.PaymentFailed, "We are unable to authenticate your payment method."
	}
	if body, err = json.Marshal(kept); err != nil {
		return billing.Intent{}, fmt.Errorf("encode intent: %w", err)
	}
	return kept.intent(), g.vault.Replace(ctx, ref, body)
}

// Event implements billing.Gateway.
func (g *TestGateway) Event(payload []byte, signature string) (billing.GatewayEvent, error) {
	return readEvent(payload, signature, g.secret, false)
}

// Hint makes the webhook that Stripe would send about an intent: its body and its signature.
func (g *TestGateway) Hint(id string, intent billing.Intent) ([]byte, string) {
	kind := map[billing.PaymentState]string{
		billing.PaymentPending: "processing", billing.PaymentRequiresAction: "requires_action", billing.PaymentSucceeded: "succeeded", billing.PaymentFailed: "payment_failed",
	}[intent.State]
	body, _ := json.Marshal(map[string]any{ // strings, numbers and maps of them always encode
		"id": id, "object": "event", "api_version": stripe.APIVersion, "livemode": false, "type": "payment_intent." + kind,
		"data": map[string]any{"object": map[string]any{
			"id": intent.Ref, "object": "payment_intent", "amount": intent.Amount.Minor, "currency": strings.ToLower(string(intent.Amount.Currency)),
		}},
	})
	signed := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: body, Secret: g.secret})
	return signed.Payload, signed.Header
}
