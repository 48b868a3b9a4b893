package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/template"
	"github.com/forkvm/forkvm/snapshot"
)

// linuxRig is a team whose sandboxes are real machines.
type linuxRig struct {
	*Team
	t   *testing.T
	ctx context.Context // of all that is done, so that it ends
}

func newLinuxRig(t *testing.T, e *Engine) *linuxRig {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	return &linuxRig{e.Team("one"), t, ctx}
}

// create makes a sandbox of a template, or of a snapshot.
func (r *linuxRig) create(from string) *api.Sandbox {
	r.t.Helper()
	q := api.CreateRequest{Template: from}
	if strings.HasPrefix(from, api.SnapshotPrefix) {
		q = api.CreateRequest{FromSnapshot: from}
	}
	return must[*api.Sandbox](r.t)(r.Create(r.ctx, q))
}

func (r *linuxRig) forks(s *api.Sandbox, n int) (children []*api.Sandbox) {
	r.t.Helper()
	for _, c := range must[*api.ForkResult](r.t)(r.Fork(r.ctx, s.ID, api.ForkRequest{Count: n})).Children {
		if c.Error != nil {
			r.t.Fatal(c.Error)
		}
		children = append(children, c.Sandbox)
	}
	return children
}

func (r *linuxRig) snapshot(s *api.Sandbox) *api.Snapshot {
	r.t.Helper()
	return must[*api.Snapshot](r.t)(r.CreateSnapshot(r.ctx, s.ID, api.SnapshotRequest{}))
}

// sh runs a script, which must succeed, and returns what it prints.
func (r *linuxRig) sh(s *api.Sandbox, script string) string {
	r.t.Helper()
	e := must[*api.ExecResult](r.t)(r.Exec(r.ctx, s.Access(), api.ExecRequest{Command: api.Command{Argv: []string{"sh", "-c", script}}}))
	if e.Code != 0 {
		r.t.Fatalf("%s: exit code %d, %s%s", script, e.Code, e.Stdout, e.Stderr)
	}
	return strings.TrimSpace(string(e.Stdout))
}

// own is what this process takes of memory, in bytes, and shares with nobody: what
// is mapped several times counts once.
func own(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^Pss:\s+(\d+) kB$`).FindSubmatch(b)
	if m == nil {
		t.Fatalf("no Pss: %s", b)
	}
	kib, _ := strconv.ParseInt(string(m[1]), 10, 64)
	return kib << 10
}

// TestScenarioB16BytesAreCountedOnce: what forks share is in the figures once, and
// taken of the host once, also when all have read it.
func TestScenarioB16BytesAreCountedOnce(t *testing.T) {
	const (
		size = 40 << 20 // much more than what a child writes when it starts and runs a command
		read = "cat /m/x >/dev/null && head -c 65536 /m/x | sha256sum"
	)
	r := newLinuxRig(t, linuxEngine(t, Options{}))
	parent := r.create(workTemplate)
	write := fmt.Sprintf("head -c %d /dev/urandom >/m/x", size)
	sum := r.sh(parent, "mkdir /m && mount -t tmpfs m /m && "+write+" && "+read)
	children := r.forks(parent, 1) // from here on the parent's is in a layer
	before := own(t)
	children = append(children, r.forks(children[0], 3)...)
	for _, c := range children {
		if got := r.sh(c, read); got != sum {
			t.Errorf("a child has %s, the parent %s", got, sum)
		}
	}
	// What is read is there once, and each child has something of its own.
	if added := own(t) - before; added > 2*size {
		t.Errorf("%d children that only read %d MiB add %d MiB", len(children), size>>20, added>>20)
	}
	sharing := must[*api.Sharing](t)(r.Sharing(r.ctx, api.SharingQuery{}))
	var private int64
	for _, s := range sharing.Sandboxes {
		if s.SandboxID == parent.ID {
			continue
		}
		private += s.MemoryPrivateBytes
		if s.MemorySharedBytes < size || s.MemoryPrivateBytes+s.MemorySharedBytes > s.MemoryBytes {
			t.Errorf("a child: %+v", s)
		}
	}
	if limit := int64(len(children)) * size / 2; private > limit {
		t.Errorf("the children say that they have %d MiB of their own", private>>20)
	}
	a, b := children[1], children[2]
	r.sh(a, write)
	mine, its := must[*api.Stats](t)(r.Stats(r.ctx, a.ID)), must[*api.Stats](t)(r.Stats(r.ctx, b.ID))
	if mine.MemoryPrivateBytes < size || its.MemoryPrivateBytes > size/2 {
		t.Errorf("one that wrote %d MiB has %+v, one that did not %+v", size>>20, mine, its)
	}
}

// TestScenarioB22DeleteWithChildren deletes all that sandboxes were made of, the
// snapshot, the sandbox that it was of, and the template, when they have read
// nothing yet. They and their children read everything.
func TestScenarioB22DeleteWithChildren(t *testing.T) {
	store := linuxTemplates(t)
	e := must[*Engine](t)(Open(t.Context(), t.TempDir(), Options{Templates: store.Store}))
	defer e.Close(context.Background(), CloseDestroys)
	r := newLinuxRig(t, e)
	source := r.create(workTemplate)
	const sums = "sha256sum </disk; sha256sum </m/memory"
	want := r.sh(source, "mkdir /m && mount -t tmpfs m /m && head -c 6291456 /dev/urandom | tee /m/memory >/disk && "+
		"cat /disk >>/m/memory && "+sums+"; sync; echo 3 >/proc/sys/vm/drop_caches")
	snap := r.snapshot(source)
	first, sleeper := r.create(snap.ID), r.create(snap.ID)
	must[*api.Sandbox](t)(r.Pause(r.ctx, sleeper.ID))

	if err := errors.Join(r.DeleteSnapshot(r.ctx, snap.ID), r.Destroy(r.ctx, source.ID)); err != nil {
		t.Fatal(err)
	}
	wantCode(t, r.DeleteTemplate(r.ctx, workTemplate), api.Conflict, "2 sandboxes") // as long as there are any
	if err := store.Remove(r.ctx, workTemplate); err != nil {                       // as somebody can who has the directory
		t.Fatal(err)
	}
	if _, err := store.Snapshots().GC(r.ctx); err != nil {
		t.Fatal(err)
	}
	if left := must[[]snapshot.Info](t)(store.Snapshots().List(r.ctx)); len(left) != 1 {
		t.Errorf("stored are %v; want the sandbox that is paused", left)
	}
	_, err := r.Create(r.ctx, api.CreateRequest{FromSnapshot: snap.ID})
	wantCode(t, err, api.NotFound)
	_, err = r.Create(r.ctx, api.CreateRequest{Template: workTemplate})
	wantCode(t, err, api.NotFound)

	child := r.forks(first, 1)[0]
	sleeper = must[*api.Sandbox](t)(r.Resume(r.ctx, sleeper.ID))
	for name, s := range map[string]*api.Sandbox{"made before": first, "its child": child, "paused meanwhile": sleeper} {
		if got := r.sh(s, sums); got != want {
			t.Errorf("%s reads\n%s; want\n%s", name, got, want)
		}
		r.sh(s, "ls -R /bin /etc >/dev/null") // of the template
	}
}

// TestScenarioB25CommandsOutliveTheirClients: a command is found again when its
// client has gone and it was idle for longer than any time-out inside: 11 s, or 5
// minutes in full. One that reads gets the end of its input, unless it is to have
// some.
func TestScenarioB25CommandsOutliveTheirClients(t *testing.T) {
	e := linuxEngine(t, Options{})
	r := newLinuxRig(t, e)
	c := overHTTP(t, e)(t)
	s := must[*api.Sandbox](t)(c.Create(r.ctx, api.CreateRequest{Template: workTemplate}))

	began := time.Now()
	read := must[*api.ExecResult](t)(c.Exec(r.ctx, s.Access(), api.ExecRequest{Command: api.Command{Argv: []string{"cat"}}}))
	if read.Code != 0 || len(read.Stdout) > 0 || time.Since(began) > 30*time.Second {
		t.Errorf("cat without input: %+v", read)
	}
	quiet := must[*api.Process](t)(c.Start(r.ctx, s.Access(), api.StartRequest{Command: api.Command{Argv: []string{"cat"}}}))
	if exit, err := c.WaitProcess(r.ctx, s.Access(), quiet.ID); err != nil || exit.Code != 0 {
		t.Errorf("cat without input in the background: %+v, %v", exit, err)
	}

	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	started, gone := make(chan api.Process, 1), make(chan error, 1)
	input, typed := io.Pipe()
	defer typed.Close()
	go func() {
		_, err := c.Run(ctx, s.Access(), api.StartRequest{Stdin: true, Command: api.Command{
			Argv: []string{"sh", "-c", "echo up; read x; echo got $x; exit 6"}, TimeoutSeconds: api.Clear[int64](),
		}}, api.Streams{Stdin: input, Started: func(p api.Process) { started <- p }})
		gone <- err
	}()
	p := soon(t, started)
	cancel()
	if err := soon(t, gone); !errors.Is(err, context.Canceled) {
		t.Errorf("the client that went: %v", err)
	}
	idle := 11 * time.Second
	if *scenarioFull {
		idle = 5 * time.Minute
	}
	<-time.After(idle) // nothing happens, which is the point
	list := must[*api.ProcessList](t)(c.Processes(r.ctx, s.Access()))
	if len(list.Processes) == 0 || list.Processes[len(list.Processes)-1].ID != p.ID || list.Processes[len(list.Processes)-1].Exit != nil {
		t.Fatalf("processes: %+v; want %d to run", list.Processes, p.ID)
	}
	var out bytes.Buffer
	exit, err := c.Attach(r.ctx, s.Access(), p.ID, api.Streams{Stdin: strings.NewReader("this\n"), Stdout: &out})
	if err != nil || exit.Code != 6 || !strings.HasSuffix(out.String(), "got this\n") {
		t.Errorf("after %v: %+v, %v, %q", idle, exit, err, &out)
	}
}

// heapWatch looks at the heap of this process while bytes go by.
type heapWatch struct{ start, most, next, seen uint64 }

func newHeapWatch() *heapWatch {
	runtime.GC()
	return &heapWatch{start: heapInUse()}
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

func (h *heapWatch) Write(p []byte) (int, error) {
	if h.seen += uint64(len(p)); h.seen >= h.next {
		h.most, h.next = max(h.most, heapInUse()), h.seen+8<<20
	}
	return len(p), nil
}

func (h *heapWatch) grown() uint64 { return max(h.most, h.start) - h.start }

// TestScenarioB26LargeFiles moves files each way between a guest and a client of the
// server, of which neither this process nor the agent keeps more than pieces:
// 48 MiB, or 1 GiB in full.
func TestScenarioB26LargeFiles(t *testing.T) {
	size, name := int64(48<<20), workTemplate
	e := linuxEngine(t, Options{})
	if *scenarioFull {
		size, name = 1<<30, "large"
		root := filepath.Join(t.TempDir(), "root.tar")
		if err := os.WriteFile(root, emptyRoot(), 0o600); err != nil {
			t.Fatal(err)
		}
		spec := template.Spec{Name: name, Source: []byte("FROM " + root + "\n"), Machine: template.Machine{Disk: size + 128<<20}}
		if _, err := commonTemplates(t).Build(t.Context(), spec, template.BuildOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r := newLinuxRig(t, e)
	c := overHTTP(t, e)(t)
	s := must[*api.Sandbox](t)(c.Create(r.ctx, api.CreateRequest{Template: name}))
	taken := func() int { // by the agent, at the most so far
		t.Helper()
		f, _, err := c.ReadFile(r.ctx, s.Access(), "/proc/1/status")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		m := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(must[[]byte](t)(io.ReadAll(f)))
		if m == nil {
			t.Fatal("no VmHWM of the agent")
		}
		return must[int](t)(strconv.Atoi(string(m[1]))) << 10
	}
	before, heap := taken(), newHeapWatch()
	begin := time.Now()
	if _, err := c.WriteFile(r.ctx, s.Access(), "/big", io.TeeReader(io.LimitReader(zeros{}, size), heap), api.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	up := time.Since(begin)
	info := must[*api.FileInfo](t)(c.Stat(r.ctx, s.Access(), "/big"))
	begin = time.Now()
	f, _, err := c.ReadFile(r.ctx, s.Access(), "/big")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := io.Copy(heap, f)
	if err != nil || n != size || info.Size != size {
		t.Errorf("%d bytes went up, %d came back, %v", info.Size, n, err)
	}
	t.Logf("%d MiB up in %v, down in %v", size>>20, up, time.Since(begin))
	if grown := taken() - before; grown > 24<<20 {
		t.Errorf("the agent took %d MiB more", grown>>20)
	}
	if heap.grown() > 32<<20 {
		t.Errorf("the heap of this process, which is client and server, grew by %d MiB", heap.grown()>>20)
	}
}

// TestScenarioB27FullGuestDisk: who writes to a disk that is full is told that it
// is, and everything goes on: the sandbox, what is there already, and writing when
// there is room.
func TestScenarioB27FullGuestDisk(t *testing.T) {
	e := linuxEngine(t, Options{})
	r := newLinuxRig(t, e)
	c := overHTTP(t, e)(t)
	s := must[*api.Sandbox](t)(c.Create(r.ctx, api.CreateRequest{Template: workTemplate}))
	write := func(path string, size int64) error {
		_, err := c.WriteFile(r.ctx, s.Access(), path, io.LimitReader(zeros{}, size), api.WriteOptions{})
		return err
	}
	run := func(script string) *api.ExecResult {
		t.Helper()
		return must[*api.ExecResult](t)(c.Exec(r.ctx, s.Access(), api.ExecRequest{Command: api.Command{Argv: []string{"sh", "-c", script}}}))
	}
	if err := write("/kept", 1<<20); err != nil {
		t.Fatal(err)
	}
	run("head -c 80000000 /dev/zero >/most") // what is filled from outside takes longer
	full := func(err error) {
		t.Helper()
		wantCode(t, err, api.NotEnoughSpace)
		if e, _ := errors.AsType[*api.Error](err); e != nil && e.StatusCode() != 507 {
			t.Errorf("status %d", e.StatusCode())
		}
	}
	before := must[*api.FileList](t)(c.ListFiles(r.ctx, s.Access(), "/"))
	full(write("/kept", 256<<20)) // more than there is
	if info := must[*api.FileInfo](t)(c.Stat(r.ctx, s.Access(), "/kept")); info.Size != 1<<20 {
		t.Errorf("what was there is of %d bytes after a write that failed", info.Size)
	}
	if after := must[*api.FileList](t)(c.ListFiles(r.ctx, s.Access(), "/")); len(after.Files) != len(before.Files) {
		t.Errorf("a write that failed left something: %+v", after.Files)
	}
	if e := run("head -c 300000000 /dev/zero >/fill"); e.Code == 0 || !strings.Contains(string(e.Stderr), "space") {
		t.Errorf("a command that fills the disk: %+v", e)
	}
	full(write("/more", 1<<20))
	full(c.WriteTree(r.ctx, s.Access(), "/tree", archive(t, file("f", 1<<20))))
	if got := run("echo alive").Stdout; string(got) != "alive\n" {
		t.Errorf("a command: %q", got)
	}
	child := must[*api.ForkResult](t)(c.Fork(r.ctx, s.ID, api.ForkRequest{})).Children[0].Sandbox
	must[*api.Sandbox](t)(c.Pause(r.ctx, s.ID))
	s = must[*api.Sandbox](t)(c.Resume(r.ctx, s.ID))
	for _, one := range []*api.Sandbox{s, child} {
		s = one
		full(write("/more", 1<<20))
		if err := c.Remove(r.ctx, s.Access(), "/fill", api.RemoveOptions{}); err != nil {
			t.Error(err)
		}
		if err := write("/more", 1<<20); err != nil {
			t.Errorf("when there is room again: %v", err)
		}
	}
}

// TestScenarioB28AnotherCPUIsRefused: what was stored on a machine whose CPU had
// more, or was another, is refused, with the reason. It stays, and so does all else.
func TestScenarioB28AnotherCPUIsRefused(t *testing.T) {
	r := newLinuxRig(t, linuxEngine(t, Options{}))
	store := r.machines.(*vmMachines).Snapshots()
	// elsewhere stores a machine as if it had been on another host.
	elsewhere := func(stored string, change func(*snapshot.Needs)) string {
		t.Helper()
		s := must[*snapshot.Snapshot](t)(store.Load(r.ctx, stored, nil))
		defer s.Release()
		change(&s.Needs)
		info := must[snapshot.Info](t)(store.Create(r.ctx, snapshot.Draft{
			Label: s.Label, Parent: s.Parent, Config: s.Config, Needs: s.Needs, Kernel: s.Kernel,
			Sections: s.Sections, Memory: s.Memory, Disks: s.Disks,
		}))
		if err := store.Delete(r.ctx, stored); err != nil {
			t.Fatal(err)
		}
		return info.ID
	}
	for word, change := range map[string]func(*snapshot.Needs){
		"CPU of OtherMachine": func(n *snapshot.Needs) { n.Vendor = "OtherMachine" },
		"CPU features": func(n *snapshot.Needs) {
			n.Features = append(n.Features, snapshot.FeatureWords{Leaf: 7, EBX: ^uint32(0), ECX: ^uint32(0)})
		},
	} {
		source := r.create(workTemplate)
		snap := r.snapshot(source)
		must[*api.Sandbox](t)(r.Pause(r.ctx, source.ID))
		r.mu.Lock()
		box, kept := r.boxes[source.ID], r.snaps[snap.ID]
		stored := []string{box.rec.Stored, kept.rec.Stored}
		r.mu.Unlock()
		for k := range stored {
			stored[k] = elsewhere(stored[k], change)
		}
		r.mu.Lock()
		box.rec.Stored, kept.rec.Stored = stored[0], stored[1]
		r.mu.Unlock()

		_, err := r.Resume(r.ctx, source.ID)
		wantCode(t, err, api.Conflict, word)
		_, err = r.Exec(r.ctx, source.Access(), api.ExecRequest{Command: api.Command{Argv: []string{"true"}}})
		wantCode(t, err, api.Conflict, word)
		_, err = r.Fork(r.ctx, source.ID, api.ForkRequest{Count: 2})
		wantCode(t, err, api.Conflict, word)
		_, err = r.Create(r.ctx, api.CreateRequest{FromSnapshot: snap.ID})
		wantCode(t, err, api.Conflict, word, snap.ID)
		if s := must[*api.Sandbox](t)(r.Get(r.ctx, source.ID)); s.State != api.Paused {
			t.Errorf("it is %s", s.State)
		}
		must[*api.Snapshot](t)(r.Snapshot(r.ctx, snap.ID))
		r.mu.Lock()
		if len(r.boxes) != 1 || r.memory != 0 {
			t.Errorf("%d sandboxes, %d bytes reserved", len(r.boxes), r.memory)
		}
		r.mu.Unlock()
		if err := errors.Join(r.Destroy(r.ctx, source.ID), r.DeleteSnapshot(r.ctx, snap.ID)); err != nil {
			t.Error(err)
		}
	}
	r.sh(r.create(workTemplate), "true")
}
