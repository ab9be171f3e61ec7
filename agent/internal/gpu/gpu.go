// Package gpu is what an agent knows of its machine's GPUs and does to them, behind one small interface: a driver on NVIDIA's
// management library, and a simulator that keeps to the same placement rules.
package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/leasehold/leasehold/agent/protocol"
)

// SlotsPerBay is how many slots of a node's slot line one GPU has: its memory slices.
const SlotsPerBay = 8

// Errors of drivers.
var (
	// ErrNoDriver says that this machine has no GPU driver. An agent starts all the same.
	ErrNoDriver = errors.New("no GPU driver")
	// ErrUnsupported says that the device or its driver cannot do what was asked.
	ErrUnsupported = errors.New("not supported by this GPU or its driver")
	// ErrNotFound says that there is no such GPU or instance.
	ErrNotFound = errors.New("no such GPU")
	// ErrPlacement says that a MIG instance cannot lie where it was asked for.
	ErrPlacement = errors.New("MIG placement refused")
)

// Driver is a kind of GPU driver. It is safe for concurrent use.
type Driver interface {
	// Version is the driver's, "" without one.
	Version() string
	// Devices lists the GPUs that are there now, by PCI address. A GPU that fell off the bus is not among them.
	Devices(ctx context.Context) ([]protocol.GPU, error)
	// Health lists what is the matter now.
	Health(ctx context.Context) ([]protocol.Condition, error)
	// Samples reads each GPU's meters once.
	Samples(ctx context.Context) ([]protocol.Sample, error)
	// Instances lists a GPU's MIG instances by start. ErrNotFound.
	Instances(ctx context.Context, uuid string) ([]Instance, error)
	// CreateInstance makes a MIG instance at a memory slice; one that is there already just so is returned as it is.
	// ErrNotFound, ErrUnsupported, ErrPlacement.
	CreateInstance(ctx context.Context, uuid, profile string, start int) (Instance, error)
	// DestroyInstance removes the MIG instance that begins at a memory slice; none there is no error. ErrNotFound.
	DestroyInstance(ctx context.Context, uuid string, start int) error
	// WipeMemory overwrites the memory slices [from, to) of a GPU and reads samples back. What cannot be done is said in the
	// result's status, unsupported or failed. ErrNotFound.
	WipeMemory(ctx context.Context, uuid string, slices protocol.Slots) (protocol.DeviceWipe, error)
}

// Instance is one MIG instance. Start and Width count memory slices.
type Instance struct {
	UUID    string `json:"uuid"`
	Profile string `json:"profile"`
	Start   int    `json:"start"`
	Width   int    `json:"width"`
}

func (i Instance) slots() protocol.Slots {
	return protocol.Slots{From: i.Start, To: i.Start + i.Width}
}

// Bay is a GPU with its place in the machine.
type Bay struct {
	Index int
	GPU   protocol.GPU
	// Slices is which of its memory slices the range that was asked for covers.
	Slices protocol.Slots
}

// Bays returns the GPUs that a range of slots covers. Bays are numbered by PCI address among the GPUs in devices, so devices must
// be complete: with one missing, every later GPU would answer to its neighbour's number.
func Bays(devices []protocol.GPU, slots protocol.Slots) ([]Bay, error) {
	sorted := SortByPCI(devices)
	var bays []Bay
	for index := slots.From / SlotsPerBay; index*SlotsPerBay < slots.To; index++ {
		if index >= len(sorted) {
			return nil, fmt.Errorf("slots [%d, %d) reach bay %d and there are %d GPUs: %w", slots.From, slots.To, index, len(sorted), ErrNotFound)
		}
		bays = append(bays, Bay{Index: index, GPU: sorted[index], Slices: protocol.Slots{
			From: max(slots.From-index*SlotsPerBay, 0), To: min(slots.To-index*SlotsPerBay, SlotsPerBay),
		}})
	}
	return bays, nil
}

// SortByPCI returns the GPUs in the order of their bays. Addresses are fixed-width lower-case hex, so text order is bus order.
func SortByPCI(devices []protocol.GPU) []protocol.GPU {
	return slices.SortedFunc(slices.Values(devices), func(a, b protocol.GPU) int { return cmp.Compare(a.PCIAddress, b.PCIAddress) })
}
