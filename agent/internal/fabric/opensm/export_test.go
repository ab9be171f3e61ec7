package opensm

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// Reopen returns a second driver on the same subnet, as after a restart of the agent alone.
func (s *Simulated) Reopen(ctx context.Context, t *testing.T) *Driver {
	t.Helper()
	return s.ReopenWith(ctx, t, func(*Config) {})
}

// ReopenWith is Reopen with another configuration.
func (s *Simulated) ReopenWith(ctx context.Context, t *testing.T, change func(*Config)) *Driver {
	t.Helper()
	config := s.config
	change(&config)
	driver, err := New(ctx, config)
	require.NoError(t, err)
	return driver
}
