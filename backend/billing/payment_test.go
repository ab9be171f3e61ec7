package billing_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/internal/stripe"
	"github.com/leasehold/leasehold/backend/ledger"
	"github.com/leasehold/leasehold/backend/money"
	"github.com/leasehold/leasehold/backend/tenant"
)

// flaky is a gateway that fails after its effect when told, and counts charges.
type flaky struct {
	*stripe.TestGateway
	mu      sync.Mutex
	fail    error // what the next charge answers although it had its effect
	before  error // what the next charge answers without any effect
	charges int
}

func (f *flaky) Charge(ctx context.Context, c billing.Charge) (billing.Intent, error) {
	f.mu.Lock()
	fail, before := f.fail, f.before
	f.fail, f.before = nil, nil
	f.charges++
	f.mu.Unlock()
	if before != nil {
		return billing.Intent{}, before
	}
	intent, err := f.TestGateway.Charge(ctx, c)
	if fail != nil {
		return billing.Intent{}, fail
	}
	return intent, err
}

type till struct {
	desk
	*billing.Payments
	gateway *flaky
	store   *postgres.Payments
}

func openTill(t *testing.T) till {
	t.Helper()
	d := open(t)
	gateway := &flaky{TestGateway: stripe.NewTestGateway(postgres.NewTestGatewayVault(d.DB), "whsec_test", "http://portal.example/test-gateway/")}
	store := postgres.NewPayments(d.DB)
	return till{desk: d, Payments: billing.NewPayments(d.DB, store, gateway, d.books, d.clock), gateway: gateway, store: store}
}

func (d till) as(t *testing.T, org ids.Org) context.Context {
	t.Helper()
	return tenant.WithActor(t.Context(), tenant.Actor{Org: org, Role: tenant.Billing})
}

func input(org ids.Org, key, method string) billing.TopUpInput {
	return billing.TopUpInput{Org: org, Amount: usd(2_500), Method: method, Key: key, By: "test"}
}

// intents counts what the gateway was made to do.
func (d till) intents(t *testing.T) int {
	t.Helper()
	var n int
	require.NoError(t, d.Pool.QueryRow(t.Context(), `SELECT count(*) FROM test_gateway_intent`).Scan(&n))
	return n
}

func TestATopUpIsBookedWhenItSucceeds(t *testing.T) {
	t.Parallel()
	d := openTill(t)
	org := d.Org(t, 0)
	require.Equal(t, "test", d.Gateway())
	payment, err := d.TopUp(d.as(t, org), input(org, "k", "pm_card_visa"))
	require.NoError(t, err)
	require.Equal(t, billing.PaymentSucceeded, payment.State)
	d.has(t, org, 2_500, 0)
	again, err := d.TopUp(d.as(t, org), input(org, "k", "pm_card_visa"))
	require.NoError(t, err)
	require.Equal(t, payment, again)
	d.has(t, org, 2_500, 0)
	require.Equal(t, 1, d.gateway.charges)
	require.Equal(t, int64(-2_500), d.sum(t, ledger.PaymentClearing))
	d.sound(t)
}

func TestARefusedCardBringsNothingAndSaysWhy(t *testing.T) {
	t.Parallel()
	d := openTill(t)
	org := d.Org(t, 0)
	for method, why := range map[string]string{
		"pm_card_chargeDeclined":                  "Your card was declined.",
		"pm_card_chargeDeclinedInsufficientFunds": "Your card has insufficient funds.",
		"pm_card_imaginary":                       "No such PaymentMethod: 'pm_card_imaginary'",
	} {
		payment, err := d.TopUp(d.as(t, org), input(org, method, method))
		require.NoError(t, err, method)
		require.Equal(t, billing.PaymentFailed, payment.State, method)
		require.Equal(t, why, payment.Failure)
	}
	d.has(t, org, 0, 0)
	d.sound(t)
}

// endings notes what it is told.
type endings struct{ told []billing.PaymentState }

func (e *endings) PaymentEnded(_ context.Context, payment billing.Payment) error {
	e.told = append(e.told, payment.State)
	return nil
}

func TestTheEndOfAPaymentIsAnnouncedOnce(t *testing.T) {
	t.Parallel()
	d, e := openTill(t), &endings{}
	d.Announce(e)
	org := d.Org(t, 0)
	for range 2 {
		_, err := d.TopUp(d.as(t, org), input(org, "good", "pm_card_visa"))
		require.NoError(t, err)
	}
	_, err := d.TopUp(d.as(t, org), input(org, "bad", "pm_card_chargeDeclined"))
	require.NoError(t, err)
	require.Equal(t, []billing.PaymentState{billing.PaymentSucceeded, billing.PaymentFailed}, e.told)
}

func TestATopUpThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	d := openTill(t)
	org := d.Org(t, 0)
	for code, change := range map[string]func(*billing.TopUpInput){
		"currency-differs":    func(in *billing.TopUpInput) { in.Amount = money.Of(5, money.EUR) },
		"amount-out-of-range": func(in *billing.TopUpInput) { in.Amount.Minor = 0 },
		"invalid-request":     func(in *billing.TopUpInput) { in.Method = "" },
	} {
		in := input(org, "k", "pm_card_visa")
		change(&in)
		_, err := d.TopUp(d.as(t, org), in)
		require.Equal(t, code, fault.CodeOf(err))
	}
	require.Zero(t, d.gateway.charges)
}

func TestThreeDSecureIsFollowedUp(t *testing.T) {
	t.Parallel()
	d := openTill(t)
	org := d.Org(t, 0)
	payment, err := d.TopUp(d.as(t, org), input(org, "k", "pm_card_threeDSecure2Required"))
	require.NoError(t, err)
	require.Equal(t, billing.PaymentRequiresAction, payment.State)
	require.Contains(t, payment.ActionURL, "/test-gateway/pi_test_")
	d.clock.Advance(time.Minute)
	require.NoError(t, d.Sweep(t.Context(), 10))
	d.has(t, org, 0, 0)
	_, err = d.gateway.Authenticate(t.Context(), payment.Ref, true)
	require.NoError(t, err)
	d.clock.Advance(time.Minute)
	require.NoError(t, d.Sweep(t.Context(), 10))
	d.has(t, org, 2_500, 0)
	d.sound(t)
}

func TestACrashBetweenTheGatewayAndTheCommitChargesOnce(t *testing.T) {
	t.Parallel()
	d := openTill(t)
	org := d.Org(t, 0)
	died := errors.New("the process died")
	d.gateway.fail = died
	_, err := d.TopUp(d.as(t, org), input(org, "k", "pm_card_visa"))
	require.ErrorIs(t, err, died)
	d.has(t, org, 0, 0)
	require.NoError(t, d.Sweep(t.Context(), 10), "not yet: whoever asked may still be at it")
	require.Equal(t, 1, d.gateway.charges)
	d.clock.Advance(10 * time.Second)
	require.NoError(t, d.Sweep(t.Context(), 10))
	d.has(t, org, 2_500, 0)
	require.Equal(t, 1, d.intents(t))
	payment, err := d.TopUp(d.as(t, org), input(org, "k", "pm_card_visa"))
	require.NoError(t, err)
	require.Equal(t, billing.PaymentSucceeded, payment.State)
	d.has(t, org, 2_500, 0)
	d.sound(t)
}

func TestAGatewaysErrorAfterItsEffectChargesOnce(t *testing.T) {
	t.Parallel()
	d := openTill(t)
	org := d.Org(t, 0)
	d.gateway.fail = fault.New(fault.Unavailable, "gateway-failed", "500")
	_, err := d.TopUp(d.as(t, org), input(org, "k", "pm_card_visa"))
	require.True(t, fault.Is(err, fault.Unavailable))
	payment, err := d.TopUp(d.as(t, org), input(org, "k", "pm_card_visa"))
	require.NoError(t, err)
	require.Equal(t, billing.PaymentSucceeded, payment.State)
	require.Equal(t, 1, d.gateway.charges, "it looked first, and found it")
	require.Equal(t, 1, d.intents(t))
	d.has(t, org, 2_500, 0)
}

func TestAGatewaysErrorBeforeItsEffectIsTriedUnderANewKey(t *testing.T) {
	t.Parallel()
	d := openTill(t)
	org := d.Org(t, 0)
	d.gateway.before = fault.New(fault.Unavailable, "gateway-failed", "500, which the gateway keeps for that key")
	_, err := d.TopUp(d.as(t, org), input(org, "k", "pm_card_visa"))
	require.Error(t, err)
	payment, err := d.TopUp(d.as(t, org), input(org, "k", "pm_card_visa"))
	require.NoError(t, err)
	require.Equal(t, billing.PaymentSucceeded, payment.State)
	require.Equal(t, 2, payment.Attempt)
	require.Equal(t, 1, d.intents(t))
	d.has(t, org, 2_500, 0)
}

func TestAKeyThatTheGatewayMayHaveForgottenIsNotUsedBlindly(t *testing.T) {
	t.Parallel()
	d := openTill(t)
	org := d.Org(t, 0)
	d.gateway.fail = errors.New("the process died")
	_, err := d.TopUp(d.as(t, org), input(org, "k", "pm_card_visa"))
	require.Error(t, err)
	d.clock.Advance(25 * time.Hour)
	require.NoError(t, d.Sweep(t.Context(), 10))
	require.Equal(t, 1, d.gateway.charges)
	d.has(t, org, 2_500, 0)
}

func TestManyFollowingOnePaymentBookItOnce(t *testing.T) {
	t.Parallel()
	d := openTill(t)
	org := d.Org(t, 0)
	var wg sync.WaitGroup
	errs := make([]error, 6)
	for i := range errs {
		wg.Go(func() { _, errs[i] = d.TopUp(d.as(t, org), input(org, "k", "pm_card_visa")) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	d.has(t, org, 2_500, 0)
	require.Equal(t, 1, d.intents(t))
	d.sound(t)
}

// parked says why a webhook is parked, and whether it was processed.
func (d till) parked(t *testing.T, id string) (string, bool) {
	t.Helper()
	var reason string
	var processed bool
	require.NoError(t, d.Pool.QueryRow(t.Context(), `SELECT parked_reason, processed_at IS NOT NULL FROM gateway_event WHERE id = $1`, id).Scan(&reason, &processed))
	return reason, processed
}

func TestWebhooksAreHintsHoweverTheyCome(t *testing.T) {
	t.Parallel()
	d := openTill(t)
	org := d.Org(t, 0)
	payment, err := d.TopUp(d.as(t, org), input(org, "k", "pm_card_threeDSecure2Required"))
	require.NoError(t, err)
	now, err := d.gateway.Authenticate(t.Context(), payment.Ref, true)
	require.NoError(t, err)
	send := func(id string, intent billing.Intent) {
		body, signature := d.gateway.Hint(id, intent)
		require.NoError(t, d.Receive(t.Context(), body, signature))
	}
	before := now
	before.State = billing.PaymentRequiresAction
	send("evt_2", now)    // the later one first
	send("evt_1", before) // tells of the past: what counts is what the gateway says now
	send("evt_2", now)    // twice
	send("evt_other", billing.Intent{Ref: "pi_test_none", Amount: usd(1), State: billing.PaymentSucceeded})
	require.NoError(t, d.Sweep(t.Context(), 10))
	d.has(t, org, 2_500, 0)
	for _, id := range []string{"evt_1", "evt_2"} {
		reason, processed := d.parked(t, id)
		require.Empty(t, reason)
		require.True(t, processed, id)
	}
	reason, processed := d.parked(t, "evt_other")
	require.Contains(t, reason, "no pi_test_none at the gateway")
	require.False(t, processed)

	body, _ := d.gateway.Hint("evt_3", now)
	require.Equal(t, "webhook-signature", fault.CodeOf(d.Receive(t.Context(), body, "t=1,v1=00")))
	d.sound(t)
}

func TestAnIntentThatIsNotOursIsParked(t *testing.T) {
	t.Parallel()
	d := openTill(t)
	org := d.Org(t, 0)
	foreign, err := d.gateway.TestGateway.Charge(t.Context(), billing.Charge{Key: "x", EffectKey: "x", Org: org, Amount: usd(9), Method: "pm_card_visa"})
	require.NoError(t, err)
	payment, err := d.TopUp(d.as(t, org), input(org, "k", "pm_card_threeDSecure2Required"))
	require.NoError(t, err)
	// Somebody edited the amount at the gateway.
	_, err = d.Pool.Exec(t.Context(), `UPDATE test_gateway_intent SET body = jsonb_set(jsonb_set(body, '{amount,amount}', '999999'), '{state}', '"succeeded"') WHERE ref = $1`, payment.Ref)
	require.NoError(t, err)
	edited, err := d.gateway.Intent(t.Context(), payment.Ref)
	require.NoError(t, err)
	require.Equal(t, int64(999_999), edited.Amount.Minor)
	for id, intent := range map[string]billing.Intent{"evt_foreign": foreign, "evt_edited": edited} {
		body, signature := d.gateway.Hint(id, intent)
		require.NoError(t, d.Receive(t.Context(), body, signature))
	}
	require.NoError(t, d.Sweep(t.Context(), 10))
	reason, _ := d.parked(t, "evt_foreign")
	require.Equal(t, "no payment of ours", reason)
	reason, _ = d.parked(t, "evt_edited")
	require.Contains(t, reason, "is not this payment")
	d.has(t, org, 0, 0)
}

func TestATenantSeesItsOwnPaymentsOnly(t *testing.T) {
	t.Parallel()
	d := openTill(t)
	org, other := d.Org(t, 0), d.Org(t, 0)
	var mine []billing.Payment
	for _, key := range []string{"a", "b", "c"} {
		d.clock.Advance(time.Second)
		payment, err := d.TopUp(d.as(t, org), input(org, key, "pm_card_visa"))
		require.NoError(t, err)
		mine = append([]billing.Payment{payment}, mine...)
	}
	found, err := d.Payments.Payments(d.as(t, org), org, ids.Payment{}, 10)
	require.NoError(t, err)
	require.Equal(t, mine, found)
	page, err := d.Payments.Payments(d.as(t, org), org, mine[0].ID, 1)
	require.NoError(t, err)
	require.Equal(t, mine[1:2], page)
	foreign, err := d.Payments.Payments(d.as(t, other), org, ids.Payment{}, 10)
	require.NoError(t, err)
	require.Empty(t, foreign)
	_, err = d.Payment(d.as(t, other), mine[0].ID)
	require.True(t, fault.Is(err, fault.NotFound))
}
