package opensm_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/internal/fabric"
	"github.com/leasehold/leasehold/agent/internal/fabric/opensm"
	"github.com/leasehold/leasehold/agent/internal/ibsim"
	"github.com/leasehold/leasehold/agent/internal/ibsim/ibsimtest"
	"github.com/leasehold/leasehold/agent/protocol"
)

// BenchmarkAudit reads both ends of all 1,024 HCA ports, and tells how many times longer infiniband-diags' smpquery takes for one
// end of one port than the audit does.
func BenchmarkAudit(b *testing.B) {
	if _, err := ibsim.FindTools(ibsimtest.Prefixes()...); err != nil {
		b.Skip(err)
	}
	topology := ibsimtest.FatTree(128, 8)
	s, err := opensm.Simulate(b.Context(), topology, b.TempDir(), ibsimtest.Prefixes()...)
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close()) }()
	ports := make([]protocol.GUID, 0, len(topology.Ports))
	for _, port := range topology.Ports {
		ports = append(ports, port.GUID)
	}
	b.ReportAllocs()
	for b.Loop() {
		links, err := s.Observe(b.Context(), ports)
		require.NoError(b, err)
		require.True(b, links[0].HCA.Readable)
	}
	perEnd := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / float64(2*len(ports))
	b.ReportMetric(perEnd, "ns/table")
	b.ReportMetric(float64(smpqueryTime(b, s, ports[0]).Nanoseconds())/perEnd, "smpquery/table")
}

// BenchmarkAuditOfACluster is a fabric agent's whole audit of nodes with 8 HCAs each and of their switch ports: the walk, both ends' tables,
// path queries, and the evidence; and how many times longer one smpquery for each HCA port would take.
func BenchmarkAuditOfACluster(b *testing.B) {
	for _, nodes := range []int{512, 1024} {
		b.Run(fmt.Sprintf("%d-HCAs", 8*nodes), func(b *testing.B) { auditCluster(b, nodes) })
	}
}

func auditCluster(b *testing.B, nodes int) {
	b.Helper()
	if _, err := ibsim.FindTools(ibsimtest.Prefixes()...); err != nil {
		b.Skip(err)
	}
	topology := ibsimtest.Cluster(nodes, 8, 36) // of a spine's 254 ports, 232 are used by 1,024 nodes
	s, err := opensm.Simulate(b.Context(), topology, b.TempDir(), ibsimtest.Prefixes()...)
	require.NoError(b, err)
	defer func() { require.NoError(b, s.Close()) }()
	var tenants []protocol.Partition
	for i := range nodes / 8 { // of 8 nodes each
		p := tenant(protocol.PKey(i+1), fmt.Sprintf("lease-%d", i))
		for _, port := range topology.Ports[i*64 : (i+1)*64] {
			p.Members = append(p.Members, port.GUID)
		}
		tenants = append(tenants, p)
	}
	began := time.Now() //nolint:forbidigo // a benchmark measures time
	_, err = s.Apply(b.Context(), set(tenants...), 1)
	require.NoError(b, err)
	b.Logf("%d leases that begin together: %v", len(tenants), time.Since(began).Round(time.Millisecond))
	handlers := fabric.Handlers(fabric.HandlerConfig{Driver: s, FabricID: "f", Now: time.Now}) //nolint:forbidigo // likewise
	spec := protocol.Raw(`{"nonce": "n", "ports": []}`)
	var evidence []byte
	for b.Loop() {
		outcome, err := handlers[protocol.ObserveFabric].Handle(b.Context(), protocol.Operation{Kind: protocol.ObserveFabric, Spec: spec}, func(int, string) {})
		require.NoError(b, err)
		seen, ok := outcome.Evidence.(protocol.FabricObservation)
		require.True(b, ok && seen.Converged && len(seen.Ports) == len(topology.Ports))
		evidence, err = json.Marshal(seen)
		require.NoError(b, err)
	}
	b.ReportMetric(float64(len(evidence)), "evidence-bytes")
	each := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
	b.ReportMetric(float64(smpqueryTime(b, s, topology.Ports[0].GUID).Nanoseconds())*float64(len(topology.Ports))/each, "x-smpquery-per-port")
}

// smpqueryTime is what one smpquery takes, the mean of a few.
func smpqueryTime(b *testing.B, s *opensm.Simulated, port protocol.GUID) time.Duration {
	b.Helper()
	const times = 10
	began := time.Now() //nolint:forbidigo // a benchmark measures time
	for range times {
		cmd, err := s.Subnet.Command(b.Context(), s.Subnet.ManagerPort(), "smpquery", "-G", "pkeys", port.String())
		require.NoError(b, err)
		out, err := cmd.CombinedOutput()
		require.NoError(b, err, "%s", out)
	}
	return time.Since(began) / times
}
