package nvme

import (
	"context"
	"errors"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Drive is one NVMe drive: its controller, and the blocks of its namespaces.
type Drive interface {
	Admin
	// Namespaces are those that the host sees.
	Namespaces() []uint32
	// Open opens a namespace's blocks. Close it.
	Open(namespace uint32) (Blocks, error)
}

// Blocks is an open namespace.
type Blocks interface {
	Medium
	Close() error
}

// pollEvery is how often a sanitize operation is looked at.
const pollEvery = time.Second

// Wipe erases the drive, reads back, and says how that came out. What could not be told is failed; a drive that cannot erase itself is
// unsupported.
func Wipe(ctx context.Context, d Drive, identity string, now func() time.Time) protocol.DeviceWipe {
	row := protocol.DeviceWipe{Kind: "nvme", Identity: identity, Capability: "unknown", StartedAt: now(), Status: protocol.WipeFailed}
	err := wipe(ctx, d, &row)
	row.FinishedAt = now()
	switch {
	case err == nil:
		row.Status = protocol.Wiped
	case errors.Is(err, ErrUnsupported):
		row.Status, row.Detail = protocol.WipeUnsupported, err.Error()
	default:
		row.Detail = err.Error()
	}
	return row
}

// errDirty says that an erasure that the controller calls done was none.
var errDirty = errors.New("what lay on the drive is still there after the erasure")

func wipe(ctx context.Context, d Drive, row *protocol.DeviceWipe) error {
	controller, err := Identify(ctx, d)
	if err != nil {
		return err
	}
	row.Capability = controller.Capability()
	if controller.Serial != "" {
		row.Identity = controller.Serial
	}
	witnesses := map[uint32]*Witness{}
	for _, n := range d.Namespaces() {
		if witnesses[n], err = watch(d, n); err != nil {
			return err
		}
	}
	if row.Method, err = Erase(ctx, d, controller, d.Namespaces(), pollEvery); err != nil {
		return err
	}
	for n, w := range witnesses {
		read, dirty, err := compare(d, n, w)
		row.ReadBackSamples += read
		row.ReadBackDirty += dirty
		if err != nil {
			return err
		}
	}
	if row.ReadBackDirty > 0 {
		return errDirty
	}
	return nil
}

func watch(d Drive, namespace uint32) (w *Witness, err error) { //nolint:nonamedreturns // closing may fail too
	blocks, err := d.Open(namespace)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, blocks.Close()) }()
	return Watch(blocks)
}

func compare(d Drive, namespace uint32, w *Witness) (read, dirty int, err error) { //nolint:nonamedreturns // likewise
	blocks, err := d.Open(namespace)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, blocks.Close()) }()
	return w.Compare(blocks)
}
