package httpapi_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/agenttoken"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/power"
)

// newPower switches machines, with no worker that would.
func newPower(w *world) *power.Service {
	store := postgres.NewFleet(w.db)
	log := audit.New(postgres.NewAuditEvents(w.db), w.clock)
	control := fleet.New(fleet.Deps{
		Tx: w.db, Agents: store, Beats: store, Operations: store, Hardware: newInventory(w), Outbox: postgres.NewOutbox(w.db), Audit: log,
		Tokens: agenttoken.New(w.clock), Clock: w.clock,
	}).Control()
	return power.New(power.Deps{Tx: w.db, Machines: postgres.NewPower(w.db), Work: control, Agents: control, Audit: log, Clock: w.clock})
}

// metal is the path of the power of an active lease's machine.
func (m *matrix) metal(ahead int, key string) string {
	m.t.Helper()
	id := m.running(ahead, key)
	parsed, err := ids.Parse[ids.LeaseKind](id)
	require.NoError(m.t, err)
	var allocation ids.Allocation
	pool, ctx := m.database.Pool(m.t), m.t.Context()
	require.NoError(m.t, pool.QueryRow(ctx, "UPDATE allocation SET state = 'in_use' WHERE lease_id = $1 RETURNING id", parsed).Scan(&allocation))
	_, err = pool.Exec(ctx, `INSERT INTO machine (node_id, bmc_url, bmc_user, bmc_secret, macs, stage, stage_since, created_at)
		SELECT node_id, 'https://bmc', 'u', 'x', '{}', 'tenant', now(), now() FROM allocation WHERE id = $1
		ON CONFLICT (node_id) DO UPDATE SET stage = 'tenant'`, allocation)
	require.NoError(m.t, err)
	return "/v1/leases/" + id + "/nodes/" + allocation.String() + "/power"
}

func TestATenantSwitchesTheirOwnMachineOneThingAtATimeWhileTheLeaseRuns(t *testing.T) {
	t.Parallel()
	m := newMatrix(t)
	m.sales()
	key := m.ada.do(http.MethodPost, "/v1/ssh-keys", map[string]any{"name": "metal", "public_key": newPublicKey(t)}).member("id")
	path := m.metal(60, key)
	reboot := map[string]any{"action": "reboot"}
	with := func(idempotency string) []option { return write{}.options(idempotency) }
	got := m.ada.do(http.MethodPost, path, reboot, with("power-1")...)
	require.Equal(t, http.StatusAccepted, got.status, got.text())
	require.Contains(t, got.text(), `"reboot"`)
	requireProblem(t, m.ada.do(http.MethodPost, path, reboot, with("power-2")...), http.StatusConflict, "power-busy")
	pool := m.database.Pool(t)
	run := func(sql string) {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	run(`UPDATE operation SET state = 'succeeded', finished_at = now(), evidence = '{"goal": "reboot", "state": "on"}' WHERE kind = 'power'`)
	got = m.ada.do(http.MethodGet, path, nil)
	require.Equal(t, "on", got.object(t)["power"], got.text())
	for _, wrong := range []string{"off", "service", "tenant", "explode"} { // goals of ours are nobody's wishes
		got := m.ada.do(http.MethodPost, path, map[string]any{"action": wrong}, with("power-"+wrong)...)
		require.Equal(t, http.StatusUnprocessableEntity, got.status, "%s: %s", wrong, got.text())
	}
	run("UPDATE lease SET state = 'releasing' WHERE state = 'active'")
	requireProblem(t, m.ada.do(http.MethodPost, path, reboot, with("power-3")...), http.StatusConflict, "lease-not-active")
	run("DELETE FROM machine")
	requireProblem(t, m.ada.do(http.MethodGet, path, nil), http.StatusUnprocessableEntity, "not-a-whole-machine")
}
