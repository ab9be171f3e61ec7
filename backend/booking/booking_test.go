package booking_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/markettest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/internal/stripe"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/ledger"
	"github.com/leasehold/leasehold/backend/money"
	"github.com/leasehold/leasehold/backend/tenant"
)

// shop sells on a real database, with the real ledger.
type shop struct {
	*markettest.Market
	db    *postgres.DB
	clock *clock.Fake
	sales *booking.Service
	bills *billing.Service
	pays  *billing.Payments
}

func newShop(t *testing.T) *shop {
	t.Helper()
	m := markettest.New(t)
	db, err := postgres.Open(t.Context(), m.URL, 40)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	now := clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	books := ledger.New(db, postgres.NewLedger(db), now)
	bills := billing.New(db, books, postgres.NewMetering(db), postgres.NewInvoices(db), now)
	store := postgres.NewBooking(db)
	return &shop{
		Market: m, db: db, clock: now, bills: bills,
		pays: billing.NewPayments(db, postgres.NewPayments(db), stripe.NewTestGateway(postgres.NewTestGatewayVault(db), "s", "http://x/test-gateway/"), books, now),
		sales: booking.New(booking.Deps{
			Tx: db, Catalog: postgres.NewCatalog(db), Market: store, Customers: store, Quotes: store, Leases: postgres.NewLeases(db),
			Allocations: postgres.NewAllocations(db), Money: bills, Outbox: postgres.NewOutbox(db), Audit: audit.New(postgres.NewAuditEvents(db), now), Clock: now,
		}),
	}
}

// customer has that much money.
func (s *shop) customer(t *testing.T, name string, minor int64) (markettest.Customer, context.Context) {
	t.Helper()
	c := s.Customer(t, name)
	ctx := tenant.WithActor(context.WithoutCancel(t.Context()), tenant.Actor{Org: c.Org, OrgKind: tenant.Customer, User: c.User, Role: tenant.Owner})
	if minor > 0 {
		paid, err := s.pays.TopUp(ctx, billing.TopUpInput{Org: c.Org, Amount: money.Of(minor, money.USD), Method: "pm_card_visa", Key: "top-up " + name, By: c.User.String()})
		require.NoError(t, err)
		require.Equal(t, billing.PaymentSucceeded, paid.State)
	}
	return c, ctx
}

func (s *shop) in(start, length time.Duration) booking.Wish {
	from := s.clock.Now().Add(start)
	return booking.Wish{InstanceType: "h100", Instances: 1, Topology: booking.Anywhere, Window: lease.Window{Start: from, End: from.Add(length)}}
}

// book quotes and books.
func (s *shop) book(ctx context.Context, c markettest.Customer, w booking.Wish) (lease.Lease, error) {
	q, err := s.sales.Quote(ctx, w)
	if err != nil {
		return lease.Lease{}, err
	}
	return s.sales.Book(ctx, booking.BookInput{Quote: q.ID, SSHKeys: []ids.SSHKey{c.Key}})
}

func TestOf64ClientsThatBookTheLastNodesAtOnceExactlyAsManyWin(t *testing.T) {
	t.Parallel()
	const clients, nodes = 64, 10
	s := newShop(t)
	s.Nodes(t, "h100", "hw", "bare_metal", nodes, 4)
	s.InstanceType(t, "h100", "hw", "bare_metal", 8)
	c, ctx := s.customer(t, "acme", 1_000_000)
	wish := s.in(time.Hour, 2*time.Hour)
	probe, err := s.sales.Quote(ctx, wish)
	require.NoError(t, err)

	var won, lost atomic.Int64
	var wait sync.WaitGroup
	start := make(chan struct{})
	for range clients {
		wait.Go(func() {
			<-start
			_, err := s.book(ctx, c, wish)
			switch {
			case err == nil:
				won.Add(1)
			case fault.CodeOf(err) == "no-capacity":
				lost.Add(1)
			default:
				t.Errorf("unexpected: %v", err)
			}
		})
	}
	close(start)
	wait.Wait()
	require.EqualValues(t, nodes, won.Load())
	require.EqualValues(t, clients-nodes, lost.Load())

	var overlaps int
	require.NoError(t, s.Pool.QueryRow(ctx, `SELECT count(*) FROM allocation a JOIN allocation b ON a.node_id = b.node_id AND a.id < b.id
		AND a.slots && b.slots AND a.occupied && b.occupied`).Scan(&overlaps))
	require.Zero(t, overlaps)
	balance, err := s.bills.Balance(ctx, c.Org)
	require.NoError(t, err)
	require.Equal(t, nodes*probe.Total.Minor, balance.Held.Minor, "only winners' money is held")
	require.Equal(t, 1_000_000-nodes*probe.Total.Minor, balance.Available().Minor)
}

func TestAQuoteBooksOnceAndUntilItExpires(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.Nodes(t, "h100", "hw", "bare_metal", 2, 4)
	s.InstanceType(t, "h100", "hw", "bare_metal", 8)
	c, ctx := s.customer(t, "acme", 1_000_000)
	_, stranger := s.customer(t, "bolt", 1_000_000)

	q, err := s.sales.Quote(ctx, s.in(time.Hour, time.Hour))
	require.NoError(t, err)
	require.EqualValues(t, 8*249, q.Total.Minor, "8 GPUs for an hour at 2.49")
	in := booking.BookInput{Quote: q.ID, SSHKeys: []ids.SSHKey{c.Key}}
	_, err = s.sales.Book(stranger, in)
	require.Equal(t, fault.NotFound, fault.KindOf(err), "another organization's quote")
	_, err = s.sales.Book(ctx, booking.BookInput{Quote: q.ID, SSHKeys: []ids.SSHKey{ids.Make[ids.SSHKey]()}})
	require.Equal(t, "ssh-key-unknown", fault.CodeOf(err))
	_, err = s.sales.Book(ctx, in)
	require.NoError(t, err)
	_, err = s.sales.Book(ctx, in)
	require.Equal(t, "quote-used", fault.CodeOf(err))

	late, err := s.sales.Quote(ctx, s.in(time.Hour, time.Hour))
	require.NoError(t, err)
	s.clock.Advance(10 * time.Minute)
	_, err = s.sales.Book(ctx, booking.BookInput{Quote: late.ID, SSHKeys: []ids.SSHKey{c.Key}})
	require.Equal(t, fault.Expired, fault.KindOf(err))
	balance, err := s.bills.Balance(ctx, c.Org)
	require.NoError(t, err)
	require.Equal(t, q.Total.Minor, balance.Held.Minor, "nothing is held for a quote that expired")
}

func TestTooLittleMoneyBooksNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.Nodes(t, "h100", "hw", "bare_metal", 1, 4)
	s.InstanceType(t, "h100", "hw", "bare_metal", 8)
	c, ctx := s.customer(t, "poor", 1_000)
	_, err := s.book(ctx, c, s.in(time.Hour, time.Hour))
	require.Equal(t, fault.Unfunded, fault.KindOf(err))
	var refusal *fault.Fault
	require.ErrorAs(t, err, &refusal)
	require.EqualValues(t, 1_000, refusal.Facts["available_minor"])
	require.EqualValues(t, 1_992, refusal.Facts["needed_minor"])
	var left int
	require.NoError(t, s.Pool.QueryRow(ctx, "SELECT (SELECT count(*) FROM lease) + (SELECT count(*) FROM allocation)").Scan(&left))
	require.Zero(t, left)
}

func TestWindowsThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.Nodes(t, "h100", "hw", "bare_metal", 1, 4)
	s.InstanceType(t, "h100", "hw", "bare_metal", 8)
	_, ctx := s.customer(t, "acme", 0)
	for name, wish := range map[string]booking.Wish{
		"past": s.in(-time.Hour, time.Hour), "backwards": s.in(2*time.Hour, -time.Hour), "too soon": s.in(time.Minute, time.Hour),
		"too short": s.in(time.Hour, 30*time.Second), "too long": s.in(time.Hour, 400*24*time.Hour), "too far": s.in(3*365*24*time.Hour, time.Hour),
		"odd second":   s.in(time.Hour+time.Second, time.Hour),
		"none":         {InstanceType: "h100", Instances: 1, Topology: booking.Anywhere},
		"no instance":  {InstanceType: "h100", Topology: booking.Anywhere, Duration: time.Hour},
		"too many":     {InstanceType: "h100", Instances: 1 << 30, Topology: booking.Anywhere, Duration: time.Hour},
		"odd topology": {InstanceType: "h100", Instances: 1, Topology: "ring", Duration: time.Hour},
	} {
		_, err := s.sales.Quote(ctx, wish)
		require.Equal(t, fault.Invalid, fault.KindOf(err), "%s: %v", name, err)
	}
	_, err := s.sales.Quote(ctx, booking.Wish{InstanceType: "h999", Instances: 1, Topology: booking.Anywhere, Duration: time.Hour})
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	_, err = s.sales.Quote(ctx, booking.Wish{InstanceType: "h100", Instances: 2, Topology: booking.Anywhere, Duration: time.Hour})
	require.Equal(t, "no-capacity", fault.CodeOf(err))
}

func TestARushOnAFleetThatHasRoomForAllTurnsNobodyAway(t *testing.T) {
	t.Parallel()
	const clients, each = 40, 3
	s := newShop(t)
	s.Nodes(t, "h100", "hw", "bare_metal", clients*each+2, 8)
	s.InstanceType(t, "h100", "hw", "bare_metal", 8)
	c, ctx := s.customer(t, "acme", 90_000_000)
	wish := s.in(time.Hour, 2*time.Hour)
	wish.Instances = each
	var wait sync.WaitGroup
	start := make(chan struct{})
	for range clients {
		wait.Go(func() {
			<-start
			if _, err := s.book(ctx, c, wish); err != nil {
				t.Errorf("turned away: %v", err)
			}
		})
	}
	close(start)
	wait.Wait()
}

func TestExtensionsTakeTheSameCapacityOrNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.Nodes(t, "h100", "hw", "bare_metal", 1, 4)
	s.InstanceType(t, "h100", "hw", "bare_metal", 8)
	c, ctx := s.customer(t, "acme", 1_000_000)
	first, err := s.book(ctx, c, s.in(time.Hour, time.Hour))
	require.NoError(t, err)
	_, err = s.book(ctx, c, s.in(5*time.Hour, time.Hour))
	require.NoError(t, err)

	_, err = s.sales.Extend(ctx, first.ID, first.Version, first.End.Add(3*time.Hour))
	require.Equal(t, "extension-taken", fault.CodeOf(err), "%v", err)
	extended, err := s.sales.Extend(ctx, first.ID, first.Version, first.End.Add(time.Hour))
	require.NoError(t, err)
	require.Equal(t, 2, extended.Segment.Seq)
	require.EqualValues(t, 1_992, extended.Total().Minor)
	_, err = s.sales.Extend(ctx, first.ID, first.Version, first.End.Add(90*time.Minute))
	require.Equal(t, fault.Stale, fault.KindOf(err), "two extensions on one ETag")
	balance, err := s.bills.Balance(ctx, c.Org)
	require.NoError(t, err)
	require.EqualValues(t, 3*1_992, balance.Held.Minor)
}

func TestACancellationGivesBackCapacityAndMoneyByTheSchedule(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.Nodes(t, "h100", "hw", "bare_metal", 1, 4)
	s.InstanceType(t, "h100", "hw", "bare_metal", 8)
	c, ctx := s.customer(t, "acme", 100_000)
	l, err := s.book(ctx, c, s.in(2*time.Hour, time.Hour))
	require.NoError(t, err)
	cancelled, err := s.sales.Cancel(ctx, l.ID, l.Version)
	require.NoError(t, err)
	require.EqualValues(t, 996, cancelled.Refund.Minor, "half, less than a day before the start")
	require.EqualValues(t, 996, cancelled.Fee.Minor)
	balance, err := s.bills.Balance(ctx, c.Org)
	require.NoError(t, err)
	require.Zero(t, balance.Held.Minor)
	require.EqualValues(t, 100_000-996, balance.Available().Minor)
	_, err = s.sales.Cancel(ctx, l.ID, cancelled.Lease.Version)
	require.Equal(t, "lease-ending", fault.CodeOf(err), "cancelled twice: one refund")
	_, err = s.book(ctx, c, s.in(2*time.Hour, time.Hour))
	require.NoError(t, err, "the capacity is free again")
}

func TestTheCalendarCountsWhatIsFree(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.Nodes(t, "h100", "hw", "bare_metal", 3, 4)
	s.InstanceType(t, "h100", "hw", "bare_metal", 8)
	c, ctx := s.customer(t, "acme", 100_000)
	_, err := s.book(ctx, c, s.in(2*time.Hour, time.Hour))
	require.NoError(t, err)
	rows, err := s.sales.Calendar(ctx, booking.CalendarQuery{InstanceType: "h100", From: s.clock.Now(), To: s.clock.Now().Add(6 * time.Hour), Step: time.Hour})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, 3, rows[0].Total)
	require.Equal(t, []int{3, 2, 2, 2, 3, 3}, rows[0].Free, "the lease with its lead of 10 and turnaround of 15 minutes")
}

func TestASilentMachineIsNotGivenToWhatStartsSoon(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	nodes := s.Nodes(t, "h100", "hw", "bare_metal", 1, 4)
	s.InstanceType(t, "h100", "hw", "bare_metal", 8)
	c, ctx := s.customer(t, "acme", 100_000)
	now := s.clock.Now()
	s.Exec(t, "INSERT INTO node_liveness (node_id, boot_id, sequence, seen_at) VALUES ($1, 'b', 1, $2)", nodes[0], now.Add(-2*time.Minute))
	_, err := s.sales.Quote(ctx, booking.Wish{InstanceType: "h100", Instances: 1, Topology: booking.Anywhere, Duration: time.Hour})
	require.Equal(t, "no-capacity", fault.CodeOf(err), "%v", err)
	_, err = s.book(ctx, c, s.in(3*time.Hour, time.Hour))
	require.NoError(t, err, "by then it may be back")
	s.Exec(t, "UPDATE node_liveness SET seen_at = $1", now.Add(-10*time.Second))
	_, err = s.sales.Quote(ctx, booking.Wish{InstanceType: "h100", Instances: 1, Topology: booking.Anywhere, Duration: time.Hour})
	require.NoError(t, err)
}
