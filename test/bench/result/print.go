package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// printJSON writes an object a line. A scenario that failed has one of no
// samples.
func printJSON(w io.Writer, h host, r *recorder) error {
	enc := json.NewEncoder(w)
	for _, s := range r.all {
		if err := enc.Encode(s.summary(h)); err != nil {
			return err
		}
	}
	for _, name := range failures(r) {
		line := result{Scenario: name, Metric: mainMetric(name), N: 1, Unit: "us", KVM: h.kvm, Where: h.where}
		if err := enc.Encode(line); err != nil {
			return err
		}
	}
	return nil
}

func failures(r *recorder) []string { return slices.Sorted(maps.Keys(r.failed)) }

// mainMetric is the one by which scenarios are compared.
func mainMetric(scenario string) string {
	if scenario == "qemu-boot" || scenario == "gokvm-boot" {
		return firstLife
	}
	return firstReply
}

// printGo writes the format of Go benchmarks, a line a sample, for benchstat.
// https://go.dev/design/14313-benchmark-format
func printGo(w io.Writer, h host, r *recorder) error {
	_, err := fmt.Fprintf(w, "goos: linux\ngoarch: amd64\ncpu: %s\nkvm: %s\nkernel: %s\nwhere: %s\ncommit: %s\n",
		h.cpu, h.kvm, h.kernel, h.where, h.commit)
	for _, s := range r.all {
		for _, d := range s.samples {
			if err == nil {
				_, err = fmt.Fprintf(w, "Benchmark%s/metric=%s/n=%d 1 %d ns/op\n", camel(s.scenario), s.metric, s.n, d.Nanoseconds())
			}
		}
	}
	for _, name := range failures(r) {
		if err == nil {
			_, err = fmt.Fprintf(w, "# %s failed\n", name)
		}
	}
	return err
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

// printTable writes what people read.
func printTable(w io.Writer, h host, r *recorder) {
	fmt.Fprintf(w, "\nKVM %s, %s; kernel %s; %d × %s; commit %s\n\n", h.kvm, h.where, h.kernel, h.cpus, h.cpu, h.commit)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "scenario\tmetric\tn\tdirty\tp50 ms\tp90 ms\tp99 ms\tmax ms\tsamples\t")
	for _, s := range r.all {
		v := s.summary(h)
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%d\t\n", v.Scenario, v.Metric, v.N, v.DirtyPages,
			millis(v.P50), millis(v.P90), millis(v.P99), millis(v.Max), v.Samples)
	}
	t.Flush()
	for _, name := range failures(r) {
		fmt.Fprintf(w, "\n%s failed: %v\n", name, r.failed[name])
	}
}

func millis(us int64) string {
	return fmt.Sprintf("%.2f", float64(us)/float64(time.Millisecond/time.Microsecond))
}
