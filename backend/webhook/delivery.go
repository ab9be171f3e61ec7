package webhook

import (
	"math/rand/v2"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
)

// State is how far a delivery is.
type State string

// The states.
const (
	Pending   State = "pending" // it will be tried, at NextAt
	Delivered State = "delivered"
	Failed    State = "failed" // it was tried often enough, or its endpoint went away; a replay tries again
)

// Delivery is one event on its way to one endpoint.
type Delivery struct {
	ID       ids.Delivery
	Org      ids.Org
	Endpoint ids.Webhook
	Event    Event
	State    State
	// Tries counts since the last replay; Claim counts for ever, and is what a late worker's news are recognized by.
	Tries      int
	Claim      int64
	NextAt     time.Time
	CreatedAt  time.Time
	FinishedAt time.Time
	// Last is the latest attempt; its zero value: none yet.
	Last Attempt
}

// Attempt is one try.
type Attempt struct {
	Number int64
	At     time.Time
	TookMS int64
	Status int    // of the answer; 0: there was none
	Error  string // why there was none, or what is wrong with it
	Body   string // the answer's beginning
}

// schedule is how long after a failed try the next one comes; Standard Webhooks recommends these. They make ten tries in three days.
func schedule() []time.Duration {
	return []time.Duration{
		5 * time.Second, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
	}
}

// maxRetryAfter bounds how long an endpoint can ask to be left alone.
const maxRetryAfter = 24 * time.Hour

// pause is how long to wait after so many failed tries; false: no more. It is up to a fifth longer than planned, so that what failed
// together does not come back together, and at least as long as the endpoint asked for.
func pause(tries int, asked time.Duration) (time.Duration, bool) {
	plan := schedule()
	if tries > len(plan) {
		return 0, false
	}
	wait := plan[tries-1]
	wait += rand.N(wait/5 + 1) //nolint:gosec // spreads load, keeps no secret
	return max(wait, min(asked, maxRetryAfter)), true
}

// DeliveryFilter chooses deliveries of one endpoint.
type DeliveryFilter struct {
	Endpoint ids.Webhook
	State    State  // "": any
	Type     string // "": any
	After    ids.Delivery
	Limit    int
}

// ReplayInput says what is to be delivered again: the deliveries, or what happened in [Since, Until) and is of the given state. Events
// of that time that the endpoint never got, since it was disabled or not there yet, are delivered as well when State is "".
type ReplayInput struct {
	Deliveries   []ids.Delivery
	Since, Until time.Time
	State        State
}

const (
	maxReplayed = 200
	maxReplay   = 10_000
)

func (in ReplayInput) validate() error {
	invalid := errInvalid()
	switch {
	case len(in.Deliveries) > maxReplayed:
		return invalid.At("/delivery_ids", "has at most 200; give a time instead")
	case len(in.Deliveries) > 0 && !in.Since.IsZero():
		return invalid.At("/since", "does not go with delivery_ids")
	case len(in.Deliveries) > 0:
		return nil
	case in.Since.IsZero():
		return invalid.At("/since", "is required without delivery_ids")
	case !in.Until.After(in.Since):
		return invalid.At("/until", "is not after since")
	}
	return nil
}
