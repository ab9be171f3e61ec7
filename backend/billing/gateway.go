package billing

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/money"
)

// Gateway collects money. It is outside: never call it within a transaction.
//
// Every method may return an Unavailable fault. Its code "gateway-unreachable" says that the same call again, with the same key, is
// safe and right; "gateway-failed" says that the gateway answered with an error of its own and may have had the effect.
type Gateway interface {
	// Name is "stripe", or "test": no real money moves.
	Name() string
	// Charge asks for money. The same Key again within a day is the same intent. A card's refusal is no error but an intent that
	// failed. It returns an Invalid fault for what can never succeed, e.g. an unknown payment method.
	Charge(ctx context.Context, charge Charge) (Intent, error)
	// Intent fetches an intent as it is now. It returns a NotFound fault.
	Intent(ctx context.Context, ref string) (Intent, error)
	// Find looks for the intent of an effect among those made since the instant. It returns a NotFound fault.
	Find(ctx context.Context, effectKey string, since time.Time) (Intent, error)
	// Event verifies and reads a webhook. It returns an Invalid fault, code "webhook-signature" or "webhook-malformed".
	Event(payload []byte, signature string) (GatewayEvent, error)
}

// Charge is what the gateway is asked for.
type Charge struct {
	Key       string // of this attempt
	EffectKey string // of the effect, over all attempts
	Payment   ids.Payment
	Org       ids.Org
	Amount    money.Amount
	Method    string // the gateway's name of the payment method
	Memo      string
}

// Intent is a payment as the gateway has it.
type Intent struct {
	Ref       string
	EffectKey string
	Amount    money.Amount
	State     PaymentState
	ActionURL string // where the customer confirms it, while RequiresAction
	Failure   string // in words, when Failed
}

// GatewayEvent is a webhook: a hint that an object changed.
type GatewayEvent struct {
	ID      string
	Type    string
	Ref     string // the object to fetch again
	Payload []byte
	Parked  string // why it is not acted on; "": it is
}

// PaymentState is where a payment is in its life.
type PaymentState string

// The states of a payment. Failed is not final for the gateway: money that arrives after all is booked.
const (
	PaymentPending        PaymentState = "pending"
	PaymentRequiresAction PaymentState = "requires_action"
	PaymentSucceeded      PaymentState = "succeeded"
	PaymentFailed         PaymentState = "failed"
)

// Payment is money that a customer pays in.
type Payment struct {
	ID        ids.Payment
	Org       ids.Org
	Amount    money.Amount
	State     PaymentState
	Gateway   string
	Ref       string // the gateway's; "" until it answered
	Method    string
	ActionURL string
	Failure   string
	EffectKey string
	Attempt   int
	Unsure    bool // the last attempt may have had an effect that we do not know of
	CreatedBy string
	CreatedAt time.Time
	UpdatedAt time.Time
}
