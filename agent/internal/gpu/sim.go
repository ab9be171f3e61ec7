package gpu

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/leasehold/leasehold/agent/internal/durable"
	"github.com/leasehold/leasehold/agent/protocol"
)

// SimConfig is what a simulated set of GPUs is made of.
type SimConfig struct {
	GPUs    []protocol.GPU
	Version string // of the driver
	// StateFile keeps MIG layouts and what lies in the GPUs' memory, which outlive the agent's process as they do on a machine.
	// "" keeps them in memory only.
	StateFile string
	Now       func() time.Time
}

// Sim is a set of simulated GPUs.
type Sim struct {
	cfg SimConfig

	mu     sync.Mutex
	state  map[string]*card // by UUID
	faults map[string]*cardFault
	noise  *rand.Rand
}

// card is what a GPU holds.
type card struct {
	Instances []Instance          `json:"instances"`
	Memory    [SlotsPerBay]string `json:"memory"` // the lease whose data lies in each memory slice
	Busy      [SlotsPerBay]bool   `json:"busy"`
}

// cardFault is what is wrong with a GPU.
type cardFault struct {
	lost, ecc time.Time // onset; zero: not so
	wipeFails bool
}

// samplesPerSlice is how many places of each memory slice a wipe reads back.
const samplesPerSlice = 64

// NewSim returns the GPUs as the state file left them.
func NewSim(cfg SimConfig) (*Sim, error) {
	s := &Sim{cfg: cfg, state: map[string]*card{}, faults: map[string]*cardFault{}, noise: rand.New(rand.NewPCG(uint64(len(cfg.GPUs)), seed(cfg.GPUs)))} //nolint:gosec // meters need no secrecy
	s.cfg.GPUs = SortByPCI(cfg.GPUs)
	if cfg.StateFile != "" {
		if _, err := durable.ReadJSON(cfg.StateFile, &s.state); err != nil {
			return nil, fmt.Errorf("open simulated GPUs: %w", err)
		}
	}
	for _, g := range s.cfg.GPUs {
		if s.state[g.UUID] == nil {
			s.state[g.UUID] = &card{}
		}
		s.faults[g.UUID] = &cardFault{}
	}
	return s, nil
}

func seed(gpus []protocol.GPU) uint64 {
	var h uint64 = 14695981039346656037
	for _, g := range gpus {
		for _, b := range []byte(g.UUID) {
			h = (h ^ uint64(b)) * 1099511628211
		}
	}
	return h
}

func (s *Sim) save() error {
	if s.cfg.StateFile == "" {
		return nil
	}
	if err := durable.WriteJSON(s.cfg.StateFile, s.state, 0o600); err != nil {
		return fmt.Errorf("keep simulated GPUs: %w", err)
	}
	return nil
}

// Version implements Driver.
func (s *Sim) Version() string { return s.cfg.Version }

// Devices implements Driver.
func (s *Sim) Devices(context.Context) ([]protocol.GPU, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	present := make([]protocol.GPU, 0, len(s.cfg.GPUs))
	for _, g := range s.cfg.GPUs {
		if s.faults[g.UUID].lost.IsZero() {
			present = append(present, g)
		}
	}
	return present, nil
}

// device returns a GPU that is there, with its state.
func (s *Sim) device(uuid string) (protocol.GPU, *card, error) {
	for _, g := range s.cfg.GPUs {
		if g.UUID == uuid && s.faults[uuid].lost.IsZero() {
			return g, s.state[uuid], nil
		}
	}
	return protocol.GPU{}, nil, fmt.Errorf("GPU %s: %w", uuid, ErrNotFound)
}

// Instances implements Driver.
func (s *Sim) Instances(_ context.Context, uuid string) ([]Instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, c, err := s.device(uuid)
	if err != nil {
		return nil, err
	}
	return slices.Clone(c.Instances), nil
}

// CreateInstance implements Driver.
func (s *Sim) CreateInstance(_ context.Context, uuid, profile string, start int) (Instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g, c, err := s.device(uuid)
	if err != nil {
		return Instance{}, err
	}
	if !g.MIGCapable || !g.MIGEnabled {
		return Instance{}, fmt.Errorf("create MIG instance on %s: MIG is off: %w", uuid, ErrUnsupported)
	}
	for _, there := range c.Instances {
		if there.Profile == profile && there.Start == start {
			return there, nil
		}
	}
	placement, err := PlacementsOf(g.Model).Check(profile, start, c.Instances)
	if err != nil {
		return Instance{}, fmt.Errorf("create MIG instance on %s: %w", uuid, err)
	}
	made := Instance{UUID: SimInstanceUUID(uuid, start), Profile: profile, Start: start, Width: placement.Width}
	c.Instances = append(c.Instances, made)
	slices.SortFunc(c.Instances, func(a, b Instance) int { return a.Start - b.Start })
	return made, s.save()
}

// SimInstanceUUID is the UUID of a simulated GPU's instance that begins at a memory slice.
func SimInstanceUUID(gpu string, start int) string { return fmt.Sprintf("MIG-%s-%d", gpu, start) }

// DestroyInstance implements Driver.
func (s *Sim) DestroyInstance(_ context.Context, uuid string, start int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, c, err := s.device(uuid)
	if err != nil {
		return err
	}
	c.Instances = slices.DeleteFunc(c.Instances, func(i Instance) bool { return i.Start == start })
	return s.save()
}

// WipeMemory implements Driver. It really clears what Occupy left, and really looks.
func (s *Sim) WipeMemory(_ context.Context, uuid string, where protocol.Slots) (protocol.DeviceWipe, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, c, err := s.device(uuid)
	if err != nil {
		return protocol.DeviceWipe{}, err
	}
	wipe := protocol.DeviceWipe{
		Kind: "gpu_memory", Identity: uuid, Capability: "overwrite, read back", Method: "overwrite with zeros, read back samples",
		Status: protocol.Wiped, StartedAt: s.cfg.Now(),
	}
	for slice := where.From; slice < where.To; slice++ {
		if !s.faults[uuid].wipeFails {
			c.Memory[slice] = ""
		}
		c.Busy[slice] = false
		wipe.ReadBackSamples += samplesPerSlice
		if c.Memory[slice] != "" {
			wipe.ReadBackDirty += samplesPerSlice
		}
	}
	if wipe.ReadBackDirty > 0 {
		wipe.Status = protocol.WipeFailed
		wipe.Detail = fmt.Sprintf("%d of %d samples still hold data", wipe.ReadBackDirty, wipe.ReadBackSamples)
	}
	wipe.FinishedAt = s.cfg.Now()
	return wipe, s.save()
}

// Occupy is what a tenant does: it leaves data in the memory slices and keeps them busy.
func (s *Sim) Occupy(uuid string, where protocol.Slots, lease string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, c, err := s.device(uuid)
	if err != nil {
		return err
	}
	for slice := where.From; slice < where.To; slice++ {
		c.Memory[slice], c.Busy[slice] = lease, true
	}
	return s.save()
}

// Lose makes a GPU fall off the bus (XID 79).
func (s *Sim) Lose(uuid string) { s.fault(uuid, func(f *cardFault) { f.lost = s.cfg.Now() }) }

// BreakMemory gives a GPU an uncorrectable memory error.
func (s *Sim) BreakMemory(uuid string) { s.fault(uuid, func(f *cardFault) { f.ecc = s.cfg.Now() }) }

// FailWipes makes wipes of a GPU's memory leave it as it was.
func (s *Sim) FailWipes(uuid string) { s.fault(uuid, func(f *cardFault) { f.wipeFails = true }) }

// Heal takes all faults away.
func (s *Sim) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uuid := range s.faults {
		s.faults[uuid] = &cardFault{}
	}
}

func (s *Sim) fault(uuid string, set func(*cardFault)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.faults[uuid]; f != nil {
		set(f)
	}
}

// Health implements Driver.
func (s *Sim) Health(context.Context) ([]protocol.Condition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var conditions []protocol.Condition
	for _, g := range s.cfg.GPUs {
		if f := s.faults[g.UUID]; !f.lost.IsZero() {
			conditions = append(conditions, protocol.Condition{
				Name: "gpu-xid-79", Device: g.UUID, Class: protocol.PreventsAllocation, Onset: f.lost, Exit: "reboot",
				Evidence: fmt.Sprintf("NVRM: Xid (PCI:%s): 79, GPU has fallen off the bus.", g.PCIAddress[:len(g.PCIAddress)-2]),
			})
		} else if !f.ecc.IsZero() {
			conditions = append(conditions, protocol.Condition{
				Name: "gpu-ecc-uncorrectable", Device: g.UUID, Class: protocol.PreventsAllocation, Onset: f.ecc, Exit: "reset",
				Evidence: "1 uncorrectable volatile ECC error, row remap pending",
			})
		}
	}
	return conditions, nil
}

// Samples implements Driver: an idle card draws little, one that is in use works hard and not quite evenly.
func (s *Sim) Samples(context.Context) ([]protocol.Sample, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.cfg.Now()
	var samples []protocol.Sample
	for _, g := range s.cfg.GPUs {
		if s.faults[g.UUID].lost.IsZero() {
			samples = append(samples, protocol.Sample{At: at, Device: g.UUID, Values: s.meters(g, s.state[g.UUID])})
		}
	}
	return samples, nil
}

func (s *Sim) meters(g protocol.GPU, c *card) map[string]float64 {
	used := 0
	for _, busy := range c.Busy {
		if busy {
			used++
		}
	}
	load := float64(used) / SlotsPerBay * (0.86 + 0.13*s.noise.Float64())
	envelope := powerOf(g.Model)
	return map[string]float64{
		"gpu_utilization_percent":        round(100 * load),
		"gpu_memory_used_bytes":          float64(g.MemoryBytes/100) * round(100*load*0.93+0.6),
		"gpu_power_watts":                round(envelope.idle + (envelope.limit-envelope.idle)*load),
		"gpu_temperature_celsius":        round(31 + 36*load + 2*s.noise.Float64()),
		"gpu_sm_clock_mhz":               round(envelope.idleClock + (envelope.boostClock-envelope.idleClock)*min(1, 4*load)),
		"gpu_nvlink_tx_bytes_per_second": round(envelope.nvlink * load * 0.4),
		"gpu_pcie_rx_bytes_per_second":   round(2.4e9 * load),
	}
}

func round(v float64) float64 { return float64(int64(v*10+0.5)) / 10 }

// envelope is what a model's meters range over: watts, MHz, bytes per second.
type envelope struct{ idle, limit, idleClock, boostClock, nvlink float64 }

// powerOf holds the vendors' data-sheet figures.
func powerOf(model string) envelope {
	switch model {
	case "NVIDIA H100 80GB HBM3":
		return envelope{71, 700, 345, 1980, 900e9}
	case "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB":
		return envelope{58, 400, 210, 1410, 600e9}
	case "AMD Instinct MI250X":
		return envelope{88, 560, 800, 1700, 400e9}
	case "NVIDIA GeForce RTX 4090":
		return envelope{21, 450, 210, 2520, 0}
	default:
		return envelope{40, 400, 300, 1500, 0}
	}
}

// Holds lists whose data lies in a GPU's memory, sorted; a fault harness compares it with who should be there.
func (s *Sim) Holds(uuid string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[string]bool{}
	for _, lease := range s.state[uuid].Memory {
		if lease != "" {
			found[lease] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
