package delivery

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// Trouble is a condition of a node that prevents its allocation.
type Trouble struct {
	Node   ids.Node
	Name   string
	Device string    // a GPU's UUID, another device's name; "" the node as a whole
	Onset  time.Time // by the node's clock
}

// Watch looks after the running leases: what fails in one is in its log from when it did until it is over, the customer and the operator are
// told, and its time is not billed. It goes on after a failure, and returns all of them.
func (s *Service) Watch(ctx context.Context) error {
	var watched []ids.Lease
	err := s.DB.WithinTx(ctx, func(ctx context.Context) (err error) {
		watched, err = s.Work.Watched(ctx, s.Clock.Now().Add(-s.Policy.SilentAfter))
		return err
	})
	errs := []error{err}
	for _, id := range watched {
		err := s.within(ctx, id, []lease.State{lease.Active}, func(ctx context.Context, t *turn) error { return t.watch(ctx) })
		if fault.CodeOf(err) != movedOn {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("watch leases: %w", err)
	}
	return nil
}

// outage is what an instance cannot be used for, and since when.
type outage struct {
	since time.Time
	why   string // for the customer: their own node, and nobody else's
}

// watch compares the troubles of the lease's nodes with its log.
func (t *turn) watch(ctx context.Context) error {
	instances := t.in(lease.InUse)
	found, err := t.outages(ctx, instances)
	if err != nil {
		return err
	}
	open, err := t.openOutages(ctx)
	if err != nil {
		return err
	}
	var reason string
	for _, i := range instances {
		now, isOut := found[i.ID]
		since, wasOut := open[i.ID]
		if wasOut {
			now.since = since // as it was told and is billed; a device's trouble may look younger by now
		}
		if isOut && reason == "" {
			reason = fmt.Sprintf("%s is out since %s: %s; its time is not billed", i.NodeName, now.since.Format(time.RFC3339), now.why)
		}
		switch {
		case isOut && !wasOut:
			err = t.outageBegan(ctx, i, now)
		case !isOut && wasOut:
			err = t.record(ctx, lease.EventOutageEnded, about(i))
		}
		if err != nil {
			return err
		}
	}
	return t.explain(ctx, reason)
}

func (t *turn) outageBegan(ctx context.Context, i Instance, o outage) error {
	data := about(i)
	data["reason"], data["since"] = o.why, o.since.Format(time.RFC3339Nano)
	if err := t.recordAt(ctx, lease.EventOutageBegan, o.since, data); err != nil {
		return err
	}
	if err := t.tell(ctx, lease.EventOutageBegan, data); err != nil {
		return err
	}
	return t.alert(ctx, lease.EventOutageBegan, data)
}

// openOutages are the instances of which the log says that they are out, and since when.
func (t *turn) openOutages(ctx context.Context) (map[ids.Allocation]time.Time, error) {
	began, err := t.Work.Recorded(ctx, t.lease.ID, lease.EventOutageBegan, "allocation")
	if err != nil {
		return nil, err
	}
	since, err := t.Work.Recorded(ctx, t.lease.ID, lease.EventOutageBegan, "since")
	if err != nil {
		return nil, err
	}
	ended, err := t.Work.Recorded(ctx, t.lease.ID, lease.EventOutageEnded, "allocation")
	if err != nil {
		return nil, err
	}
	balance, last := map[string]int{}, map[string]string{}
	for n, of := range began {
		balance[of]++
		if len(since) == len(began) {
			last[of] = since[n]
		}
	}
	for _, of := range ended {
		balance[of]--
	}
	open := map[ids.Allocation]time.Time{}
	for _, i := range t.instances {
		if of := i.ID.String(); balance[of] > 0 {
			open[i.ID], _ = time.Parse(time.RFC3339Nano, last[of])
		}
	}
	return open, nil
}

// outages finds which instances cannot be used now: their node is silent while its neighbours are heard (when nobody is, it is rather we who
// do not hear), or it reports what prevents allocation of the instance's own devices. It began when the node was last heard, or says that it
// did; never before it was delivered. Of machines that their tenant has whole no heartbeat is expected.
func (t *turn) outages(ctx context.Context, instances []Instance) (map[ids.Allocation]outage, error) {
	here, _ := splitAway(instances)
	if len(here) == 0 {
		return map[ids.Allocation]outage{}, nil
	}
	nodes := make([]ids.Node, len(here))
	for n, i := range here {
		nodes[n] = i.Node
	}
	silent, err := t.Work.Silent(ctx, nodes, t.now.Add(-t.Policy.SilentAfter))
	if err != nil {
		return nil, err
	}
	troubles, err := t.Work.Troubles(ctx, nodes)
	if err != nil {
		return nil, err
	}
	found := map[ids.Allocation]outage{}
	put := func(i Instance, since time.Time, why string) {
		if since.Before(t.lease.ActiveAt) {
			since = t.lease.ActiveAt
		}
		if known, ok := found[i.ID]; !ok || since.Before(known.since) {
			found[i.ID] = outage{since: since.UTC(), why: why}
		}
	}
	for _, i := range here {
		if seen, ok := silent[i.Node]; ok {
			put(i, seen, "it has sent no heartbeat since then")
		}
		for _, trouble := range troubles {
			if trouble.concerns(i) {
				put(i, t.believed(trouble.Onset), trouble.words())
			}
		}
	}
	return found, nil
}

// onsetBelieved is how far back a node's own clock may put what it reports: as long as a report may take to us. The control plane's instants
// decide what is billed.
const onsetBelieved = time.Minute

func (t *turn) believed(onset time.Time) time.Time {
	if onset.After(t.now) || onset.Before(t.now.Add(-onsetBelieved)) {
		return t.now
	}
	return onset
}

// concerns reports whether the trouble is the instance's. One that has a part of a node is concerned by its own GPUs and by what is wrong with
// the node as a whole.
func (t Trouble) concerns(i Instance) bool {
	return t.Node == i.Node && (i.WholeNode || t.Device == "" || slices.Contains(i.GPUUUIDs, t.Device))
}

func (t Trouble) words() string {
	if t.Device == "" {
		return "it reports " + t.Name
	}
	return fmt.Sprintf("it reports %s of %s", t.Name, t.Device)
}
