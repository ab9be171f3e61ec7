package delivery

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// Notify tells the lease's people how long it has left, once for each end that it has had. When the end has moved since the
// timer was set, it says nothing.
func (s *Service) Notify(ctx context.Context, id ids.Lease, remaining time.Duration) error {
	err := s.within(ctx, id, []lease.State{lease.Active}, func(ctx context.Context, t *turn) error {
		end := t.lease.EffectiveEnd()
		if t.now.Before(end.Add(-remaining)) {
			return nil
		}
		seconds := int64(remaining / time.Second)
		key := end.Format(time.RFC3339Nano) + "/" + strconv.FormatInt(seconds, 10)
		data := map[string]any{"remaining_seconds": seconds, "end": end, "key": key}
		before, err := t.Work.Recorded(ctx, id, lease.EventNotice, "key")
		if err != nil {
			return err
		}
		if slices.Contains(before, key) {
			return nil
		}
		if err := t.record(ctx, lease.EventNotice, data); err != nil {
			return err
		}
		return t.tell(ctx, lease.EventNotice, data)
	})
	if err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	return nil
}

// Accrue captures the usage up to the instant from the lease's hold.
func (s *Service) Accrue(ctx context.Context, id ids.Lease, until time.Time) error {
	if err := s.Billing.Accrue(ctx, id, until); err != nil {
		return fmt.Errorf("accrue: %w", err)
	}
	return nil
}
