package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/keys"
	"github.com/leasehold/leasehold/backend/internal/markettest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/outbox"
	"github.com/leasehold/leasehold/backend/tenant"
	"github.com/leasehold/leasehold/backend/webhook"
)

// sender is an Internet of one answer, which notes what it was sent.
type sender struct {
	mu     sync.Mutex
	posts  []webhook.Post
	answer func(webhook.Post) (webhook.Answer, error)
}

func (s *sender) Send(_ context.Context, p webhook.Post) (webhook.Answer, error) {
	s.mu.Lock()
	s.posts = append(s.posts, p)
	answer := s.answer
	s.mu.Unlock()
	if answer == nil {
		return webhook.Answer{Status: 200, Body: "ok"}, nil
	}
	return answer(p)
}

func (s *sender) taken() []webhook.Post {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.posts
	s.posts = nil
	return taken
}

type hookWorld struct {
	*leaseWorld
	hooks   *postgres.Webhooks
	service *webhook.Service
	clock   *clock.Fake
	sender  *sender
	vault   *keys.Vault
}

func newHookWorld(t *testing.T) *hookWorld {
	t.Helper()
	w := &hookWorld{leaseWorld: newLeaseWorld(t), sender: &sender{}}
	w.clock, w.hooks = clock.NewFake(w.start), postgres.NewWebhooks(w.db)
	var err error
	w.vault, err = keys.NewVault(make([]byte, 32))
	require.NoError(t, err)
	w.service = webhook.New(w.db, w.hooks, w.vault, w.log(), nil, w.clock, true)
	return w
}

func (w *hookWorld) log() *audit.Log { return audit.New(postgres.NewAuditEvents(w.db), w.clock) }

func (w *hookWorld) courier() *webhook.Courier {
	return &webhook.Courier{
		Tx: w.db, Rounds: w.hooks, Sender: w.sender, Vault: w.vault, Audit: w.log(), Notices: postgres.NewOutbox(w.db), Clock: w.clock, Log: slog.New(slog.DiscardHandler),
	}
}

// as is a context in which the customer's user acts.
func as(t *testing.T, c markettest.Customer) context.Context {
	t.Helper()
	return tenant.WithActor(t.Context(), tenant.Actor{Org: c.Org, User: c.User, Role: tenant.Owner, OrgKind: tenant.Customer})
}

func (w *hookWorld) endpoint(t *testing.T, c markettest.Customer, types ...string) (webhook.Endpoint, string) {
	t.Helper()
	e, secret, err := w.service.Create(as(t, c), webhook.EndpointInput{URL: "http://" + c.Org.String() + ".test/", Types: types})
	require.NoError(t, err)
	return e, secret
}

func (w *hookWorld) publish(t *testing.T, c markettest.Customer, what string, n int) {
	t.Helper()
	w.within(t, t.Context(), func(ctx context.Context) {
		for range n {
			require.NoError(t, w.hooks.Publish(ctx, webhook.Event{
				ID: ids.Make[ids.Event](), Org: c.Org, Type: what, At: w.clock.Now(), Data: json.RawMessage(`{}`),
			}))
		}
	})
}

// round numbers and delivers what there is.
func (w *hookWorld) round(t *testing.T) []webhook.Post {
	t.Helper()
	require.NoError(t, w.courier().Number(t.Context()))
	require.NoError(t, w.courier().Deliver(t.Context()))
	return w.sender.taken()
}

func (w *hookWorld) deliveries(t *testing.T, c markettest.Customer, id ids.Webhook) []webhook.Delivery {
	t.Helper()
	all, err := w.service.Deliveries(as(t, c), webhook.DeliveryFilter{Endpoint: id, Limit: 100})
	require.NoError(t, err)
	return all
}

func TestALeasesEventsArePublishedWithItAndNotWithoutIt(t *testing.T) {
	t.Parallel()
	w := newHookWorld(t)
	w.endpoint(t, w.customer, "lease.*")
	appendEvent := func(ctx context.Context, kind lease.EventType) error {
		_, err := w.leases.AppendEvent(ctx, lease.Event{Lease: w.lease, Type: kind, At: w.start, Data: map[string]any{"remaining_seconds": 60}})
		return err
	}
	require.Error(t, w.db.WithinTx(t.Context(), func(ctx context.Context) error {
		require.NoError(t, appendEvent(ctx, lease.EventActive))
		return errors.New("rolled back")
	}))
	require.NoError(t, w.db.WithinTx(t.Context(), func(ctx context.Context) error { return appendEvent(ctx, lease.EventNotice) }))
	require.NoError(t, w.db.WithinTx(as(t, w.customer), func(ctx context.Context) error { return appendEvent(ctx, lease.EventExtended) }), "as the tenant, too")
	posts := w.round(t)
	require.Len(t, posts, 2)
	var first webhook.Payload
	require.NoError(t, json.Unmarshal(posts[0].Body, &first))
	if first.Sequence == 2 {
		require.NoError(t, json.Unmarshal(posts[1].Body, &first))
	}
	require.Equal(t, []any{"lease.notice", w.lease.String(), int64(1), int64(1), 1}, []any{first.Type, first.Subject, first.SubjectSequence, first.Sequence, first.Version})
	require.JSONEq(t, `{"lease_id": "`+w.lease.String()+`", "actor": "system", "remaining_seconds": 60}`, string(first.Data))
}

func TestAlarmsGoToTheOperatorsEndpoints(t *testing.T) {
	t.Parallel()
	w := newHookWorld(t)
	operator := w.Customer(t, "Operator")
	w.Exec(t, "UPDATE organization SET kind = 'operator' WHERE id = $1", operator.Org)
	w.endpoint(t, operator)
	w.endpoint(t, w.customer)
	require.NoError(t, w.db.WithinTx(as(t, w.customer), func(ctx context.Context) error {
		return postgres.NewOutbox(w.db).Put(ctx, outbox.Notify, outbox.Operator, map[string]any{"event": "fabric.drift", "ports": []string{"0x1"}}, w.start)
	}))
	posts := w.round(t)
	require.Len(t, posts, 1)
	require.Contains(t, posts[0].URL, operator.Org.String())
	require.Contains(t, string(posts[0].Body), `"type":"platform.fabric.drift"`)
}

// TestNumbersHaveNoGapsAndKeepEachSubjectsOrder has many writers, and couriers that number meanwhile.
func TestNumbersHaveNoGapsAndKeepEachSubjectsOrder(t *testing.T) {
	t.Parallel()
	w := newHookWorld(t)
	const writers, each = 6, 20
	var group, couriers errgroup.Group
	stop := make(chan struct{})
	for range 2 {
		couriers.Go(func() error {
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				if err := w.courier().Number(t.Context()); err != nil {
					return err
				}
			}
		})
	}
	for range writers {
		group.Go(func() error {
			for range each {
				err := w.db.WithinTx(t.Context(), func(ctx context.Context) error {
					_, err := w.leases.AppendEvent(ctx, lease.Event{Lease: w.lease, Type: lease.EventNotice, At: w.start})
					return err
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	close(stop)
	require.NoError(t, couriers.Wait())
	require.NoError(t, w.courier().Number(t.Context()))
	events, err := w.service.Events(as(t, w.customer), 0, 1000, 0)
	require.NoError(t, err)
	require.Len(t, events, writers*each)
	for i, e := range events {
		require.Equal(t, int64(i+1), e.Sequence)
		require.Equal(t, int64(i+1), e.SubjectSequence, "one lease, so that both orders are the same")
	}
}

func TestNobodyIsToldOfAnotherOrganizationsThings(t *testing.T) {
	t.Parallel()
	w := newHookWorld(t)
	other := w.Customer(t, "Other")
	mine, _ := w.endpoint(t, w.customer)
	theirs, _ := w.endpoint(t, other)
	w.publish(t, w.customer, "lease.active", 1)
	posts := w.round(t)
	require.Len(t, posts, 1)
	require.Contains(t, posts[0].URL, w.customer.Org.String())

	events, err := w.service.Events(as(t, other), 0, 10, 0)
	require.NoError(t, err)
	require.Empty(t, events)
	_, err = w.service.Endpoint(as(t, other), mine.ID)
	require.True(t, fault.Is(err, fault.NotFound))
	_, err = w.service.Deliveries(as(t, other), webhook.DeliveryFilter{Endpoint: mine.ID, Limit: 10})
	require.True(t, fault.Is(err, fault.NotFound))
	_, _, err = w.service.Delivery(as(t, other), theirs.ID, w.deliveries(t, w.customer, mine.ID)[0].ID)
	require.True(t, fault.Is(err, fault.NotFound))
	_, err = w.service.Replay(as(t, other), theirs.ID, webhook.ReplayInput{Deliveries: []ids.Delivery{w.deliveries(t, w.customer, mine.ID)[0].ID}})
	require.True(t, fault.Is(err, fault.Invalid))
	// The database says so too, whatever the code does.
	require.Error(t, w.db.WithinTx(t.Context(), func(ctx context.Context) error {
		return w.hooks.InsertDeliveries(ctx, []webhook.Delivery{{
			ID: ids.Make[ids.Delivery](), Org: w.customer.Org, Endpoint: theirs.ID, Event: events0(t, w), State: webhook.Pending, NextAt: w.start, CreatedAt: w.start,
		}})
	}))
}

func events0(t *testing.T, w *hookWorld) webhook.Event {
	t.Helper()
	events, err := w.service.Events(as(t, w.customer), 0, 1, 0)
	require.NoError(t, err)
	return events[0]
}

// TestTwoCouriersNeverSendOneDeliveryAtATime counts, while many couriers are at it, how often each event is on its way.
func TestTwoCouriersNeverSendOneDeliveryAtATime(t *testing.T) {
	t.Parallel()
	w := newHookWorld(t)
	w.endpoint(t, w.customer)
	w.publish(t, w.customer, "lease.active", 60)
	require.NoError(t, w.courier().Number(t.Context()))
	var sent, twice atomic.Int32
	var underway sync.Map
	w.sender.answer = func(p webhook.Post) (webhook.Answer, error) {
		sent.Add(1)
		if _, busy := underway.LoadOrStore(p.ID, true); busy {
			twice.Add(1)
		}
		return webhook.Answer{Status: 204}, nil // stays in the map: a second time is one too many as well
	}
	var group errgroup.Group
	for range 5 {
		group.Go(func() error { return w.courier().Deliver(t.Context()) })
	}
	require.NoError(t, group.Wait())
	require.NoError(t, w.courier().Deliver(t.Context()))
	require.EqualValues(t, 60, sent.Load())
	require.Zero(t, twice.Load())
}

func TestWhatADeadCourierHadIsSentByAnotherAndItsLateNewsDoNotCount(t *testing.T) {
	t.Parallel()
	w := newHookWorld(t)
	e, _ := w.endpoint(t, w.customer)
	w.publish(t, w.customer, "lease.active", 1)
	require.NoError(t, w.courier().Number(t.Context()))
	var late []webhook.Parcel
	w.within(t, t.Context(), func(ctx context.Context) {
		var err error
		late, err = w.hooks.Claim(ctx, webhook.Share{Limit: 9, PerEndpoint: 9, PerOrg: 9}, w.clock.Now(), w.clock.Now().Add(time.Minute))
		require.NoError(t, err)
		require.Len(t, late, 1)
	})
	require.Empty(t, w.round(t), "it is claimed")
	w.clock.Advance(time.Minute)
	require.Len(t, w.round(t), 1)
	w.within(t, t.Context(), func(ctx context.Context) {
		d := late[0].Delivery
		d.State = webhook.Failed
		ours, err := w.hooks.Finish(ctx, d, webhook.Attempt{Number: d.Claim, At: w.clock.Now(), Status: 500})
		require.NoError(t, err)
		require.False(t, ours)
	})
	require.Equal(t, webhook.Delivered, w.deliveries(t, w.customer, e.ID)[0].State)
}

func TestAFailedDeliveryIsTriedForDaysAndThenCanBeReplayed(t *testing.T) {
	t.Parallel()
	w := newHookWorld(t)
	e, _ := w.endpoint(t, w.customer)
	w.publish(t, w.customer, "lease.active", 1)
	w.sender.answer = func(webhook.Post) (webhook.Answer, error) { return webhook.Answer{Status: 500, Body: "no"}, nil }
	require.Len(t, w.round(t), 1)
	require.Empty(t, w.round(t), "not at once again")
	tries := 1
	for range 100 {
		w.clock.Advance(time.Hour)
		tries += len(w.round(t))
	}
	require.Equal(t, 10, tries)
	d := w.deliveries(t, w.customer, e.ID)[0]
	require.Equal(t, webhook.Failed, d.State)
	require.Equal(t, []any{500, "no"}, []any{d.Last.Status, d.Last.Body})
	id := d.Event.ID.String()

	w.sender.answer = nil
	n, err := w.service.Replay(as(t, w.customer), e.ID, webhook.ReplayInput{Deliveries: []ids.Delivery{d.ID}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	posts := w.round(t)
	require.Len(t, posts, 1)
	require.Equal(t, id, posts[0].ID, "a replay has the event's own id, so that its receiver knows it")
	_, attempts, err := w.service.Delivery(as(t, w.customer), e.ID, d.ID)
	require.NoError(t, err)
	require.Len(t, attempts, 11)
	e, err = w.service.Endpoint(as(t, w.customer), e.ID)
	require.NoError(t, err)
	require.Zero(t, e.FailingSince, "a success ends the bad time")
}

func TestAnEndpointThatAsksForPeaceGetsIt(t *testing.T) {
	t.Parallel()
	w := newHookWorld(t)
	w.endpoint(t, w.customer)
	w.publish(t, w.customer, "lease.active", 1)
	w.sender.answer = func(webhook.Post) (webhook.Answer, error) {
		return webhook.Answer{Status: 503, RetryAfter: time.Hour}, nil
	}
	require.Len(t, w.round(t), 1)
	w.clock.Advance(59 * time.Minute)
	require.Empty(t, w.round(t))
	w.clock.Advance(time.Minute)
	require.Len(t, w.round(t), 1)
}

func TestAnEndpointThatFailsForDaysIsDisabledWithANotice(t *testing.T) {
	t.Parallel()
	w := newHookWorld(t)
	bad, _ := w.endpoint(t, w.customer, "lease.*")
	w.endpoint(t, w.customer, "webhook.*")
	w.sender.answer = func(p webhook.Post) (webhook.Answer, error) {
		if json.Valid(p.Body) && string(p.Body) != "" && !contains(p.Body, webhook.EndpointDisabled) {
			return webhook.Answer{}, errors.New("the connection was refused")
		}
		return webhook.Answer{Status: 200}, nil
	}
	for range 9 {
		w.publish(t, w.customer, "lease.active", 1)
		w.round(t)
		w.clock.Advance(16 * time.Hour)
	}
	w.round(t)
	e, err := w.service.Endpoint(as(t, w.customer), bad.ID)
	require.NoError(t, err)
	require.Equal(t, webhook.Failing, e.Disabled)
	for _, d := range w.deliveries(t, w.customer, bad.ID) {
		require.Equal(t, webhook.Failed, d.State, "nothing goes on")
	}
	var notices, records int
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT count(*) FROM outbox WHERE topic = 'notify' AND payload->>'event' = $1", webhook.EndpointDisabled).Scan(&notices))
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT count(*) FROM audit_event WHERE action = 'webhook_endpoint.disabled' AND org_id = $1", w.customer.Org).Scan(&records))
	require.Equal(t, []int{1, 1}, []int{notices, records})

	w.publish(t, w.customer, "lease.closed", 1)
	require.NoError(t, w.courier().Number(t.Context()))
	w.sender.answer = nil
	w.sender.taken()
	on := true
	e, err = w.service.Update(as(t, w.customer), bad.ID, e.Version, webhook.EndpointChange{Enabled: &on})
	require.NoError(t, err)
	n, err := w.service.Replay(as(t, w.customer), bad.ID, webhook.ReplayInput{Since: w.start})
	require.NoError(t, err)
	require.Equal(t, 10, n, "what it failed to take, and what it was not sent any more")
	n = 0
	for _, p := range w.round(t) {
		if p.URL == e.URL {
			n++
		}
	}
	require.Equal(t, 10, n)
}

func contains(body []byte, what string) bool {
	var p webhook.Payload
	return json.Unmarshal(body, &p) == nil && p.Type == what
}

func TestAnEndpointThatIsGoneIsDisabledAtOnce(t *testing.T) {
	t.Parallel()
	w := newHookWorld(t)
	e, _ := w.endpoint(t, w.customer)
	w.publish(t, w.customer, "lease.active", 1)
	w.sender.answer = func(webhook.Post) (webhook.Answer, error) { return webhook.Answer{Status: 410}, nil }
	require.Len(t, w.round(t), 1)
	e, err := w.service.Endpoint(as(t, w.customer), e.ID)
	require.NoError(t, err)
	require.Equal(t, webhook.Gone, e.Disabled)
	_, err = w.service.Test(as(t, w.customer), e.ID)
	require.True(t, fault.Is(err, fault.Conflict))
}

func TestBothSecretsSignWhileOneIsRotated(t *testing.T) {
	t.Parallel()
	w := newHookWorld(t)
	e, first := w.endpoint(t, w.customer)
	_, second, err := w.service.Rotate(as(t, w.customer), e.ID, nil)
	require.NoError(t, err)
	w.publish(t, w.customer, "lease.active", 1)
	require.Equal(t, []string{second, first}, w.round(t)[0].Secrets)
	w.clock.Advance(24 * time.Hour)
	w.publish(t, w.customer, "lease.active", 1)
	require.Equal(t, []string{second}, w.round(t)[0].Secrets)
	leaked := time.Duration(0)
	_, third, err := w.service.Rotate(as(t, w.customer), e.ID, &leaked)
	require.NoError(t, err)
	w.publish(t, w.customer, "lease.active", 1)
	require.Equal(t, []string{third}, w.round(t)[0].Secrets)
	var readable bool
	require.NoError(t, w.Pool.QueryRow(t.Context(), "SELECT bool_or(position($1::bytea IN secret) > 0) FROM webhook_endpoint", []byte(third)).Scan(&readable))
	require.False(t, readable, "the database alone gives no secret away")
}

func TestATestIsForItsEndpointOnly(t *testing.T) {
	t.Parallel()
	w := newHookWorld(t)
	e, _ := w.endpoint(t, w.customer, "lease.*")
	w.endpoint(t, w.customer)
	event, err := w.service.Test(as(t, w.customer), e.ID)
	require.NoError(t, err)
	posts := w.round(t)
	require.Len(t, posts, 1)
	require.Equal(t, event.ID.String(), posts[0].ID)
}

// TestOneOrganizationsSlowEndpointsHoldUpNobodyElse has an organization whose endpoints never answer.
func TestOneOrganizationsSlowEndpointsHoldUpNobodyElse(t *testing.T) {
	t.Parallel()
	w := newHookWorld(t)
	slow := w.Customer(t, "Slow")
	for range 10 {
		w.endpoint(t, slow)
	}
	w.endpoint(t, w.customer)
	w.publish(t, slow, "lease.active", 50)
	w.publish(t, w.customer, "lease.active", 3)
	require.NoError(t, w.courier().Number(t.Context()))
	release := make(chan struct{})
	var stuck, through atomic.Int32
	w.sender.answer = func(p webhook.Post) (webhook.Answer, error) {
		if p.URL == "http://"+slow.Org.String()+".test/" {
			stuck.Add(1)
			<-release
		} else {
			through.Add(1)
		}
		return webhook.Answer{Status: 200}, nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	courier, ended := w.courier(), make(chan error, 1)
	courier.Every = time.Millisecond
	go func() { ended <- courier.Run(ctx) }()
	require.Eventually(t, func() bool { return through.Load() == 3 && stuck.Load() > 0 }, 10*time.Second, time.Millisecond)
	require.LessOrEqual(t, stuck.Load(), int32(12))
	cancel()
	close(release)
	require.NoError(t, <-ended)
}

func TestOldEventsAreForgottenWithTheirDeliveries(t *testing.T) {
	t.Parallel()
	w := newHookWorld(t)
	e, _ := w.endpoint(t, w.customer)
	w.publish(t, w.customer, "lease.active", 3)
	w.round(t)
	w.clock.Advance(29 * 24 * time.Hour)
	w.publish(t, w.customer, "lease.closed", 1)
	w.round(t)
	w.clock.Advance(2 * 24 * time.Hour)
	require.NoError(t, w.courier().Forget(t.Context()))
	require.Len(t, w.deliveries(t, w.customer, e.ID), 1)
	events, err := w.service.Events(as(t, w.customer), 0, 10, 0)
	require.NoError(t, err)
	require.Len(t, events, 1)
	require.Equal(t, int64(4), events[0].Sequence, "numbers go on")
}

func TestAnEndpointIsBoundedAndVersioned(t *testing.T) {
	t.Parallel()
	w := newHookWorld(t)
	e, _ := w.endpoint(t, w.customer)
	name := "mine"
	after, err := w.service.Update(as(t, w.customer), e.ID, e.Version, webhook.EndpointChange{Description: &name})
	require.NoError(t, err)
	require.Equal(t, "mine", after.Description)
	_, err = w.service.Update(as(t, w.customer), e.ID, e.Version, webhook.EndpointChange{Description: &name})
	require.True(t, fault.Is(err, fault.Stale))
	require.NoError(t, w.service.Delete(as(t, w.customer), e.ID))
	_, err = w.service.Endpoint(as(t, w.customer), e.ID)
	require.True(t, fault.Is(err, fault.NotFound))
	for i := range 20 {
		_, _, err := w.service.Create(as(t, w.customer), webhook.EndpointInput{URL: fmt.Sprintf("http://h%d.test/", i)})
		require.NoError(t, err)
	}
	_, _, err = w.service.Create(as(t, w.customer), webhook.EndpointInput{URL: "http://h.test/"})
	require.True(t, fault.Is(err, fault.Conflict))
}
