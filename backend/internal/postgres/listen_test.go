package postgres_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/internal/pgtest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
)

// listening is a hub that runs until the test ends.
func listening(t *testing.T, channels ...string) (*postgres.Hub, *pgtest.Database) {
	t.Helper()
	database := pgtest.New(t)
	db, err := postgres.Open(t.Context(), database.URL, 2)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	hub := postgres.NewHub(db, slog.New(slog.DiscardHandler), channels...)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, cancel := hub.Subscribe(channels[0], "")
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- hub.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	awaitWake(t, ready)
	return hub, database
}

func awaitWake(t *testing.T, wake <-chan struct{}) {
	t.Helper()
	patience := time.NewTimer(20 * time.Second)
	defer patience.Stop()
	select {
	case <-wake:
	case <-patience.C:
		require.FailNow(t, "nobody was woken")
	}
}

func TestTheHubWakesWhoIsMeant(t *testing.T) {
	t.Parallel()
	hub, database := listening(t, "one", `t"wo`)
	pool := database.Pool(t)
	mine, cancelMine := hub.Subscribe("one", "a")
	defer cancelMine()
	too, cancelToo := hub.Subscribe("one", "a")
	defer cancelToo()
	anyKey, cancelAny := hub.Subscribe("one", "")
	defer cancelAny()
	others, cancelOthers := hub.Subscribe("one", "b")
	defer cancelOthers()
	channel, cancelChannel := hub.Subscribe(`t"wo`, "a")
	defer cancelChannel()
	for range 5 { // many announcements may be one value
		_, err := pool.Exec(t.Context(), "SELECT pg_notify('one', 'a')")
		require.NoError(t, err)
	}
	awaitWake(t, mine)
	awaitWake(t, too)
	awaitWake(t, anyKey)
	require.Empty(t, others)
	require.Empty(t, channel)
	_, err := pool.Exec(t.Context(), `SELECT pg_notify('t"wo', 'a')`)
	require.NoError(t, err)
	awaitWake(t, channel)

	cancelOthers()
	cancelOthers()
	_, err = pool.Exec(t.Context(), "SELECT pg_notify('one', 'b'), pg_notify('one', 'c')")
	require.NoError(t, err)
	awaitWake(t, anyKey)
	require.Empty(t, others, "who has left is not woken")
}

func TestAHubWhoseConnectionBreaksHearsAgainAndWakesEverybody(t *testing.T) {
	t.Parallel()
	hub, database := listening(t, "one")
	pool := database.Pool(t)
	wake, cancel := hub.Subscribe("one", "a")
	defer cancel()
	for range 3 {
		_, err := pool.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'")
		require.NoError(t, err)
		awaitWake(t, wake) // for what was announced in between
		_, err = pool.Exec(t.Context(), "SELECT pg_notify('one', 'a')")
		require.NoError(t, err)
		awaitWake(t, wake)
	}
}
