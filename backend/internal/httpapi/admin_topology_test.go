package httpapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/ids"
)

const (
	oneSwitch = "switchguid=0x100\nSwitch 4 \"leaf\"\n"
	twoTiers  = oneSwitch + "[1] \"n1\"[1]\n[3] \"spine\"[1]\nswitchguid=0x200\nSwitch 2 \"spine\"\ncaguid=0x10\nHca 1 \"n1\"\n"
)

// topologyImport is an import that was looked at before.
func (m *matrix) topologyImport(fabric string) write {
	m.t.Helper()
	path := fabric + "/topology-imports"
	seen := m.olga.do(http.MethodPost, path+"?dry_run=true", map[string]any{"source": twoTiers})
	require.Equal(m.t, http.StatusOK, seen.status, seen.text())
	return write{
		who: m.olga, path: path, body: map[string]any{"source": twoTiers, "digest": seen.member("digest")},
		other: map[string]any{"source": oneSwitch, "digest": seen.member("digest")},
	}
}

// knownPort gives the node a port.
func (w *world) knownPort(node ids.Node, guid string) {
	w.t.Helper()
	_, err := w.database.Pool(w.t).Exec(w.t.Context(), `INSERT INTO hca_port (id, node_id, device, port, node_guid, guid) VALUES ($1, $2, 'mlx5_0', 1, $3, $3)`,
		ids.Make[ids.HCAPort](), node, guid)
	require.NoError(w.t, err)
}

func TestATopologyFileIsLookedAtFirstAndAppliedAsItWasSeen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fabric := "/v1/admin/fabrics/" + w.subnet("fra1").String()
	var node ids.Node
	require.NoError(t, w.database.Pool(t).QueryRow(t.Context(), "SELECT id FROM node").Scan(&node))
	w.knownPort(node, "0x0000000000000011")
	olga, imports := w.logIn(olga), fabric+"/topology-imports"

	seen := olga.do(http.MethodPost, imports+"?dry_run=true", map[string]any{"source": twoTiers})
	require.Equal(t, http.StatusOK, seen.status, seen.text())
	require.Contains(t, seen.text(), `"applied":false`)
	require.Contains(t, seen.text(), `"after":{"port":1,"switch":"leaf"}`)
	require.Contains(t, seen.text(), `"leaf_after":"leaf"`)
	requireProblem(t, olga.do(http.MethodPost, imports, map[string]any{"source": twoTiers}), http.StatusPreconditionRequired, "precondition-required")
	requireProblem(t, olga.do(http.MethodPost, imports, map[string]any{"source": oneSwitch, "digest": seen.member("digest")}), http.StatusPreconditionFailed, "stale")
	require.NotContains(t, olga.do(http.MethodGet, fabric+"/topology", nil).text(), "leaf", "nothing was applied yet")

	applied := olga.do(http.MethodPost, imports, map[string]any{"source": twoTiers, "digest": seen.member("digest")})
	require.Equal(t, http.StatusOK, applied.status, applied.text())
	require.Contains(t, applied.text(), `"applied":true`)
	first := olga.do(http.MethodGet, fabric+"/topology?limit=1", nil)
	require.Equal(t, http.StatusOK, first.status, first.text())
	var topology struct {
		Summary map[string]int `json:"summary"`
		Items   []struct {
			Name  string           `json:"name"`
			Level int              `json:"level"`
			Pod   string           `json:"pod"`
			Links []map[string]any `json:"links"`
			Hosts []map[string]any `json:"hosts"`
		} `json:"items"`
	}
	require.NoError(t, json.Unmarshal(first.body, &topology))
	require.Equal(t, map[string]int{"switches": 2, "links": 1, "ports": 1, "unknown_ports": 0, "nodes": 1, "pods": 1}, topology.Summary)
	require.Len(t, topology.Items, 1)
	leaf := topology.Items[0]
	require.Equal(t, []any{"leaf", 1, "pod-1"}, []any{leaf.Name, leaf.Level, leaf.Pod})
	require.Equal(t, "spine", leaf.Links[0]["peer"])
	require.Equal(t, "fra1-node-0", leaf.Hosts[0]["node"])
	next := first.header.Get("Link")
	second := olga.do(http.MethodGet, next[1:len(next)-len(`>; rel="next"`)], nil)
	require.Contains(t, second.text(), `"name":"spine"`)
	require.Empty(t, second.header.Get("Link"))

	var who, after string
	require.NoError(t, w.database.Pool(t).QueryRow(t.Context(), "SELECT actor, after::text FROM audit_event WHERE action = 'fabric.topology_imported'").Scan(&who, &after))
	require.Equal(t, w.seeded[2].User.String(), who)
	require.Contains(t, after, seen.member("digest"))
}

func TestEveryDefectOfATopologyFileIsNamedWithItsLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got := w.logIn(olga).do(http.MethodPost, "/v1/admin/fabrics/"+w.subnet("fra1").String()+"/topology-imports?dry_run=true",
		map[string]any{"source": strings.Replace(twoTiers, `"spine"[1]`, `"spine"[7]`, 1) + "nonsense\n"})
	requireProblem(t, got, http.StatusUnprocessableEntity, "topology-file")
	require.Contains(t, got.text(), `{"detail":"line 9: \"nonsense\" is no line of a topology: malformed, or cut off","pointer":"/source"}`)
}

func TestAFileOfALargeClusterFitsWhereOtherBodiesDoNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	remark := strings.Repeat("# "+strings.Repeat("x", 1000)+"\n", 3000)
	body := map[string]any{"source": remark + twoTiers}
	seen := w.logIn(olga).do(http.MethodPost, "/v1/admin/fabrics/"+w.subnet("fra1").String()+"/topology-imports?dry_run=true", body)
	require.Equal(t, http.StatusOK, seen.status, seen.text())
	requireProblem(t, w.logIn(olga).do(http.MethodPost, "/v1/admin/sites", map[string]any{"name": remark}), http.StatusRequestEntityTooLarge, "too-large")
}

func TestAMovedPortOfALeasedNodeIsDecidedByAnAdmin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := w.estate(hugo, "helio1")
	w.knownPort(e.node, "0x0000000000000011")
	olga, fabric, node := w.logIn(olga), "/v1/admin/fabrics/"+e.fabric.String(), "/v1/admin/nodes/"+e.node.String()
	bring := func(source string) answer {
		seen := olga.do(http.MethodPost, fabric+"/topology-imports?dry_run=true", map[string]any{"source": source})
		require.Equal(t, http.StatusOK, seen.status, seen.text())
		done := olga.do(http.MethodPost, fabric+"/topology-imports", map[string]any{"source": source, "digest": seen.member("digest")})
		require.Equal(t, http.StatusOK, done.status, done.text())
		return done
	}
	bring(twoTiers)
	moved := bring(strings.Replace(twoTiers, "[1] \"n1\"", "[2] \"n1\"", 1))
	require.Contains(t, moved.text(), `"reviews":1`)
	require.NotContains(t, moved.text(), e.lease)
	shown := olga.do(http.MethodGet, node, nil)
	require.Contains(t, shown.text(), `"after":"leaf port 2","before":"leaf port 1"`)
	require.Contains(t, shown.text(), `"switch_port":1`)

	decide := map[string]any{"decision": "accepted"}
	requireProblem(t, w.logIn(hugo).do(http.MethodPost, node+"/changes", decide, withHeader("If-Match", shown.header.Get("ETag"))), http.StatusForbidden, "operator-only")
	settled := olga.do(http.MethodPost, node+"/changes", decide, withHeader("If-Match", shown.header.Get("ETag")))
	require.Equal(t, http.StatusOK, settled.status, settled.text())
	require.Contains(t, settled.text(), `"switch_port":2`)
	require.Contains(t, settled.text(), `"state":"accepted"`)
	var after string
	require.NoError(t, w.database.Pool(t).QueryRow(t.Context(), "SELECT after::text FROM audit_event WHERE action = 'node.changes_settled'").Scan(&after))
	require.Contains(t, after, "port 0x0000000000000011 place")
}
