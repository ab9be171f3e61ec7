package booking_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// TestThePolicyHoldsAtEveryDoor sets a policy between a lease's booking and its extension, and between a quote and its booking.
func TestThePolicyHoldsAtEveryDoor(t *testing.T) {
	t.Parallel()
	for rule, set := range map[string]string{
		"instance_types":       "instance_types = '{other}'",
		"sites":                "sites = '{elsewhere}'",
		"max_duration_seconds": "max_duration_seconds = 1800",
		"max_lease_minor":      "max_lease_minor = 1000",
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			r := newRented(t)
			quote, err := r.sales.Quote(r.ctx, r.in(3*time.Hour, time.Hour))
			require.NoError(t, err)
			r.Exec(t, "INSERT INTO organization_policy (org_id, version, updated_at) VALUES ($1, 2, now())", r.customer.Org)
			_, err = r.sales.Quote(r.ctx, r.in(6*time.Hour, time.Hour))
			require.NoError(t, err, "a policy without limits limits nothing")
			r.Exec(t, "UPDATE organization_policy SET "+set)

			refused := func(err error) {
				require.True(t, fault.Is(err, fault.Forbidden), "%v", err)
				require.Equal(t, "organization-policy", fault.CodeOf(err))
				require.ErrorContains(t, err, "your organization")
			}
			_, err = r.sales.Quote(r.ctx, r.in(6*time.Hour, time.Hour))
			refused(err)
			_, err = r.sales.Book(r.ctx, booking.BookInput{Quote: quote.ID, SSHKeys: []ids.SSHKey{r.customer.Key}})
			refused(err)
			_, err = r.sales.Extend(r.ctx, r.lease.ID, r.lease.Version, r.lease.End.Add(time.Hour))
			refused(err)

			_, ctx := r.shop.customer(t, "other", 100_000)
			_, err = r.sales.Quote(ctx, r.in(6*time.Hour, time.Hour))
			require.NoError(t, err, "another organization's is its own affair")
		})
	}
}

func TestAnExtensionCountsWithAllThatCameBeforeIt(t *testing.T) {
	t.Parallel()
	r := newRented(t)
	r.Exec(t, "INSERT INTO organization_policy (org_id, max_duration_seconds, version, updated_at) VALUES ($1, 7200, 2, now())", r.customer.Org)
	made, err := r.sales.Extend(r.ctx, r.lease.ID, r.lease.Version, r.lease.End.Add(time.Hour))
	require.NoError(t, err)
	_, err = r.sales.Extend(r.ctx, r.lease.ID, made.Lease.Version, r.lease.End.Add(2*time.Hour))
	require.Equal(t, "organization-policy", fault.CodeOf(err))
}
