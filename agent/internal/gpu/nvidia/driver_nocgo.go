//go:build !cgo

// Package nvidia drives NVIDIA's GPUs through their management library, NVML.
package nvidia

import (
	"time"

	"github.com/leasehold/leasehold/agent/internal/gpu"
)

// Open says that this program was built without cgo, which NVML needs.
func Open(now func() time.Time) gpu.Driver {
	return gpu.Absent{Reason: "this agent was built without cgo and cannot load NVML", Since: now()}
}
