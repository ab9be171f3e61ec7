package booking_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/markettest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/tenant"
)

// rented is a shop with one machine, which a customer has booked for an hour from an hour on: 1,992 cents.
type rented struct {
	*shop
	customer markettest.Customer
	ctx      context.Context //nolint:containedctx // who asks, for one test
	lease    lease.Lease
}

func newRented(t *testing.T) *rented {
	t.Helper()
	s := newShop(t)
	s.Nodes(t, "h100", "hw", "bare_metal", 2, 4)
	s.InstanceType(t, "h100", "hw", "bare_metal", 8)
	c, ctx := s.customer(t, "acme", 100_000)
	l, err := s.book(ctx, c, s.in(time.Hour, time.Hour))
	require.NoError(t, err)
	return &rented{s, c, ctx, l}
}

// becomes brings the lease's row and log where delivery would.
func (r *rented) becomes(t *testing.T, state lease.State, what lease.EventType) {
	t.Helper()
	platform := tenant.AsPlatform(t.Context())
	require.NoError(t, r.db.WithinTx(platform, func(ctx context.Context) error {
		store := postgres.NewLeases(r.db)
		l, err := store.GetForUpdate(ctx, r.lease.ID)
		require.NoError(t, err)
		require.NoError(t, l.MoveTo(state, r.clock.Now()))
		if state == lease.Releasing {
			l.Outcome = lease.Completed
			if !l.WantedEnd.IsZero() {
				l.Outcome = map[bool]lease.Outcome{true: lease.CancelledOutcome, false: lease.Terminated}[l.ActiveAt.IsZero()]
			}
		}
		require.NoError(t, store.Update(ctx, l))
		_, err = store.AppendEvent(ctx, lease.Event{Lease: l.ID, Org: l.Org, Type: what, At: r.clock.Now(), Actor: "test"})
		return err
	}))
}

func (r *rented) available(t *testing.T) int64 {
	t.Helper()
	balance, err := r.bills.Balance(r.ctx, r.customer.Org)
	require.NoError(t, err)
	return balance.Available().Minor
}

func TestACancellationWhileTheMachinesArePreparedCostsWhatItDidBefore(t *testing.T) {
	t.Parallel()
	r := newRented(t)
	r.clock.Advance(55 * time.Minute)
	r.becomes(t, lease.Provisioning, lease.EventProvisioning)
	told, err := r.sales.Cancel(r.ctx, r.lease.ID, r.lease.Version)
	require.NoError(t, err)
	require.EqualValues(t, 996, told.Fee.Minor, "half, less than a day before the start")
	require.EqualValues(t, 996, told.Refund.Minor)
	r.becomes(t, lease.Releasing, lease.EventReleasing)
	_, err = r.bills.Settle(tenant.AsPlatform(t.Context()), r.lease.ID)
	require.NoError(t, err)
	require.EqualValues(t, 100_000-996, r.available(t), "it is billed as it was told")
}

func TestWhatIsDeliveredLateIsGivenUpForNothing(t *testing.T) {
	t.Parallel()
	r := newRented(t)
	r.clock.Advance(55 * time.Minute)
	r.becomes(t, lease.Provisioning, lease.EventProvisioning)
	r.clock.Advance(6 * time.Minute)
	told, err := r.sales.Cancel(r.ctx, r.lease.ID, r.lease.Version)
	require.NoError(t, err)
	require.Zero(t, told.Fee.Minor)
	require.EqualValues(t, 1_992, told.Refund.Minor)
}

func TestAnEarlyEndIsBilledAsItWasToldAlsoAfterALateDelivery(t *testing.T) {
	t.Parallel()
	r := newRented(t)
	r.clock.Advance(55 * time.Minute)
	r.becomes(t, lease.Provisioning, lease.EventProvisioning)
	r.clock.Advance(25 * time.Minute) // 20 min late
	r.becomes(t, lease.Active, lease.EventActive)
	r.clock.Advance(10 * time.Minute)
	require.NoError(t, r.bills.Accrue(tenant.AsPlatform(t.Context()), r.lease.ID, r.clock.Now()))
	told, err := r.sales.Cancel(r.ctx, r.lease.ID, r.lease.Version)
	require.NoError(t, err)
	r.clock.Advance(time.Minute)
	r.becomes(t, lease.Releasing, lease.EventReleasing)
	_, err = r.bills.Settle(tenant.AsPlatform(t.Context()), r.lease.ID)
	require.NoError(t, err)
	usage, err := r.bills.Usage(r.ctx, r.lease.ID)
	require.NoError(t, err)
	require.EqualValues(t, 332, usage.Lines[0].Gross().Minor, "ten minutes of the hour's 1,992 cents")
	require.Equal(t, 1_992-usage.Charged.Minor, told.Refund.Minor)
	require.Equal(t, usage.Charged.Minor-332, told.Fee.Minor)
	require.Equal(t, 100_000-1_992+told.Refund.Minor, r.available(t))
}

func TestWhatIsOverIsNeitherCancelledNorExtended(t *testing.T) {
	t.Parallel()
	r := newRented(t)
	r.clock.Advance(time.Hour)
	r.becomes(t, lease.Provisioning, lease.EventProvisioning)
	r.becomes(t, lease.Active, lease.EventActive)
	r.clock.Advance(time.Hour) // its end; nobody has begun to release it
	_, err := r.sales.Cancel(r.ctx, r.lease.ID, r.lease.Version)
	require.Equal(t, "lease-ending", fault.CodeOf(err), "%v", err)
	_, err = r.sales.Extend(r.ctx, r.lease.ID, r.lease.Version, r.lease.End.Add(time.Hour))
	require.Equal(t, "lease-ending", fault.CodeOf(err), "%v", err)
}

func TestACancelledLeaseWasNothingHoweverLongAgo(t *testing.T) {
	t.Parallel()
	r := newRented(t)
	_, err := r.sales.Cancel(r.ctx, r.lease.ID, r.lease.Version)
	require.NoError(t, err)
	r.clock.Advance(100 * time.Hour)
	usage, err := r.bills.Usage(r.ctx, r.lease.ID)
	require.NoError(t, err)
	require.Empty(t, usage.Intervals)
}

func TestExtendingASecondAtATimeIsHeldAsIfItWereBookedAtOnce(t *testing.T) {
	t.Parallel()
	r := newRented(t)
	r.sales.Rules.Step = time.Second
	before, version, end := r.available(t), r.lease.Version, r.lease.End
	for range 10 {
		end = end.Add(time.Second)
		made, err := r.sales.Extend(r.ctx, r.lease.ID, version, end)
		require.NoError(t, err)
		version = made.Lease.Version
	}
	require.EqualValues(t, 6, before-r.available(t), "8 GPUs for ten seconds at 2.49 an hour are 5.53 cents; each second alone is 0.55")
}

func TestASuspendedCustomerExtendsNothing(t *testing.T) {
	t.Parallel()
	r := newRented(t)
	r.Exec(t, "UPDATE organization SET bookings_suspended_at = now() WHERE id = $1", r.customer.Org)
	_, err := r.sales.Extend(r.ctx, r.lease.ID, r.lease.Version, r.lease.End.Add(time.Hour))
	require.Equal(t, "bookings-suspended", fault.CodeOf(err), "%v", err)
}

func TestAMachineThatWasReplacedIsNoObstacleToAnExtension(t *testing.T) {
	t.Parallel()
	r := newRented(t)
	platform := tenant.AsPlatform(t.Context())
	allocations := func() []lease.Allocation {
		var found []lease.Allocation
		require.NoError(t, r.db.WithinTx(platform, func(ctx context.Context) (err error) {
			found, err = postgres.NewAllocations(r.db).ByLeaseForUpdate(ctx, r.lease.ID)
			return err
		}))
		return found
	}
	left := allocations()[0]
	var came ids.Allocation
	require.NoError(t, r.db.WithinTx(platform, func(ctx context.Context) (err error) {
		came, err = r.sales.Replace(ctx, left.ID)
		return err
	}))
	r.Exec(t, "UPDATE allocation SET replaced_by = $2, state = 'cleaning' WHERE id = $1", left.ID, came)
	// The node that was left belongs to somebody else right after.
	r.Exec(t, `INSERT INTO allocation (id, node_id, slots, occupied, state, purpose, created_at) SELECT gen_random_uuid(), node_id, slots,
		tstzrange(upper(occupied), upper(occupied) + interval '1 day'), 'held', 'maintenance', now() FROM allocation WHERE id = $1`, left.ID)
	made, err := r.sales.Extend(r.ctx, r.lease.ID, r.lease.Version, r.lease.End.Add(time.Hour))
	require.NoError(t, err)
	for _, a := range allocations() {
		if a.ID == left.ID {
			require.Equal(t, left.Occupied, a.Occupied, "it serves nobody any more")
		} else {
			require.Equal(t, left.Occupied.End.Add(time.Hour), a.Occupied.End)
		}
	}
	require.Equal(t, r.lease.End.Add(time.Hour), made.Lease.End)
}

func TestAMachineInTroubleIsNotExtendedAndSaysWhy(t *testing.T) {
	t.Parallel()
	r := newRented(t)
	r.Exec(t, "UPDATE node SET state = 'quarantined', state_reason = 'a fan', state_exit = 'repair' WHERE id = (SELECT node_id FROM allocation WHERE lease_id = $1)", r.lease.ID)
	_, err := r.sales.Extend(r.ctx, r.lease.ID, r.lease.Version, r.lease.End.Add(time.Hour))
	require.Equal(t, "extension-taken", fault.CodeOf(err), "%v", err)
	require.NotContains(t, err.Error(), "0001")
}
