package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/internal/markettest"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/lease"
)

// placeable counts the machines that a booking could get.
func placeable(t *testing.T, db *postgres.DB, withHCA bool) int {
	t.Helper()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	pools, err := postgres.NewBooking(db).Pools(t.Context(), booking.PoolQuery{
		Type: catalog.InstanceType{Hardware: "h100", Mode: catalog.BareMetal, WithHCA: withHCA}, Time: lease.Window{Start: now, End: now.Add(time.Hour)}, Now: now,
	})
	require.NoError(t, err)
	n := 0
	for _, p := range pools {
		n += len(p.Machines)
	}
	return n
}

func TestAMachineWhosePortIsFullIsNotSold(t *testing.T) {
	t.Parallel()
	m := markettest.New(t)
	db, err := postgres.Open(context.WithoutCancel(t.Context()), m.URL, 4)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	nodes := m.Nodes(t, "n", "h100", "bare_metal", 3, 2)
	require.Equal(t, 3, placeable(t, db, true))
	for key := range 29 { // with the default key and the lease's own: 31
		m.Exec(t, "INSERT INTO foreign_pkey SELECT fabric_id, guid, $2, now() FROM hca_port WHERE node_id = $1", nodes[0], 0x1000+key)
	}
	require.Equal(t, 3, placeable(t, db, true))
	m.Exec(t, "INSERT INTO foreign_pkey SELECT fabric_id, guid, 7, now() FROM hca_port WHERE node_id = $1", nodes[0])
	require.Equal(t, 2, placeable(t, db, true))
	require.Equal(t, 3, placeable(t, db, false), "a type without InfiniBand needs no key")
	m.Exec(t, "UPDATE fabric SET max_pkeys_per_port = 32")
	require.Equal(t, 3, placeable(t, db, true))
}

// The gate is in Go where a lease joins, and in SQL where capacity is searched: they must agree.
func TestThePostureGateIsTheSameInSQL(t *testing.T) {
	t.Parallel()
	m := markettest.New(t)
	db, err := postgres.Open(context.WithoutCancel(t.Context()), m.URL, 4)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	m.Nodes(t, "n", "h100", "bare_metal", 1, 1)
	require.Equal(t, 1, placeable(t, db, true), "a fabric that has said nothing yet has no agent, and isolates nobody in any case")
	for _, item := range []string{"default_membership_limited", "m_key_set", "m_key_per_port", "sm_key_set", "sa_key_set", "switch_enforcement", "guests_denied_sm"} {
		for _, verdict := range []protocol.Verdict{protocol.True, protocol.False, protocol.Unknown} {
			m.Exec(t, "UPDATE fabric SET posture_override = NULL, posture = $1", fmt.Sprintf(`[{"item": "other", "verdict": "true"}, {"item": %q, "verdict": %q}]`, item, verdict))
			bars := fabric.Bars(protocol.PostureCheck{Item: item, Verdict: verdict})
			require.Equal(t, bars, placeable(t, db, true) == 0, "%s is %s", item, verdict)
			require.Equal(t, 1, placeable(t, db, false))
			m.Exec(t, "UPDATE fabric SET posture_override = 'a lab'")
			require.Equal(t, 1, placeable(t, db, true))
		}
	}
}
