package node

import (
	"context"
	"fmt"

	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

// observePKeys is the second witness: what this host's own adapters say. A port that cannot be read, or is not this host's, is
// reported as unreadable and never left out.
func (n *Node) observePKeys(ctx context.Context, op protocol.Operation, progress step) (operation.Outcome, error) {
	var spec protocol.ObservePKeysSpec
	if err := decode(op, &spec); err != nil {
		return operation.Outcome{}, err
	}
	progress(10, "reading")
	observation := protocol.PKeyObservation{NodeID: n.cfg.NodeID(), Nonce: spec.Nonce, ObservedAt: n.cfg.Now(), Ports: []protocol.PortTable{}}
	for _, guid := range spec.PortGUIDs {
		table, err := n.cfg.RDMA.PKeys(ctx, guid)
		if ctx.Err() != nil {
			return operation.Outcome{}, fmt.Errorf("observe P_Keys: %w", ctx.Err())
		}
		if err != nil {
			table = protocol.PortTable{GUID: guid, Keys: []protocol.PKey{}, Source: table.Source, Detail: err.Error()}
		}
		if table.Keys == nil {
			table.Keys = []protocol.PKey{}
		}
		observation.Ports = append(observation.Ports, table)
	}
	return operation.Outcome{Evidence: observation, PayloadType: protocol.PayloadPKeyObservation}, nil
}
