package redfish

import (
	"context"

	"github.com/leasehold/leasehold/backend/power"
)

// Dialer implements power.Dialer.
type Dialer struct{}

// Dial implements power.Dialer.
func (Dialer) Dial(ctx context.Context, a power.Address, password string) (power.Controller, error) {
	return Open(ctx, Options{URL: a.URL, User: a.User, Password: password, Pin: a.Pin, System: a.System})
}
