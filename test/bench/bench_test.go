package main

import (
	"bufio"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkvm/forkvm/test/bench/result"
)

func TestOptions(t *testing.T) {
	t.Setenv(kernelVariable, "/some/vmlinux")
	t.Setenv("FORKVM_CMDLINE", "noxsave")
	o, err := parseOptions([]string{"--rounds", "3", "--scenarios", "fork-cold,cold-boot", "--groups", "reset,fork", "--json", "--forks", "1,100"})
	if err != nil {
		t.Fatal(err)
	}
	if o.linuxRounds() != 3 || !o.json || o.kernel != "/some/vmlinux" || o.cmdline != "noxsave" {
		t.Errorf("%+v", o)
	}
	if want := []string{coldBoot, forkCold}; !slices.Equal(o.scenarios, want) {
		t.Errorf("scenarios %v, want %v, in the order of a round", o.scenarios, want)
	}
	if !slices.Equal(o.groups, []string{"fork", "reset"}) || !slices.Equal(o.forks, []int{1, 100}) {
		t.Errorf("groups %v, forks %v", o.groups, o.forks)
	}
	for _, args := range [][]string{
		{"--rounds", "-1"}, {"--scenarios", "warm-boot"}, {"--groups", "none"}, {"--parts", "moon"}, {"--forks", "0"},
		{"--warmup", "-1"}, {"--record", "here"}, {"x"},
	} {
		if _, err := parseOptions(args); !errors.Is(err, errUsage) {
			t.Errorf("%q is taken", args)
		}
	}
}

func TestTickerIsAnELFProgram(t *testing.T) {
	b := ticker("hello\n")
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

// startTicker runs it with arguments and returns its standard output.
func startTicker(t *testing.T, args ...string) *bufio.Reader {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ticker")
	if err := os.WriteFile(path, ticker("hello\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return bufio.NewReader(out)
}

func TestTickerSpeaksAndTicks(t *testing.T) {
	in := startTicker(t)
	if line, err := in.ReadString('\n'); line != "hello\n" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
	ticks := make([]byte, 3)
	if _, err := io.ReadFull(in, ticks); string(ticks) != "..." || err != nil {
		t.Errorf("%q, %v", ticks, err)
	}
}

func TestTickerSpeaksToAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	startTicker(t, path)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	said := make([]byte, len("hello\n.."))
	if _, err := io.ReadFull(f, said); string(said) != "hello\n.." || err != nil {
		t.Errorf("%q, %v", said, err)
	}
	// One that cannot be opened is as good as none.
	in := startTicker(t, filepath.Join(t.TempDir(), "missing"))
	if line, err := in.ReadString('\n'); line != "hello\n" || err != nil {
		t.Errorf("%q, %v", line, err)
	}
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

func TestFirstByte(t *testing.T) {
	begin := time.Now()
	if took, err := firstByte(t.Context(), exec.Command("sh", "-c", "printf x; exec sleep 1000"), begin); err != nil || took <= 0 {
		t.Errorf("%v, %v", took, err)
	}
	if _, err := firstByte(t.Context(), exec.Command("sh", "-c", "echo why >&2"), begin); err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("%v", err)
	}
}

// TestMigrateTo has a QEMU that is not one: it expects the commands in order,
// each with what belongs to it, and writes to the file that it is handed.
func TestMigrateTo(t *testing.T) {
	dir := t.TempDir()
	socket, file := filepath.Join(dir, "qmp"), filepath.Join(dir, "saved")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() { served <- serveQMP(l) }()
	if err := migrateTo(t.Context(), socket, file); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(file); string(b) != "state" || err != nil {
		t.Errorf("the file holds %q, %v", b, err)
	}
}

func serveQMP(l *net.UnixListener) error {
	c, err := l.AcceptUnix()
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Fprintln(c, `{"QMP": {}}`)
	answers := []struct{ command, answer string }{
		{"qmp_capabilities", `{"return": {}}`},
		{"migrate-set-parameters", `{"return": {}}`},
		{"getfd", `{"return": {}}`},
		{`"uri":"fd:saved"`, `{"return": {}}`},
		{"query-migrate", `{"event": "MIGRATION"}` + "\n" + `{"return": {"status": "active"}}`},
		{"query-migrate", `{"return": {"status": "completed"}}`},
	}
	buf, rights := make([]byte, 4096), make([]byte, 64)
	for _, a := range answers {
		n, oob, _, _, err := c.ReadMsgUnix(buf, rights)
		if err != nil {
			return err
		}
		if !strings.Contains(string(buf[:n]), a.command) {
			return fmt.Errorf("got %q, want %s", buf[:n], a.command)
		}
		if oob > 0 {
			messages, err := syscall.ParseSocketControlMessage(rights[:oob])
			if err != nil {
				return err
			}
			fds, err := syscall.ParseUnixRights(&messages[0])
			if err != nil {
				return err
			}
			f := os.NewFile(uintptr(fds[0]), "saved")
			if _, err := f.WriteString("state"); err != nil {
				return err
			}
			f.Close()
		}
		fmt.Fprintln(c, a.answer)
	}
	return nil
}

func TestQMPErrors(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "qmp")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprintln(c, `{"QMP": {}}`)
		_, _ = c.Read(make([]byte, 1))
		fmt.Fprintln(c, `{"error": {"desc": "no such thing"}}`)
	}()
	q, err := dialQMP(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	defer q.close()
	if err := q.do("anything", nil, nil, nil); err == nil || !strings.Contains(err.Error(), "no such thing") {
		t.Errorf("%v", err)
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
	if !strings.HasPrefix(line, "run ") || !strings.Contains(line, "--file "+qemu) || !strings.Contains(line, " linux --rounds 2") {
		t.Error(line)
	}
}

// TestRecordOfDisks reads what a guest says of fio's jobs among other lines.
func TestRecordOfDisks(t *testing.T) {
	var said strings.Builder
	said.WriteString("some line of the kernel's\n")
	for i, j := range fioJobs {
		fmt.Fprintf(&said, "[    0.1] %s %s %d\r\n", fioLine, j.name, (i+1)*1000)
	}
	r := result.NewRecorder()
	if err := record(strings.NewReader(said.String()), r, forkvmDisk); err != nil {
		t.Fatal(err)
	}
	for i, s := range r.Series {
		if s.Metric != fioJobs[i].name || s.Scenario != forkvmDisk || len(s.Samples) != 1 || s.Samples[0] != int64(i+1)*1000 {
			t.Errorf("series %d: %+v", i, s)
		}
	}
	short := said.String()[:said.Len()/2]
	if err := record(strings.NewReader(short), result.NewRecorder(), forkvmDisk); err == nil || !strings.Contains(err.Error(), "of the kernel's") {
		t.Errorf("half of it: %v", err)
	}
}
