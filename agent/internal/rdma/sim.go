package rdma

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
)

// PortReader reads an HCA port's table on a simulated fabric. Package fabric's drivers are such.
type PortReader interface {
	ReadPort(ctx context.Context, guid protocol.GUID) (protocol.PortTable, error)
}

// Sim is a machine's simulated adapters on a fabric.
type Sim struct {
	hcas   []protocol.HCA
	fabric PortReader
	now    func() time.Time

	mu   sync.Mutex
	down map[protocol.GUID]time.Time // ports that are down, since when
	busy map[protocol.GUID]bool
}

// NewSim returns simulated adapters whose tables are the fabric's.
func NewSim(hcas []protocol.HCA, fabric PortReader, now func() time.Time) *Sim {
	return &Sim{hcas: hcas, fabric: fabric, now: now, down: map[protocol.GUID]time.Time{}, busy: map[protocol.GUID]bool{}}
}

// Inventory implements Driver.
func (s *Sim) Inventory(context.Context) ([]protocol.HCA, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hcas := make([]protocol.HCA, len(s.hcas))
	for i, hca := range s.hcas {
		hca.Ports = slices.Clone(hca.Ports)
		for p := range hca.Ports {
			if _, down := s.down[hca.Ports[p].GUID]; down {
				hca.Ports[p].State, hca.Ports[p].PhysicalState = "DOWN", "Polling"
			}
		}
		hcas[i] = hca
	}
	return hcas, nil
}

func (s *Sim) has(guid protocol.GUID) bool {
	return slices.ContainsFunc(s.hcas, func(h protocol.HCA) bool {
		return slices.ContainsFunc(h.Ports, func(p protocol.HCAPort) bool { return p.GUID == guid })
	})
}

// PKeys implements Driver.
func (s *Sim) PKeys(ctx context.Context, guid protocol.GUID) (protocol.PortTable, error) {
	if !s.has(guid) {
		return protocol.PortTable{}, fmt.Errorf("read P_Keys of %v: %w", guid, ErrNotFound)
	}
	table, err := s.fabric.ReadPort(ctx, guid)
	if err != nil {
		return protocol.PortTable{GUID: guid, Keys: []protocol.PKey{}, Source: "sim", Detail: err.Error()}, nil //nolint:nilerr // unreadable is an answer
	}
	table.Keys = trim(table.Keys)
	return table, nil
}

// Health implements Driver.
func (s *Sim) Health(context.Context) ([]protocol.Condition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var conditions []protocol.Condition
	for _, hca := range s.hcas {
		for _, port := range hca.Ports {
			if since, down := s.down[port.GUID]; down {
				conditions = append(conditions, protocol.Condition{
					Name: "ib-port-down", Device: hca.Device, Class: protocol.PreventsAllocation, Onset: since, Exit: "clears_itself",
					Evidence: fmt.Sprintf("port %d (%v): DOWN, Polling", port.Number, port.GUID),
				})
			}
		}
	}
	return conditions, nil
}

// Samples implements Driver.
func (s *Sim) Samples(context.Context) ([]protocol.Sample, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var samples []protocol.Sample
	for _, hca := range s.hcas {
		for _, port := range hca.Ports {
			if _, down := s.down[port.GUID]; down {
				continue
			}
			load := 0.0
			if s.busy[port.GUID] {
				load = 0.55 + 0.3*rand.Float64() //nolint:gosec // meters need no secrecy
			}
			bytes := float64(int64(load * float64(port.RateGbps) * 1e9 / 8))
			samples = append(samples, protocol.Sample{At: s.now(), Device: hca.Device, Values: map[string]float64{
				"ib_rcv_bytes_per_second": bytes, "ib_xmit_bytes_per_second": bytes, "ib_symbol_errors": 0, "ib_link_downed": 0,
			}})
		}
	}
	return samples, nil
}

// Occupy makes ports busy or idle.
func (s *Sim) Occupy(busy bool, guids ...protocol.GUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, guid := range guids {
		s.busy[guid] = busy
	}
}

// Cut takes a port's link down.
func (s *Sim) Cut(guid protocol.GUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, down := s.down[guid]; !down {
		s.down[guid] = s.now()
	}
}

// Heal brings all links up.
func (s *Sim) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.down)
}
