// Package result collects samples of measurements, reduces them to quantiles
// and prints them.
package result

import (
	"math"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Metrics. Times are from the start of the call, or of the process, that
// makes the machine.
const (
	StateReady       = "state_ready"       // the machine could run
	FirstInstruction = "first_instruction" // it had run, and left the guest
	AgentReady       = "agent_ready"       // its agent had confirmed its identity
	FirstLife        = "first_life"        // a process in it had written to the serial port
	FirstReply       = "first_reply"       // a command had run in it and its exit was known
	Pause            = "pause"             // how long the parent of a fork stood still
	Restore          = "restore"           // state ready, less the pause
	TimePerChild     = "time_per_child"    // until the last child's first instruction, of a Linux guest its first life, by the number of children
	Write            = "write"             // a snapshot was on disk

	// What a child that idles adds: all of it, and its parts.
	BytesPerChild      = "bytes_per_child"
	PSSPerChild        = "pss_per_child"
	PrivatePerChild    = "private_per_child"
	PageTablesPerChild = "page_tables_per_child"
	KernelPerChild     = "kernel_per_child"
)

// Measured as [Key.DirtyPages] says that the pages are what was found, and not
// what was asked for.
const Measured = -1

// Key names a series of samples.
type Key struct {
	Scenario, Metric string
	N                int   // machines made at once
	DirtyPages       int64 // that the parent of a fork had written, or Measured
	Depth            int   // generations of forks
}

// Series is the samples of one key, in the order in which they were taken.
type Series struct {
	Key
	Samples []int64 // nanoseconds, or bytes
	dirty   []int64 // pages that were found to be dirty at each sample
}

// Bytes tells bytes from times.
func (s *Series) Bytes() bool {
	return strings.Contains(s.Metric, "per_child") && s.Metric != TimePerChild
}

// Recorder collects samples. Series keep the order of their first samples.
type Recorder struct {
	Series []*Series
	// Off drops samples: a warm-up.
	Off bool
	// Failed says why scenarios have no samples, or no more.
	Failed map[string]error
}

// NewRecorder makes one that is empty.
func NewRecorder() *Recorder { return &Recorder{Failed: make(map[string]error)} }

// Time adds a sample. The dirty pages that were found count if the key's are
// Measured.
func (r *Recorder) Time(k Key, d time.Duration, dirty int64) { r.add(k, d.Nanoseconds(), dirty) }

// Size adds a sample of bytes.
func (r *Recorder) Size(k Key, bytes int64) { r.add(k, bytes, 0) }

func (r *Recorder) add(k Key, v, dirty int64) {
	if r.Off {
		return
	}
	s := r.find(k)
	s.Samples = append(s.Samples, v)
	s.dirty = append(s.dirty, dirty)
}

func (r *Recorder) find(k Key) *Series {
	for _, s := range r.Series {
		if s.Key == k {
			return s
		}
	}
	s := &Series{Key: k}
	r.Series = append(r.Series, s)
	return s
}

// Line is a line of the JSON output.
type Line struct {
	Scenario   string  `json:"scenario"`
	Metric     string  `json:"metric"`
	N          int     `json:"n"`
	DirtyPages int64   `json:"dirty_pages"`
	Depth      int     `json:"depth"`
	Unit       string  `json:"unit"` // us or bytes
	P50        float64 `json:"p50"`
	P90        float64 `json:"p90"`
	P99        float64 `json:"p99"`
	Max        float64 `json:"max"`
	Samples    int     `json:"samples"` // 0: the scenario failed
	KVM        string  `json:"kvm"`
	Where      string  `json:"where"`
}

// Units of a Line.
const (
	Microseconds = "us"
	Bytes        = "bytes"
)

// summary reduces a series to quantiles. What is less than nothing, which
// differences of memory can be, counts as nothing.
func (s *Series) summary(h Host) Line {
	const most = int64(time.Hour) // or 3.6 TB
	h1 := hdrhistogram.New(1, most, 3)
	pages := hdrhistogram.New(1, 1<<40, 3)
	for i, v := range s.Samples {
		_ = h1.RecordValue(max(0, min(v, most))) // in range
		_ = pages.RecordValue(s.dirty[i])
	}
	l := Line{
		Scenario: s.Scenario, Metric: s.Metric, N: s.N, Depth: s.Depth, Unit: Microseconds,
		DirtyPages: s.DirtyPages, Samples: len(s.Samples), KVM: h.KVM, Where: h.Where,
	}
	if s.DirtyPages == Measured {
		l.DirtyPages = pages.ValueAtQuantile(50)
	}
	convert := func(v int64) float64 { return math.Round(float64(v)/100) / 10 } // to 0.1 µs
	if s.Bytes() {
		l.Unit, convert = Bytes, func(v int64) float64 { return float64(v) }
	}
	l.P50, l.P90, l.P99 = convert(h1.ValueAtQuantile(50)), convert(h1.ValueAtQuantile(90)), convert(h1.ValueAtQuantile(99))
	l.Max = convert(h1.Max())
	return l
}

// Lines summarizes all series. A scenario that failed before it had a sample
// has a line of none.
func (r *Recorder) Lines(h Host) []Line {
	var lines []Line
	measured := make(map[string]bool)
	for _, s := range r.Series {
		lines = append(lines, s.summary(h))
		measured[s.Scenario] = true
	}
	for _, name := range r.failures() {
		if !measured[name] {
			lines = append(lines, Line{Scenario: name, Metric: mainMetric(name), N: 1, Unit: Microseconds, KVM: h.KVM, Where: h.Where})
		}
	}
	return lines
}
