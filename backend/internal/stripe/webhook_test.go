package stripe_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	stripego "github.com/stripe/stripe-go/v76"
	"github.com/stripe/stripe-go/v76/webhook"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/internal/stripe"
)

//nolint:gochecknoglobals // a constant that Go cannot spell as one
var epoch = time.Unix(1_700_000_000, 0).UTC()

type event struct {
	ID         string `json:"id,omitempty"`
	Type       string `json:"type"`
	APIVersion string `json:"api_version"`
	Livemode   bool   `json:"livemode"`
	Data       any    `json:"data,omitempty"`
}

func signed(t testing.TB, e any, secret string, at time.Time) ([]byte, string) {
	t.Helper()
	body, err := json.Marshal(e)
	require.NoError(t, err)
	out := webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: body, Secret: secret, Timestamp: at})
	return out.Payload, out.Header
}

func succeeded() event {
	return event{
		ID: "evt_1", Type: "payment_intent.succeeded", APIVersion: stripego.APIVersion,
		Data: map[string]any{"object": map[string]any{"id": "pi_1", "object": "payment_intent"}},
	}
}

func TestASignedWebhookSaysWhatToFetchAgain(t *testing.T) {
	t.Parallel()
	for name, g := range map[string]billing.Gateway{
		"stripe": stripe.New(stripe.Config{SecretKey: "sk_test_x", WebhookSecret: webhookSecret}),
		"test":   newTestGateway(),
	} {
		body, header := signed(t, succeeded(), webhookSecret, time.Now())
		got, err := g.Event(body, header)
		require.NoError(t, err, name)
		require.Equal(t, billing.GatewayEvent{ID: "evt_1", Type: "payment_intent.succeeded", Ref: "pi_1", Payload: body}, got)
	}
}

func TestAWebhookThatIsNotTheGatewaysIsRefused(t *testing.T) {
	t.Parallel()
	g := stripe.New(stripe.Config{SecretKey: "sk_test_x", WebhookSecret: webhookSecret})
	body, header := signed(t, succeeded(), webhookSecret, time.Now())
	_, forged := signed(t, succeeded(), "whsec_other", time.Now())
	_, stale := signed(t, succeeded(), webhookSecret, time.Now().Add(-time.Hour))
	for name, c := range map[string]struct {
		body   []byte
		header string
	}{
		"forged": {body, forged}, "stale": {body, stale}, "missing": {body, ""}, "garbage": {body, "t=,v1=zz,,=="},
		"tampered": {[]byte(strings.Replace(string(body), "pi_1", "pi_2", 1)), header},
	} {
		_, err := g.Event(c.body, c.header)
		require.Equal(t, "webhook-signature", fault.CodeOf(err), name)
	}
	for _, e := range []any{"no object", []int{1}, event{Type: "payment_intent.succeeded"}} {
		malformed, header := signed(t, e, webhookSecret, time.Now())
		_, err := g.Event(malformed, header)
		require.Equal(t, "webhook-malformed", fault.CodeOf(err))
	}
	unconfigured := stripe.New(stripe.Config{SecretKey: "sk_test_x"})
	_, forged = signed(t, succeeded(), "", time.Now())
	_, err := unconfigured.Event(body, forged)
	require.Equal(t, "webhook-secret-missing", fault.CodeOf(err), "an empty secret signs nothing")
}

func TestAWebhookThatWeCannotActOnIsParkedAndNotDropped(t *testing.T) {
	t.Parallel()
	with := func(change func(*event)) event {
		e := succeeded()
		change(&e)
		return e
	}
	test := stripe.New(stripe.Config{SecretKey: "sk_test_x", WebhookSecret: webhookSecret})
	live := stripe.New(stripe.Config{SecretKey: "sk_live_x", WebhookSecret: webhookSecret})
	for name, c := range map[string]struct {
		gateway billing.Gateway
		event   event
		reason  string
	}{
		"live at a test key":   {test, with(func(e *event) { e.Livemode = true }), "mode differs"},
		"test at a live key":   {live, succeeded(), "mode differs"},
		"another API version":  {test, with(func(e *event) { e.APIVersion = "2030-01-01" }), "API version"},
		"a type we do not use": {test, with(func(e *event) { e.Type = "customer.created" }), "not used"},
		"no object":            {test, with(func(e *event) { e.Data = nil }), "no object"},
		"an odd id":            {test, with(func(e *event) { e.Data = map[string]any{"object": map[string]any{"id": 7}} }), "no object"},
	} {
		body, header := signed(t, c.event, webhookSecret, time.Now())
		got, err := c.gateway.Event(body, header)
		require.NoError(t, err, name)
		require.Equal(t, "evt_1", got.ID, name)
		require.Contains(t, got.Parked, c.reason, name)
	}
}

func FuzzWebhook(f *testing.F) {
	g := stripe.New(stripe.Config{SecretKey: "sk_test_x", WebhookSecret: webhookSecret})
	body, header := signed(f, succeeded(), webhookSecret, time.Now())
	f.Add(body, header, true)
	f.Add([]byte(`{"id":"e","data":null}`), "t=1,v1=00", true)
	f.Add([]byte(`{"id":"e","data":{"object":{"id":[]}},"type":1}`), "", true)
	f.Add([]byte(`[]`), "v1=", false)
	f.Fuzz(func(t *testing.T, body []byte, header string, sign bool) {
		if sign { // past the signature, where the parser is
			header = webhook.GenerateTestSignedPayload(&webhook.UnsignedPayload{Payload: body, Secret: webhookSecret}).Header
		}
		got, err := g.Event(body, header)
		if err == nil && (got.ID == "" || got.Parked == "" && got.Ref == "") {
			t.Fatalf("accepted without an id or anything to fetch: %+v", got)
		}
	})
}
