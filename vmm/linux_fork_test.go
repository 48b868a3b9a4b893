package vmm

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
)

func TestEightChildrenGoTheirOwnWays(t *testing.T) {
	parent := minimal.fork(t)
	startHelper(t, parent)
	if err := parent.Agent().FS().WriteFile("/root/file", []byte("of the parent"), 0o644); err != nil {
		t.Fatal(err)
	}
	output(t, parent, "sh", "-c", "for d in 1 2 3; do mkdir -p /root/tree/$d; for f in a b c; do echo $d$f > /root/tree/$d/$f; done; done")
	before, tree := ask(t, parent, "state"), hashTree(t, parent)
	processes := output(t, parent, "ps")
	children := forks(t, parent, 8)
	t.Logf("first child: %+v", children[0].Timings())
	for i, c := range children {
		s := ask(t, c, "state")
		if s.PID != before.PID || s.Hash != before.Hash {
			t.Errorf("child %d: helper is %+v, was %+v", i, s, before)
		}
		if s.Counter < before.Counter || s.Ticks < before.Ticks {
			t.Errorf("child %d: counters went back to %+v from %+v", i, s, before)
		}
		awaitHelper(t, c, s)
		if got := hashTree(t, c); got != tree {
			t.Errorf("child %d: files are %s, were %s", i, got, tree)
		}
		if !strings.Contains(processes, fmt.Sprint(s.PID)) {
			t.Errorf("process %d is not in %s", s.PID, processes)
		}
	}
	// Everybody writes, nobody sees the others' writes.
	all := append(children, parent)
	hashes, trees := make(map[string]int), map[string]int{tree: 0}
	for i, vm := range all {
		hashes[ask(t, vm, "scribble").Hash]++
		if err := vm.Agent().FS().WriteFile("/root/file", fmt.Append(nil, i), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if len(hashes) != len(all) || hashes[before.Hash] != 0 {
		t.Errorf("hashes after everybody wrote: %v", hashes)
	}
	for i, vm := range all {
		if got, err := vm.Agent().FS().ReadFile("/root/file"); err != nil || string(got) != fmt.Sprint(i) {
			t.Errorf("machine %d has file %q, %v", i, got, err)
		}
		if h := ask(t, vm, "state").Hash; hashes[h] != 1 {
			t.Errorf("machine %d has a hash of another", i)
		}
		h := hashTree(t, vm)
		if j, dup := trees[h]; dup {
			t.Errorf("machines %d and %d have the same files", i, j)
		}
		trees[h] = i
	}
}

func TestChainOfForksFiveDeep(t *testing.T) {
	vm := minimal.fork(t)
	startHelper(t, vm)
	hash := ask(t, vm, "state").Hash
	for depth := range 5 {
		name := fmt.Sprintf("/root/depth-%d", depth)
		if err := vm.Agent().FS().WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		child := forks(t, vm, 1)[0]
		if got := ask(t, child, "state"); got.Hash != hash || got.Back != 0 {
			t.Errorf("depth %d: %+v, hash was %s", depth, got, hash)
		}
		hash = ask(t, child, "scribble").Hash
		if ask(t, vm, "state").Hash == hash {
			t.Errorf("depth %d: the parent sees the child's write", depth)
		}
		vm = child
	}
	files := strings.Fields(output(t, vm, "ls", "/root"))
	if len(files) != 5 {
		t.Errorf("files at the end of the chain: %q", files)
	}
}

func TestScenarioB24TwoForksWithWritesBetween(t *testing.T) {
	vm := minimal.fork(t)
	startHelper(t, vm)
	first := ask(t, vm, "state").Hash
	a := forks(t, vm, 1)[0]
	second := ask(t, vm, "scribble").Hash
	b := forks(t, vm, 1)[0]
	if got := ask(t, a, "state").Hash; got != first {
		t.Errorf("the first child has %s, want %s", got, first)
	}
	if got := ask(t, b, "state").Hash; got != second {
		t.Errorf("the second child has %s, want %s", got, second)
	}
}

func TestScenarioM28ChildrenDrawDifferentRandomness(t *testing.T) {
	parent := minimal.fork(t)
	read := []string{"sh", "-c", "dd if=/dev/urandom bs=32 count=1 2>/dev/null | sha256sum; cat /proc/sys/kernel/random/uuid /proc/sys/kernel/random/boot_id"}
	machines := append(forks(t, parent, 8), parent)
	seen := make(map[string]int)
	ids := make(map[string]int)
	for i, vm := range machines {
		for _, field := range strings.Fields(output(t, vm, read[0], read[1:]...)) {
			if field == "-" {
				continue
			}
			if j, dup := seen[field]; dup {
				t.Errorf("machines %d and %d both drew %s", i, j, field)
			}
			seen[field] = i
		}
		id, err := vm.mem.Slice(vmgenidAddr, 16)
		if err != nil {
			t.Fatal(err)
		}
		if j, dup := ids[string(id)]; dup {
			t.Errorf("machines %d and %d have the same VMGenID", i, j)
		}
		ids[string(id)] = i
	}
}

func TestScenarioM05WallClockOfChildren(t *testing.T) {
	parent := minimal.fork(t)
	startHelper(t, parent)
	for _, vm := range append(forks(t, parent, 4), parent) {
		rightTime(t, vm)
	}
}

func TestScenarioM14OpenConnectionDiesInTheChild(t *testing.T) {
	parent := minimal.fork(t)
	cmd := parent.CommandContext(t.Context(), "cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	echo := func(what string) {
		t.Helper()
		buf := make([]byte, len(what))
		if _, err := io.WriteString(in, what); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, buf); err != nil || string(buf) != what {
			t.Fatalf("cat answers %q, %v", buf, err)
		}
	}
	echo("before")
	for range 3 {
		child := forks(t, parent, 1)[0]
		echo("after")
		// In the child the same agent answers new connections at once.
		if got := output(t, child, "echo", "hello"); got != "hello" {
			t.Errorf("exec in the child: %q", got)
		}
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestScenarioM14GuestConnectionAndListener has a process of the guest hold a
// connection to the host, and another listen.
func TestScenarioM14GuestConnectionAndListener(t *testing.T) {
	parent := minimal.fork(t)
	l, err := parent.Listen(holdPort)
	if err != nil {
		t.Fatal(err)
	}
	startHelper(t, parent) // listens
	hold := parent.CommandContext(t.Context(), helperPath, "hold")
	hold.Detach = true
	if err := hold.Start(); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	echo := func() {
		t.Helper()
		if _, err := conn.Write([]byte{'x'}); err != nil {
			t.Fatal(err)
		}
		var got [1]byte
		if _, err := io.ReadFull(conn, got[:]); err != nil || got[0] != 'x' {
			t.Fatalf("the parent's connection: %q, %v", got, err)
		}
	}
	echo()
	for range 3 {
		child := forks(t, parent, 1)[0]
		how := output(t, child, "sh", "-c", "while test ! -s "+holdFile+"; do sleep 0.01; done; cat "+holdFile)
		// ENOTCONN, which Linux answers after a reset, is io.EOF to package vsock.
		if how != "EOF" && !strings.Contains(how, "connection reset") {
			t.Errorf("in the child the connection ended with %q", how)
		}
		ask(t, child, "state") // a new connection to the same listener
		ask(t, parent, "state")
		echo()
	}
}

func TestScenarioM08TwoVCPUsKeepOneClock(t *testing.T) {
	parent := minimalSMP.fork(t)
	for i, vm := range append(forks(t, parent, 2), parent) {
		out, err := vm.CommandContext(t.Context(), helperPath, "clocks").Output()
		if err != nil || strings.TrimSpace(string(out)) != "cpus 2 reads true back 0" {
			t.Errorf("machine %d: %q, %v", i, out, err)
		}
	}
}

func TestForkWhileCommandsRun(t *testing.T) {
	parent := minimalSMP.fork(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				want := fmt.Sprint(i, n)
				out, err := parent.CommandContext(t.Context(), "echo", want).Output()
				if err != nil || strings.TrimSpace(string(out)) != want {
					t.Errorf("echo %s: %q, %v", want, out, err)
					return
				}
			}
		})
	}
	for range 3 {
		for _, c := range forks(t, parent, 2) {
			if got := output(t, c, "echo", "child"); got != "child" {
				t.Errorf("child answers %q", got)
			}
		}
	}
	cancel()
	wg.Wait()
}

func TestScenarioP07ChildConsoleStartsEmpty(t *testing.T) {
	child := minimal.fork(t)
	if tail := child.ConsoleTail(); len(tail) != 0 {
		t.Errorf("a child's console begins with %q", tail)
	}
	s := child.Stats()
	if p := minimal.vm.Stats(); s.MMIOWrite >= p.MMIOWrite {
		t.Errorf("a child's counters begin with its parent's: %+v, %+v", s, p)
	}
}
