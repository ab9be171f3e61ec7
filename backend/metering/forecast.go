package metering

import (
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/money"
)

// Forecast is what the lease will have cost, with tax, if from now on all goes as agreed: delivered at the later of start and now,
// used to the end that applies, without further outages. It is never more than what is held.
func Forecast(f Facts, prior []Line, now time.Time) (money.Amount, error) {
	s, err := f.read()
	if err != nil {
		return money.Amount{}, err
	}
	if s.active.IsZero() && s.stop.IsZero() {
		f.Events = append(slices.Clip(f.Events), lease.Event{Type: lease.EventActive, At: latest(s.start, now)})
	}
	run, err := rate(f, prior, s.end, true)
	if err != nil {
		return money.Amount{}, err
	}
	sum := money.Of(0, f.Lease.Currency)
	for _, line := range append(slices.Clip(prior), run.Lines...) {
		sum = sum.Add(line.Gross())
	}
	return sum, nil
}

// End is the rating that settles the lease if the customer ends it at the instant: what they are told is what they are billed.
func End(f Facts, prior []Line, at time.Time) (Run, error) {
	f.Lease.WantedEnd, f.Lease.Outcome = at, lease.Terminated
	f.Events = append(slices.Clip(f.Events), lease.Event{Type: lease.EventReleasing, At: at})
	return Settle(f, prior)
}
