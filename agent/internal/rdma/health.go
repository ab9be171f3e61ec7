package rdma

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
)

const (
	// manyDrops within flapWindow make a link one that flaps; it stays so until the oldest is out of the window.
	manyDrops  = 3
	flapWindow = 12 * time.Hour
)

// Health implements Driver. A port that was switched off on purpose is no condition, nor is one on Ethernet.
func (s *Sysfs) Health(ctx context.Context) ([]protocol.Condition, error) {
	hcas, err := s.Inventory(ctx)
	if err != nil {
		return nil, fmt.Errorf("read port health: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var conditions []protocol.Condition
	for _, hca := range hcas {
		for _, p := range hca.Ports {
			if p.LinkLayer == infiniBand {
				conditions = append(conditions, s.portHealth(hca.Device, p)...)
			}
		}
	}
	return conditions, nil
}

func (s *Sysfs) portHealth(device string, p protocol.HCAPort) []protocol.Condition {
	key := device + "/" + strconv.Itoa(p.Number)
	var found []protocol.Condition
	add := func(name, exit, evidence string, class protocol.ConditionClass, onset time.Time) {
		found = append(found, protocol.Condition{Name: name, Device: device, Class: class, Onset: onset, Exit: exit, Evidence: evidence})
	}
	if p.State == "ACTIVE" || p.PhysicalState == "Disabled" {
		delete(s.down, key)
	} else {
		if s.down[key].IsZero() {
			s.down[key] = s.now()
		}
		add("ib-port-down", "clears_itself", fmt.Sprintf("port %d: %s, %s", p.Number, p.State, p.PhysicalState), protocol.PreventsAllocation, s.down[key])
	}
	if drops := s.countDrops(device, p.Number, key); len(drops) >= manyDrops {
		add("ib-port-flaps", "retest", fmt.Sprintf("port %d: the link dropped %d times in %s", p.Number, len(drops), flapWindow), protocol.Degrades, drops[0])
	}
	violations := s.counter(device, p.Number, "port_rcv_constraint_errors") + s.counter(device, p.Number, "port_xmit_constraint_errors")
	if before, known := s.last["violations "+key]; known && violations > before {
		add("ib-pkey-violations", "clears_itself", fmt.Sprintf("port %d: %d packets of a foreign partition", p.Number, violations-before), protocol.Informs, s.now())
	}
	s.last["violations "+key] = violations
	return found
}

// countDrops notes new drops of the link and returns those within the window.
func (s *Sysfs) countDrops(device string, port int, key string) []time.Time {
	now, count := s.now(), s.counter(device, port, "link_downed")
	before, known := s.last["drops "+key]
	s.last["drops "+key] = count
	if known && count > before {
		for range min(count-before, manyDrops) {
			s.drops[key] = append(s.drops[key], now)
		}
	}
	for len(s.drops[key]) > 0 && now.Sub(s.drops[key][0]) > flapWindow {
		s.drops[key] = s.drops[key][1:]
	}
	return s.drops[key]
}

// counter reads one of the kernel's counters, 0 when it is not there.
func (s *Sysfs) counter(device string, port int, name string) uint64 {
	v, err := strconv.ParseUint(text(filepath.Join(s.root, device, "ports", strconv.Itoa(port), "counters", name)), 10, 64)
	if err != nil {
		return 0
	}
	return v
}

// reading is a port's data counters at an instant.
type reading struct {
	at        time.Time
	rcv, xmit uint64 // bytes
}

// wordBytes is what the data counters count in.
const wordBytes = 4

// Samples implements Driver. Throughput is over the time since the last call, so that the first has none.
func (s *Sysfs) Samples(ctx context.Context) ([]protocol.Sample, error) {
	hcas, err := s.Inventory(ctx)
	if err != nil {
		return nil, fmt.Errorf("read port meters: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var samples []protocol.Sample
	for _, hca := range hcas {
		for _, p := range hca.Ports {
			if p.LinkLayer == infiniBand {
				samples = append(samples, s.sample(hca.Device, p.Number))
			}
		}
	}
	return samples, nil
}

func (s *Sysfs) sample(device string, port int) protocol.Sample {
	key := device + "/" + strconv.Itoa(port)
	now := reading{
		at: s.now(), rcv: wordBytes * s.counter(device, port, "port_rcv_data"), xmit: wordBytes * s.counter(device, port, "port_xmit_data"),
	}
	values := map[string]float64{
		"ib_symbol_errors": float64(s.counter(device, port, "symbol_error")), "ib_link_downed": float64(s.counter(device, port, "link_downed")),
	}
	if before, known := s.meter[key]; known && now.at.After(before.at) && now.rcv >= before.rcv && now.xmit >= before.xmit {
		seconds := now.at.Sub(before.at).Seconds()
		values["ib_rcv_bytes_per_second"] = float64(now.rcv-before.rcv) / seconds
		values["ib_xmit_bytes_per_second"] = float64(now.xmit-before.xmit) / seconds
	}
	s.meter[key] = now
	return protocol.Sample{At: now.at, Device: device, Values: values}
}
