package delivery

import (
	"context"
	"encoding/json"
	"maps"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/power"
)

// A machine that is leased whole has an agent only while the service OS runs on it: before its tenant's own system, and again after it.
// In between it is switched through its BMC. So every step that asks such a machine's agent for something has it booted into the service OS
// first, unless it is there; the tenant is let in by booting their system, and shut out by cutting the power.

// away reports whether the instance's agent is not there to be asked: the machine runs its tenant's system, or nothing.
func (i Instance) away() bool { return i.Metal && i.Stage != power.StageService }

// splitAway parts the instances by whether their agents can be asked.
func splitAway(instances []Instance) (here, away []Instance) {
	for _, i := range instances {
		if i.away() {
			away = append(away, i)
		} else {
			here = append(here, i)
		}
	}
	return here, away
}

// recall returns those of the instances whose agents can be asked for the task, and has the others boot the service OS; how far that is, is
// added to what was found.
func (t *turn) recall(ctx context.Context, k task, needed []Instance, found *survey) ([]Instance, error) {
	here, away := splitAway(needed)
	if k.kind == power.Kind || len(away) == 0 {
		return needed, nil
	}
	boot, err := t.advance(ctx, t.serviceTask(k.name, k.undo), away)
	if err != nil {
		return nil, err
	}
	found.add(boot)
	return here, nil
}

// add takes over what is open or lost of another survey of other instances.
func (s *survey) add(o survey) {
	s.open, s.lost = append(s.open, o.open...), append(s.lost, o.lost...)
	if !o.lookAt.IsZero() {
		s.wakeAt(o.lookAt)
	}
}

func powerOrder(goal power.Goal) func(context.Context, Instance) (any, error) {
	return func(context.Context, Instance) (any, error) { return power.Order{Goal: goal}, nil }
}

// serviceTask has machines boot the service OS before the step of that name.
func (t *turn) serviceTask(step string, undo bool) task {
	return task{
		name: step + "-service", words: "booting the service OS", kind: power.Kind, within: t.Policy.BootWithin, undo: undo,
		spec:  powerOrder(power.GoalService),
		holds: func(i Instance, _ Operation) bool { return i.Stage == power.StageService },
	}
}

// tenantTask has machines boot their tenants' systems.
func (t *turn) tenantTask() task {
	return task{
		name: "boot", words: "booting the image", kind: power.Kind, within: t.Policy.BootWithin, spec: powerOrder(power.GoalTenant),
	}
}

// boot has those machines boot their tenants' systems whose seeds were planted. They are done when the systems have phoned home.
func (t *turn) boot(ctx context.Context, found survey, instances []Instance) (survey, error) {
	var seeded []Instance
	for _, i := range instances {
		if _, ok := found.done[i.ID]; ok && i.Metal {
			seeded = append(seeded, i)
			delete(found.done, i.ID)
		}
	}
	if len(seeded) == 0 {
		return found, nil
	}
	booted, err := t.advance(ctx, t.tenantTask(), seeded)
	if err != nil {
		return found, err
	}
	maps.Copy(found.done, booted.done)
	found.add(booted)
	return found, nil
}

// shutOut ends the tenant's access on every instance: by its agent, and where the tenant's own system may run, by cutting the power.
func (t *turn) shutOut(ctx context.Context, k task, instances []Instance) (Progress, error) {
	here, away := splitAway(instances)
	_, progress, err := t.undo(ctx, k, here)
	if err != nil || len(away) == 0 {
		return progress, err
	}
	_, off, err := t.undo(ctx, t.offTask(k.name), away)
	progress.add(off)
	return progress, err
}

// offSuffix makes the name of the step that cuts the power of that which ends access.
const offSuffix = "-off"

func (t *turn) offTask(step string) task {
	return task{
		name: step + offSuffix, words: "cutting the power", kind: power.Kind, within: t.Policy.OffWithin, undo: true, spec: powerOrder(power.GoalOff),
		holds: func(_ Instance, o Operation) bool {
			var evidence power.Evidence
			return json.Unmarshal(o.Evidence, &evidence) == nil && evidence.State == power.Off
		},
	}
}

// source is where the image's file is, for a machine that has a disk to be written.
func (t *turn) source(ctx context.Context, i Instance) (*protocol.Image, error) {
	if !i.Metal {
		return nil, nil //nolint:nilnil // there is no file, which is no error
	}
	if t.Images == nil {
		return nil, fault.New(fault.Invalid, "image-not-found", "there is no register of disk images")
	}
	return t.Images.Source(ctx, t.lease.Image)
}

// seed is what the instance's own system is told; nil where an agent lets people in.
func (t *turn) seed(ctx context.Context, i Instance) (*protocol.Seed, error) {
	if !i.Metal {
		return nil, nil //nolint:nilnil // there is none, which is no error
	}
	phone, err := t.Machines.PhoneHome(ctx, i.Node, i.ID, i.Epoch)
	if err != nil {
		return nil, err
	}
	return &protocol.Seed{InstanceID: i.ID.String(), Hostname: i.NodeName, UserData: t.lease.UserData, PhoneHome: phone}, nil
}
