package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// listenIdle is how long the connection may be silent before it is asked whether it still lives.
	listenIdle = 20 * time.Second
	// listenRetry is the pause before another connection, doubling from the first to the last.
	listenRetryFirst = 50 * time.Millisecond
	listenRetryLast  = 5 * time.Second
)

// Hub hears what the database announces, on one connection for the whole process, and wakes who subscribed. Announcements may get
// lost while the connection is; then everybody is woken once it is back. Whoever waits looks again on its own every few seconds.
type Hub struct {
	config   *pgx.ConnConfig
	channels []string
	log      *slog.Logger

	mu     sync.Mutex
	wanted map[topic]map[chan struct{}]struct{}
}

// topic is what is announced: a channel's payload; the empty key stands for all of them.
type topic struct{ channel, key string }

// NewHub returns a hub that hears the channels while it runs.
func NewHub(db *DB, log *slog.Logger, channels ...string) *Hub {
	return &Hub{config: db.pool.Config().ConnConfig.Copy(), channels: channels, log: log, wanted: map[topic]map[chan struct{}]struct{}{}}
}

// Subscribe returns a channel that holds a value after what was announced for the key since, "" for any key; many announcements may
// be one value. cancel ends the subscription.
func (h *Hub) Subscribe(channel, key string) (<-chan struct{}, func()) {
	wake, of := make(chan struct{}, 1), topic{channel, key}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.wanted[of] == nil {
		h.wanted[of] = map[chan struct{}]struct{}{}
	}
	h.wanted[of][wake] = struct{}{}
	return wake, func() { h.unsubscribe(of, wake) }
}

func (h *Hub) unsubscribe(of topic, wake chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if delete(h.wanted[of], wake); len(h.wanted[of]) == 0 {
		delete(h.wanted, of)
	}
}

// wake wakes the subscribers of the topics.
func (h *Hub) wake(topics ...topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, of := range topics {
		for subscriber := range h.wanted[of] {
			ring(subscriber)
		}
	}
}

func (h *Hub) wakeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, subscribers := range h.wanted {
		for subscriber := range subscribers {
			ring(subscriber)
		}
	}
}

func ring(subscriber chan<- struct{}) {
	select {
	case subscriber <- struct{}{}:
	default: // it has one waiting already
	}
}

// Run hears until ctx ends, which is no error. A connection that breaks is made anew.
func (h *Hub) Run(ctx context.Context) error {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for wait := listenRetryFirst; ; wait = min(2*wait, listenRetryLast) {
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		began, err := h.hear(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end of ctx is how it ends
		}
		if began {
			wait = listenRetryFirst
		}
		h.log.WarnContext(ctx, "no announcements from the database", "error", err, "retry_in", wait)
		pause.Reset(wait)
	}
}

// hear hears on one connection until it breaks, and tells whether it had begun to.
func (h *Hub) hear(ctx context.Context) (bool, error) {
	conn, err := pgx.ConnectConfig(ctx, h.config.Copy())
	if err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(end)
	}()
	for _, channel := range h.channels {
		if _, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
			return false, fmt.Errorf("listen: %w", err)
		}
	}
	h.wakeAll() // for what was announced in between
	for {
		if err := h.next(ctx, conn); err != nil {
			return true, err
		}
	}
}

// next waits for one announcement; after a long silence it makes sure of the connection instead.
func (h *Hub) next(ctx context.Context, conn *pgx.Conn) error {
	wait, cancel := context.WithTimeout(ctx, listenIdle)
	defer cancel()
	heard, err := conn.WaitForNotification(wait)
	if err == nil {
		h.wake(topic{heard.Channel, heard.Payload}, topic{heard.Channel, ""})
		return nil
	}
	if ctx.Err() != nil || wait.Err() == nil {
		return fmt.Errorf("wait: %w", err)
	}
	alive, cancelAlive := context.WithTimeout(ctx, listenIdle)
	defer cancelAlive()
	if err := conn.Ping(alive); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	return nil
}

// announce notifies a channel of each of the names when the transaction commits, in one statement.
func announce(ctx context.Context, channel string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	return conn(ctx).Exec("SELECT pg_notify(?, name) FROM unnest(?::text[]) name", channel, textArray(names)).Error
}
