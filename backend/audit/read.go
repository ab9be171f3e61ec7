package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/tenant"
)

// Filter chooses events of one chain, newest first. Zero members choose everything.
type Filter struct {
	Org ids.Org
	// Everybody, for the platform: of all chains.
	Everybody    bool
	Actor        string
	Action       string // an action, or all of a noun with a trailing dot, e.g. "api_key."
	Target       string
	RequestID    string
	Since, Until time.Time // [Since, Until)
	After        ids.Audit
	Limit        int
}

// Reads is what the database says of the log. An organization's actor sees its own chain only.
type Reads interface {
	AuditEvents(ctx context.Context, filter Filter) ([]Event, error)
	// ChainedEvents reads a chain behind the number after, in its order, of [since, until).
	ChainedEvents(ctx context.Context, org ids.Org, since, until time.Time, after int64, limit int) ([]Event, error)
}

// Reader reads the log.
type Reader struct {
	tx    Transactor
	reads Reads
}

// NewReader returns a reader.
func NewReader(tx Transactor, reads Reads) *Reader { return &Reader{tx: tx, reads: reads} }

// List reads events of the actor's organization; the platform's actor reads the chains that the filter names.
func (r *Reader) List(ctx context.Context, filter Filter) ([]Event, error) {
	actor, err := tenant.MustAct(ctx)
	if err != nil {
		return nil, err
	}
	if !actor.Platform {
		filter.Org, filter.Everybody = actor.Org, false
	}
	var events []Event
	err = r.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
		events, err = r.reads.AuditEvents(ctx, filter)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list audit events: %w", err)
	}
	return events, nil
}

// exportAtOnce is how many events one transaction of an export reads.
const exportAtOnce = 500

// Export hands out one chain's events of [since, until) in their order, a part at a time and in no transaction meanwhile. Platform actors name
// the organization, zero for the platform's own chain; others get their own.
func (r *Reader) Export(ctx context.Context, org ids.Org, since, until time.Time, out func([]Event) error) error {
	actor, err := tenant.MustAct(ctx)
	if err != nil {
		return err
	}
	if !actor.Platform {
		org = actor.Org
	}
	after := int64(0)
	for {
		var events []Event
		err := r.tx.WithinTx(ctx, func(ctx context.Context) (err error) {
			events, err = r.reads.ChainedEvents(ctx, org, since, until, after, exportAtOnce)
			return err
		})
		if err != nil {
			return fmt.Errorf("export audit events: %w", err)
		}
		if len(events) > 0 {
			if err := out(events); err != nil {
				return err
			}
			after = events[len(events)-1].Link.Seq
		}
		if len(events) < exportAtOnce {
			return nil
		}
	}
}
