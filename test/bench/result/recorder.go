package main

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Metrics. Times are from the start of the call, or of the process, that
// makes the machine.
const (
	stateReady = "state_ready" // the machine could run
	agentReady = "agent_ready" // its agent confirmed its identity
	firstReply = "first_reply" // a command ran in it and its exit was known
	firstLife  = "first_life"  // a baseline's init was seen on the serial port
	pause      = "pause"       // how long the parent of a fork stood still
)

// key names a series of samples.
type key struct {
	scenario, metric string
	n                int // machines made at once
	depth            int // generations of forks
}

// series is the samples of one key, in the order in which they were taken.
type series struct {
	key
	samples []time.Duration
	dirty   []int64 // pages copied by the fork of each sample
}

// recorder collects samples. Series keep the order of their first samples.
type recorder struct {
	all    []*series
	off    bool // drop samples: a warm-up round
	failed map[string]error
}

func newRecorder() *recorder { return &recorder{failed: make(map[string]error)} }

func (r *recorder) add(k key, d time.Duration, dirty int64) {
	if r.off {
		return
	}
	s := r.find(k)
	s.samples = append(s.samples, d)
	s.dirty = append(s.dirty, dirty)
}

func (r *recorder) find(k key) *series {
	for _, s := range r.all {
		if s.key == k {
			return s
		}
	}
	s := &series{key: k}
	r.all = append(r.all, s)
	return s
}

// maxSample is the longest time that is told from longer ones.
const maxSample = time.Hour

// result is a line of the JSON output.
type result struct {
	Scenario   string `json:"scenario"`
	Metric     string `json:"metric"`
	N          int    `json:"n"`
	DirtyPages int64  `json:"dirty_pages"` // p50
	Depth      int    `json:"depth"`
	Unit       string `json:"unit"`
	P50        int64  `json:"p50"`
	P90        int64  `json:"p90"`
	P99        int64  `json:"p99"`
	Max        int64  `json:"max"`
	Samples    int    `json:"samples"` // 0: the scenario failed
	KVM        string `json:"kvm"`
	Where      string `json:"where"`
}

// summary reduces a series to quantiles, in microseconds.
func (s *series) summary(h host) result {
	times := hdrhistogram.New(1, maxSample.Microseconds(), 3)
	pages := hdrhistogram.New(1, 1<<40, 3)
	for i, d := range s.samples {
		_ = times.RecordValue(min(d, maxSample).Microseconds()) // in range
		_ = pages.RecordValue(s.dirty[i])
	}
	return result{
		Scenario: s.scenario, Metric: s.metric, N: s.n, Depth: s.depth, Unit: "us",
		DirtyPages: pages.ValueAtQuantile(50),
		P50:        times.ValueAtQuantile(50), P90: times.ValueAtQuantile(90), P99: times.ValueAtQuantile(99),
		Max: times.Max(), Samples: len(s.samples), KVM: h.kvm, Where: h.where,
	}
}
