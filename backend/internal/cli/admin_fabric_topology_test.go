package cli

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/backend/client"
)

func TestATopologyIsATreeOfPods(t *testing.T) {
	t.Parallel()
	node, device, rail := "n1", "mlx5_3", 3
	up := []client.TopologyLink{{Port: 33, Peer: "spine-2"}, {Port: 34, Peer: "spine-1"}, {Port: 35, Peer: "spine-2"}}
	var out bytes.Buffer
	describeTopology(&out, &client.FabricTopology{
		Fabric: "ib0", Site: "fra1", Summary: client.TopologySummary{Switches: 4, Links: 3, Pods: 2, Nodes: 1, Ports: 3, UnknownPorts: 2},
		Items: []client.TopologySwitch{
			{Name: "leaf-b", Level: 1, Pod: "pod-2", Ports: 64},
			{Name: "leaf-a", Level: 1, Pod: "pod-1", Ports: 64, Links: up, Hosts: []client.TopologyHost{
				{Port: 1, GUID: "0x1", Node: &node, Device: &device, Rail: &rail, RateGbps: 400},
				{Port: 2, GUID: "0x2", Description: "store-1 mlx5_0"},
				{Port: 3, GUID: "0x3", Node: &node, Device: &device, Rail: &rail, Absent: true},
				{Port: 65, GUID: "0x4", Aggregation: true},
			}},
			{Name: "lost", Ports: 2},
			{Name: "spine-1", Level: 2, Ports: 64},
		},
	})
	require.Equal(t, `Fabric ib0 at fra1: 4 switches with 3 links, 2 pods, 1 nodes; 3 adapter ports, 2 of them of no node
pod-1
├─ leaf-a	leaf	7 of 64 ports	↔ spine-1 ×1, spine-2 ×2
│      1	n1 mlx5_3 rail 3	400 Gbit/s	0x1
│      2	(of no node) store-1 mlx5_0		0x2
│      3	n1 mlx5_3 rail 3 (not seen by the manager)		0x3
│     65	(aggregation node)		0x4
pod-2
├─ leaf-b	leaf	0 of 64 ports	
above the pods
├─ spine-1	spine	0 of 64 ports	
without a way to any host
├─ lost	level unknown	0 of 2 ports	
`, out.String())
}

func TestAnImportSaysWhatWouldChangeAndHowToApplyIt(t *testing.T) {
	t.Parallel()
	here, elsewhere := client.SwitchPort{Switch: "leaf-a", Port: 1}, "ib9"
	look := &client.TopologyImport{
		Format: "netlist", Digest: "sha256:0", Warnings: []string{"2 ports are on another fabric by inventory"},
		Seen:   client.TopologySeen{Switches: 3, Links: 2, Hcas: 4, AggregationNodes: 1, Routers: 1, HostPorts: 3, KnownPorts: 2},
		Counts: client.TopologyCounts{Switches: 50, Links: 1, Ports: 2, Reviews: 1, Nodes: 1, Strangers: 1, Missing: 1},
		Switches: []client.SwitchDifference{
			{Kind: "added", Name: "leaf-a", GUID: "0x1"},
			{Kind: "removed", Name: "leaf-b", GUID: "0x2", PortsLeft: 3},
			{Kind: "changed", Name: "leaf-c", GUID: "0x3", What: []string{"level: 0 becomes 1"}},
		},
		Links: []client.LinkDifference{{Kind: "changed", From: here, To: client.SwitchPort{Switch: "spine", Port: 9}, RateBeforeGbps: 400, RateAfterGbps: 200}},
		Ports: []client.PortDifference{
			{GUID: "0x5", Node: "n1", Device: "mlx5_0", After: here, FabricBefore: &elsewhere}, {GUID: "0x6", Node: "n2", Device: "mlx5_1", Before: &here, After: here, Review: true},
		},
		Nodes:     []client.NodeDifference{{Node: "n1", LeafAfter: "leaf-a", PodAfter: "pod-1"}},
		Strangers: []client.UnknownPort{{GUID: "0x7", Description: "store mlx5_0", At: &here}}, Missing: []client.MissingPort{{GUID: "0x8", Node: "n3", Device: "mlx5_7", At: &here}},
	}
	var out bytes.Buffer
	describeImport(&out, look, []string{"ib0", "f.txt"})
	require.Equal(t, `netlist: 3 switches, 2 links between them, 4 adapters (1 aggregation nodes), 1 routers; 3 host ports, 2 of nodes that are known
! 2 ports are on another fabric by inventory
+ switch leaf-a (0x1)
- switch leaf-b (0x2): stays, 3 ports of inventory hang on it
~ switch leaf-c (0x3): level: 0 becomes 1
… and 47 more switches
~ link leaf-a port 1 – spine port 9: 400 becomes 200 Gbit/s
~ port n1 mlx5_0 (0x5): nowhere → leaf-a port 1, from fabric ib9
~ port n2 mlx5_1 (0x6): leaf-a port 1 → leaf-a port 1; NOT APPLIED: the node is leased, review its change
~ node n1: leaf – → leaf-a, pod – → pod-1
? port 0x7 (of no node) at leaf-a port 1: store mlx5_0
? port n3 mlx5_7 (0x8) at leaf-a port 1 by inventory is not in the file
Nothing was changed. To apply just this: leasehold admin fabric import ib0 f.txt --apply --digest sha256:0
`, out.String())
	look.Applied = true
	out.Reset()
	describeImport(&out, look, nil)
	require.Contains(t, out.String(), "Applied. 1 moves wait for a review: leasehold admin node review NODE accept\n")
}

// The server's wish decides what a command asks for: a look never applies, an application never goes without a digest.
func TestAnImportIsAppliedByTheDigestOfALook(t *testing.T) { //nolint:paralleltest // the environment is the process's
	file := filepath.Join(t.TempDir(), "f.txt")
	require.NoError(t, os.WriteFile(file, []byte("bytes \xff of a description\n"), 0o600))
	for flags, want := range map[string][]string{
		"":                          {`?dry_run=true {"source":"bytes ? of a description\n"}`},
		"--apply":                   {`?dry_run=true {"source":"bytes ? of a description\n"}`, `?dry_run=false {"digest":"sha256:a","source":"bytes ? of a description\n"}`},
		"--apply --digest sha256:b": {`?dry_run=false {"digest":"sha256:b","source":"bytes ? of a description\n"}`},
	} {
		var asked []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var body bytes.Buffer
			_, _ = body.ReadFrom(r.Body)
			asked = append(asked, "?"+r.URL.RawQuery+" "+strings.TrimSpace(body.String()))
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"digest": "sha256:a"}`)
		}))
		_, _, err := run(t, server.URL, append([]string{"admin", "fabric", "import", "fabric_1", file}, strings.Fields(flags)...)...)
		server.Close()
		require.NoError(t, err)
		require.Equal(t, want, asked, flags)
	}
}
