package httpapi_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/internal/postgres"
)

// newFabrics is enough of the fabrics' service for what admins ask of it: nobody carries anything out.
func newFabrics(w *world) *fabric.Service {
	return fabric.New(fabric.Deps{
		Tx: w.db, Partitions: postgres.NewIsolation(w.db), Outbox: postgres.NewOutbox(w.db), Audit: audit.New(postgres.NewAuditEvents(w.db), w.clock), Clock: w.clock,
	})
}

// subnet makes a fabric on a new site, insecure by its posture, with a port that is open.
func (w *world) subnet(name string) ids.Fabric {
	w.t.Helper()
	w.site(name)
	pool, ctx, id := w.database.Pool(w.t), w.t.Context(), ids.Make[ids.Fabric]()
	_, err := pool.Exec(ctx, `INSERT INTO fabric (id, site_id, name, posture, created_at)
		SELECT $1, id, 'ib0', '[{"item": "m_key_set", "verdict": "false"}]', now() FROM site WHERE name = $2`, id, name)
	require.NoError(w.t, err)
	_, err = pool.Exec(ctx, `INSERT INTO drift (id, fabric_id, port_guid, kind, what, onset, repair, attempts, gave_up_at)
		VALUES ($1, $2, '0x0000000000000007', 'fail_open', 'HCA port is a full member of the default partition', $3, 'told', 3, $3)`,
		ids.Make[ids.Drift](), id, w.clock.Now())
	require.NoError(w.t, err)
	return id
}

func TestTheOperatorAuditsAFabricAndDecidesAboutItsPostureAndKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.subnet("fra1")
	o := w.logIn(olga)
	path := "/v1/admin/fabrics/" + id.String()

	shown := o.do(http.MethodGet, path, nil)
	require.Equal(t, http.StatusOK, shown.status, shown.text())
	require.Contains(t, shown.text(), `"barred":"the fabric is not secure enough for tenants: m_key_set failed"`)
	require.Contains(t, shown.text(), `"open":"the fabric does not keep tenants apart since `)
	require.Contains(t, shown.text(), `"kind":"fail_open"`)
	require.Contains(t, shown.text(), `"attempts":3`)

	asked := o.do(http.MethodPost, path+"/audits", nil)
	require.Equal(t, http.StatusAccepted, asked.status, asked.text())
	require.Equal(t, w.clock.Now().UTC().Format(time.RFC3339), asked.member("asked_at")[:19]+"Z")
	require.NotContains(t, o.do(http.MethodGet, path, nil).text(), "gave_up_at", "what was given up is tried again")
	require.Equal(t, http.StatusOK, o.do(http.MethodGet, path+"/audits", nil).status)

	dismissal := map[string]any{"port_guid": "0x0000000000000007", "reason": "unplugged"}
	dismissed := o.do(http.MethodPost, path+"/drift-dismissals", dismissal)
	require.Equal(t, http.StatusOK, dismissed.status, dismissed.text())
	require.NotContains(t, dismissed.text(), `"open"`)
	require.Contains(t, o.do(http.MethodGet, path, nil).text(), "dismissed: unplugged")
	requireProblem(t, o.do(http.MethodPost, path+"/drift-dismissals", dismissal), http.StatusNotFound, "drift-not-found")

	passed := o.do(http.MethodPost, path+"/posture-override", map[string]any{"reason": "a lab"})
	require.Equal(t, http.StatusOK, passed.status, passed.text())
	require.Equal(t, "a lab", passed.member("posture_override"))
	require.NotContains(t, passed.text(), "barred")
	ended := o.do(http.MethodPost, path+"/posture-override", map[string]any{"reason": ""})
	require.Contains(t, ended.text(), "m_key_set failed")

	kept := o.do(http.MethodPost, path+"/reserved-pkeys", map[string]any{"pkeys": []string{"0x0010", "0x0002"}})
	require.Equal(t, http.StatusOK, kept.status, kept.text())
	require.Contains(t, kept.text(), `["0x0002","0x0010"]`)
	requireProblem(t, o.do(http.MethodPost, path+"/reserved-pkeys", map[string]any{"pkeys": []string{"0x8001"}}), http.StatusUnprocessableEntity, "reserved-keys")

	named := o.do(http.MethodPost, path+"/manager-ports", map[string]any{"port_guids": []string{"0x0000000000000009"}})
	require.Equal(t, http.StatusOK, named.status, named.text())
	require.Contains(t, named.text(), `"manager_port_guids":["0x0000000000000009"]`)

	ranged := o.do(http.MethodPost, path+"/managed-pkeys", map[string]any{"low": "0x0100", "high": "0x01ff"})
	require.Equal(t, "0x0100 0x01ff", ranged.member("managed_low")+" "+ranged.member("managed_high"), ranged.text())
	requireProblem(t, o.do(http.MethodPost, path+"/managed-pkeys", map[string]any{"low": "0x0100", "high": "0x7fff"}), http.StatusUnprocessableEntity, "managed-range")

	var actions []string
	rows, err := w.database.Pool(t).Query(t.Context(), "SELECT action || ' ' || (actor LIKE 'user_%')::text FROM audit_event WHERE action LIKE 'fabric.%' ORDER BY at, id")
	require.NoError(t, err)
	for rows.Next() {
		var action string
		require.NoError(t, rows.Scan(&action))
		actions = append(actions, action)
	}
	require.NoError(t, rows.Err())
	require.Equal(t, []string{"fabric.audit_asked true", "fabric.drift_dismissed true", "fabric.posture_overridden true", "fabric.posture_overridden true", "fabric.pkeys_reserved true", "fabric.managers_named true", "fabric.range_set true"}, actions)
	requireProblem(t, w.logIn(ada).do(http.MethodPost, path+"/audits", nil), http.StatusForbidden, "operator-only")
}
