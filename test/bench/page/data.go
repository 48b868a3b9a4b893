package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/forkvm/forkvm/test/bench/result"
)

// measured is a file of results.
type measured struct {
	path  string
	host  result.Host
	lines []result.Line
}

// data is the newest results by where they were measured.
type data struct {
	by map[string]measured
}

// readResults reads a folder of files that were recorded. Their names begin
// with the date, so the last of a place is its newest.
func readResults(dir string) (*data, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	d := &data{by: make(map[string]measured)}
	for _, path := range paths { // sorted
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		h, lines, err := result.Parse(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		d.by[h.Where] = measured{path, h, lines}
	}
	return d, nil
}

// has tells whether anything was measured there.
func (d *data) has(where string) bool { return len(d.by[where].lines) > 0 }

// host is a sentence about where it was measured.
func (d *data) host(where string) string {
	m, ok := d.by[where]
	if !ok {
		return "Not measured."
	}
	load := "load average not recorded"
	if m.host.Load > 0 {
		load = fmt.Sprintf("load average before %.1f", m.host.Load)
	}
	return fmt.Sprintf("Measured on %s: KVM %s, kernel %s, %d × %s, commit %s, %s ([raw](../%s)).",
		m.host.Date, m.host.KVM, m.host.Kernel, m.host.CPUs, m.host.CPU, m.host.Commit, load, filepath.ToSlash(m.path))
}

// find is the line of a series, whose name is scenario/metric, followed by
// /n=…, /dirty=… or /depth=… where those are not 1, not to be looked at, and 1
// or none.
func (d *data) find(where, series string) (result.Line, error) {
	parts := strings.Split(series, "/")
	if len(parts) < 2 {
		return result.Line{}, fmt.Errorf("%q is no scenario/metric", series)
	}
	n, dirty, depth := int64(1), int64(-1), int64(-1)
	for _, p := range parts[2:] {
		name, value, _ := strings.Cut(p, "=")
		to := map[string]*int64{"n": &n, "dirty": &dirty, "depth": &depth}[name]
		v, err := strconv.ParseInt(value, 10, 64)
		if to == nil || err != nil {
			return result.Line{}, fmt.Errorf("%q: what is %q?", series, p)
		}
		*to = v
	}
	for _, l := range d.by[where].lines {
		if l.Scenario == parts[0] && l.Metric == parts[1] && int64(l.N) == n &&
			(dirty < 0 || l.DirtyPages == dirty) && (depth < 0 && l.Depth <= 1 || int64(l.Depth) == depth) {
			return l, nil
		}
	}
	return result.Line{}, fmt.Errorf("no results of %q in %q", series, where)
}

// ms is the median of a series in milliseconds.
func (d *data) ms(where, series string) (string, error) {
	l, err := d.find(where, series)
	return number(l.P50 / 1000), err
}

// kib is the median of a series in KiB.
func (d *data) kib(where, series string) (string, error) {
	l, err := d.find(where, series)
	return number(l.P50 / 1024), err
}

// ratio is one median by another.
func (d *data) ratio(where, series, by string) (string, error) {
	l, err := d.find(where, series)
	if err != nil {
		return "", err
	}
	base, err := d.find(where, by)
	if err != nil {
		return "", err
	}
	return quotient(l.P50, base.P50), nil
}

func quotient(a, b float64) string {
	if b == 0 {
		return "–"
	}
	return number(a / b)
}

// number has three digits that count.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v >= 1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

// table is the results of some scenarios and metrics, each a list with commas,
// in the order of the lists.
func (d *data) table(where, scenarios, metrics string) string {
	var b strings.Builder
	b.WriteString("| scenario | metric | n | dirty pages | depth | p50 | p90 | p99 | max | | samples |\n|---|---|--:|--:|--:|--:|--:|--:|--:|---|--:|\n")
	rows := 0
	for scenario := range strings.SplitSeq(scenarios, ",") {
		for metric := range strings.SplitSeq(metrics, ",") {
			for _, l := range d.by[where].lines {
				if l.Scenario != scenario || l.Metric != metric {
					continue
				}
				rows++
				unit, scale := "ms", 1e3
				if l.Unit == result.Bytes {
					unit, scale = "KiB", 1<<10
				}
				fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %s | %s | %s | %s | %s | %d |\n", l.Scenario, l.Metric, l.N, l.DirtyPages, l.Depth,
					number(l.P50/scale), number(l.P90/scale), number(l.P99/scale), number(l.Max/scale), unit, l.Samples)
			}
		}
	}
	if rows == 0 {
		return "Not measured.\n"
	}
	return b.String()
}

// floors are what scenarios are held against.
var floors = map[string]string{"fork-pooled": "floor-pooled", "fork-cold": "floor-cold", "reset": "floor-reset"}

// floorTable holds everything against its floor.
func (d *data) floorTable(where string) string {
	metrics := []string{
		result.Pause, result.StateReady, result.Restore, result.FirstInstruction, result.TimePerChild, result.BytesPerChild,
	}
	var b strings.Builder
	b.WriteString("| scenario | metric | n | dirty pages | floor p50 | ours p50 | × p50 | × p99 |\n|---|---|--:|--:|--:|--:|--:|--:|\n")
	rows := 0
	for _, metric := range metrics {
		for _, l := range d.by[where].lines {
			if l.Metric != metric || floors[l.Scenario] == "" || l.Depth > 1 {
				continue
			}
			i := slices.IndexFunc(d.by[where].lines, func(f result.Line) bool {
				return f.Scenario == floors[l.Scenario] && f.Metric == metric && f.N == l.N && f.DirtyPages == l.DirtyPages
			})
			if i < 0 {
				continue
			}
			rows++
			f := d.by[where].lines[i]
			unit, scale := "ms", 1e3
			if l.Unit == result.Bytes {
				unit, scale = "KiB", 1<<10
			}
			fmt.Fprintf(&b, "| %s | %s | %d | %d | %s %s | %s %s | %s | %s |\n", l.Scenario, l.Metric, l.N, l.DirtyPages,
				number(f.P50/scale), unit, number(l.P50/scale), unit, quotient(l.P50, f.P50), quotient(l.P99, f.P99))
		}
	}
	if rows == 0 {
		return "Not measured.\n"
	}
	return b.String()
}
