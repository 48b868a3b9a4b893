package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkvm/forkvm/test/bench/result"
)

// recorded writes results of a place to a folder.
func recorded(t *testing.T, dir, name, where string, fill func(*result.Recorder)) {
	t.Helper()
	r := result.NewRecorder()
	fill(r)
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := result.Host{KVM: "kvm-x", Where: where, Kernel: "6.18", CPU: "some CPU", CPUs: 2, Commit: "abc", Date: name[:10]}
	if err := r.Print(f, io.Discard, h, result.Format{JSON: true, Header: true}); err != nil {
		t.Fatal(err)
	}
}

func someResults(t *testing.T) *data {
	t.Helper()
	dir := t.TempDir()
	recorded(t, dir, "2026-01-01-native.jsonl", result.Native, func(r *result.Recorder) {
		r.Time(result.Key{Scenario: "cold-boot", Metric: result.StateReady, N: 1}, time.Hour, 0) // an old one
	})
	recorded(t, dir, "2026-02-01-native.jsonl", result.Native, func(r *result.Recorder) {
		for _, pages := range []int64{0, 1, 100, 1000} {
			r.Time(result.Key{Scenario: "fork-pooled", Metric: result.Pause, N: 1, DirtyPages: pages, Depth: 1}, 200*time.Microsecond, 0)
			r.Time(result.Key{Scenario: "floor-pooled", Metric: result.Pause, N: 1, DirtyPages: pages, Depth: 1}, 100*time.Microsecond, 0)
		}
		for n, d := range map[int]time.Duration{10: time.Millisecond, 1000: 2 * time.Millisecond} {
			r.Time(result.Key{Scenario: "fork-pooled", Metric: result.TimePerChild, N: n, DirtyPages: 1, Depth: 1}, d, 0)
		}
		r.Time(result.Key{Scenario: "fork-pooled", Metric: result.Pause, N: 1, DirtyPages: 10, Depth: 2}, time.Second, 0)
	})
	d, err := readResults(dir)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestFind(t *testing.T) {
	d := someResults(t)
	for series, want := range map[string]float64{
		"fork-pooled/pause/dirty=100":        200,
		"fork-pooled/pause/dirty=10/depth=2": 1e6,
		"fork-pooled/time_per_child/n=1000":  2000,
	} {
		if l, err := d.find(result.Native, series); err != nil || l.P50 < want*0.99 || l.P50 > want*1.01 {
			t.Errorf("%s: %v, %v", series, l.P50, err)
		}
	}
	for _, series := range []string{
		"cold-boot/state_ready", // an older file is not looked at
		"fork-pooled", "fork-pooled/pause/x=1", "fork-pooled/pause/n=one", "fork-pooled/pause/dirty=10",
	} {
		if l, err := d.find(result.Native, series); err == nil {
			t.Errorf("%s is %+v", series, l)
		}
	}
}

func TestFloorTable(t *testing.T) {
	got := someResults(t).floorTable(result.Native)
	if !strings.Contains(got, "| fork-pooled | pause | 1 | 100 | 0.100 ms | 0.200 ms | 2.00 | 2.00 |\n") {
		t.Error(got)
	}
	if n := strings.Count(got, "\n"); n != 2+4 {
		t.Errorf("%d lines:\n%s", n, got)
	}
	if got := someResults(t).floorTable(result.Lab); got != "Not measured.\n" {
		t.Error(got)
	}
}

func TestGoals(t *testing.T) {
	got := someResults(t).goalTable()
	for _, want := range []string{
		"| native | pause, 100 dirty pages | 0.200 ms | 0.452 ms | yes |",
		"| native | time per child, 1000 by 10 | 2.00 × | 1.20 × | **no** |",
		"| lab | fork to first life, by QEMU's restore | not measured | 0.120 × |  |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
}

func TestTable(t *testing.T) {
	d := someResults(t)
	if got := d.table(result.Native, "fork-pooled", "time_per_child"); strings.Count(got, "| fork-pooled |") != 2 {
		t.Error(got)
	}
	if got := d.table(result.Native, "qemu-boot", "pause"); got != "Not measured.\n" {
		t.Error(got)
	}
}

func TestPlotsAreSVG(t *testing.T) {
	dir := t.TempDir()
	if err := someResults(t).plot(dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"pause.svg": true, "children.svg": true, "bytes.svg": false, "depth.svg": false} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if (err == nil) != want {
			t.Errorf("%s: %v", name, err)
			continue
		}
		x := xml.NewDecoder(bytes.NewReader(b))
		for {
			_, err := x.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				break
			}
		}
		if want && !strings.Contains(string(b), "<svg") {
			t.Errorf("%s is no SVG", name)
		}
	}
}

// TestPageIsUpToDate regenerates the page from what is recorded.
func TestPageIsUpToDate(t *testing.T) {
	t.Chdir("../../..")
	d, err := readResults("test/bench/results")
	if err != nil {
		t.Fatal(err)
	}
	want, err := d.page("test/bench/page/benchmarks.md.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/benchmarks.md is not what the results and the template make; run make bench-page")
	}
}
