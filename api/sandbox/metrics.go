package sandbox

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forkvm/forkvm/api"
)

// metrics is what is counted of an engine.
type metrics struct {
	pause    prometheus.Histogram     // how long sandboxes that run stood still for a capture
	duration *prometheus.HistogramVec // of calls, by verb
	refused  *prometheus.CounterVec   // calls, by the code of the error
}

// verbs that are timed.
const (
	verbCreate   = "create"
	verbFork     = "fork"
	verbSnapshot = "snapshot"
	verbPause    = "pause"
	verbResume   = "resume"
	verbDestroy  = "destroy"
)

func newMetrics() *metrics {
	return &metrics{
		pause: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "forkvm_capture_pause_seconds", Help: "How long a running sandbox stood still to be forked or snapshotted.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
		}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "forkvm_sandbox_operation_seconds", Help: "How long operations on sandboxes took that succeeded.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 17),
		}, []string{"operation"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkvm_sandbox_operations_failed_total", Help: "Operations on sandboxes that failed, by operation and code of the error.",
		}, []string{"operation", "code"}),
	}
}

// observe notes what became of an operation that was begun at a time.
func (m *metrics) observe(verb string, begin time.Time, err error) {
	if err == nil {
		m.duration.WithLabelValues(verb).Observe(time.Since(begin).Seconds())
		return
	}
	code := "cancelled"
	if e, ok := errors.AsType[*api.Error](err); ok {
		code = string(e.Code)
	}
	m.refused.WithLabelValues(verb, code).Inc()
}

var (
	sandboxesDesc = prometheus.NewDesc("forkvm_sandboxes", "Sandboxes, by state.", []string{"state"}, nil)
	snapshotsDesc = prometheus.NewDesc("forkvm_snapshots", "Snapshots.", nil, nil)
	memoryDesc    = prometheus.NewDesc("forkvm_guest_memory_bytes", "Memory of the guests that run, shared or not.", nil, nil)
	limitDesc     = prometheus.NewDesc("forkvm_guest_memory_limit_bytes", "The most that may be.", nil, nil)
	storedDesc    = prometheus.NewDesc("forkvm_stored_bytes", "Bytes of paused sandboxes and of snapshots; those that several share count for each.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (e *Engine) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{sandboxesDesc, snapshotsDesc, memoryDesc, limitDesc, storedDesc} {
		ch <- d
	}
	e.metrics.pause.Describe(ch)
	e.metrics.duration.Describe(ch)
	e.metrics.refused.Describe(ch)
}

// Collect implements [prometheus.Collector].
func (e *Engine) Collect(ch chan<- prometheus.Metric) {
	states := make(map[api.State]int, len(allStates))
	var stored int64
	e.mu.Lock()
	for _, b := range e.boxes {
		states[b.rec.Sandbox.State]++
		stored += b.rec.StoredBytes
	}
	for _, s := range e.snaps {
		stored += s.rec.Snapshot.StoredBytes
	}
	snaps, memory := len(e.snaps), e.memory
	e.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, s := range allStates {
		gauge(sandboxesDesc, float64(states[s]), string(s))
	}
	gauge(snapshotsDesc, float64(snaps))
	gauge(memoryDesc, float64(memory))
	gauge(limitDesc, float64(e.limits.Memory))
	gauge(storedDesc, float64(stored))
	e.metrics.pause.Collect(ch)
	e.metrics.duration.Collect(ch)
	e.metrics.refused.Collect(ch)
}
