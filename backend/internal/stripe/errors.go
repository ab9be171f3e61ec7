package stripe

import (
	"errors"
	"net/http"

	"github.com/stripe/stripe-go/v76"

	"github.com/leasehold/leasehold/backend/fault"
)

// refusedIntent returns the intent whose card was refused, which Stripe reports as an error.
func refusedIntent(err error) *stripe.PaymentIntent {
	var e *stripe.Error
	if !errors.As(err, &e) || e.Type != stripe.ErrorTypeCard || e.PaymentIntent == nil {
		return nil
	}
	refused := *e.PaymentIntent
	if refused.LastPaymentError == nil {
		refused.LastPaymentError = &stripe.Error{Msg: e.Msg}
	}
	return &refused
}

// toFault says what a caller may do about Stripe's error. Words of Stripe are shown only where they are about the customer's card.
func toFault(err error) error {
	var e *stripe.Error
	if !errors.As(err, &e) {
		return fault.New(fault.Unavailable, "gateway-unreachable", "the payment gateway does not answer, try again%w", hidden{err})
	}
	switch {
	case e.HTTPStatusCode >= http.StatusInternalServerError:
		return fault.New(fault.Unavailable, "gateway-failed", "the payment gateway has a problem of its own, try again later%w", hidden{err})
	case e.HTTPStatusCode == http.StatusTooManyRequests, e.HTTPStatusCode == http.StatusConflict:
		return fault.New(fault.Unavailable, "gateway-unreachable", "the payment gateway is busy, try again%w", hidden{err})
	case e.HTTPStatusCode == http.StatusUnauthorized, e.HTTPStatusCode == http.StatusForbidden:
		return fault.New(fault.Unavailable, "gateway-refused", "the payment gateway does not know us: ask the operator%w", hidden{err})
	case e.HTTPStatusCode == http.StatusNotFound:
		return errNoIntent()
	case e.Type == stripe.ErrorTypeIdempotency:
		return err // our own defect: one key for two things
	default:
		return fault.New(fault.Invalid, "payment-refused", "%s", e.Msg).At("/payment_method", "was refused")
	}
}

// hidden keeps a cause in the chain for logs, and out of the words that people see.
type hidden struct{ cause error }

func (h hidden) Error() string { return "" }
func (h hidden) Unwrap() error { return h.cause }
