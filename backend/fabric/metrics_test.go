package fabric_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/internal/postgres"
)

func TestPrometheusIsToldHowFabricsStand(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.subnet.trusting, w.subnet.deaf = true, true
	w.subnet.posture = []protocol.PostureCheck{
		{Item: "default_membership_limited", Verdict: protocol.True}, {Item: "m_key_set", Verdict: protocol.False}, {Item: "guests_denied_sm", Verdict: protocol.Unknown},
	}
	w.subnet.of(w.nodes[1].port).hca = []protocol.PKey{0xffff}
	w.audit()
	w.Exec(t, "UPDATE drift SET gave_up_at = now()")
	collector := fabric.Collector{Gauges: postgres.NewIsolation(w.db)}
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(collector))
	require.Equal(t, map[string]float64{
		"audit_ports/clean":                  1,
		"audit_ports/deviating":              1,
		"audit_ports/stranger":               0,
		"audit_ports/unreadable":             0,
		"audited_timestamp_seconds":          1.7723664e+09,
		"drift/configuration":                0,
		"drift/fail_open":                    1,
		"drift/misplaced_key":                0,
		"drift/missing_key":                  0,
		"drift/unexpected_key":               0,
		"drift/unknown_port":                 0,
		"drift/unreadable":                   0,
		"drift_unrepaired":                   1,
		"posture/default_membership_limited": 1,
		"posture/guests_denied_sm":           -1,
		"posture/m_key_set":                  0,
	}, gathered(t, registry))
}

// gathered is the one fabric's values by metric and label.
func gathered(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	found := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := strings.TrimPrefix(family.GetName(), "leasehold_fabric_")
			for _, label := range m.GetLabel() {
				switch label.GetName() {
				case "fabric":
					require.Equal(t, "ib0", label.GetValue())
				case "site":
					require.Equal(t, "test-site", label.GetValue())
				default:
					name += "/" + label.GetValue()
				}
			}
			found[name] = m.GetGauge().GetValue()
		}
	}
	return found
}

type noGauges struct{}

func (noGauges) FabricGauges(context.Context) ([]fabric.Gauge, error) {
	return nil, errors.New("no database")
}

func TestAScrapeThatCannotReadTheRowsFails(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(fabric.Collector{Gauges: noGauges{}}))
	_, err := registry.Gather()
	require.ErrorContains(t, err, "no database")
}
