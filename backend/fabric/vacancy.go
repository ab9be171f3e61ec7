package fabric

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
)

// Vacancy returns what speaks against a node's own reading of ports on the fabric, given the order and the answer as they came: "" when
// it shows that none of the ports that were asked for holds a key of ours. A port that was not read is no vacant one.
//
// It returns a NotFound fault.
func (s *Service) Vacancy(ctx context.Context, id ids.Fabric) (func(node ids.Node, order, answer json.RawMessage) string, error) {
	var ours bounds
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		subnet, err := s.Partitions.Subnet(ctx, id)
		ours = subnet.bounds()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read what is ours: %w", err)
	}
	return ours.occupied, nil
}

// occupied says which of the ports that were to be read is not seen to be empty of our keys.
func (b bounds) occupied(node ids.Node, order, answer json.RawMessage) string {
	var asked protocol.ObservePKeysSpec
	var seen protocol.PKeyObservation
	if json.Unmarshal(order, &asked) != nil || json.Unmarshal(answer, &seen) != nil {
		return "the node's reading cannot be read"
	}
	if seen.NodeID != node.String() || asked.Nonce == "" || seen.Nonce != asked.Nonce {
		return "the node's reading is about something else"
	}
	tables := map[protocol.GUID]protocol.PortTable{}
	for _, table := range seen.Ports {
		tables[table.GUID] = table
	}
	for _, guid := range asked.PortGUIDs {
		table, read := tables[guid]
		if !read {
			return fmt.Sprintf("port %s was not read", guid)
		}
		if found := b.empty(table); found.verdict != protocol.True {
			return fmt.Sprintf("port %s %s", guid, found.detail)
		}
	}
	return ""
}
