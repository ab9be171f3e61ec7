package fabric

import (
	"context"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Source is a subnet as its agent reports it. It implements uplink.Source.
type Source struct{ Driver Driver }

// Inventory reports controller, topology and posture.
func (s Source) Inventory(ctx context.Context) (protocol.Inventory, error) {
	report, err := Inventory(ctx, s.Driver)
	return protocol.Inventory{Fabric: &report}, err
}

// Health has no conditions and no meters of its own: what is the matter with a subnet is in its posture and its audits.
func (Source) Health(context.Context) ([]protocol.Condition, []protocol.Sample, error) {
	return nil, nil, nil
}
