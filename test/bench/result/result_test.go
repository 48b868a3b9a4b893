package result

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var someHost = Host{KVM: "kvm-amd (hardware)", Where: Lab, Kernel: "6.12", CPU: "some CPU", CPUs: 1, Commit: "abc", Date: "2026-11-29"}

// measured has a hundred samples of 1 to 100 ms, bytes, and a baseline that
// failed.
func measured() *Recorder {
	r := NewRecorder()
	k := Key{"fork-pooled", FirstReply, 8, Measured, 1}
	r.Off = true
	r.Time(k, time.Hour, 1)
	r.Off = false
	for i := range 100 {
		r.Time(k, time.Duration(i+1)*time.Millisecond, 60)
	}
	r.Size(Key{"floor-pooled", BytesPerChild, 10, 1, 1}, 1000)
	r.Size(Key{"floor-pooled", BytesPerChild, 10, 1, 1}, -1)
	r.Time(Key{"floor-pooled", Pause, 1, 100_000, 1}, 1234*time.Nanosecond, 0)
	r.Failed["gokvm-boot"] = errors.New("it does not boot")
	return r
}

func TestQuantiles(t *testing.T) {
	lines := measured().Lines(someHost)
	l := lines[0]
	near := func(got, ms float64) bool {
		ratio := got / (ms * 1000)
		return ratio > 0.998 && ratio < 1.002
	}
	if !near(l.P50, 50) || !near(l.P90, 90) || !near(l.P99, 99) || !near(l.Max, 100) {
		t.Errorf("%+v", l)
	}
	if l.Samples != 100 || l.DirtyPages != 60 || l.N != 8 || l.Depth != 1 || l.Unit != Microseconds {
		t.Errorf("%+v", l)
	}
	if l := lines[1]; l.Unit != Bytes || l.Max != 1000 || l.P50 != 0 || l.Samples != 2 {
		t.Errorf("bytes: %+v", l)
	}
	if l := lines[2]; l.P50 != 1.2 || l.DirtyPages != 100_000 {
		t.Errorf("a short time: %+v", l)
	}
}

func TestJSONLines(t *testing.T) {
	var out bytes.Buffer
	if err := measured().Print(&out, new(bytes.Buffer), someHost, Format{JSON: true}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("%q", lines)
	}
	at := -1
	for _, name := range []string{"scenario", "metric", "n", "dirty_pages", "depth", "unit", "p50", "p90", "p99", "max", "samples", "kvm", "where"} {
		next := strings.Index(lines[0], `"`+name+`":`)
		if next <= at {
			t.Errorf("%s is missing or out of order in %s", name, lines[0])
		}
		at = next
	}
	var failed Line
	if err := json.Unmarshal([]byte(lines[3]), &failed); err != nil {
		t.Fatal(err)
	}
	if want := (Line{Scenario: "gokvm-boot", Metric: FirstLife, N: 1, Unit: Microseconds, KVM: someHost.KVM, Where: Lab}); failed != want {
		t.Errorf("%+v, want %+v", failed, want)
	}
}

func TestWhatIsRecordedIsReadBack(t *testing.T) {
	var out bytes.Buffer
	r := measured()
	if err := r.Print(&out, new(bytes.Buffer), someHost, Format{JSON: true, Header: true}); err != nil {
		t.Fatal(err)
	}
	h, lines, err := Parse(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if h != someHost {
		t.Errorf("host %+v", h)
	}
	if diff := cmp.Diff(r.Lines(someHost), lines); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"", "{}\n", "not JSON\n", out.String() + "{\n"} {
		if _, _, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%.20q is taken", bad)
		}
	}
}

func TestGoBenchmarkText(t *testing.T) {
	var out bytes.Buffer
	if err := measured().Print(&out, new(bytes.Buffer), someHost, Format{}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for _, want := range []string{
		"cpu: some CPU", "kvm: kvm-amd (hardware)", "where: lab", "commit: abc",
		"BenchmarkForkPooled/metric=first_reply/n=8/depth=1 1 1000000 ns/op", "# gokvm-boot failed",
		"BenchmarkFloorPooled/metric=bytes_per_child/n=10/dirty=1/depth=1 1 1000 B/child",
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if n := strings.Count(out.String(), "\nBenchmarkForkPooled"); n != 100 {
		t.Errorf("%d lines of samples, want 100", n)
	}
}

func TestTableTellsWhatFailed(t *testing.T) {
	var out bytes.Buffer
	if err := measured().Print(new(bytes.Buffer), &out, someHost, Format{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kvm-amd (hardware), lab; kernel 6.12; 1 × some CPU; commit abc", "100.0", "KiB", "gokvm-boot failed: it does not boot"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}
