package booking_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/fault"
)

func TestARefusalForLackOfCapacitySaysWhatWouldHelp(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.Nodes(t, "h100", "hw", "bare_metal", 2, 8)
	s.InstanceType(t, "h100", "hw", "bare_metal", 8)
	s.InstanceType(t, "h100.1x", "hw", "shared", 1)
	s.InstanceType(t, "b200", "other", "bare_metal", 8)
	c, ctx := s.customer(t, "acme", 1_000_000)
	_, err := s.book(ctx, c, s.in(2*time.Hour, time.Hour))
	require.NoError(t, err)
	for _, refused := range []struct {
		why   string
		total int
		wish  booking.Wish
	}{
		{"is shared out for h100.1x", 0, booking.Wish{InstanceType: "h100.1x", Instances: 1, Duration: time.Hour}},
		{"on the market as b200", 0, booking.Wish{InstanceType: "b200", Instances: 1, Duration: time.Hour}},
		{"at most 2 × h100 at any one site", 2, booking.Wish{InstanceType: "h100", Instances: 3, Duration: time.Hour}},
		{"try another time or fewer instances", 2, booking.Wish{InstanceType: "h100", Instances: 2, Window: s.in(2*time.Hour, time.Hour).Window}},
		{"another topology than same_leaf", 2, booking.Wish{InstanceType: "h100", Instances: 2, Window: s.in(2*time.Hour, time.Hour).Window, Topology: booking.SameLeaf}},
	} {
		if refused.wish.Topology == "" {
			refused.wish.Topology = booking.Anywhere
		}
		_, err := s.sales.Quote(ctx, refused.wish)
		require.ErrorContains(t, err, refused.why)
		var f *fault.Fault
		require.ErrorAs(t, err, &f)
		require.Equal(t, "no-capacity", f.Code)
		require.Equal(t, refused.total, f.Facts["total_instances"], refused.why)
	}
}
