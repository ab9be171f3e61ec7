package power

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
)

// Pace says how a machine's power is watched.
type Pace struct {
	// ReadEvery is how often the BMC is asked whether the machine is there yet.
	ReadEvery time.Duration
	// AgainAfter is how long a command may show no effect before it is given again.
	AgainAfter time.Duration
	// PoliteFor is how long an operating system may take over a shut-down that it was asked for.
	PoliteFor time.Duration
	// LookEvery is how often a worker looks for operations; a person may wait for one.
	LookEvery time.Duration
}

// DefaultPace is for real BMCs.
func DefaultPace() Pace {
	return Pace{ReadEvery: 2 * time.Second, AgainAfter: 20 * time.Second, PoliteFor: 2 * time.Minute, LookEvery: time.Second}
}

// readsThatCount is how often in a row a BMC must say the same: some answer a moment ahead of what they do.
const readsThatCount = 2

// Reach gives the command until the machine is in the state, as read back from its BMC, or ctx ends: then it returns a Conflict fault,
// code "power-not-obeyed", with the last that was heard. A machine that is there already gets no command.
func Reach(ctx context.Context, c Controller, want State, command Reset, pace Pace) error {
	seen, agreed := Unknown, 0
	var trouble error
	commandAt := time.Duration(0) // until the next command
	for {
		state, err := c.State(ctx)
		switch {
		case err != nil && !passing(err):
			return err
		case err != nil:
			trouble, agreed = err, 0
		case state == want:
			seen = state
			if agreed++; agreed >= readsThatCount {
				return nil
			}
		default:
			seen, agreed = state, 0
			if commandAt <= 0 {
				commandAt = pace.AgainAfter
				if trouble = c.Reset(ctx, command); trouble != nil && !worthAgain(trouble) {
					return trouble
				}
			}
		}
		if err := pause(ctx, pace.ReadEvery); err != nil {
			return notObeyed(want, seen, trouble)
		}
		commandAt -= pace.ReadEvery
	}
}

// TurnOffPolitely asks the operating system first, and cuts the power when it takes too long or is not asked at all.
func TurnOffPolitely(ctx context.Context, c Controller, pace Pace) error {
	polite, cancel := context.WithTimeout(ctx, pace.PoliteFor)
	defer cancel()
	// Asked once: what some BMCs have for it is a push of the power button, and pushed again that may switch the machine on.
	once := pace
	once.AgainAfter = pace.PoliteFor + time.Hour
	err := Reach(polite, c, Off, ShutDown, once)
	if err == nil || ctx.Err() != nil || fault.Is(err, fault.Forbidden) {
		return err
	}
	return Reach(ctx, c, Off, ForceOff, pace)
}

// passing reports whether what went wrong may be over at the next try.
func passing(err error) bool { return fault.Is(err, fault.Unavailable) }

// worthAgain reports whether a command that failed so is given again: what a BMC would not do now, it may do later.
func worthAgain(err error) bool { return passing(err) || fault.Is(err, fault.Conflict) }

func notObeyed(want, seen State, trouble error) error {
	if trouble != nil {
		return fault.New(fault.Conflict, "power-not-obeyed", "the machine is %s and not %s: %w", seen, want, trouble)
	}
	return fault.New(fault.Conflict, "power-not-obeyed", "the BMC took the command and the machine is still %s and not %s", seen, want)
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
