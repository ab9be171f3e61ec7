package fabric

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
)

// Gauge is how one fabric stands, for alerts.
type Gauge struct {
	Fabric  ids.Fabric
	Name    string
	Site    string
	Posture []protocol.PostureCheck
	Drift   map[DriftKind]int // that lasts
	GaveUp  int               // of it, what repairs did not help
	Audit   *Audit            // the latest; nil: none yet
}

// Gauges reads how all fabrics stand.
type Gauges interface {
	FabricGauges(ctx context.Context) ([]Gauge, error)
}

// Collector tells Prometheus how fabrics stand, as the rows have it when it asks.
type Collector struct {
	Gauges  Gauges
	Timeout time.Duration // 0: 5 s
}

var _ prometheus.Collector = Collector{}

type metric struct {
	name, help string
	labels     []string
}

func (m metric) desc() *prometheus.Desc {
	return prometheus.NewDesc("leasehold_fabric_"+m.name, m.help, append([]string{"site", "fabric"}, m.labels...), nil)
}

func (m metric) of(g Gauge, value float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(m.desc(), prometheus.GaugeValue, value, append([]string{g.Site, g.Name}, labels...)...)
}

func driftMetric() metric {
	return metric{"drift", "Deviations of ports from what the rows want, that last, by kind. fail_open and configuration keep leases from being handed over.", []string{"kind"}}
}

func gaveUpMetric() metric {
	return metric{"drift_unrepaired", "Of the drift, what repairs did not help: a person must.", nil}
}

func postureMetric() metric {
	return metric{"posture", "Items of a fabric's posture: 1 true, 0 false, -1 unknown.", []string{"item"}}
}

func auditedMetric() metric {
	return metric{"audited_timestamp_seconds", "When the latest audit that saw anything ended, in seconds since 1970.", nil}
}

func auditPortsMetric() metric {
	return metric{"audit_ports", "Ports by what the latest audit came to.", []string{"state"}}
}

// Describe implements prometheus.Collector.
func (c Collector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range []metric{driftMetric(), gaveUpMetric(), postureMetric(), auditedMetric(), auditPortsMetric()} {
		to <- m.desc()
	}
}

// Collect implements prometheus.Collector. When the rows cannot be read, the scrape says so.
func (c Collector) Collect(to chan<- prometheus.Metric) {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = 5 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout) //nolint:forbidigo // the interface has no context
	defer cancel()
	all, err := c.Gauges.FabricGauges(ctx)
	if err != nil {
		to <- prometheus.NewInvalidMetric(driftMetric().desc(), err)
		return
	}
	for _, g := range all {
		for _, kind := range DriftKinds() {
			to <- driftMetric().of(g, float64(g.Drift[kind]), string(kind))
		}
		to <- gaveUpMetric().of(g, float64(g.GaveUp))
		for _, check := range g.Posture {
			to <- postureMetric().of(g, verdictValue(check.Verdict), check.Item)
		}
		if g.Audit == nil {
			continue
		}
		to <- auditedMetric().of(g, float64(g.Audit.EndedAt.UnixMilli())/1000)
		for state, n := range map[string]int{
			"clean": g.Audit.Clean, "deviating": g.Audit.Deviating, "unreadable": g.Audit.Unreadable, "stranger": g.Audit.Strangers,
		} {
			to <- auditPortsMetric().of(g, float64(n), state)
		}
	}
}

func verdictValue(v protocol.Verdict) float64 {
	switch v {
	case protocol.True:
		return 1
	case protocol.False:
		return 0
	case protocol.Unknown:
	}
	return -1
}
