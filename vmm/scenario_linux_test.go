package vmm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/kvm"
)

// Scenarios that take a Linux guest. Like the other tests of such guests, they
// work on forks of one machine that is booted once.

// session is a connection that a process in a guest has to the host, on which
// it echoes.
type session struct {
	t    testing.TB
	conn net.Conn
}

// holdSession starts such a process.
func holdSession(t testing.TB, vm *VM) session {
	t.Helper()
	l, err := vm.Listen(holdPort)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hold := vm.CommandContext(t.Context(), helperPath, "hold")
	hold.Detach = true
	if err := hold.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return session{t, conn}
}

// echo fails the test unless the session lives.
func (s session) echo() {
	s.t.Helper()
	if err := s.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.conn.Write([]byte{'x'}); err != nil {
		s.t.Fatalf("a session of the guest: %v", err)
	}
	var got [1]byte
	if _, err := io.ReadFull(s.conn, got[:]); err != nil || got[0] != 'x' {
		s.t.Fatalf("a session of the guest: %q, %v", got, err)
	}
}

// endOfSession is how the session ended in a child that inherited it.
func endOfSession(t testing.TB, child *VM) string {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if how := readFile(t, child, holdFile, 1<<10); how != "" {
			return how
		}
	}
	t.Error("the session did not end")
	return ""
}

// readFile reads at most n bytes of a guest's file, "" if there is none.
func readFile(t testing.TB, vm *VM, name string, n int64) string {
	t.Helper()
	f, err := vm.Agent().FS().Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, n))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// drawn is what a machine's generators give.
func drawn(t testing.TB, vm *VM) []string {
	t.Helper()
	var all []string
	for _, name := range []string{"/dev/urandom", "/dev/random", "/proc/sys/kernel/random/uuid"} {
		all = append(all, fmt.Sprintf("%x", readFile(t, vm, name, 16)))
	}
	return all
}

// identity is what names a machine: its boot for processes, and its generation
// for the kernel.
func identity(t testing.TB, vm *VM) []string {
	t.Helper()
	id, err := vm.mem.Slice(vmgenidAddr, 16)
	if err != nil {
		t.Fatal(err)
	}
	return []string{readFile(t, vm, "/proc/sys/kernel/random/boot_id", 64), fmt.Sprintf("%x", id)}
}

// TestScenarioM28P08P13HundredChildren starts a hundred children from captures of one
// machine, and looks after each at what others got wrong:
//
//   - M28, P8, B4: the first bytes that it draws are nobody else's, the
//     parent's least of all;
//   - P13: a session that a process of the parent has lives on;
//   - M14, B9: in the child it is reset, its listeners answer at once;
//   - M5: its wall clock is right.
func TestScenarioM28P08P13HundredChildren(t *testing.T) {
	parent := minimal.fork(t)
	startHelper(t, parent)
	s := holdSession(t, parent)
	owner := make(map[string]string)
	own := func(who string, fields []string) {
		t.Helper()
		for _, f := range fields {
			if other, dup := owner[f]; dup {
				t.Errorf("P08: %s and %s both drew %s", other, who, f)
			}
			owner[f] = who
		}
	}
	own("the parent", append(identity(t, parent), drawn(t, parent)...))
	var image *Image
	rounds(t, 100, 20, func(round int) {
		if round%10 == 0 {
			image = captureOf(t, parent)
		}
		child, err := image.Start(t.Context(), StartOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer closeVM(t, child)
		own(fmt.Sprint("child ", round), append(drawn(t, child), identity(t, child)...))
		if round%5 == 0 {
			rightTime(t, child)
			if how := endOfSession(t, child); how != "EOF" && !strings.Contains(how, "connection reset") {
				t.Errorf("M14: in child %d the parent's session ended with %q", round, how)
			}
		}
		s.echo()
		if round%10 == 9 {
			image.Close()
			own(fmt.Sprint("the parent after child ", round), drawn(t, parent))
		}
	})
}

// rightTime looks at the wall clock of a child in which a helper serves. It is
// as late as its word was under way to the child, which on a machine without
// spare time can be longer than half a second.
func rightTime(t testing.TB, child *VM) {
	t.Helper()
	tm := child.Timings()
	off := max(500*time.Millisecond, tm.AgentReady-tm.StateReady)
	before := time.Now()
	got := ask(t, child, "state").Now
	if after := time.Now(); got.Before(before.Add(-off)) || got.After(after.Add(off)) {
		t.Errorf("M05: a child's clock says %v, between %v and %v; %+v", got, before, after, tm)
	}
}

// TestScenarioM16PauseAloneBlocksNothing pauses and resumes a machine, with
// nothing captured, and connects both ways.
func TestScenarioM16PauseAloneBlocksNothing(t *testing.T) {
	vm := minimal.fork(t)
	startHelper(t, vm)
	s := holdSession(t, vm)
	for range 3 {
		pause(t, vm)
		resume(t, vm)
		ask(t, vm, "state") // a new connection from the host
		s.echo()
		if got := output(t, vm, "echo", "hello"); got != "hello" {
			t.Errorf("a command says %q", got)
		}
	}
}

// TestScenarioM17WriteOutstandingAtTheCapture writes to a session of a machine
// that is paused, forks it, and lets it go on. What was written arrives.
func TestScenarioM17WriteOutstandingAtTheCapture(t *testing.T) {
	vm := minimal.fork(t)
	s := holdSession(t, vm)
	for round := range 3 {
		s.echo()
		if err := s.conn.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		pause(t, vm)
		want := bytes.Repeat([]byte{byte('a' + round)}, 1000)
		written := make(chan error, 1)
		go func() { // it waits as long as the machine is paused
			_, err := s.conn.Write(want)
			written <- err
		}()
		child := forks(t, vm, 1)[0]
		resume(t, vm)
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if err := s.conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(s.conn, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("round %d: %q comes back, %v", round, got, err)
		}
		if how := endOfSession(t, child); how != "EOF" && !strings.Contains(how, "connection reset") {
			t.Errorf("in the child the session ended with %q", how)
		}
	}
}

// TestScenarioM15StopInTheMiddleOfAStream forks a machine whose guest sends
// without pause, to a host that does not always read. In the parent not a byte
// is lost; a child takes new connections and sends as well.
func TestScenarioM15StopInTheMiddleOfAStream(t *testing.T) {
	vm := minimal.fork(t)
	next := countingStream(t, vm)
	for range 500 {
		next()
	}
	for round := range 3 {
		child := forks(t, vm, 1)[0] // its sender waits for somebody to read
		for range 3000 {
			next()
		}
		childNext := countingStream(t, child)
		for range 500 {
			childNext()
		}
		if got := output(t, child, "echo", "hello"); got != "hello" {
			t.Errorf("round %d: a command in the child says %q", round, got)
		}
		closeVM(t, child)
	}
}

// countingStream has a process in the guest send numbers for ever. next checks
// the next one.
func countingStream(t testing.TB, vm *VM) (next func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := vm.CommandContext(ctx, "sh", "-c", "i=0; while :; do echo $i; i=$((i+1)); done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); out.Close(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	want := 0
	return func() {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the stream ends before %d: %v", want, lines.Err())
		}
		if lines.Text() != strconv.Itoa(want) {
			t.Fatalf("the stream has %q in place of %d", lines.Text(), want)
		}
		want++
	}
}

// lineWriter hands on each line that is written to it, and waits until it is
// taken.
type lineWriter struct {
	mu   sync.Mutex
	part []byte
	line chan string
	done <-chan struct{}
}

func newLineWriter(t testing.TB) *lineWriter {
	return &lineWriter{line: make(chan string), done: t.Context().Done()}
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.part = append(w.part, p...)
	for {
		i := bytes.IndexByte(w.part, '\n')
		if i < 0 {
			return len(p), nil
		}
		select {
		case w.line <- strings.TrimRight(string(w.part[:i]), "\r"):
		case <-w.done:
		}
		w.part = w.part[i+1:]
	}
}

// TestScenarioM19CaptureInTheMiddleOfSerialOutput forks a machine that writes
// to its serial port, by interrupts, all the time. Both go on from there, with
// whole lines and no number left out.
func TestScenarioM19CaptureInTheMiddleOfSerialOutput(t *testing.T) {
	parent := minimal.fork(t)
	image := captureOf(t, parent)
	console := newLineWriter(t)
	vm := startFrom(t, image, StartOptions{Console: console})
	cmd := vm.CommandContext(t.Context(), "sh", "-c", "i=0; while :; do echo line $i of a story; i=$((i+1)); done > /dev/ttyS0")
	cmd.Detach = true
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	follow := func(w *lineWriter, from, lines int) (last int) {
		t.Helper()
		for n := 0; n < lines; n++ {
			select {
			case line := <-w.line:
				var i int
				if _, err := fmt.Sscanf(line, "line %d of a story", &i); err != nil {
					if n == 0 { // the capture cut a line in two
						continue
					}
					t.Fatalf("the console says %q after line %d", line, from)
				}
				if from >= 0 && i != from+1 {
					t.Fatalf("line %d follows line %d", i, from)
				}
				from = i
			case <-time.After(patience):
				t.Fatalf("the console is silent after line %d", from)
			}
		}
		return from
	}
	last := follow(console, -1, 20)
	for range 3 {
		next := newLineWriter(t)
		child := startFrom(t, captureOf(t, vm), StartOptions{Console: next})
		last = follow(console, last, 20)
		follow(next, -1, 20)
		closeVM(t, child)
	}
}

// TestScenarioM27FilesAreOfTheFork writes files in a guest before a fork and
// after it.
func TestScenarioM27FilesAreOfTheFork(t *testing.T) {
	parent := minimal.fork(t)
	write := func(vm *VM, name, text string) {
		t.Helper()
		if err := vm.Agent().FS().WriteFile("/tmp/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(vm *VM, name string) string {
		t.Helper()
		p, err := vm.Agent().FS().ReadFile("/tmp/" + name)
		if err != nil {
			return err.Error()
		}
		return string(p)
	}
	write(parent, "before", "of the parent")
	image := captureOf(t, parent)
	write(parent, "before", "changed by the parent")
	write(parent, "after", "of the parent")
	a, b := startFrom(t, image, StartOptions{}), startFrom(t, image, StartOptions{})
	write(a, "before", "changed by a child")
	for who, c := range map[string]struct {
		vm   *VM
		want string
	}{
		"parent": {parent, "changed by the parent"}, "first child": {a, "changed by a child"}, "second child": {b, "of the parent"},
	} {
		if got := read(c.vm, "before"); got != c.want {
			t.Errorf("%s: the file says %q, want %q", who, got, c.want)
		}
	}
	for who, vm := range map[string]*VM{"first child": a, "second child": b} {
		if got := read(vm, "after"); !strings.Contains(got, "no such file") {
			t.Errorf("%s has the file that its parent wrote after the fork: %q", who, got)
		}
	}
}

// stalls are what the kernel says of a machine that stood still unawares, or
// whose clock went wrong.
var stalls = []string{
	"soft lockup", "self-detected stall", "detected stalls", "rcu_preempt kthread", "hrtimer: interrupt took", "clocksource: Marking", "TSC unstable",
	"Watchdog", "blocked for more than", "Call Trace",
}

// noStalls reads a guest's log.
func noStalls(t testing.TB, vm *VM) {
	t.Helper()
	log := output(t, vm, "dmesg")
	for _, s := range stalls {
		if strings.Contains(log, s) {
			t.Errorf("the guest's log has %q:\n%s", s, log)
		}
	}
}

// TestScenarioB01B02B03LongPauses keeps a machine paused, and an image unused,
// for a while in which watchdogs that are set to seconds would bark. The wall
// clock is right afterwards, and nobody barks.
func TestScenarioB01B02B03LongPauses(t *testing.T) {
	parent := debian.fork(t)
	startHelper(t, parent)
	long := 8 * time.Second
	if *scenarioFull {
		long = 60 * time.Second
	}
	// Seconds after which the kernel reports a CPU that does nothing. A kernel
	// without the one or the other has nothing to report either.
	output(t, parent, "sh", "-c", "echo 1 > /proc/sys/kernel/watchdog_thresh; echo 3 > /sys/module/rcupdate/parameters/rcu_cpu_stall_timeout; true")
	image := captureOf(t, parent)
	pause(t, parent)
	time.Sleep(long)
	resume(t, parent)
	check := func(name string, vm *VM) {
		t.Helper()
		tm := vm.Timings()
		off := max(time.Second, tm.AgentReady-tm.StateReady) // see rightTime
		before := time.Now()
		s := ask(t, vm, "state")
		if after := time.Now(); s.Now.Before(before.Add(-off)) || s.Now.After(after.Add(off)) {
			t.Errorf("%s: its clock says %v, between %v and %v", name, s.Now, before, after)
		}
		if s.Back != 0 {
			t.Errorf("%s: its monotonic clock went back", name)
		}
		if again := ask(t, vm, "state"); again.Ticks < s.Ticks {
			t.Errorf("%s: the helper stands still: %+v, %+v", name, s, again)
		}
	}
	child := startFrom(t, image, StartOptions{})
	check("a machine that was paused", parent)
	check("a child of an old image", child)
	// Time for the watchdogs to look.
	for name, vm := range map[string]*VM{"a machine that was paused": parent, "a child of an old image": child} {
		output(t, vm, "sleep", "3")
		check(name, vm)
		noStalls(t, vm)
	}
}

// TestScenarioB05NothingBeforeTheIdentity starts a child without renewing its
// identity, which no caller of the package can do. Who does not know the
// generation that it has from its parent is refused all work; once the renewal
// is confirmed, so is who knows that one.
func TestScenarioB05NothingBeforeTheIdentity(t *testing.T) {
	parent := minimal.fork(t)
	inherited := parent.Agent().Generation()
	image := captureOf(t, parent)
	image.cfg.Bare = true // it is started, and that is all
	child := startFrom(t, image, StartOptions{})
	refused := func(when string, g client.Generation) {
		t.Helper()
		c := client.New(child.dialAgent, client.WithGeneration(g))
		if out, err := c.CommandContext(t.Context(), "echo", "hello").Output(); err == nil {
			t.Errorf("%s a client of generation %v got %q", when, g, out)
		}
	}
	refused("before", client.Generation{})
	refused("before", client.Generation{1})
	if err := child.renewIdentity(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused("afterwards", inherited)
	refused("afterwards", client.Generation{})
	if got := output(t, child, "echo", "hello"); got != "hello" {
		t.Errorf("afterwards a command says %q", got)
	}
	output(t, parent, "echo")
}

// TestScenarioP14ChildThatDoesNotConfirmIsClosed ends the context of a fork
// before the children can have confirmed.
func TestScenarioP14ChildThatDoesNotConfirmIsClosed(t *testing.T) {
	parent := minimal.fork(t)
	forkAndClose(t, parent, 1)
	before := holdings(t, parent)
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		stop := observe(t, func(c kvm.Call) unix.Errno {
			if c.Name == "KVM_SET_VCPU_EVENTS" { // the last thing before a child runs
				cancel()
			}
			return 0
		})
		children, err := parent.Fork(ctx, 2)
		stop()
		if !errors.Is(err, context.Canceled) || children != nil {
			t.Errorf("%d children, %v", len(children), err)
		}
		closeAll(t, children)
		cancel()
	}
	sameHoldings(t, before, parent)
	output(t, parent, "echo")
}

// TestScenarioP03WallClockFromTheFirstProcess looks at what the kernel itself
// wrote down before there was any process: the time at which it made a device
// node.
func TestScenarioP03WallClockFromTheFirstProcess(t *testing.T) {
	for name, kind := range map[string]*guestKind{"minimal": minimal, "debian": debian} {
		t.Run(name, func(t *testing.T) {
			vm := kind.fork(t)
			info, err := vm.Agent().FS().Stat("/dev/kmsg")
			if err != nil {
				t.Fatal(err)
			}
			fields := strings.Fields(output(t, vm, "cat", "/proc/uptime"))
			uptime, err := strconv.ParseFloat(fields[0], 64)
			if err != nil {
				t.Fatal(err)
			}
			// Later than the boot by what the kernel took, less what passed
			// outside of the guest's time between capture and start.
			booted := time.Now().Add(-time.Duration(uptime * float64(time.Second)))
			const off = 60 * time.Second
			if at := info.ModTime(); at.Before(booted.Add(-off)) || at.After(time.Now().Add(time.Second)) {
				t.Errorf("/dev/kmsg was made at %v, the machine started at about %v", at, booted)
			}
		})
	}
}

// TestScenarioB14FirstCommandIsTimedApart has the time until a child runs, and
// until its first command is done, told apart.
func TestScenarioB14P15FirstCommandIsTimedApart(t *testing.T) {
	parent := minimal.fork(t)
	begin := time.Now()
	child := startFrom(t, captureOf(t, parent), StartOptions{})
	tm := child.Timings()
	output(t, child, "true")
	first := time.Since(begin)
	if tm.StateReady <= 0 || tm.AgentReady <= tm.StateReady || first <= tm.AgentReady {
		t.Errorf("first command after %v: %+v", first, tm)
	}
	if tm = child.Timings(); tm.FirstExit <= tm.StateReady || tm.FirstExit > tm.AgentReady {
		t.Errorf("first exit: %+v", tm)
	}
}
