// Package rdma is what an agent knows of its machine's InfiniBand adapters: as the kernel shows them under
// /sys/class/infiniband, or simulated.
package rdma

import (
	"context"
	"errors"

	"github.com/leasehold/leasehold/agent/protocol"
)

// ErrNotFound says that no adapter of this machine has such a port.
var ErrNotFound = errors.New("no such port on this machine")

// Driver reads a machine's adapters. It is safe for concurrent use.
type Driver interface {
	// Inventory lists the adapters by device name.
	Inventory(ctx context.Context) ([]protocol.HCA, error)
	// PKeys reads a port's own P_Key table. What cannot be read is unknown: Readable false with the reason in Detail, and no
	// error. ErrNotFound.
	PKeys(ctx context.Context, port protocol.GUID) (protocol.PortTable, error)
	// Health lists what is the matter now.
	Health(ctx context.Context) ([]protocol.Condition, error)
	// Samples reads each port's meters once.
	Samples(ctx context.Context) ([]protocol.Sample, error)
}

// trim cuts the zeros off a table's end.
func trim(keys []protocol.PKey) []protocol.PKey {
	for len(keys) > 0 && keys[len(keys)-1] == 0 {
		keys = keys[:len(keys)-1]
	}
	return keys
}
