package uplink

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/leasehold/leasehold/agent/internal/backoff"
	"github.com/leasehold/leasehold/agent/protocol"
)

// recheckEvery is after how many heartbeats the inventory is compared with what was last reported.
const recheckEvery = 6

// pulse is the state of the heartbeat loop.
type pulse struct {
	*Agent
	spool      samples
	reported   []byte // the inventory that the control plane has, as JSON without its instant
	wanted     bool   // it is to be sent even if it has not changed
	asked      bool   // the last heartbeat's answer asked for one
	beats      int
	unreadable time.Time // since when health cannot be read; zero: it can
}

// beats reports inventory and health for ever.
func (a *Agent) beats(ctx context.Context) error {
	p := &pulse{Agent: a, wanted: true}
	retry := backoff.New(backoff.Policy{Min: a.cfg.Retry.Min, Max: a.interval()})
	for ctx.Err() == nil {
		err := p.round(ctx)
		if err != nil {
			if ctx.Err() == nil {
				a.cfg.Log.Warn("report failed", "failures", retry.Failures()+1, "error", err)
			}
			_ = retry.Pause(ctx, nil) //nolint:errcheck // the loop looks at ctx itself
			continue
		}
		retry.Reset()
		_ = backoff.Wait(ctx, jitter(a.interval()), nil) //nolint:errcheck // the loop looks at ctx itself
	}
	return ctx.Err()
}

func (a *Agent) interval() time.Duration {
	if a.cfg.Every > 0 {
		return a.cfg.Every
	}
	if seconds := a.cfg.Identity.Record().HeartbeatSeconds; seconds > 0 {
		return time.Duration(seconds) * time.Second
	}
	return protocol.HeartbeatEvery
}

// jitter spreads d by a tenth to either side.
func jitter(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1) //nolint:gosec // jitter needs no secrecy
}

// round sends the inventory if it is wanted or has changed, then a heartbeat. An inventory that cannot be taken does not keep the
// heartbeat back: it is tried again next time.
func (p *pulse) round(ctx context.Context) error {
	if p.wanted || p.beats%recheckEvery == 0 {
		if err := p.inventory(ctx); err != nil {
			return err
		}
	}
	p.beats++
	if err := p.beat(ctx); err != nil || !p.asked {
		return err
	}
	p.asked, p.wanted = false, true
	return p.inventory(ctx)
}

func (p *pulse) inventory(ctx context.Context) error {
	report, err := p.cfg.Source.Inventory(ctx)
	if err != nil {
		p.cfg.Log.Error("inventory cannot be taken", "error", err)
		return ctx.Err()
	}
	content, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("encode inventory: %w", err)
	}
	if !p.wanted && string(content) == string(p.reported) {
		return nil
	}
	report.ObservedAt, report.BootID = p.cfg.Client.Now(), p.cfg.BootID
	reply, err := p.cfg.Client.PutInventory(ctx, report)
	if err != nil {
		return err
	}
	p.reported, p.wanted = content, false
	p.cfg.Log.Info("inventory reported", "state", reply.State, "changes", len(reply.Changes))
	return nil
}

// health reads conditions and meters. Health that cannot be read is a condition, not a silence: a silent agent looks dead.
func (p *pulse) health(ctx context.Context) []protocol.Condition {
	conditions, fresh, err := p.cfg.Source.Health(ctx)
	p.spool.add(fresh)
	if err == nil {
		p.unreadable = time.Time{}
		return append([]protocol.Condition{}, conditions...)
	}
	if p.unreadable.IsZero() {
		p.unreadable = p.cfg.Client.Now()
	}
	return append(append([]protocol.Condition{}, conditions...), protocol.Condition{
		Name: "health-unreadable", Class: protocol.Degrades, Onset: p.unreadable, Evidence: err.Error(), Exit: "clears_itself",
	})
}

func (p *pulse) beat(ctx context.Context) error {
	conditions := p.health(ctx)
	batch := p.spool.next()
	reply, err := p.cfg.Client.Heartbeat(ctx, protocol.Heartbeat{
		BootID: p.cfg.BootID, Sequence: p.cfg.Sequence(), ObservedAt: p.cfg.Client.Now(), Conditions: conditions, Samples: batch,
		Running: p.cfg.Runner.Running(), Spooled: p.cfg.Runner.Spooled(),
	})
	if err != nil {
		return err
	}
	p.spool.sent(len(batch))
	p.asked = reply.InventoryWanted
	if reply.OperationsPending > 0 {
		p.wakePoll()
	}
	return nil
}
