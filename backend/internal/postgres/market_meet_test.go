package postgres_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/inventory"
)

// A whole site that started at once was seen to stay in verification for ever, in one of three starts: node and fabric each looked
// before the other had committed.
func TestReportsOfNodesAndTheirFabricThatComeAtOnceSeeEachOther(t *testing.T) {
	t.Parallel()
	const rounds, machines = 5, 6
	s, ctx := newStock(t), t.Context()
	var bases []protocol.GUID
	for round := range rounds {
		var nodes []ids.Node
		first := len(bases)
		for i := range machines {
			bases = append(bases, protocol.GUID(0x1000*(first+i+1)))
			node, err := s.inventory.AddNode(ctx, s.Site, fmt.Sprintf("h100-%d-%d", round, i), "S")
			require.NoError(t, err)
			nodes = append(nodes, node.ID)
		}
		var wait sync.WaitGroup
		start, errs := make(chan struct{}), make([]error, machines+1)
		for i, node := range nodes {
			report := machine(bases[first+i])
			wait.Go(func() {
				<-start
				_, errs[i] = s.inventory.ReportNode(ctx, node, report)
			})
		}
		wait.Go(func() {
			<-start
			errs[machines] = s.inventory.ReportFabric(ctx, s.Fabric, subnet(bases...))
		})
		close(start)
		wait.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		for _, node := range nodes {
			detail, err := s.inventory.Node(ctx, node)
			require.NoError(t, err)
			require.Equal(t, inventory.Available, detail.Node.State, detail.Node.StateReason)
		}
	}
}
