package stripe

import (
	"fmt"
	"strings"

	"github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/webhook"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/fault"
)

// Event implements billing.Gateway.
func (g *Gateway) Event(payload []byte, signature string) (billing.GatewayEvent, error) {
	return readEvent(payload, signature, g.config.WebhookSecret, g.live())
}

// readEvent verifies the signature on the raw body and reads what to fetch again. An event of another mode, another API version or
// a type that we do not use is parked, with the reason, and never dropped.
func readEvent(payload []byte, signature, secret string, live bool) (billing.GatewayEvent, error) {
	if secret == "" {
		return billing.GatewayEvent{}, fault.New(fault.Unavailable, "webhook-secret-missing", "webhooks are not configured here")
	}
	if err := webhook.ValidatePayload(payload, signature, secret); err != nil {
		return billing.GatewayEvent{}, fault.New(fault.Invalid, "webhook-signature", "the webhook's signature is not valid: %w", err)
	}
	event, err := webhook.ConstructEventWithOptions(payload, signature, secret, webhook.ConstructEventOptions{IgnoreAPIVersionMismatch: true})
	if err != nil || event.ID == "" {
		return billing.GatewayEvent{}, fault.New(fault.Invalid, "webhook-malformed", "the webhook's body is not an event")
	}
	out := billing.GatewayEvent{ID: event.ID, Type: string(event.Type), Payload: payload}
	if event.Data != nil {
		out.Ref, _ = event.Data.Object["id"].(string)
	}
	out.Parked = parked(event, out.Ref, live)
	return out, nil
}

func parked(event stripe.Event, ref string, live bool) string {
	switch {
	case event.Livemode != live:
		return fmt.Sprintf("mode differs: livemode %t", event.Livemode)
	case event.APIVersion != stripe.APIVersion:
		return fmt.Sprintf("API version %q is not ours, %s", event.APIVersion, stripe.APIVersion)
	case !strings.HasPrefix(string(event.Type), "payment_intent."):
		return "type is not used"
	case ref == "":
		return "no object to fetch"
	default:
		return ""
	}
}
