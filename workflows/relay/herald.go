package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/outbox"
)

// tellEvery is how often the herald looks for messages; people can wait for that.
const tellEvery = 5 * time.Second

// Herald tells people what the outbox has for them. In this release it says it in the log, what is for the operator as a warning;
// the log is also all that an alert needs. Mail comes here; webhooks are told in the transaction that writes the message.
type Herald struct {
	Outbox Outbox
	Clock  clock.Clock
	Log    *slog.Logger
}

// Run tells until ctx ends. Trouble is logged and tried again.
func (h *Herald) Run(ctx context.Context) error {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		if err := h.tell(ctx); err != nil && ctx.Err() == nil {
			h.Log.WarnContext(ctx, "messages to people are not told", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (h *Herald) tell(ctx context.Context) error {
	for {
		messages, err := h.Outbox.Claim(ctx, []string{outbox.Notify}, batch, h.Clock.Now(), claimFor)
		if err != nil || len(messages) == 0 {
			return err
		}
		told := make([]ids.Outbox, len(messages))
		for i, m := range messages {
			level := slog.LevelInfo
			if m.Key == outbox.Operator {
				level = slog.LevelWarn
			}
			h.Log.Log(ctx, level, "message", "to", m.Key, "body", json.RawMessage(m.Payload))
			told[i] = m.ID
		}
		if err := h.Outbox.Done(ctx, told, h.Clock.Now()); err != nil {
			return fmt.Errorf("mark told: %w", err)
		}
		if len(messages) < batch {
			return nil
		}
	}
}
