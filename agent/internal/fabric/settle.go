package fabric

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Patience says how long to wait for ports to have what they should.
type Patience struct {
	// Deadline bounds the whole wait.
	Deadline time.Duration
	// Silence is how long ports that do not answer are waited for once all that do answer are right, so that a dead host does
	// not hold up everybody else's changes for the whole deadline.
	Silence time.Duration
	// FirstPoll and LastPoll are the pauses between readings, growing from the first to the last.
	FirstPoll, LastPoll time.Duration
}

// DefaultPatience suits fabrics of some ten thousand ports.
func DefaultPatience() Patience {
	return Patience{Deadline: 30 * time.Second, Silence: time.Second, FirstPoll: 2 * time.Millisecond, LastPoll: 100 * time.Millisecond}
}

// Reader reads both ends of the ports' links.
type Reader func(ctx context.Context, ports []protocol.GUID) ([]protocol.LinkState, error)

// Settle reads the ports until each has what the judge wants, and returns those that do not. An error is a failed reading, or
// the caller's context.
func Settle(ctx context.Context, patience Patience, judge Judge, ports []protocol.GUID, read Reader) ([]protocol.GUID, error) {
	return Await(ctx, patience, func(link protocol.LinkState) bool { return judge.Disagreement(link) == "" }, ports, read)
}

// Await is Settle with any condition.
func Await(
	ctx context.Context, patience Patience, right func(link protocol.LinkState) bool, ports []protocol.GUID, read Reader,
) ([]protocol.GUID, error) {
	deadline := time.NewTimer(patience.Deadline)
	defer deadline.Stop()
	pause := time.NewTimer(patience.FirstPoll)
	defer pause.Stop()
	var silence <-chan time.Time
	for every := patience.FirstPoll; ; every = min(every*3/2, patience.LastPoll) {
		links, err := read(ctx, ports)
		if err != nil {
			return ports, err
		}
		wrong, answering := disagreeing(right, links)
		if ports = wrong; len(ports) == 0 {
			return nil, nil
		}
		switch {
		case answering > 0:
			silence = nil
		case silence == nil:
			timer := time.NewTimer(patience.Silence)
			defer timer.Stop()
			silence = timer.C
		}
		pause.Reset(every)
		select {
		case <-pause.C:
		case <-silence:
			return ports, nil
		case <-deadline.C:
			return ports, nil
		case <-ctx.Done():
			return ports, ctx.Err()
		}
	}
}

// disagreeing returns the ports that are not right, and how many of them could be read at both ends.
func disagreeing(right func(link protocol.LinkState) bool, links []protocol.LinkState) ([]protocol.GUID, int) {
	var wrong []protocol.GUID
	answering := 0
	for _, link := range links {
		if right(link) {
			continue
		}
		wrong = append(wrong, link.GUID)
		if link.HCA.Readable && link.Switch.Readable {
			answering++
		}
	}
	return wrong, answering
}
