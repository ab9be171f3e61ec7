package httpapi

import (
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// newObserver returns what counts a request; a nil registry counts nothing.
func newObserver(registry *prometheus.Registry) (func(route, method string, status int, took time.Duration), error) {
	if registry == nil {
		return func(string, string, int, time.Duration) {}, nil
	}
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "leasehold_http_request_duration_seconds", Help: "How long requests took, by route (never by path), method and status.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
	}, []string{"route", "method", "status"})
	if err := registry.Register(took); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return func(route, method string, status int, duration time.Duration) {
		took.WithLabelValues(route, method, strconv.Itoa(status)).Observe(duration.Seconds())
	}, nil
}
