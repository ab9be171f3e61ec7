package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/outbox"
	"github.com/leasehold/leasehold/backend/tenant"
)

// Parcel is a claimed delivery with all that sending it needs.
type Parcel struct {
	Delivery
	To Endpoint
}

// Share is how many deliveries may be on their way.
type Share struct{ Limit, PerEndpoint, PerOrg int }

// Rounds is the courier's store. All of it is done as the platform.
type Rounds interface {
	// Number gives numbers to up to limit events that have none, in the order in which they were written, and returns them. It answers
	// none while another courier is at it. It announces them when the transaction commits.
	Number(ctx context.Context, limit int) ([]Event, error)
	// Listening lists the enabled endpoints of organizations.
	Listening(ctx context.Context, orgs []ids.Org) ([]Endpoint, error)
	InsertDeliveries(ctx context.Context, deliveries []Delivery) error
	// Claim takes due deliveries until the instant, as many as the share allows beside those that are claimed already, and counts the
	// claim and the try. Claims of several couriers never overlap; one that is not finished by then is taken again.
	Claim(ctx context.Context, share Share, now, until time.Time) ([]Parcel, error)
	// Finish writes what became of the claim with its attempt; false: the claim is somebody else's by now, and nothing was written.
	Finish(ctx context.Context, d Delivery, attempt Attempt) (bool, error)
	Endpoints
	Publish(ctx context.Context, e Event) error
	// Forget deletes up to limit events from before the instant with their deliveries, and returns how many.
	Forget(ctx context.Context, before time.Time, limit int) (int, error)
}

// Sender sends one request.
type Sender interface {
	// Send posts the body, signed with each of the secrets. It follows no redirect, and goes to no address that Refusal refuses. An error
	// means that there was no answer; its words are for the endpoint's owner, and hold nothing of ours.
	Send(ctx context.Context, post Post) (Answer, error)
}

// Post is what a Sender sends.
type Post struct {
	URL     string
	ID      string
	At      time.Time
	Body    []byte
	Secrets []string
}

// Answer is what an endpoint said.
type Answer struct {
	Status     int
	Body       string        // its beginning, as text
	RetryAfter time.Duration // 0: it did not say
}

// Notices takes messages to people.
type Notices interface {
	Put(ctx context.Context, topic, key string, payload any, at time.Time) error
}

// Courier numbers events and delivers them. Any number may run at once.
type Courier struct {
	Tx      Transactor
	Rounds  Rounds
	Sender  Sender
	Vault   Vault
	Audit   Recorder
	Notices Notices
	Clock   clock.Clock
	Log     *slog.Logger
	// Every is how often it looks; 0: every half second.
	Every time.Duration
}

const (
	batch = 500
	// atOnce bounds the requests in flight of one courier; perEndpoint and perOrg those to one endpoint and of one organization, so that
	// slow endpoints hold up nobody else's.
	atOnce      = 64
	perEndpoint = 4
	perOrg      = 12
	// sendWithin is less than claimFor by enough that no two couriers ever send one delivery at the same time.
	sendWithin = 20 * time.Second
	claimFor   = 60 * time.Second
	// disableAfter is how long an endpoint may fail without any success before nothing more is sent to it.
	disableAfter = 5 * 24 * time.Hour
	keepEvents   = 30 * 24 * time.Hour
	forgetBatch  = 1_000
)

// Run numbers and delivers until ctx ends. Trouble is logged and tried again.
func (c *Courier) Run(ctx context.Context) error {
	every := c.Every
	if every == 0 {
		every = 500 * time.Millisecond
	}
	hands := newHands()
	defer hands.busy.Wait()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.often(ctx, every, "events are not numbered", c.Number) })
	group.Go(func() error {
		return c.often(ctx, every, "webhooks are not delivered", func(ctx context.Context) error { return c.dispatch(ctx, hands) })
	})
	group.Go(func() error { return c.often(ctx, time.Hour, "old events are not forgotten", c.Forget) })
	return group.Wait()
}

func (c *Courier) often(ctx context.Context, every time.Duration, trouble string, do func(ctx context.Context) error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			c.Log.WarnContext(ctx, "the courier is troubled", "trouble", trouble, "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Number numbers what was published, and makes a delivery for each endpoint that wants it.
func (c *Courier) Number(ctx context.Context) error {
	for {
		n := 0
		err := c.Tx.WithinTx(ctx, func(ctx context.Context) error {
			events, err := c.Rounds.Number(ctx, batch)
			if err != nil || len(events) == 0 {
				return err
			}
			n = len(events)
			return c.address(ctx, events)
		})
		if err != nil {
			return fmt.Errorf("number events: %w", err)
		}
		if n < batch {
			return nil
		}
	}
}

func (c *Courier) address(ctx context.Context, events []Event) error {
	orgs := map[ids.Org]bool{}
	var asked []ids.Org
	for _, e := range events {
		if !orgs[e.Org] {
			orgs[e.Org] = true
			asked = append(asked, e.Org)
		}
	}
	endpoints, err := c.Rounds.Listening(ctx, asked)
	if err != nil {
		return err
	}
	now := c.Clock.Now()
	var deliveries []Delivery
	for _, event := range events {
		for _, e := range endpoints {
			if e.hears(event) {
				deliveries = append(deliveries, Delivery{
					ID: ids.Make[ids.Delivery](), Org: e.Org, Endpoint: e.ID, Event: event, State: Pending, NextAt: now, CreatedAt: now,
				})
			}
		}
	}
	return c.Rounds.InsertDeliveries(ctx, deliveries)
}

// hears reports whether the event is for the endpoint.
func (e Endpoint) hears(event Event) bool {
	if e.Org != event.Org {
		return false
	}
	if !event.Only.IsZero() {
		return event.Only == e.ID
	}
	return wants(e.Types, event.Type)
}

// Deliver sends what is due, and returns when all of it was sent.
func (c *Courier) Deliver(ctx context.Context) error {
	hands := newHands()
	for {
		before := hands.taken.Load()
		err := c.dispatch(ctx, hands)
		hands.busy.Wait()
		if err != nil || hands.taken.Load() == before {
			return err
		}
	}
}

// hands are the requests that a courier can have in flight.
type hands struct {
	free  chan struct{}
	busy  sync.WaitGroup
	taken atomic.Int64 // parcels so far
}

func newHands() *hands {
	h := &hands{free: make(chan struct{}, atOnce)}
	h.rest(atOnce)
	return h
}

// take takes the hands that are free now, which may be none.
func (h *hands) take() int {
	for n := 0; ; n++ {
		select {
		case <-h.free:
		default:
			return n
		}
	}
}

func (h *hands) rest(n int) {
	for range n {
		h.free <- struct{}{}
	}
}

// dispatch starts to send what is due, as far as there are free hands, and does not wait for it: a slow endpoint holds up nobody.
func (c *Courier) dispatch(ctx context.Context, hands *hands) error {
	for {
		n := hands.take()
		if n == 0 {
			return nil
		}
		now := c.Clock.Now()
		var parcels []Parcel
		err := c.Tx.WithinTx(ctx, func(ctx context.Context) (err error) {
			parcels, err = c.Rounds.Claim(ctx, Share{Limit: n, PerEndpoint: perEndpoint, PerOrg: perOrg}, now, now.Add(claimFor))
			return err
		})
		hands.rest(n - len(parcels))
		if err != nil || len(parcels) == 0 {
			return err
		}
		hands.taken.Add(int64(len(parcels)))
		for _, p := range parcels {
			hands.busy.Go(func() {
				defer hands.rest(1)
				c.carry(ctx, p)
			})
		}
	}
}

// carry sends one parcel and notes what came of it. What cannot be noted is sent again when its claim is over.
func (c *Courier) carry(ctx context.Context, p Parcel) {
	sending, cancel := context.WithTimeout(ctx, sendWithin)
	defer cancel()
	answer, attempt := c.send(sending, p)
	if ctx.Err() != nil {
		return // it stops: whether the endpoint got it is not known, so that it comes again
	}
	if err := c.note(ctx, p, answer, attempt); err != nil {
		c.Log.WarnContext(ctx, "what became of a webhook is not noted", "delivery", p.ID, "error", err)
	}
}

func (c *Courier) send(ctx context.Context, p Parcel) (Answer, Attempt) {
	now := c.Clock.Now()
	attempt := Attempt{Number: p.Claim, At: now}
	post := Post{URL: p.To.URL, ID: p.Event.ID.String(), At: now}
	var err error
	if post.Secrets, err = c.secrets(p.To, now); err == nil {
		post.Body, err = json.Marshal(p.Event.Payload())
	}
	if err != nil {
		c.Log.ErrorContext(ctx, "a webhook cannot be made", "endpoint", p.To.ID, "error", err)
		attempt.Error = "we could not make the request"
		return Answer{}, attempt
	}
	answer, err := c.Sender.Send(ctx, post)
	attempt.TookMS = c.Clock.Now().Sub(now).Milliseconds()
	attempt.Status, attempt.Body = answer.Status, answer.Body
	switch {
	case err != nil:
		attempt.Error = err.Error()
	case answer.Status >= 300 && answer.Status < 400:
		attempt.Error = "redirects are not followed"
	}
	return answer, attempt
}

// secrets are the endpoint's, the present one first.
func (c *Courier) secrets(e Endpoint, now time.Time) ([]string, error) {
	sealed := [][]byte{e.Secret}
	if e.Previous != nil && now.Before(e.PreviousUntil) {
		sealed = append(sealed, e.Previous)
	}
	secrets := make([]string, len(sealed))
	for i, s := range sealed {
		secret, err := c.Vault.Unseal(s, e.ID.String())
		if err != nil {
			return nil, err
		}
		secrets[i] = string(secret)
	}
	return secrets, nil
}

const statusGone = 410

// note writes down what became of a delivery, and of its endpoint.
func (c *Courier) note(ctx context.Context, p Parcel, answer Answer, attempt Attempt) error {
	now := c.Clock.Now()
	d := p.Delivery
	ok := attempt.Error == "" && answer.Status >= 200 && answer.Status < 300
	wait, more := pause(d.Tries, answer.RetryAfter)
	switch {
	case ok:
		d.State, d.FinishedAt = Delivered, now
	case !more || answer.Status == statusGone:
		d.State, d.FinishedAt = Failed, now
	default:
		d.NextAt = now.Add(wait)
	}
	return c.Tx.WithinTx(ctx, func(ctx context.Context) error {
		ours, err := c.Rounds.Finish(ctx, d, attempt)
		if err != nil || !ours {
			return err
		}
		if ok && p.To.FailingSince.IsZero() {
			return nil // the usual case costs no look at the endpoint
		}
		return c.judge(ctx, p.To.ID, ok, answer.Status == statusGone, now)
	})
}

// judge keeps the endpoint's record, and disables one that is gone or has failed for too long.
func (c *Courier) judge(ctx context.Context, id ids.Webhook, ok, gone bool, now time.Time) error {
	e, err := c.Rounds.EndpointForUpdate(ctx, id)
	if err != nil || e.Disabled != Enabled {
		return ignoreMissing(err)
	}
	switch {
	case ok && e.FailingSince.IsZero(), !ok && !gone && !e.FailingSince.IsZero() && now.Sub(e.FailingSince) < disableAfter:
		return nil // nothing new
	case ok:
		e.FailingSince = time.Time{}
		return c.Rounds.UpdateEndpoint(ctx, e)
	case e.FailingSince.IsZero() && !gone:
		e.FailingSince = now
		return c.Rounds.UpdateEndpoint(ctx, e)
	}
	e.Disabled, e.DisabledAt = Failing, now
	if gone {
		e.Disabled = Gone
	}
	e.Version++
	return c.disable(ctx, e, now)
}

// disable switches an endpoint off and tells its people, through their other endpoints too.
func (c *Courier) disable(ctx context.Context, e Endpoint, now time.Time) error {
	if err := c.Rounds.UpdateEndpoint(ctx, e); err != nil {
		return err
	}
	if err := c.Rounds.Abandon(ctx, e.ID, "the endpoint was disabled", now); err != nil {
		return err
	}
	about := map[string]any{"event": EndpointDisabled, "webhook_endpoint_id": e.ID.String(), "url": e.URL, "reason": e.Disabled, "failing_since": e.FailingSince}
	data, err := json.Marshal(about)
	if err != nil {
		return fmt.Errorf("encode notice: %w", err)
	}
	event := Event{ID: ids.Make[ids.Event](), Org: e.Org, Type: EndpointDisabled, Subject: e.ID.String(), At: now, Data: data}
	if err := c.Rounds.Publish(ctx, event); err != nil {
		return err
	}
	if err := c.Notices.Put(ctx, outbox.Notify, e.Org.String(), about, now); err != nil {
		return err
	}
	return c.Audit.Record(ctxOf(ctx, e.Org), "webhook_endpoint.disabled", e.ID.String(), nil, map[string]any{"reason": e.Disabled})
}

// Forget deletes events that are too old to be replayed, with their deliveries.
func (c *Courier) Forget(ctx context.Context) error {
	for {
		n := 0
		err := c.Tx.WithinTx(ctx, func(ctx context.Context) (err error) {
			n, err = c.Rounds.Forget(ctx, c.Clock.Now().Add(-keepEvents), forgetBatch)
			return err
		})
		if err != nil || n < forgetBatch {
			return err
		}
	}
}

// ctxOf is the platform acting in an organization's affairs, for the audit log.
func ctxOf(ctx context.Context, org ids.Org) context.Context {
	return tenant.WithActor(ctx, tenant.Actor{Org: org, Platform: true})
}

// ignoreMissing: an endpoint that was deleted meanwhile needs no record.
func ignoreMissing(err error) error {
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	return err
}
