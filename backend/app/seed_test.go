package app

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/internal/markettest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/inventory"
)

// TestASecondStartDoesNotWaitForNodesThatAreOffTheMarket has a site one of whose nodes was quarantined in an earlier run: it will not be for
// rent, and everything else is not to wait for it.
func TestASecondStartDoesNotWaitForNodesThatAreOffTheMarket(t *testing.T) {
	t.Parallel()
	m := markettest.New(t)
	db, err := postgres.Open(t.Context(), m.URL, 4)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	stock := postgres.NewInventory(db)
	a := &App{inventory: inventory.New(db, stock, stock, stock, clock.System{})}
	nodes := m.Nodes(t, "n", "hw", "bare_metal", demoNodes, 8)
	began := time.Now().Truncate(time.Microsecond)
	standing := func() SiteStanding {
		s, err := a.SiteStanding(t.Context(), "test-site", began)
		require.NoError(t, err)
		return s
	}
	for _, n := range nodes {
		m.Exec(t, "INSERT INTO node_liveness (node_id, boot_id, sequence, seen_at) VALUES ($1, 'b', 1, $2)", n, began.Add(-time.Hour))
	}
	require.Equal(t, demoNodes, standing().Awaited, "what was heard before does not count")
	m.Exec(t, "UPDATE node SET state = 'quarantined', state_reason = 'its wipe failed', state_exit = 'retest' WHERE id = $1", nodes[0])
	m.Exec(t, "UPDATE node SET state = 'verifying' WHERE id = $1", nodes[1])
	m.Exec(t, "UPDATE node_liveness SET seen_at = $1", began.Add(time.Second))
	require.False(t, standing().Settled(), "one is being verified")
	m.Exec(t, "UPDATE node SET state = 'available' WHERE id = $1", nodes[1])
	require.Equal(t, SiteStanding{ForRent: demoNodes - 1, OffSale: []string{"n-0 is quarantined"}, Expected: demoNodes}, standing())
	require.True(t, standing().Settled())
}
