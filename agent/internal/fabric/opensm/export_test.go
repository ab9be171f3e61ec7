package opensm

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// Reopen returns a second driver on the same subnet, as after a restart of the agent alone.
func (s *Simulated) Reopen(ctx context.Context, t *testing.T) *Driver {
	t.Helper()
	driver, err := New(ctx, s.Driver.config)
	require.NoError(t, err)
	return driver
}
