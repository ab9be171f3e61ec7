//go:build cgo

// Package nvidia drives NVIDIA's GPUs through their management library, NVML. It needs cgo; without it, without the library or
// without a driver it says so and the agent starts all the same.
package nvidia

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/leasehold/leasehold/agent/internal/gpu"
	"github.com/leasehold/leasehold/agent/protocol"
)

// Open loads NVIDIA's management library. Without it, or without a driver beneath it, the answer is Absent: after a failed
// Init any other call would end the process, so that none is ever made.
func Open(now func() time.Time) gpu.Driver { return open(nvml.New(), now) }

func open(lib nvml.Interface, now func() time.Time) gpu.Driver {
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return gpu.Absent{Reason: "NVML: " + initFailure(ret), Since: now()}
	}
	version, _ := lib.SystemGetDriverVersion()
	return &NVML{lib: lib, version: version, now: now, known: map[string]protocol.GPU{}, onset: map[string]time.Time{}}
}

// initFailure words what Init returned. The library's own wording cannot be asked for: it may not be there.
func initFailure(ret nvml.Return) string {
	switch ret { //nolint:exhaustive // the others are told by number
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return "the library is not installed"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "the kernel driver is not loaded"
	case nvml.ERROR_NO_PERMISSION:
		return "no permission to talk to the driver"
	default:
		return fmt.Sprintf("initialization failed with code %d", int(ret))
	}
}

// NVML drives NVIDIA's cards through their management library.
type NVML struct {
	lib     nvml.Interface
	version string
	now     func() time.Time

	mu    sync.Mutex
	known map[string]protocol.GPU // every GPU that was ever seen, by UUID
	onset map[string]time.Time    // of the conditions that hold, by name and device
}

// failed turns a code into an error.
func failed(what string, ret nvml.Return) error {
	switch ret { //nolint:exhaustive // the others have no meaning of their own here
	case nvml.ERROR_NOT_SUPPORTED:
		return fmt.Errorf("%s: %w", what, gpu.ErrUnsupported)
	case nvml.ERROR_NOT_FOUND, nvml.ERROR_GPU_IS_LOST:
		return fmt.Errorf("%s: code %d: %w", what, int(ret), gpu.ErrNotFound)
	default:
		return fmt.Errorf("%s: NVML code %d", what, int(ret))
	}
}

// Version implements Driver.
func (n *NVML) Version() string { return n.version }

// Devices implements Driver.
func (n *NVML) Devices(context.Context) ([]protocol.GPU, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	handles, err := n.handles()
	if err != nil {
		return nil, err
	}
	gpus := make([]protocol.GPU, 0, len(handles))
	for _, h := range handles {
		gpus = append(gpus, h.card)
	}
	return gpu.SortByPCI(gpus), nil
}

// handle is a GPU that answers.
type handle struct {
	nvml.Device

	card protocol.GPU
}

// handles lists the GPUs that answer. One that does not is left out here, and missed by Health.
func (n *NVML) handles() ([]handle, error) {
	count, ret := n.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, failed("count GPUs", ret)
	}
	var handles []handle
	for i := range count {
		device, ret := n.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		g, ok := describe(device)
		if !ok {
			continue
		}
		n.known[g.UUID] = g
		handles = append(handles, handle{Device: device, card: g})
	}
	return handles, nil
}

// describe reads what does not change. A GPU without a UUID or an address cannot be told from others and is not there for us.
func describe(d nvml.Device) (protocol.GPU, bool) {
	uuid, ret := d.GetUUID()
	if ret != nvml.SUCCESS {
		return protocol.GPU{}, false
	}
	pci, ret := d.GetPciInfo()
	if ret != nvml.SUCCESS {
		return protocol.GPU{}, false
	}
	g := protocol.GPU{UUID: uuid, Vendor: "nvidia", PCIAddress: pciAddress(pci), NUMANode: -1}
	g.Model = optional(d.GetName())
	g.Serial = optional(d.GetSerial())
	g.VBIOS = optional(d.GetVbiosVersion())
	if memory, ret := d.GetMemoryInfo(); ret == nvml.SUCCESS {
		g.MemoryBytes = int64(memory.Total) //nolint:gosec // no card has 8 EiB
	}
	if current, _, ret := d.GetMigMode(); ret == nvml.SUCCESS {
		g.MIGCapable, g.MIGEnabled = true, current == nvml.DEVICE_MIG_ENABLE
	}
	if node, ret := d.GetNumaNodeId(); ret == nvml.SUCCESS {
		g.NUMANode = node
	}
	return g, true
}

func optional(value string, ret nvml.Return) string {
	if ret != nvml.SUCCESS {
		return ""
	}
	return value
}

// pciAddress writes domain:bus:device.function as the kernel does; NVML's own string has eight digits of domain.
func pciAddress(p nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", p.Domain, p.Bus, p.Device)
}

func (n *NVML) find(uuid string) (handle, error) {
	handles, err := n.handles()
	if err != nil {
		return handle{}, err
	}
	for _, h := range handles {
		if h.card.UUID == uuid {
			return h, nil
		}
	}
	return handle{}, fmt.Errorf("GPU %s: %w", uuid, gpu.ErrNotFound)
}

// WipeMemory implements Driver. NVML cannot write a card's memory: it says so, and unsupported is not clean.
func (n *NVML) WipeMemory(_ context.Context, uuid string, _ protocol.Slots) (protocol.DeviceWipe, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, err := n.find(uuid); err != nil {
		return protocol.DeviceWipe{}, err
	}
	return protocol.DeviceWipe{
		Kind: "gpu_memory", Identity: uuid, Capability: "none through NVML", Method: "none", Status: protocol.WipeUnsupported,
		Detail: "overwriting GPU memory needs a compute runtime, which this agent does not have", StartedAt: n.now(), FinishedAt: n.now(),
	}, nil
}

// Samples implements Driver. A meter that a card does not have is left out.
func (n *NVML) Samples(context.Context) ([]protocol.Sample, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	handles, err := n.handles()
	if err != nil {
		return nil, err
	}
	samples := make([]protocol.Sample, 0, len(handles))
	for _, h := range handles {
		samples = append(samples, protocol.Sample{At: n.now(), Device: h.card.UUID, Values: meters(h)})
	}
	return samples, nil
}

func meters(h handle) map[string]float64 {
	values := map[string]float64{}
	if u, ret := h.GetUtilizationRates(); ret == nvml.SUCCESS {
		values["gpu_utilization_percent"] = float64(u.Gpu)
	}
	if m, ret := h.GetMemoryInfo(); ret == nvml.SUCCESS {
		values["gpu_memory_used_bytes"] = float64(m.Used)
	}
	if milliwatts, ret := h.GetPowerUsage(); ret == nvml.SUCCESS {
		values["gpu_power_watts"] = float64(milliwatts) / 1000
	}
	if celsius, ret := h.GetTemperature(nvml.TEMPERATURE_GPU); ret == nvml.SUCCESS {
		values["gpu_temperature_celsius"] = float64(celsius)
	}
	if mhz, ret := h.GetClockInfo(nvml.CLOCK_SM); ret == nvml.SUCCESS {
		values["gpu_sm_clock_mhz"] = float64(mhz)
	}
	return values
}

// Health implements Driver.
func (n *NVML) Health(context.Context) ([]protocol.Condition, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	handles, err := n.handles()
	if err != nil {
		return nil, err
	}
	var conditions []protocol.Condition
	for _, h := range handles {
		conditions = append(conditions, ailments(h)...)
	}
	for uuid, g := range n.known {
		if !slices.ContainsFunc(handles, func(h handle) bool { return h.card.UUID == uuid }) {
			conditions = append(conditions, protocol.Condition{
				Name: "gpu-missing", Device: uuid, Class: protocol.PreventsAllocation, Exit: "reboot", Evidence: "was at " + g.PCIAddress + " and does not answer",
			})
		}
	}
	return n.dated(conditions), nil
}

// dated gives each condition the instant since when it holds, and forgets those that are over.
func (n *NVML) dated(conditions []protocol.Condition) []protocol.Condition {
	onset := map[string]time.Time{}
	for i, c := range conditions {
		key := c.Name + " " + c.Device
		onset[key] = n.now()
		if since, before := n.onset[key]; before {
			onset[key] = since
		}
		conditions[i].Onset = onset[key]
	}
	n.onset = onset
	slices.SortFunc(conditions, func(a, b protocol.Condition) int { return a.Onset.Compare(b.Onset) })
	return conditions
}

// ailments is what a card that answers says of itself.
func ailments(h handle) []protocol.Condition {
	var found []protocol.Condition
	add := func(name, exit, evidence string, class protocol.ConditionClass) {
		found = append(found, protocol.Condition{Name: name, Device: h.card.UUID, Class: class, Exit: exit, Evidence: evidence})
	}
	if errors, ret := h.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); ret == nvml.SUCCESS && errors > 0 {
		add("gpu-ecc-uncorrectable", "reset", fmt.Sprintf("%d uncorrectable volatile ECC errors", errors), protocol.PreventsAllocation)
	}
	if _, _, pending, failure, ret := h.GetRemappedRows(); ret == nvml.SUCCESS {
		if failure {
			add("gpu-row-remap-failed", "repair", "a row could not be remapped", protocol.PreventsAllocation)
		}
		if pending {
			add("gpu-row-remap-pending", "reset", "a row waits to be remapped", protocol.PreventsAllocation)
		}
	}
	return found
}
