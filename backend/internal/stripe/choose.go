package stripe

import "github.com/leasehold/leasehold/backend/billing"

// Choose returns Stripe where a secret key is configured, and else the test gateway, on which no real money moves. Whoever shows money
// also shows the gateway's Name.
func Choose(config Config, test *TestGateway) billing.Gateway {
	if config.SecretKey == "" {
		return test
	}
	return New(config)
}
