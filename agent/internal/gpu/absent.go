package gpu

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Absent stands for a machine without a GPU driver. It says so in its health and has no devices.
type Absent struct {
	Reason string
	Since  time.Time
}

// Version implements Driver.
func (Absent) Version() string { return "" }

// Devices implements Driver.
func (Absent) Devices(context.Context) ([]protocol.GPU, error) { return nil, nil }

// Health implements Driver. A machine may have no GPU at all, so this only informs: what should be there and is not is for whoever
// knows the inventory to say.
func (a Absent) Health(context.Context) ([]protocol.Condition, error) {
	return []protocol.Condition{{Name: "gpu-driver-absent", Class: protocol.Informs, Onset: a.Since, Evidence: a.Reason, Exit: "clears_itself"}}, nil
}

// Samples implements Driver.
func (Absent) Samples(context.Context) ([]protocol.Sample, error) { return nil, nil }

// Instances implements Driver.
func (a Absent) Instances(_ context.Context, uuid string) ([]Instance, error) { return nil, a.no(uuid) }

// CreateInstance implements Driver.
func (a Absent) CreateInstance(_ context.Context, uuid, _ string, _ int) (Instance, error) {
	return Instance{}, a.no(uuid)
}

// DestroyInstance implements Driver.
func (a Absent) DestroyInstance(_ context.Context, uuid string, _ int) error { return a.no(uuid) }

// WipeMemory implements Driver.
func (a Absent) WipeMemory(_ context.Context, uuid string, _ protocol.Slots) (protocol.DeviceWipe, error) {
	return protocol.DeviceWipe{}, a.no(uuid)
}

func (a Absent) no(uuid string) error {
	return fmt.Errorf("GPU %s: %s: %w", uuid, a.Reason, ErrNoDriver)
}
