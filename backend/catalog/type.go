// Package catalog has what is sold and for how much: instance types, the GPU models and MIG placements that they rest on, and
// price versions, which never change once they are written.
package catalog

import (
	"slices"
	"time"

	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/lease"
)

// Mode says how a node is shared out; an instance type places on nodes of its mode only.
type Mode string

// The modes of a node.
const (
	BareMetal Mode = "bare_metal" // one tenant has the whole machine
	Shared    Mode = "shared"     // tenants share the machine by GPUs or slices
)

// RatedPer says what the rate of an instance type counts.
type RatedPer string

// What a rate counts: whole nodes are sold by the GPU-hour, MIG slices and parts of a node by the instance-hour.
const (
	PerGPU      RatedPer = "gpu"
	PerInstance RatedPer = "instance"
)

// InstanceType is what is sold, e.g. h100-sxm.8x.ndr: a width on a node's slot line and the places where it may begin.
type InstanceType struct {
	ID         ids.Instance
	Name       string
	Title      string
	Hardware   string // the hardware key of the nodes that it places on, e.g. h100-sxm-80gb.8
	Mode       Mode
	Width      int   // slots
	Stride     int   // > 0: it may begin at every multiple; else BayStarts say where
	BayStarts  []int // within each bay, for MIG slices: 8i + each
	GPUs       int   // 0: a slice of one GPU
	MIGProfile string
	WithHCA    bool // comes with InfiniBand ports and so with a partition
	GPUModel   string
	// GPUMemoryBytes is per instance.
	GPUMemoryBytes int64
	RatedPer       RatedPer
	Lead           time.Duration // how long before its start a lease's capacity is taken to prepare it
	Turnaround     time.Duration // how long after its end the capacity stays taken to wipe and verify it
	Image          string
	RetiredAt      time.Time
	Version        int64
	CreatedAt      time.Time
}

// UnitsPerInstance is how many rated units one instance is: its GPUs, or 1 when it is rated per instance.
func (t InstanceType) UnitsPerInstance() int64 {
	if t.RatedPer == PerGPU {
		return int64(t.GPUs)
	}
	return 1
}

// Starts lists where an instance may begin on a node's line of that many slots, in rising order. No two of them overlap, so each
// is a place of its own.
func (t InstanceType) Starts(slots int) []int {
	var starts []int
	if t.Stride > 0 {
		for at := 0; at+t.Width <= slots; at += t.Stride {
			starts = append(starts, at)
		}
		return starts
	}
	for bay := 0; bay+lease.SlotsPerBay <= slots; bay += lease.SlotsPerBay {
		for _, start := range t.BayStarts {
			starts = append(starts, bay+start)
		}
	}
	return starts
}

// Occupied is the time that a lease of the window takes from a node: [start − lead, end + turnaround).
func (t InstanceType) Occupied(w lease.Window) lease.Window {
	return lease.Window{Start: w.Start.Add(-t.Lead), End: w.End.Add(t.Turnaround)}
}

// Check returns an Invalid fault, code "instance-type", for a type whose geometry contradicts itself or, for a MIG slice, our own
// placement table.
func (t InstanceType) Check() error {
	refuse := func(format string, args ...any) error {
		return fault.New(fault.Invalid, "instance-type", format, args...)
	}
	switch {
	case t.Width <= 0:
		return refuse("%s has no width", t.Name)
	case (t.Stride > 0) == (len(t.BayStarts) > 0):
		return refuse("%s needs a stride or starts within a bay, and not both", t.Name)
	case t.Stride > 0 && t.Stride < t.Width:
		return refuse("%s: a stride of %d slots makes instances of %d overlap", t.Name, t.Stride, t.Width)
	case (t.GPUs == 0) != (t.MIGProfile != ""):
		return refuse("%s is a slice, or whole GPUs", t.Name)
	case t.GPUs > 0 && t.Width != t.GPUs*lease.SlotsPerBay:
		return refuse("%s: %d GPUs are %d slots, not %d", t.Name, t.GPUs, t.GPUs*lease.SlotsPerBay, t.Width)
	case t.MIGProfile == "":
		return nil
	}
	model, ok := ModelOf(t.Hardware)
	if !ok {
		return refuse("%s: no such GPU model in %q", t.Name, t.Hardware)
	}
	placement, ok := model.MIG[t.MIGProfile]
	if !ok {
		return refuse("%s: a %s has no MIG profile %q", t.Name, model.Key, t.MIGProfile)
	}
	if placement.Slots != t.Width || !slices.Equal(placement.Starts, t.BayStarts) {
		return refuse("%s: %s on a %s is %d slots at %v", t.Name, t.MIGProfile, model.Key, placement.Slots, placement.Starts)
	}
	return nil
}
