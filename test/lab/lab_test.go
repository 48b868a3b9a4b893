package main

import (
	"bytes"
	crand "crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestGenuineKVM(t *testing.T) {
	l := sharedLab(t)
	r := finish(t, l.command("test", self(), "-test.run=^TestInside$", "-test.v"))
	if r.code != 0 || !strings.Contains(r.stdout, "--- PASS: TestInside") {
		t.Errorf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
}

func TestExitCodes(t *testing.T) {
	l := sharedLab(t)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	finish(t, l.program("exit", nil, "0")).want(t, 0, "")
	finish(t, l.program("exit", nil, "42")).want(t, 42, "")
	finish(t, l.program("die", nil)).want(t, 128+9, "")
	finish(t, l.program("signal", []string{"--timeout", "1s"})).want(t, exitTimeout, "ready\n")
	finish(t, l.command("run", "--", text)).want(t, exitCannotExec, "")
	finish(t, l.command("run", "--", "no-such-program")).want(t, exitNotFound, "")
	finish(t, l.command("run", "--", "/etc/passwd")).want(t, exitCannotExec, "")
	finish(t, l.command("run", "--no-such-flag")).want(t, exitTrouble, "")
	finish(t, l.command("run", "--memory", "1024", "true")).want(t, exitTrouble, "")
	finish(t, l.command("fly")).want(t, exitTrouble, "")
}

func TestStreams(t *testing.T) {
	l := sharedLab(t)
	cmd := l.program("both", nil)
	cmd.Stdin = strings.NewReader("to stdin\n")
	r := finish(t, cmd)
	r.want(t, 0, "to stdout\nto stdin\n")
	if r.stderr != "to stderr\n" {
		t.Errorf("stderr %q", r.stderr)
	}
	// Input that nobody reads neither blocks nor fails.
	cmd = l.program("exit", nil, "3")
	cmd.Stdin = io.LimitReader(crand.Reader, 8<<20)
	finish(t, cmd).want(t, 3, "")
}

func TestLargeStream(t *testing.T) {
	l := sharedLab(t)
	const size = 32 << 20
	in, out := sha256.New(), sha256.New()
	cmd := l.command("run", "--", "cat")
	cmd.Stdin = io.TeeReader(io.LimitReader(crand.Reader, size), in)
	cmd.Stdout = out
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(in.Sum(nil), out.Sum(nil)) {
		t.Error("what came out is not what went in")
	}
}

func TestFiles(t *testing.T) {
	l := sharedLab(t)
	dir := t.TempDir()
	large := make([]byte, 24<<20)
	crand.Read(large)
	for name, data := range map[string][]byte{"tree/a": []byte("a"), "tree/b/c": []byte("cc"), "large": large} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("b/c", filepath.Join(dir, "tree/link")); err != nil {
		t.Fatal(err)
	}
	flags := []string{
		"--file", dir + "/tree:/in/tree", "--file", dir + "/large", "--env", "WHERE=here", "--dir", "/in",
		"--out", "/in/tree:" + dir + "/out", "--out", dir + "/large:" + dir + "/back",
	}
	want := "/in here\n/in/tree/a -rw-r----- 1\n/in/tree/b drwxr-xr-x 4096\n/in/tree/link Lrwxrwxrwx 3\n"
	finish(t, l.program("where", flags, "/in/tree/a", "/in/tree/b", "/in/tree/link")).want(t, 0, want)
	if got, err := os.ReadFile(filepath.Join(dir, "out/b/c")); err != nil || string(got) != "cc" {
		t.Errorf("out/b/c: %q, %v", got, err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "back")); err != nil || !bytes.Equal(got, large) {
		t.Errorf("the large file came back changed: %d bytes, %v", len(got), err)
	}
	// The file is there already; a changed one is not.
	large[0]++
	if err := os.WriteFile(filepath.Join(dir, "large"), large[:len(large)-1], 0o640); err != nil {
		t.Fatal(err)
	}
	finish(t, l.program("exit", flags[2:4], "0")).want(t, 0, "")
	finish(t, l.command("run", "--out", dir+"/large:"+dir+"/back", "true")).want(t, 0, "")
	if got, err := os.ReadFile(filepath.Join(dir, "back")); err != nil || !bytes.Equal(got, large[:len(large)-1]) {
		t.Errorf("the changed file did not come back: %d bytes, %v", len(got), err)
	}
	for program, code := range map[string]int{"true": exitTrouble, "false": 1} {
		r := finish(t, l.command("run", "--out", "/no/such:"+dir+"/x", program))
		if r.code != code || !strings.Contains(r.stderr, "/no/such") {
			t.Errorf("%s: exit code %d, %q for an output that is not there", program, r.code, r.stderr)
		}
	}
}

func TestForward(t *testing.T) {
	l := sharedLab(t)
	port := strconv.Itoa(freePort(t))
	cmd := l.program("serve", []string{"--forward", port + ":8080"}, "8080")
	w := newLineWriter()
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line := w.next(t); line != "ready" {
		t.Fatalf("the server said %q", line)
	}
	resp, err := http.Get("http://127.0.0.1:" + port)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "from inside" {
		t.Errorf("answer %q, %v", body, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
		t.Error("the port is still forwarded")
	}
}

// freePort is a port that nobody has, and that the kernel gives to nobody who
// asks for any: others do so all the time.
func freePort(t *testing.T) int {
	t.Helper()
	var first int
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(text), &first); err != nil {
		t.Fatal(err)
	}
	const lowest = 1024
	for port := first - 1 - rand.IntN(max(1, (first-lowest)/2)); port >= lowest; port-- {
		if l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatalf("no port from %d on and below %d, where the kernel's begin, is free", lowest, first)
	return 0
}

func TestSignals(t *testing.T) {
	l := sharedLab(t)
	cmd := l.program("signal", nil)
	w := newLineWriter()
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.next(t)

	// Who waits for the machine gives up when told to.
	waiting := l.program("exit", nil, "0")
	said := newLineWriter()
	waiting.Stderr = said
	if err := waiting.Start(); err != nil {
		t.Fatal(err)
	}
	if line := said.next(t); !strings.Contains(line, "waiting") {
		t.Errorf("it said %q", line)
	}
	waiting.Process.Signal(syscall.SIGINT)
	waiting.Wait()
	if code := waiting.ProcessState.ExitCode(); code != exitTrouble {
		t.Errorf("exit code %d of an interrupted wait", code)
	}

	cmd.Process.Signal(syscall.SIGTERM)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 7 {
		t.Errorf("exit code %d; the program exits with 7 on SIGTERM", code)
	}
}

func TestCallersTakeTurns(t *testing.T) {
	l := sharedLab(t)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() { finish(t, l.program("alone", nil)).want(t, 0, "") })
	}
	wg.Wait()
}

func TestCallersShare(t *testing.T) {
	l := sharedLab(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { finish(t, l.program("meet", []string{"--share"}, "4")).want(t, 0, "") })
	}
	wg.Wait()
	// The last of them paused the machine, and the next one resumes it.
	finish(t, l.program("exit", nil, "0")).want(t, 0, "")
}

func TestGoTest(t *testing.T) {
	l := sharedLab(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":            "module example.org/m\n\ngo 1.26\n",
		"testdata/greeting": "hello",
		"m.go":              "package m\n\nfunc Two() int { return 2 }\n",
		"m_test.go": `package m

import (
	"os"
	"testing"
)

func TestTwo(t *testing.T) {
	text, err := os.ReadFile("testdata/greeting")
	if err != nil || string(text) != "hello" || Two() != 2 {
		t.Fatal(string(text), err)
	}
	host, _ := os.Hostname()
	t.Log(host, os.Getenv("FORKVM_REQUIRE_KVM"), os.Getenv("FORKVM_X"), os.Getenv("FORKVM_LAB"))
}

func TestFails(t *testing.T) { t.Fatal("as it should") }
`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	lab := l.command("test")
	gotest := func(args ...string) result {
		cmd := exec.CommandContext(inTime, "go", append([]string{"test", "-v", "-exec", lab.Path + " test"}, args...)...)
		cmd.Dir, cmd.Env = dir, append(lab.Env, "FORKVM_X=x", "GOFLAGS=")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) } // the lab too
		return finish(t, cmd)
	}
	r := gotest("-run=TestTwo", "-coverprofile=cover.out", ".")
	if r.code != 0 || !strings.Contains(r.stdout, "lab 1 x \n") || !strings.Contains(r.stdout, "coverage: 100.0%") {
		t.Errorf("exit code %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if cover, err := os.ReadFile(filepath.Join(dir, "cover.out")); err != nil || !bytes.Contains(cover, []byte("m.go:3.")) {
		t.Errorf("coverage profile %q, %v", cover, err)
	}
	if r := gotest("."); r.code != 1 || !strings.Contains(r.stdout, "--- FAIL: TestFails") {
		t.Errorf("exit code %d of a failing test\n%s%s", r.code, r.stdout, r.stderr)
	}
}

// TestTree boots a machine of its own with a folder on a disk, and with a disk that keeps what is
// written to it.
func TestTreeAndDisk(t *testing.T) {
	l := newLab(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "disk,image")
	if err := exec.Command("mke2fs", "-q", "-t", "ext4", image, "16M").Run(); err != nil {
		t.Fatal(err)
	}
	disk := image + ":/disk"
	r := finish(t, l.command("run", "--tree", dir+":/tree", "--disk", disk, "--memory", "1024", "cp", "/tree/file", "/disk/copy"))
	r.want(t, 0, "")
	r = finish(t, l.command("run", "--disk", disk, "cat", "/disk/copy"))
	r.want(t, 0, "12345")
	if r := finish(t, l.command("status")); r.code != exitNo || !strings.HasPrefix(r.stdout, "down\n") {
		t.Errorf("exit code %d, %q after runs that leave no machine", r.code, r.stdout)
	}
}

// TestMachinePanics crashes the machine: a run fails with words, and a test is run once more.
func TestMachinePanics(t *testing.T) {
	l := newLab(t)
	r := finish(t, l.program("panic", []string{"--keep"}))
	if r.code != exitStuck || !strings.Contains(r.stderr, "sysrq triggered crash") {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	cmd := l.program("panic", nil)
	cmd.Args[1] = "test"
	r = finish(t, cmd)
	if r.code != exitStuck || strings.Count(r.stderr, "THE MACHINE FAILED") != 1 {
		t.Errorf("exit code %d\n%s", r.code, r.stderr)
	}
	if r := finish(t, l.command("status")); !strings.Contains(r.stdout, "failures of the machine so far: 3\n") {
		t.Errorf("status %q", r.stdout)
	}
	// One that was to stay up is started anew.
	finish(t, l.program("exit", nil, "5")).want(t, 5, "")
	if r := finish(t, l.command("status")); r.code != 0 {
		t.Errorf("exit code %d, %q", r.code, r.stdout)
	}
}

// TestMachineStops takes the heartbeat away: that is noticed although the program would wait for
// ever, and another run gets a new machine.
func TestMachineStops(t *testing.T) {
	if testing.Short() {
		t.Skip("waits until the machine has used 20 s of processor time")
	}
	l := newLab(t)
	r := finish(t, l.program("mute", nil))
	if r.code != exitStuck || r.stdout != "mute\n" || !strings.Contains(r.stderr, "kernel stopped") {
		t.Errorf("exit code %d, %q\n%s", r.code, r.stdout, r.stderr)
	}
	finish(t, l.program("exit", nil, "5")).want(t, 5, "")
}

// TestKilled kills a run that has a machine of its own, which must not go on.
func TestKilled(t *testing.T) {
	l := newLab(t)
	cmd := l.program("signal", nil)
	w := newLineWriter()
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.next(t)
	if r := finish(t, l.command("status")); r.code != 0 {
		t.Fatalf("the machine is not up: %q", r.stdout)
	}
	cmd.Process.Kill()
	cmd.Wait()
	for end := time.Now().Add(deadline); finish(t, l.command("status")).code == 0; {
		if time.Now().After(end) {
			t.Fatal("the machine goes on")
		}
	}
}

func TestBoots(t *testing.T) {
	l := newLab(t)
	boots := 1
	if s := os.Getenv("FORKVM_LAB_BOOTS"); s != "" {
		var err error
		if boots, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	for i := range boots {
		begin := time.Now()
		finish(t, l.program("exit", nil, strconv.Itoa(i))).want(t, i, "")
		t.Logf("boot %d and run: %v", i, time.Since(begin).Round(time.Millisecond))
	}
}
