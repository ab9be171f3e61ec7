// Package webhook tells organizations what happens to their things: events in an order without gaps, and deliveries of them to
// endpoints that the organizations name, signed as Standard Webhooks has it.
//
// An event is written in the transaction of what it tells of. The Courier, of which any number may run, then gives it its number in
// the organization, and delivers it: at least once, again and again over days, never twice at the same time.
package webhook

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Event is something that happened to an organization's things.
type Event struct {
	ID  ids.Event
	Org ids.Org
	// Sequence is its number among the organization's events, from 1 and without gaps; 0: it has none yet.
	Sequence int64
	Type     string // e.g. lease.active
	// Subject is the id of the thing that it is about; SubjectSequence counts that thing's own events, where it does.
	Subject         string
	SubjectSequence int64
	// Only is the one endpoint that is told; zero: all that want its type.
	Only ids.Webhook
	At   time.Time
	Data json.RawMessage
}

// PayloadVersion is the version of a payload's form. It changes when a member is taken away or means something else; new members come
// without a new version.
const PayloadVersion = 1

// Payload is what an endpoint gets.
type Payload struct {
	ID              string          `json:"id"`
	Type            string          `json:"type"`
	Version         int             `json:"version"`
	Timestamp       time.Time       `json:"timestamp"`
	Organization    string          `json:"organization_id"`
	Sequence        int64           `json:"sequence"`
	Subject         string          `json:"subject,omitempty"`
	SubjectSequence int64           `json:"subject_sequence,omitempty"`
	Data            json.RawMessage `json:"data"`
}

// Payload is what endpoints get of the event, the same bytes each time.
func (e Event) Payload() Payload {
	return Payload{
		ID: e.ID.String(), Type: e.Type, Version: PayloadVersion, Timestamp: e.At.UTC(), Organization: e.Org.String(), Sequence: e.Sequence,
		Subject: e.Subject, SubjectSequence: e.SubjectSequence, Data: e.Data,
	}
}

// Types of events that belong to no lease's log.
const (
	Ping             = "webhook.ping"
	EndpointDisabled = "webhook.endpoint_disabled"
	PaymentSucceeded = "billing.payment_succeeded"
	PaymentFailed    = "billing.payment_failed"
	// PlatformPrefix begins the types of what the operator is told of the platform itself, e.g. platform.fabric.drift.
	PlatformPrefix = "platform."
)

// families are the first parts of types; an endpoint can ask for all of one, as lease.*.
func families() []string {
	return []string{"lease", "node", "access", "isolation", "billing", "budget", "maintenance", "power", "webhook", "platform"}
}

const maxTypes = 50

// checkTypes refuses filters that can never match.
func checkTypes(types []string) *fault.Fault {
	invalid := errInvalid()
	if len(types) > maxTypes {
		return invalid.At("/event_types", fmt.Sprintf("has at most %d", maxTypes))
	}
	for i, t := range types {
		family, rest, dotted := strings.Cut(t, ".")
		if !slices.Contains(families(), family) || !dotted || !wellFormed(rest) {
			invalid = invalid.At(fmt.Sprintf("/event_types/%d", i), "is neither a type such as lease.active nor a family such as lease.*")
		}
	}
	if len(invalid.Fields) > 0 {
		return invalid
	}
	return nil
}

func wellFormed(rest string) bool {
	if rest == "*" {
		return true
	}
	for _, r := range rest {
		if r != '_' && r != '.' && (r < 'a' || r > 'z') {
			return false
		}
	}
	return rest != "" && len(rest) <= 60
}

// wants reports whether a filter lets a type through; an empty filter lets all.
func wants(filter []string, eventType string) bool {
	return len(filter) == 0 || slices.ContainsFunc(filter, func(f string) bool {
		family, all := strings.CutSuffix(f, ".*")
		return f == eventType || all && strings.HasPrefix(eventType, family+".")
	})
}

func errInvalid() *fault.Fault {
	return fault.New(fault.Invalid, "invalid-request", "the request has defects")
}
