package webhook

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/tenant"
)

// Transactor runs fn in one transaction, which the context carries to the stores.
type Transactor interface {
	WithinTx(ctx context.Context, fn func(ctx context.Context) error) error
}

// Endpoints keeps endpoints. An organization's actor sees its own; others' are not found.
type Endpoints interface {
	InsertEndpoint(ctx context.Context, e Endpoint) error
	// Endpoint and EndpointForUpdate answer NotFound for a missing, a deleted and another organization's endpoint.
	Endpoint(ctx context.Context, id ids.Webhook) (Endpoint, error)
	EndpointForUpdate(ctx context.Context, id ids.Webhook) (Endpoint, error)
	// Endpoints lists an organization's, newest first.
	Endpoints(ctx context.Context, org ids.Org, page tenant.Page[ids.Webhook]) ([]Endpoint, error)
	CountEndpoints(ctx context.Context, org ids.Org) (int, error)
	UpdateEndpoint(ctx context.Context, e Endpoint) error
	DeleteEndpoint(ctx context.Context, id ids.Webhook, at time.Time) error
	// Abandon ends the endpoint's pending deliveries, for the reason.
	Abandon(ctx context.Context, id ids.Webhook, why string, at time.Time) error
}

// Events keeps events.
type Events interface {
	// Publish writes an event in the transaction that ctx carries; it gets its Sequence later.
	Publish(ctx context.Context, e Event) error
	// Events lists an organization's numbered events behind the number after, in order.
	Events(ctx context.Context, org ids.Org, after int64, limit int) ([]Event, error)
	// LastEvent is the organization's last number; 0 before the first.
	LastEvent(ctx context.Context, org ids.Org) (int64, error)
}

// Deliveries keeps deliveries and their attempts.
type Deliveries interface {
	// Deliveries lists newest first, each with its last attempt.
	Deliveries(ctx context.Context, filter DeliveryFilter) ([]Delivery, error)
	// Delivery answers NotFound for a missing one, and for another endpoint's.
	Delivery(ctx context.Context, endpoint ids.Webhook, id ids.Delivery) (Delivery, error)
	// Attempts lists a delivery's, the oldest first.
	Attempts(ctx context.Context, id ids.Delivery) ([]Attempt, error)
	// Replay makes deliveries of the endpoint due now, and returns how many.
	Replay(ctx context.Context, endpoint ids.Webhook, deliveries []ids.Delivery, now time.Time) (int, error)
	// ReplayPeriod is Replay of what happened in [since, until) and has the state. With state "" it also makes deliveries of the
	// organization's events that the endpoint never got and match would let through.
	ReplayPeriod(ctx context.Context, e Endpoint, in ReplayInput, match func(eventType string) bool, limit int, now time.Time) (int, error)
}

// Store is everything that the service keeps.
type Store interface {
	Endpoints
	Events
	Deliveries
}

// Vault seals secrets.
type Vault interface {
	Seal(secret []byte, about string) []byte
	Unseal(sealed []byte, about string) ([]byte, error)
}

// Recorder writes the audit log in the transaction that ctx carries.
type Recorder interface {
	Record(ctx context.Context, action, target string, before, after any) error
}

// Waker tells when something was announced for a key.
type Waker interface {
	Subscribe(channel, key string) (wake <-chan struct{}, cancel func())
}

// Channel is where the database announces that an organization has new numbered events; the payload is the organization's id.
const Channel = "webhook_event"

// Service is what organizations do with their endpoints.
type Service struct {
	tx    Transactor
	store Store
	vault Vault
	audit Recorder
	waker Waker // nil: nobody is woken, whoever waits looks now and then
	clock clock.Clock
	lab   bool
}

// New returns the service. lab allows plain HTTP and private addresses, for an installation on one machine.
func New(tx Transactor, store Store, vault Vault, audit Recorder, waker Waker, clock clock.Clock, lab bool) *Service {
	return &Service{tx: tx, store: store, vault: vault, audit: audit, waker: waker, clock: clock, lab: lab}
}

// maxEndpoints of an organization.
const maxEndpoints = 20

// Create makes an endpoint and returns it with its secret, which nobody can show again.
func (s *Service) Create(ctx context.Context, in EndpointInput) (Endpoint, string, error) {
	actor, err := tenant.MustAct(ctx)
	if err != nil {
		return Endpoint{}, "", err
	}
	if err := in.validate(s.lab); err != nil {
		return Endpoint{}, "", err
	}
	secret, err := newSecret()
	if err != nil {
		return Endpoint{}, "", err
	}
	e := Endpoint{
		ID: ids.Make[ids.Webhook](), Org: actor.Org, URL: in.URL, Description: in.Description, Types: in.Types, CreatedBy: actor.Name(),
		CreatedAt: s.clock.Now(), Version: 1,
	}
	e.Secret = s.vault.Seal([]byte(secret), e.ID.String())
	err = s.tx.WithinTx(ctx, func(ctx context.Context) error {
		n, err := s.store.CountEndpoints(ctx, actor.Org)
		if err != nil {
			return err
		}
		if n >= maxEndpoints {
			return fault.New(fault.Conflict, "too-many-webhooks", "an organization has at most %d webhook endpoints", maxEndpoints)
		}
		if err := s.store.InsertEndpoint(ctx, e); err != nil {
			return err
		}
		return s.audit.Record(ctx, "webhook_endpoint.created", e.ID.String(), nil, e.seen())
	})
	if err != nil {
		return Endpoint{}, "", fmt.Errorf("create webhook endpoint: %w", err)
	}
	return e, secret, nil
}

// Endpoint reads one. NotFound for another organization's.
func (s *Service) Endpoint(ctx context.Context, id ids.Webhook) (Endpoint, error) {
	var e Endpoint
	err := s.within(ctx, "read webhook endpoint", func(ctx context.Context) (err error) {
		e, err = s.store.Endpoint(ctx, id)
		return err
	})
	return e, err
}

// Endpoints lists the organization's, newest first.
func (s *Service) Endpoints(ctx context.Context, page tenant.Page[ids.Webhook]) ([]Endpoint, error) {
	actor, err := tenant.MustAct(ctx)
	if err != nil {
		return nil, err
	}
	var all []Endpoint
	err = s.within(ctx, "list webhook endpoints", func(ctx context.Context) (err error) {
		all, err = s.store.Endpoints(ctx, actor.Org, page)
		return err
	})
	return all, err
}

// Update changes an endpoint whose version the caller has seen; Stale otherwise. Switching it off ends what is still to be delivered.
func (s *Service) Update(ctx context.Context, id ids.Webhook, version int64, change EndpointChange) (Endpoint, error) {
	var after Endpoint
	err := s.within(ctx, "change webhook endpoint", func(ctx context.Context) error {
		before, err := s.store.EndpointForUpdate(ctx, id)
		if err != nil {
			return err
		}
		if before.Version != version {
			return fault.New(fault.Stale, "stale", "it has changed since you read it; read it again")
		}
		now := s.clock.Now()
		if after, err = change.apply(before, s.lab, now); err != nil {
			return err
		}
		after.Version++
		if err := s.store.UpdateEndpoint(ctx, after); err != nil {
			return err
		}
		if after.Disabled != Enabled && before.Disabled == Enabled {
			if err := s.store.Abandon(ctx, id, "the endpoint was disabled", now); err != nil {
				return err
			}
		}
		return s.audit.Record(ctx, "webhook_endpoint.updated", id.String(), before.seen(), after.seen())
	})
	return after, err
}

// Delete takes an endpoint away; what is still to be delivered to it is not.
func (s *Service) Delete(ctx context.Context, id ids.Webhook) error {
	return s.within(ctx, "delete webhook endpoint", func(ctx context.Context) error {
		before, err := s.store.EndpointForUpdate(ctx, id)
		if err != nil {
			return err
		}
		now := s.clock.Now()
		if err := s.store.Abandon(ctx, id, "the endpoint was deleted", now); err != nil {
			return err
		}
		if err := s.store.DeleteEndpoint(ctx, id, now); err != nil {
			return err
		}
		return s.audit.Record(ctx, "webhook_endpoint.deleted", id.String(), before.seen(), nil)
	})
}

const (
	defaultOverlap = 24 * time.Hour
	maxOverlap     = 7 * 24 * time.Hour
)

// Rotate gives an endpoint a new secret, which it returns. Deliveries are signed with the old one too for overlap (0: a day).
func (s *Service) Rotate(ctx context.Context, id ids.Webhook, overlap *time.Duration) (Endpoint, string, error) {
	wait := defaultOverlap
	if overlap != nil {
		wait = *overlap
	}
	if wait < 0 || wait > maxOverlap {
		return Endpoint{}, "", errInvalid().At("/overlap_seconds", "is from 0 to 604800")
	}
	secret, err := newSecret()
	if err != nil {
		return Endpoint{}, "", err
	}
	var e Endpoint
	err = s.within(ctx, "rotate webhook secret", func(ctx context.Context) error {
		if e, err = s.store.EndpointForUpdate(ctx, id); err != nil {
			return err
		}
		e.Previous, e.PreviousUntil = e.Secret, s.clock.Now().Add(wait)
		if wait == 0 { // the old one has leaked
			e.Previous, e.PreviousUntil = nil, time.Time{}
		}
		e.Secret = s.vault.Seal([]byte(secret), id.String())
		e.Version++
		if err := s.store.UpdateEndpoint(ctx, e); err != nil {
			return err
		}
		return s.audit.Record(ctx, "webhook_endpoint.secret_rotated", id.String(), nil, map[string]any{"previous_valid_until": e.PreviousUntil})
	})
	return e, secret, err
}

// Test has an endpoint told an event of type webhook.ping, and returns it. Conflict for a disabled one.
func (s *Service) Test(ctx context.Context, id ids.Webhook) (Event, error) {
	var event Event
	err := s.within(ctx, "test webhook endpoint", func(ctx context.Context) error {
		e, err := s.store.Endpoint(ctx, id)
		if err != nil {
			return err
		}
		if e.Disabled != Enabled {
			return errDisabled()
		}
		data, err := json.Marshal(map[string]any{"webhook_endpoint_id": id.String()})
		if err != nil {
			return fmt.Errorf("encode ping: %w", err)
		}
		event = Event{ID: ids.Make[ids.Event](), Org: e.Org, Type: Ping, Subject: id.String(), Only: id, At: s.clock.Now(), Data: data}
		if err := s.store.Publish(ctx, event); err != nil {
			return err
		}
		return s.audit.Record(ctx, "webhook_endpoint.tested", id.String(), nil, nil)
	})
	return event, err
}

func errDisabled() error {
	return fault.New(fault.Conflict, "webhook-disabled", "the endpoint is disabled; enable it first")
}

// Deliveries lists an endpoint's, newest first, each with its last attempt. NotFound for another organization's endpoint.
func (s *Service) Deliveries(ctx context.Context, filter DeliveryFilter) ([]Delivery, error) {
	var all []Delivery
	err := s.within(ctx, "list deliveries", func(ctx context.Context) error {
		if _, err := s.store.Endpoint(ctx, filter.Endpoint); err != nil {
			return err
		}
		var err error
		all, err = s.store.Deliveries(ctx, filter)
		return err
	})
	return all, err
}

// Delivery reads one with all its attempts.
func (s *Service) Delivery(ctx context.Context, endpoint ids.Webhook, id ids.Delivery) (Delivery, []Attempt, error) {
	var (
		delivery Delivery
		attempts []Attempt
	)
	err := s.within(ctx, "read delivery", func(ctx context.Context) error {
		if _, err := s.store.Endpoint(ctx, endpoint); err != nil {
			return err
		}
		var err error
		if delivery, err = s.store.Delivery(ctx, endpoint, id); err != nil {
			return err
		}
		attempts, err = s.store.Attempts(ctx, id)
		return err
	})
	return delivery, attempts, err
}

// Replay delivers again, under the same id and number, and returns how many deliveries are due now. Conflict for a disabled endpoint.
func (s *Service) Replay(ctx context.Context, id ids.Webhook, in ReplayInput) (int, error) {
	now := s.clock.Now()
	if in.Until.IsZero() {
		in.Until = now.Add(time.Minute) // clocks differ: what was written just now is meant as well
	}
	if err := in.validate(); err != nil {
		return 0, err
	}
	var n int
	err := s.within(ctx, "replay deliveries", func(ctx context.Context) error {
		e, err := s.store.EndpointForUpdate(ctx, id) // a disabling waits, or is waited for
		if err != nil {
			return err
		}
		if e.Disabled != Enabled {
			return errDisabled()
		}
		if len(in.Deliveries) > 0 {
			n, err = s.replayChosen(ctx, e, in.Deliveries, now)
		} else {
			n, err = s.store.ReplayPeriod(ctx, e, in, func(t string) bool { return wants(e.Types, t) }, maxReplay, now)
		}
		if err != nil {
			return err
		}
		return s.audit.Record(ctx, "webhook_endpoint.replayed", id.String(), nil, map[string]any{"deliveries": n})
	})
	return n, err
}

func (s *Service) replayChosen(ctx context.Context, e Endpoint, chosen []ids.Delivery, now time.Time) (int, error) {
	for i, delivery := range chosen {
		if _, err := s.store.Delivery(ctx, e.ID, delivery); err != nil {
			if fault.Is(err, fault.NotFound) {
				return 0, errInvalid().At(fmt.Sprintf("/delivery_ids/%d", i), "is no delivery of this endpoint")
			}
			return 0, err
		}
	}
	return s.store.Replay(ctx, e.ID, chosen, now)
}

// lookEvery is how often somebody who waits looks though nobody woke them.
const lookEvery = time.Second

// Events lists the organization's events behind the number after, in order. With a wait it answers as soon as there are some. It holds
// no transaction while it waits.
func (s *Service) Events(ctx context.Context, after int64, limit int, wait time.Duration) ([]Event, error) {
	actor, err := tenant.MustAct(ctx)
	if err != nil {
		return nil, err
	}
	wake, cancel := s.wake(actor.Org)
	defer cancel()
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	again := time.NewTicker(lookEvery)
	defer again.Stop()
	for {
		var events []Event
		err := s.within(ctx, "list events", func(ctx context.Context) (err error) {
			events, err = s.store.Events(ctx, actor.Org, after, limit)
			return err
		})
		if err != nil || len(events) > 0 || wait == 0 {
			return events, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-deadline.C:
			return nil, nil
		case <-wake:
		case <-again.C:
		}
	}
}

func (s *Service) wake(org ids.Org) (<-chan struct{}, func()) {
	if s.waker == nil {
		return nil, func() {}
	}
	return s.waker.Subscribe(Channel, org.String())
}

// LastEvent is the organization's last number, from which on a new listener hears.
func (s *Service) LastEvent(ctx context.Context) (int64, error) {
	actor, err := tenant.MustAct(ctx)
	if err != nil {
		return 0, err
	}
	var last int64
	err = s.within(ctx, "read last event", func(ctx context.Context) (err error) {
		last, err = s.store.LastEvent(ctx, actor.Org)
		return err
	})
	return last, err
}

func (s *Service) within(ctx context.Context, what string, fn func(ctx context.Context) error) error {
	if err := s.tx.WithinTx(ctx, fn); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
