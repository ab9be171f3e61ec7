// Package audit is the log of who changed what. An event is written in the transaction of the change itself: there is no change
// without its event, and no event of a change that did not happen. Events are never changed or deleted.
//
// Each organization's events make a chain, and so do the platform's own: an event has a number without gaps and the hash of the one
// before, so that nobody can take one away or change one unseen. The chain is made afterwards, by the Chainer, since writers that waited for
// each other's hashes would make all of an organization's changes wait in line.
package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/tenant"
)

// Event is one entry of the log.
type Event struct {
	ID     ids.Audit
	Org    ids.Org // zero: the platform's own affair
	Actor  string  // user_…, key_…, or platform
	Action string  // noun.verb in the past, e.g. api_key.created
	Target string  // the id of what was changed
	// Before and After are JSON without secrets; nil when there is nothing to say.
	Before    json.RawMessage
	After     json.RawMessage
	RequestID string
	Source    string // the address that the request came from; "": it was no request
	At        time.Time
	// Link is its place in the chain; its zero value: it is not chained yet, which takes a moment.
	Link Link
}

// Link is a place in a chain.
type Link struct {
	Seq      int64  // from 1, without gaps
	Previous string // the hash before, hex; "" for the first
	Hash     string // hex
}

// Store keeps events; it joins the transaction that ctx carries.
type Store interface {
	AddAuditEvent(ctx context.Context, event Event) error
}

// Log writes events.
type Log struct {
	store Store
	clock clock.Clock
}

// New returns the log that store keeps.
func New(store Store, clock clock.Clock) *Log { return &Log{store: store, clock: clock} }

// Record notes that the actor in ctx (or the platform, without one) did action to target. Call it in the transaction of the change.
// before and after must not hold secrets.
func (l *Log) Record(ctx context.Context, action, target string, before, after any) error {
	from := requestFrom(ctx)
	event := Event{
		ID: ids.Make[ids.Audit](), Actor: "platform", Action: action, Target: target, RequestID: from.id, Source: from.source, At: l.clock.Now(),
	}
	if actor, ok := tenant.ActorFrom(ctx); ok {
		event.Org = actor.Org
		if name := actor.Name(); name != "" {
			event.Actor = name
		}
	}
	var err error
	if event.Before, err = encode(before); err != nil {
		return fmt.Errorf("record %s: %w", action, err)
	}
	if event.After, err = encode(after); err != nil {
		return fmt.Errorf("record %s: %w", action, err)
	}
	if err := l.store.AddAuditEvent(ctx, event); err != nil {
		return fmt.Errorf("record %s: %w", action, err)
	}
	return nil
}

func encode(v any) (json.RawMessage, error) {
	if v == nil {
		return nil, nil
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return raw, nil
}

type requestKey struct{}

type request struct{ id, source string }

// WithRequest returns a context whose events name the request and where it came from.
func WithRequest(ctx context.Context, id, source string) context.Context {
	return context.WithValue(ctx, requestKey{}, request{id, source})
}

func requestFrom(ctx context.Context) request {
	from, _ := ctx.Value(requestKey{}).(request)
	return from
}
