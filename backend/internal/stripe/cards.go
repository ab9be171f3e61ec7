package stripe

import (
	"github.com/leasehold/leasehold/backend/billing"
)

// outcome is what a test card leads to.
type outcome struct {
	state   billing.PaymentState
	failure string
}

// testCard returns what a payment method of Stripe's own test cards leads to (https://docs.stripe.com/testing), under both the newer
// and the older spelling of the ones that fail.
func testCard(method string) (outcome, bool) {
	failed := func(words string) (outcome, bool) { return outcome{billing.PaymentFailed, words}, true }
	switch method {
	case "pm_card_visa", "pm_card_visa_debit", "pm_card_mastercard", "pm_card_mastercard_debit", "pm_card_amex", "pm_card_discover",
		"pm_card_diners", "pm_card_jcb", "pm_card_unionpay", "pm_card_us", "pm_card_de", "pm_card_threeDSecureOptional":
		return outcome{state: billing.PaymentSucceeded}, true
	case "pm_card_chargeDeclined", "pm_card_visa_chargeDeclined", "pm_card_chargeCustomerFail":
		return failed("Your card was declined.")
	case "pm_card_chargeDeclinedInsufficientFunds", "pm_card_visa_chargeDeclinedInsufficientFunds":
		return failed("Your card has insufficient funds.")
	case "pm_card_chargeDeclinedExpiredCard":
		return failed("Your card has expired.")
	case "pm_card_chargeDeclinedIncorrectCvc":
		return failed("Your card's security code is incorrect.")
	case "pm_card_chargeDeclinedProcessingError":
		return failed("An error occurred while processing your card. Try again in a little bit.")
	case "pm_card_visa_chargeDeclinedLostCard", "pm_card_visa_chargeDeclinedStolenCard", "pm_card_chargeDeclinedFraudulent", "pm_card_radarBlock":
		return failed("Your card was declined.")
	case "pm_card_threeDSecure2Required", "pm_card_threeDSecureRequired", "pm_card_authenticationRequired",
		"pm_card_authenticationRequiredOnSetup", "pm_card_authenticationRequiredSetupForOffSession":
		return outcome{state: billing.PaymentRequiresAction}, true
	default:
		return outcome{}, false
	}
}
