package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// serverEvent is one server-sent event. ID is what the client sends back as Last-Event-ID, 0 for none.
type serverEvent struct {
	ID   int64
	Name string
	Data any
}

// eventStream is the answer of an operation that streams. next is called again and again with the last id; it waits until there
// are events, or its context ends after keepAlive, and then answers none; done ends the stream. It must not hold a transaction
// while it waits.
type eventStream struct {
	//nolint:containedctx // the answer outlives the handler and lives as long as the request
	ctx   context.Context
	after int64
	next  func(ctx context.Context, after int64) (events []serverEvent, done bool, err error)
}

// keepAlive is how long a stream may be silent before a comment shows proxies and clients that it lives.
const keepAlive = 15 * time.Second

// VisitListLeaseEventsResponse implements the generated answer of listLeaseEvents.
func (s eventStream) VisitListLeaseEventsResponse(w http.ResponseWriter) error { return s.serve(w) }

func (s eventStream) serve(w http.ResponseWriter) error {
	control := http.NewResponseController(w)
	if err := control.SetWriteDeadline(time.Time{}); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("lift write deadline: %w", err)
	}
	header := w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no") // or a proxy collects events
	w.WriteHeader(http.StatusOK)
	for {
		done, err := s.turn(w, control)
		if err != nil || done {
			return err
		}
	}
}

// turn waits for events once and writes them. The client's going away is the ordinary end, not an error.
func (s *eventStream) turn(w http.ResponseWriter, control *http.ResponseController) (bool, error) {
	ctx, cancel := context.WithTimeout(s.ctx, keepAlive)
	defer cancel()
	events, done, err := s.next(ctx, s.after)
	switch {
	case s.ctx.Err() != nil:
		return true, nil
	case err != nil && ctx.Err() == nil:
		return true, fmt.Errorf("stream events: %w", err)
	}
	if len(events) == 0 {
		if _, err := fmt.Fprint(w, ": alive\n\n"); err != nil {
			return true, nil //nolint:nilerr // the client went away
		}
	}
	for _, event := range events {
		if err := event.write(w); err != nil {
			if s.ctx.Err() != nil {
				return true, nil
			}
			return true, err
		}
		s.after = max(s.after, event.ID)
	}
	return done, control.Flush()
}

func (e serverEvent) write(w http.ResponseWriter) error {
	data, err := json.Marshal(e.Data) // one line: JSON escapes line ends
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	if e.ID != 0 {
		if _, err := fmt.Fprintf(w, "id: %d\n", e.ID); err != nil {
			return fmt.Errorf("write event: %w", err)
		}
	}
	if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e.Name, data); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	return nil
}
