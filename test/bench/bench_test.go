package main

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestOptions(t *testing.T) {
	t.Setenv(kernelVariable, "/some/vmlinux")
	t.Setenv("FORKVM_CMDLINE", "noxsave")
	o, err := parseOptions([]string{"--rounds", "3", "--scenarios", "fork,cold-boot", "--json"})
	if err != nil {
		t.Fatal(err)
	}
	if o.rounds != 3 || !o.json || o.kernel != "/some/vmlinux" || o.cmdline != "noxsave" {
		t.Errorf("%+v", o)
	}
	if want := []string{"cold-boot", "fork"}; !slices.Equal(o.scenarios, want) {
		t.Errorf("scenarios %v, want %v, in the order of a round", o.scenarios, want)
	}
	for _, args := range [][]string{{"--rounds", "0"}, {"--scenarios", "warm-boot"}, {"--warmup", "-1"}, {"x"}} {
		if _, err := parseOptions(args); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}

func TestTinyInitIsAnELFProgram(t *testing.T) {
	b := tinyInit("hello\n")
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if f.Class != elf.ELFCLASS64 || f.Machine != elf.EM_X86_64 || f.Type != elf.ET_EXEC || len(f.Progs) != 1 {
		t.Fatalf("%+v", f.FileHeader)
	}
	p := f.Progs[0]
	if p.Filesz != uint64(len(b)) || p.Memsz != p.Filesz || p.Off%p.Align != p.Vaddr%p.Align || p.Flags != elf.PF_R|elf.PF_X {
		t.Errorf("segment %+v of a file of %d bytes", p.ProgHeader, len(b))
	}
	if f.Entry < p.Vaddr || f.Entry >= p.Vaddr+p.Memsz {
		t.Errorf("entry %#x outside of the segment", f.Entry)
	}
}

func TestTinyInitSpeaksAndStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(path, tinyInit("hello\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(out)
	if line, err := in.ReadString('\n'); line != "hello\n" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Errorf("it did not stay: %v", err)
	}
	_ = cmd.Wait()
}

func TestWatch(t *testing.T) {
	var lines []string
	also := func(s string) { lines = append(lines, s) }
	if err := watch(strings.NewReader("kernel\r\n\r\nsays [    1.0] "+initLine+"\r\nmore"), also); err != nil {
		t.Error(err)
	}
	if !slices.Equal(lines, []string{"kernel"}) {
		t.Errorf("lines before: %q", lines)
	}
	err := watch(strings.NewReader("first\n"+strings.Repeat("x\n", keepLines)+"Kernel panic"), also)
	if err == nil || !strings.HasSuffix(err.Error(), "Kernel panic") || strings.Contains(err.Error(), "first") {
		t.Errorf("%v", err)
	}
}

func TestBaseline(t *testing.T) {
	for script, want := range map[string]bool{
		"echo booting; echo " + initLine + "; exec sleep 1000": true,
		"echo booting; echo why >&2; exit 1":                   false,
	} {
		var seen bool
		err := baseline(t.Context(), exec.Command("sh", "-c", script), func(string) {}, func() { seen = true })
		if seen != want || (err == nil) != want {
			t.Errorf("%s: %v, %v", script, seen, err)
		}
		if err != nil && !(strings.Contains(err.Error(), "booting") && strings.Contains(err.Error(), "why")) {
			t.Errorf("%s: the error hides why: %v", script, err)
		}
	}
}

// measured has a hundred samples of 1 to 100 ms, and a baseline that failed.
func measured() *recorder {
	r := newRecorder()
	r.off = true
	r.add(key{"fork", firstReply, 8, 1}, time.Hour, 1)
	r.off = false
	for i := range 100 {
		r.add(key{"fork", firstReply, 8, 1}, time.Duration(i+1)*time.Millisecond, 60)
	}
	r.failed["gokvm-boot"] = errors.New("it does not boot")
	return r
}

var someHost = host{kvm: "kvm-amd (hardware)", where: "lab", kernel: "6.12", cpu: "some CPU", cpus: 1, commit: "abc"}

func TestQuantiles(t *testing.T) {
	v := measured().all[0].summary(someHost)
	near := func(got int64, ms float64) bool {
		ratio := float64(got) / (ms * 1000)
		return ratio > 0.998 && ratio < 1.002
	}
	if !near(v.P50, 50) || !near(v.P90, 90) || !near(v.P99, 99) || !near(v.Max, 100) {
		t.Errorf("%+v", v)
	}
	if v.Samples != 100 || v.DirtyPages != 60 || v.N != 8 || v.Depth != 1 || v.Unit != "us" {
		t.Errorf("%+v", v)
	}
}

func TestJSONLines(t *testing.T) {
	var out bytes.Buffer
	if err := printJSON(&out, someHost, measured()); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 {
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
	var failed result
	if err := json.Unmarshal([]byte(lines[1]), &failed); err != nil {
		t.Fatal(err)
	}
	if want := (result{Scenario: "gokvm-boot", Metric: firstLife, N: 1, Unit: "us", KVM: someHost.kvm, Where: "lab"}); failed != want {
		t.Errorf("%+v, want %+v", failed, want)
	}
}

func TestGoBenchmarkText(t *testing.T) {
	var out bytes.Buffer
	if err := printGo(&out, someHost, measured()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"cpu: some CPU\n", "kvm: kvm-amd (hardware)\n", "where: lab\n", "commit: abc\n",
		"BenchmarkFork/metric=first_reply/n=8 1 1000000 ns/op\n", "# gokvm-boot failed\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
	if n := strings.Count(out.String(), "\nBenchmark"); n != 100 {
		t.Errorf("%d lines of samples, want 100", n)
	}
}

func TestTableTellsWhatFailed(t *testing.T) {
	var out bytes.Buffer
	printTable(&out, someHost, measured())
	for _, want := range []string{"kvm-amd (hardware), lab; kernel 6.12; 1 × some CPU; commit abc", "100.0", "gokvm-boot failed: it does not boot"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

func TestLabBringsWhatScenariosNeed(t *testing.T) {
	dir := t.TempDir()
	qemu := filepath.Join(dir, "qemu")
	if err := os.WriteFile(qemu, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"--rounds", "2", "--qemu", qemu}
	o, err := parseOptions(args)
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := labRun(t.Context(), o, args)
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Join(cmd.Args[1:], " ")
	if !strings.HasPrefix(line, "run ") || !strings.Contains(line, "--file "+qemu) || !strings.Contains(line, " boot --rounds 2") {
		t.Error(line)
	}
}
