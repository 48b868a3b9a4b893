package result

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"
)

// Format is how results are printed.
type Format struct {
	JSON   bool // an object a line, instead of Go benchmark text
	Header bool // begin JSON with a line about the host
}

// header is a line of JSON about the host.
type header struct {
	Host Host `json:"host"`
}

// Print writes the results to out, and a table for people to table.
func (r *Recorder) Print(out, table io.Writer, h Host, f Format) error {
	var err error
	if f.JSON {
		err = r.printJSON(out, h, f.Header)
	} else {
		err = r.printGo(out, h)
	}
	r.printTable(table, h)
	return err
}

// printJSON writes an object a line.
func (r *Recorder) printJSON(w io.Writer, h Host, withHeader bool) error {
	enc := json.NewEncoder(w)
	if withHeader {
		if err := enc.Encode(header{h}); err != nil {
			return err
		}
	}
	for _, l := range r.Lines(h) {
		if err := enc.Encode(l); err != nil {
			return err
		}
	}
	return nil
}

func (r *Recorder) failures() []string { return slices.Sorted(maps.Keys(r.Failed)) }

// mainMetric is the one by which scenarios are compared.
func mainMetric(scenario string) string {
	switch scenario {
	case "qemu-boot", "qemu-restore", "gokvm-boot":
		return FirstLife
	}
	return FirstReply
}

// printGo writes the format of Go benchmarks, a line a sample, for benchstat.
// https://go.dev/design/14313-benchmark-format
func (r *Recorder) printGo(w io.Writer, h Host) error {
	_, err := fmt.Fprintf(w, "goos: linux\ngoarch: amd64\ncpu: %s\nkvm: %s\nkernel: %s\nwhere: %s\ncommit: %s\n",
		h.CPU, h.KVM, h.Kernel, h.Where, h.Commit)
	for _, s := range r.Series {
		name, unit := s.benchmark(), "ns/op"
		if s.Bytes() {
			unit = "B/child"
		}
		for _, v := range s.Samples {
			if err == nil {
				_, err = fmt.Fprintf(w, "Benchmark%s 1 %d %s\n", name, v, unit)
			}
		}
	}
	for _, name := range r.failures() {
		if err == nil {
			_, err = fmt.Fprintf(w, "# %s failed\n", name)
		}
	}
	return err
}

// benchmark is the key as the name of a benchmark.
func (k Key) benchmark() string {
	name := fmt.Sprintf("%s/metric=%s/n=%d", camel(k.Scenario), k.Metric, k.N)
	if k.DirtyPages != Measured {
		name += fmt.Sprintf("/dirty=%d", k.DirtyPages)
	}
	if k.Depth > 0 {
		name += fmt.Sprintf("/depth=%d", k.Depth)
	}
	return name
}

// camel makes a benchmark's name of a scenario's.
func camel(name string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(name, "-") {
		runes := []rune(part)
		runes[0] = unicode.ToUpper(runes[0])
		b.WriteString(string(runes))
	}
	return b.String()
}

// printTable writes what people read: milliseconds and KiB.
func (r *Recorder) printTable(w io.Writer, h Host) {
	fmt.Fprintf(w, "\nKVM %s, %s; kernel %s; %d × %s; commit %s; load before %.1f\n\n",
		h.KVM, h.Where, h.Kernel, h.CPUs, h.CPU, h.Commit, h.Load)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "scenario\tmetric\tn\tdirty\tdepth\tp50\tp90\tp99\tmax\t\tsamples\t")
	for _, l := range r.Lines(h) {
		unit, scale := "ms", 1e3
		if l.Unit == Bytes {
			unit, scale = "KiB", 1<<10
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t%d\t\n", l.Scenario, l.Metric, l.N, l.DirtyPages, l.Depth,
			l.P50/scale, l.P90/scale, l.P99/scale, l.Max/scale, unit, l.Samples)
	}
	t.Flush()
	for _, name := range r.failures() {
		fmt.Fprintf(w, "\n%s failed: %v\n", name, r.Failed[name])
	}
}
