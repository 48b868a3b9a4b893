package sandbox

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/vmm"
)

// metrics is what is counted of an engine.
type metrics struct {
	pause    prometheus.Histogram     // how long sandboxes that run stood still for a capture
	phases   *prometheus.HistogramVec // of starts of machines
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

	verbBuild          = "build"
	verbDeleteTemplate = "delete_template"
)

func newMetrics() *metrics {
	return &metrics{
		pause: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "forkvm_capture_pause_seconds", Help: "How long a running sandbox stood still to be forked or snapshotted.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
		}),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "forkvm_start_phase_seconds",
			Help:    "How long the phases of starting a machine took: create, of KVM's objects and memory; load, of what was stored; restore, of its state; and agent, until the guest confirmed its new identity.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
		}, []string{"phase"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "forkvm_sandbox_operation_seconds", Help: "How long operations on sandboxes and templates took that succeeded.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 20),
		}, []string{"operation"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "forkvm_sandbox_operations_failed_total", Help: "Operations on sandboxes and templates that failed, by operation and code of the error.",
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

// started notes how long the phases of a start took.
func (m *metrics) started(t vmm.Timings) {
	for phase, took := range map[string]time.Duration{
		"create": t.Create, "load": t.Load, "restore": t.Restore, "agent": t.AgentReady - t.StateReady,
	} {
		m.phases.WithLabelValues(phase).Observe(took.Seconds())
	}
}

var (
	sandboxesDesc = prometheus.NewDesc("forkvm_sandboxes", "Sandboxes, by state.", []string{"state"}, nil)
	snapshotsDesc = prometheus.NewDesc("forkvm_snapshots", "Snapshots.", nil, nil)
	memoryDesc    = prometheus.NewDesc("forkvm_guest_memory_bytes", "Memory of the guests that run, shared or not.", nil, nil)
	limitDesc     = prometheus.NewDesc("forkvm_guest_memory_limit_bytes", "The most that may be.", nil, nil)
	privateDesc   = prometheus.NewDesc("forkvm_guest_memory_private_bytes", "Memory that only the one guest has, of all that run.", nil, nil)
	sharedDesc    = prometheus.NewDesc("forkvm_guest_memory_shared_bytes", "Memory that guests have in common with others or with what they were made of; it counts for each.", nil, nil)
	storedDesc    = prometheus.NewDesc("forkvm_stored_bytes", "Bytes of paused sandboxes and of snapshots; those that several share count for each.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (e *Engine) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{sandboxesDesc, snapshotsDesc, memoryDesc, limitDesc, privateDesc, sharedDesc, storedDesc} {
		ch <- d
	}
	for _, c := range e.metrics.all() {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (e *Engine) Collect(ch chan<- prometheus.Metric) {
	states := make(map[api.State]int, len(allStates))
	var stored int64
	var machines []machine
	e.mu.Lock()
	for _, b := range e.boxes {
		if b.m != nil {
			machines = append(machines, b.m)
		}
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
	if private, shared, ok := e.memoryOfAll(machines); ok {
		gauge(privateDesc, float64(private))
		gauge(sharedDesc, float64(shared))
	}
	for _, c := range e.metrics.all() {
		c.Collect(ch)
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.pause, m.phases, m.duration, m.refused}
}

// lookWithin is how long a look at the memory of all guests may take: to look at
// one takes a millisecond for 256 MiB.
const lookWithin = 5 * time.Second

// memoryOfAll is how much memory guests have of their own and in common, unless
// it takes too long to see.
func (e *Engine) memoryOfAll(machines []machine) (private, shared int64, ok bool) {
	ctx, cancel := context.WithTimeout(e.life, lookWithin)
	defer cancel()
	seen := make([]usage, len(machines)) // and not the looks, which are larger
	e.lookAt(ctx, machines, func(k int, l look, err error) {
		if err == nil { // or it has ended
			seen[k] = l.usage()
		}
	})
	for _, u := range seen {
		private += u.memoryOwn
		shared += u.memoryShared
	}
	return private, shared, ctx.Err() == nil
}
