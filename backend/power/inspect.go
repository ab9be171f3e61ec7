package power

import (
	"context"
	"fmt"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
)

// Inspection is what a machine's BMC says of it now. What the BMC does not have is missing.
type Inspection struct {
	Name     string   `json:"name"`
	Stage    Stage    `json:"stage"`
	System   System   `json:"system"`
	Console  *Console `json:"console,omitempty"`
	Chassis  []Part   `json:"chassis,omitempty"`
	Firmware []Part   `json:"firmware,omitempty"`
	Events   []Event  `json:"events,omitempty"`
}

// inspectedEvents is how many entries of the event log are shown.
const inspectedEvents = 25

// Inspect asks a machine's BMC. It returns a NotFound fault, and a Controller's faults.
func (s *Service) Inspect(ctx context.Context, node ids.Node) (Inspection, error) {
	var m Machine
	err := s.within(ctx, "inspect machine", func(ctx context.Context) error {
		var err error
		m, err = s.Machines.Machine(ctx, node)
		return err
	})
	if err != nil {
		return Inspection{}, err
	}
	c, err := s.dial(ctx, m)
	if err != nil {
		return Inspection{}, fmt.Errorf("inspect machine: %w", err)
	}
	defer s.hangUp(ctx, c)
	found := Inspection{Name: m.Name, Stage: m.Stage}
	if found.System, err = c.System(ctx); err != nil {
		return Inspection{}, fmt.Errorf("inspect machine: %w", err)
	}
	console, err := c.Console(ctx)
	if err == nil {
		found.Console = &console
	}
	for _, read := range []func() error{
		func() (err error) { found.Chassis, err = c.Chassis(ctx); return err },
		func() (err error) { found.Firmware, err = c.Firmware(ctx); return err },
		func() (err error) { found.Events, err = c.Events(ctx, inspectedEvents); return err },
	} {
		if err := read(); err != nil && !fault.Is(err, fault.Invalid) {
			return found, fmt.Errorf("inspect machine: %w", err)
		}
	}
	return found, nil
}
