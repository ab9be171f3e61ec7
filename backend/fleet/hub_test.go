package fleet_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/internal/postgres"
)

// hubOf runs a hub on the world's database until the test ends, and returns when it hears.
func hubOf(t *testing.T, d *fleet.Deps) *postgres.Hub {
	t.Helper()
	db, ok := d.Tx.(*postgres.DB)
	require.True(t, ok)
	hub := postgres.NewHub(db, slog.New(slog.DiscardHandler), fleet.Channel)
	ready, cancel := hub.Subscribe(fleet.Channel, "")
	defer cancel()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = hub.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	<-ready // everybody is woken when it begins to hear
	return hub
}
