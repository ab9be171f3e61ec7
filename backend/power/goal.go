package power

import (
	"context"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
)

// run is one operation on one machine.
type run struct {
	*Service
	job     Job
	machine Machine
	bmc     Controller
}

func (r run) goal(ctx context.Context) (Evidence, error) {
	switch r.job.Order.Goal {
	case GoalOff:
		return r.off(ctx)
	case GoalService:
		return r.service(ctx)
	case GoalTenant:
		return r.tenant(ctx)
	case GoalStart:
		return Evidence{State: On}, Reach(ctx, r.bmc, On, TurnOn, r.Pace)
	case GoalStop:
		return Evidence{State: Off}, TurnOffPolitely(ctx, r.bmc, r.Pace)
	case GoalReboot:
		return r.reboot(ctx)
	case GoalCycle:
		return r.cycle(ctx)
	default:
		return Evidence{}, fault.New(fault.Invalid, "power-goal", "there is no goal %q", r.job.Order.Goal)
	}
}

// off cuts the power. Whatever agent was there is no longer believed: its boot is over.
func (r run) off(ctx context.Context) (Evidence, error) {
	if err := r.endBoot(ctx, StageUnknown); err != nil {
		return Evidence{}, err
	}
	if err := Reach(ctx, r.bmc, Off, ForceOff, r.Pace); err != nil {
		return Evidence{}, err
	}
	err := r.within(ctx, "note that it is off", func(ctx context.Context) error {
		return r.Machines.SetStage(ctx, r.job.Node, StageOff, r.Clock.Now())
	})
	return Evidence{State: Off}, err
}

// endBoot ends the rights of the boot that is about to end, and says whose machine it is from now on. It comes before anything is switched:
// what happens after it can be seen from outside only.
func (r run) endBoot(ctx context.Context, next Stage) error {
	return r.within(ctx, "end boot", func(ctx context.Context) error {
		now := r.Clock.Now()
		if err := r.Agents.Dismiss(ctx, r.job.Node, "the machine is switched: "+string(r.job.Order.Goal)); err != nil {
			return err
		}
		if err := r.Machines.Disarm(ctx, r.job.Node, ForService, now); err != nil {
			return err
		}
		return r.Machines.SetStage(ctx, r.job.Node, next, now)
	})
}

// service boots the service OS and waits for its agent. A boot of this operation that has come already, under a worker before this one, is
// the one that was wanted.
func (r run) service(ctx context.Context) (Evidence, error) {
	if came, err := r.enrolled(ctx); err != nil || came {
		return Evidence{State: On}, err
	}
	if err := r.endBoot(ctx, StageUnknown); err != nil {
		return Evidence{}, err
	}
	if err := r.bmc.SetBoot(ctx, Boot{Source: Network, Once: true}); err != nil {
		return Evidence{}, err
	}
	if err := Reach(ctx, r.bmc, Off, ForceOff, r.Pace); err != nil {
		return Evidence{}, err
	}
	err := r.within(ctx, "arm boot", func(ctx context.Context) error {
		now := r.Clock.Now()
		return r.Machines.PutTicket(ctx, Ticket{ID: r.job.ID, Node: r.job.Node, Purpose: ForService, CreatedAt: now, ExpiresAt: r.job.DoneBy})
	})
	if err != nil {
		return Evidence{}, err
	}
	if err := Reach(ctx, r.bmc, On, TurnOn, r.Pace); err != nil {
		return Evidence{}, err
	}
	r.tell(ctx, 50, "booting")
	if err := r.await(ctx, r.enrolled); err != nil {
		return Evidence{}, fault.New(fault.Unavailable, CodeNoAgent, "it has power and its service OS has not reported")
	}
	return Evidence{State: On}, nil
}

// enrolled reports whether the agent of this operation's boot has come.
func (r run) enrolled(ctx context.Context) (bool, error) {
	came := false
	err := r.within(ctx, "look for agent", func(ctx context.Context) error {
		t, found, err := r.Machines.Ticket(ctx, r.job.ID)
		came = found && !t.UsedAt.IsZero()
		return err
	})
	return came, err
}

// tenant gives the machine to its tenant and waits for their system to phone home. From before the power is turned on, the disks are the
// tenant's.
func (r run) tenant(ctx context.Context) (Evidence, error) {
	if evidence, called, err := r.called(ctx); err != nil || called {
		return evidence, err
	}
	if err := r.endBoot(ctx, StageUnknown); err != nil {
		return Evidence{}, err
	}
	if err := r.bmc.SetBoot(ctx, Boot{Source: Disk}); err != nil {
		return Evidence{}, err
	}
	if err := Reach(ctx, r.bmc, Off, ForceOff, r.Pace); err != nil {
		return Evidence{}, err
	}
	err := r.within(ctx, "give the machine away", func(ctx context.Context) error {
		return r.Machines.SetStage(ctx, r.job.Node, StageTenant, r.Clock.Now())
	})
	if err != nil {
		return Evidence{}, err
	}
	if err := Reach(ctx, r.bmc, On, TurnOn, r.Pace); err != nil {
		return Evidence{}, err
	}
	r.tell(ctx, 50, "booting")
	var evidence Evidence
	err = r.await(ctx, func(ctx context.Context) (called bool, err error) {
		evidence, called, err = r.called(ctx)
		return called, err
	})
	if err != nil {
		return Evidence{}, fault.New(fault.Unavailable, CodeNoCall, "the image's system has not phoned home")
	}
	return evidence, nil
}

// sshPort is where a system is logged in to unless its machine says otherwise.
const sshPort = 22

// called reports whether the tenant's system has phoned home, and what it said.
func (r run) called(ctx context.Context) (Evidence, bool, error) {
	var t Ticket
	found := false
	err := r.within(ctx, "look for call", func(ctx context.Context) error {
		var err error
		t, found, err = r.Machines.PhoneTicket(ctx, r.job.Allocation, r.job.Epoch)
		return err
	})
	if err != nil || !found || t.Call == nil {
		return Evidence{}, false, err
	}
	evidence := Evidence{State: On, PhonedAt: t.UsedAt, Host: t.Call.From, Port: sshPort, HostKeys: t.Call.HostKeys}
	if r.machine.AccessHost != "" {
		evidence.Host = r.machine.AccessHost
	}
	if r.machine.AccessPort != 0 {
		evidence.Port = r.machine.AccessPort
	}
	return evidence, true, nil
}

// reboot restarts the system without asking it; a machine that is off is turned on.
func (r run) reboot(ctx context.Context) (Evidence, error) {
	state, err := r.bmc.State(ctx)
	if err == nil && state == On {
		err = r.bmc.Reset(ctx, Restart)
	}
	if err != nil {
		return Evidence{}, err
	}
	return Evidence{State: On}, Reach(ctx, r.bmc, On, TurnOn, r.Pace)
}

func (r run) cycle(ctx context.Context) (Evidence, error) {
	if err := Reach(ctx, r.bmc, Off, ForceOff, r.Pace); err != nil {
		return Evidence{}, err
	}
	return Evidence{State: On}, Reach(ctx, r.bmc, On, TurnOn, r.Pace)
}

// await looks until something has come or ctx ends.
func (r run) await(ctx context.Context, look func(ctx context.Context) (bool, error)) error {
	for {
		came, err := look(ctx)
		if came && err == nil {
			return nil
		}
		if err := pause(ctx, r.Pace.ReadEvery); err != nil {
			return err
		}
	}
}

// tell notes how far it is, for whoever watches. Not being able to does no harm.
func (r run) tell(ctx context.Context, percent int, phase string) {
	err := r.Tx.WithinTx(ctx, func(ctx context.Context) error { return r.Work.Advance(ctx, r.job.ID, percent, phase) })
	if err != nil {
		r.Log.DebugContext(ctx, "progress of a power operation cannot be noted", "error", err)
	}
}

const (
	autopsyWithin = 20 * time.Second
	autopsyEvents = 10
)

// autopsy is what the BMC says after a failure: the state, and the end of its event log.
func (r run) autopsy(ctx context.Context) (State, []Event) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), autopsyWithin)
	defer cancel()
	state, err := r.bmc.State(ctx)
	if err != nil {
		return Unknown, nil
	}
	events, err := r.bmc.Events(ctx, autopsyEvents)
	if err != nil {
		return state, nil
	}
	return state, events
}
