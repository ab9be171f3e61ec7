package billing

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/money"
	"github.com/leasehold/leasehold/backend/tenant"
)

const (
	// maxTopUp is the most that a card network takes at once, in minor units (Stripe: eight digits).
	maxTopUp = 99_999_999
	// keyLife is how long the gateway surely knows a key (Stripe: 24 h at least), less a margin.
	keyLife = 23 * time.Hour
)

// PaymentStore keeps payments and webhooks.
type PaymentStore interface {
	// InsertPayment writes a payment, or returns the one that has its effect key.
	InsertPayment(ctx context.Context, payment Payment) (Payment, error)
	// Payment and PaymentForUpdate read one. They return a NotFound fault.
	Payment(ctx context.Context, id ids.Payment) (Payment, error)
	PaymentForUpdate(ctx context.Context, id ids.Payment) (Payment, error)
	// PaymentOfEffect finds a payment by its effect key. It returns a NotFound fault.
	PaymentOfEffect(ctx context.Context, key string) (Payment, error)
	UpdatePayment(ctx context.Context, payment Payment) error
	// Payments lists an organization's payments, newest first.
	Payments(ctx context.Context, org ids.Org, after ids.Payment, limit int) ([]Payment, error)
	// DuePayments lists unfinished payments with a gateway that nobody looked at for a while; the older they are, the longer.
	DuePayments(ctx context.Context, gateway string, now time.Time, limit int) ([]ids.Payment, error)
	// InsertEvent keeps a webhook; one that is known stays as it is.
	InsertEvent(ctx context.Context, gateway string, event GatewayEvent, at time.Time) error
	// OpenEvents lists webhooks that are neither processed nor parked, oldest first.
	OpenEvents(ctx context.Context, gateway string, limit int) ([]GatewayEvent, error)
	// FinishEvent marks a webhook as processed, or parks it for the reason.
	FinishEvent(ctx context.Context, id, parked string, at time.Time) error
}

// Announcer tells an organization's programs that one of its payments came to an end.
type Announcer interface {
	// PaymentEnded writes in the transaction that ctx carries.
	PaymentEnded(ctx context.Context, payment Payment) error
}

// Recorder writes the audit log in the transaction that ctx carries.
type Recorder interface {
	Record(ctx context.Context, action, target string, before, after any) error
}

// Payments takes money through a gateway.
type Payments struct {
	announcer Announcer // nil: nobody is told
	audit     Recorder  // nil: nothing is recorded

	tx      Transactor
	store   PaymentStore
	gateway Gateway
	ledger  Ledger
	clock   clock.Clock
}

// NewPayments returns the service.
func NewPayments(tx Transactor, store PaymentStore, gateway Gateway, books Ledger, clk clock.Clock) *Payments {
	return &Payments{tx: tx, store: store, gateway: gateway, ledger: books, clock: clk}
}

// Announce has the announcer told of payments from now on.
func (p *Payments) Announce(announcer Announcer) { p.announcer = announcer }

// Audited has the audit log told who paid in, from now on.
func (p *Payments) Audited(recorder Recorder) { p.audit = recorder }

// Gateway returns the gateway's name, which every page that shows money must say: stripe or test.
func (p *Payments) Gateway() string { return p.gateway.Name() }

// TopUpInput is what a customer wants to pay in. Key names the wish: the same key again is the same payment.
type TopUpInput struct {
	Org    ids.Org
	Amount money.Amount
	Method string
	Key    string
	By     string
}

func (in TopUpInput) validate(own money.Currency) error {
	switch {
	case in.Amount.Currency != own:
		return fault.New(fault.Invalid, "currency-differs", "your organization pays in %s", own).At("/amount/currency", "must be "+string(own))
	case in.Amount.Minor < 1 || in.Amount.Minor > maxTopUp:
		return fault.New(fault.Invalid, "amount-out-of-range", "a top-up is from 1 to %d minor units", maxTopUp).At("/amount/amount", "is out of range")
	case in.Method == "" || in.Key == "":
		return fault.New(fault.Invalid, "invalid-request", "a top-up names a payment method and a key")
	}
	return nil
}

// TopUp pays money in. It must not run within a transaction, since it talks to the gateway. What it answers may still be pending or
// require the customer's action; Sweep follows it up.
//
// It returns an Invalid fault, and an Unavailable one when the gateway does not answer: the payment goes on nevertheless.
func (p *Payments) TopUp(ctx context.Context, in TopUpInput) (Payment, error) {
	payment, err := p.begin(ctx, in)
	if err != nil {
		return Payment{}, fmt.Errorf("top up: %w", err)
	}
	return p.Collect(ctx, payment.ID)
}

// begin writes the payment before anybody is asked for money, so that a crash leaves a trace to follow.
func (p *Payments) begin(ctx context.Context, in TopUpInput) (Payment, error) {
	balance, err := p.ledger.Balance(ctx, in.Org)
	if err != nil {
		return Payment{}, err
	}
	if err := in.validate(balance.Cash.Currency); err != nil {
		return Payment{}, err
	}
	now := p.clock.Now()
	sum := sha256.Sum256([]byte(in.Key))
	payment := Payment{
		ID: ids.Make[ids.Payment](), Org: in.Org, Amount: in.Amount, State: PaymentPending, Gateway: p.gateway.Name(), Method: in.Method,
		EffectKey: "top_up:" + hex.EncodeToString(sum[:]), Attempt: 1, CreatedBy: in.By, CreatedAt: now, UpdatedAt: now,
	}
	err = p.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		made := payment.ID
		if payment, err = p.store.InsertPayment(ctx, payment); err != nil || payment.ID != made || p.audit == nil {
			return err // one that was there already is on record
		}
		return p.audit.Record(ctx, "top_up.created", made.String(), nil, map[string]any{"amount_minor": in.Amount.Minor, "currency": in.Amount.Currency})
	})
	return payment, err
}

// Collect drives a payment on: asks the gateway for the money or for news, and books what came. It may be called at any time, by
// several at once.
func (p *Payments) Collect(ctx context.Context, id ids.Payment) (Payment, error) {
	payment, err := p.Payment(ctx, id)
	if err != nil || payment.State == PaymentSucceeded || payment.Gateway != p.gateway.Name() {
		return payment, err
	}
	intent, err := p.ask(ctx, payment)
	if err != nil {
		return p.note(ctx, id, err)
	}
	return p.apply(ctx, id, intent)
}

// ask gets the payment's intent. A key is used again while the gateway surely knows it; after that, or when an attempt may have had
// an effect, it looks first, and only what is proved not to exist is asked for anew.
func (p *Payments) ask(ctx context.Context, payment Payment) (Intent, error) {
	if payment.Ref != "" {
		return p.gateway.Intent(ctx, payment.Ref)
	}
	if payment.Unsure || p.clock.Now().Sub(payment.CreatedAt) > keyLife {
		intent, err := p.gateway.Find(ctx, payment.EffectKey, payment.CreatedAt)
		if err == nil || !fault.Is(err, fault.NotFound) {
			return intent, err
		}
		if payment, err = p.change(ctx, payment.ID, func(_ context.Context, now *Payment) error {
			now.Attempt, now.Unsure = payment.Attempt+1, false
			return nil
		}); err != nil {
			return Intent{}, err
		}
	}
	return p.gateway.Charge(ctx, Charge{
		Key: attemptKey(payment), EffectKey: payment.EffectKey, Payment: payment.ID, Org: payment.Org, Amount: payment.Amount,
		Method: payment.Method, Memo: "Leasehold balance top-up",
	})
}

func attemptKey(p Payment) string {
	if p.Attempt <= 1 {
		return p.EffectKey
	}
	return p.EffectKey + ":" + strconv.Itoa(p.Attempt)
}

// note keeps what the gateway's error means for the payment.
func (p *Payments) note(ctx context.Context, id ids.Payment, cause error) (Payment, error) {
	refused := fault.Is(cause, fault.Invalid)
	payment, err := p.change(context.WithoutCancel(ctx), id, func(_ context.Context, now *Payment) error {
		switch {
		case refused && now.Ref == "":
			var f *fault.Fault
			errors.As(cause, &f)
			now.State, now.Failure = PaymentFailed, f.Detail
		case fault.CodeOf(cause) == "gateway-failed" && now.Ref == "":
			now.Unsure = true
		}
		return nil
	})
	if refused || err != nil {
		return payment, err
	}
	return payment, fmt.Errorf("collect %s: %w", id, cause)
}

// apply brings the payment to what the gateway says, and books money that arrived. Money never leaves again by it.
//
// It returns a Conflict fault, code "intent-differs", for an intent that is not this payment's.
func (p *Payments) apply(ctx context.Context, id ids.Payment, intent Intent) (Payment, error) {
	return p.change(context.WithoutCancel(ctx), id, func(ctx context.Context, now *Payment) error {
		if intent.EffectKey != now.EffectKey || intent.Amount != now.Amount {
			return fault.New(fault.Conflict, "intent-differs", "%s at the gateway is not this payment", intent.Ref)
		}
		if now.State == PaymentSucceeded {
			return nil
		}
		now.Ref, now.State, now.ActionURL, now.Failure, now.Unsure = intent.Ref, intent.State, intent.ActionURL, intent.Failure, false
		if now.State != PaymentSucceeded {
			return nil
		}
		return p.ledger.TopUp(ctx, now.Org, now.ID, now.Amount, "Top-up by card")
	})
}

// change runs fn on the locked payment and writes it.
func (p *Payments) change(ctx context.Context, id ids.Payment, fn func(ctx context.Context, now *Payment) error) (Payment, error) {
	var payment Payment
	err := p.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		if payment, err = p.store.PaymentForUpdate(ctx, id); err != nil {
			return err
		}
		before := payment.State
		if err = fn(ctx, &payment); err != nil {
			return err
		}
		payment.UpdatedAt = p.clock.Now()
		if err = p.store.UpdatePayment(ctx, payment); err != nil {
			return err
		}
		if p.announcer == nil || payment.State == before || payment.State != PaymentSucceeded && payment.State != PaymentFailed {
			return nil
		}
		return p.announcer.PaymentEnded(ctx, payment)
	})
	if err != nil {
		return Payment{}, fmt.Errorf("change payment: %w", err)
	}
	return payment, nil
}

// Payment reads one payment. It returns a NotFound fault, also for another organization's.
func (p *Payments) Payment(ctx context.Context, id ids.Payment) (Payment, error) {
	var payment Payment
	err := p.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		payment, err = p.store.Payment(ctx, id)
		return err
	})
	return payment, err
}

// Payments lists an organization's payments, newest first.
func (p *Payments) Payments(ctx context.Context, org ids.Org, after ids.Payment, limit int) ([]Payment, error) {
	var found []Payment
	err := p.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		found, err = p.store.Payments(ctx, org, after, limit)
		return err
	})
	return found, err
}

// Receive keeps a webhook; what it hints at is looked up by Sweep. Receiving it again does nothing.
//
// It returns an Invalid fault for one that is not the gateway's.
func (p *Payments) Receive(ctx context.Context, payload []byte, signature string) error {
	event, err := p.gateway.Event(payload, signature)
	if err != nil {
		return fmt.Errorf("receive webhook: %w", err)
	}
	return p.tx.WithinTx(tenant.AsPlatform(ctx), func(ctx context.Context) error {
		return p.store.InsertEvent(ctx, p.gateway.Name(), event, p.clock.Now())
	})
}

// Sweep follows up what is unfinished: webhooks first, then payments that nobody looked at for a while. The worker runs it every few
// seconds. It goes on after an error, and returns all of them.
func (p *Payments) Sweep(ctx context.Context, limit int) error {
	ctx = tenant.AsPlatform(ctx)
	var events []GatewayEvent
	var due []ids.Payment
	err := p.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		if events, err = p.store.OpenEvents(ctx, p.gateway.Name(), limit); err != nil {
			return err
		}
		due, err = p.store.DuePayments(ctx, p.gateway.Name(), p.clock.Now(), limit)
		return err
	})
	errs := []error{err}
	for _, event := range events {
		errs = append(errs, p.process(ctx, event))
	}
	for _, id := range due {
		_, err := p.Collect(ctx, id)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// process fetches again what a webhook hints at. A hint at something that is not ours is parked, visible, and never acted on.
func (p *Payments) process(ctx context.Context, event GatewayEvent) error {
	parked, err := p.follow(ctx, event)
	if err != nil {
		return fmt.Errorf("process %s: %w", event.ID, err)
	}
	return p.tx.WithinTx(ctx, func(ctx context.Context) error {
		return p.store.FinishEvent(ctx, event.ID, parked, p.clock.Now())
	})
}

func (p *Payments) follow(ctx context.Context, event GatewayEvent) (string, error) {
	intent, err := p.gateway.Intent(ctx, event.Ref)
	if fault.Is(err, fault.NotFound) {
		return "there is no " + event.Ref + " at the gateway", nil
	}
	if err != nil {
		return "", err
	}
	var payment Payment
	err = p.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		payment, err = p.store.PaymentOfEffect(ctx, intent.EffectKey)
		return err
	})
	if fault.Is(err, fault.NotFound) {
		return "no payment of ours", nil
	}
	if err != nil {
		return "", err
	}
	_, err = p.apply(ctx, payment.ID, intent)
	if fault.Is(err, fault.Conflict) {
		return err.Error(), nil
	}
	return "", err
}
