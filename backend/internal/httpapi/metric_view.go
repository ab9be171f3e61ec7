package httpapi

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/internal/httpapi/api"
	"github.com/leasehold/leasehold/backend/lease"
)

// Sample is one reading of a device's meters.
type Sample = protocol.Sample

// gpuMeter is the prefix of meters that GPUs have.
const gpuMeter = "gpu_"

// seriesOf sorts a node's samples into series, without those of GPUs that are not the instance's. Other devices (adapters) are shown
// when all GPUs of the node are the instance's: only then are they surely its own.
func seriesOf(n lease.NodeDetails, samples []Sample, from, to time.Time) []api.MetricSeries {
	own, foreign := map[string]bool{}, false
	for _, g := range n.GPUs {
		own[g.UUID] = true
	}
	for _, s := range samples {
		foreign = foreign || isGPU(s) && !own[s.Device]
	}
	type key struct{ device, metric string }
	points := map[key][]api.MetricPoint{}
	for _, s := range samples {
		if s.At.Before(from) || !s.At.Before(to) || !own[s.Device] && (isGPU(s) || foreign) {
			continue
		}
		for metric, value := range s.Values {
			k := key{s.Device, metric}
			points[k] = append(points[k], api.MetricPoint{At: s.At.UTC(), Value: value})
		}
	}
	keys := slices.SortedFunc(maps.Keys(points), func(a, b key) int {
		if a.device != b.device {
			return strings.Compare(a.device, b.device)
		}
		return strings.Compare(a.metric, b.metric)
	})
	return each(keys, func(k key) api.MetricSeries {
		return api.MetricSeries{Node: n.NodeName, Device: k.device, Metric: k.metric, Points: points[k]}
	})
}

func isGPU(s Sample) bool {
	for metric := range s.Values {
		if strings.HasPrefix(metric, gpuMeter) {
			return true
		}
	}
	return false
}
