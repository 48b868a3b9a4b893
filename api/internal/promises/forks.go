package promises

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkvm/forkvm/api"
)

var forks = []Promise{
	{"U01", "CreatedByTemplateName", "A sandbox is created by template name; the call returns something usable at once.", func(c *C) {
		s := c.create()
		is(c, "state", s.State, api.Running)
		is(c, "template", s.Template, c.target.Template)
		is(c, "a command", c.sh(s, "echo hello"), "hello")
	}},
	{"U02", "ScopedBlock", "Used as a scoped block, the sandbox is destroyed when the block ends.", func(c *C) {
		var id string
		err := api.With(c.ctx(), c.Service, api.CreateRequest{Template: c.target.Template}, func(s *api.Sandbox) error {
			id = s.ID
			is(c, "a command", c.sh(s, "echo in"), "in")
			return nil
		})
		if err != nil {
			c.Fatal(err)
		}
		_, err = c.Get(c.ctx(), id)
		c.code(err, api.NotFound)
	}},
	{"U03", "ExecTakesArgv", "Exec takes an argv list; a shell must be named explicitly. It returns exit code and standard output.", func(c *C) {
		s := c.create()
		r, err := c.Exec(c.ctx(), s.Access(), api.ExecRequest{Command: api.Command{Argv: []string{"echo", "a  b", "$HOME", "*"}}})
		if err != nil {
			c.Fatal(err)
		}
		is(c, "output", string(r.Stdout), "a  b $HOME *\n")
		is(c, "exit code", r.Code, 0)
	}},
	{"U04", "SameDirectory", "Every exec starts in the same default directory: a cd in one call is not visible in the next, relative directories from an earlier call are found.", func(c *C) {
		s := c.create()
		first := c.sh(s, "mkdir -p clone && echo x >clone/file && cd clone && cd .. && pwd")
		is(c, "directory of the next", c.sh(s, "cd /tmp; pwd"), "/tmp")
		is(c, "directory after a cd", c.sh(s, "pwd"), first)
		is(c, "relative file", c.sh(s, "cat clone/file"), "x")
	}},
	{"U06", "ForkReturnsSandboxes", "Fork works on a running sandbox and returns sandboxes of the same kind.", func(c *C) {
		s := c.create()
		child := c.forks(s, 1)[0]
		is(c, "state", child.State, api.Running)
		is(c, "a command in the child", c.sh(child, "echo hello"), "hello")
		grandchild := c.forks(child, 1)[0]
		is(c, "a command in its child", c.sh(grandchild, "echo hello"), "hello")
	}},
	{"U07", "ForkNamesItsParent", "A fork reports its parent's id.", func(c *C) {
		s := c.create()
		is(c, "parent of the parent", s.ParentSandboxID, nil)
		is(c, "parent", ptr(c.forks(s, 1)[0].ParentSandboxID), s.ID)
	}},
	{"U08", "ParentContinuesAfterFork", "The parent stops only while its state is captured; then it goes on by itself and accepts exec.", func(c *C) {
		s := c.create()
		c.counter(s)
		f, err := c.Fork(c.ctx(), s.ID, api.ForkRequest{})
		if err != nil {
			c.Fatal(err)
		}
		c.destroyLater(f.Children[0].Sandbox.ID)
		if f.PauseSeconds <= 0 || f.PauseSeconds > 5 {
			c.Errorf("the parent stood still for %v s", f.PauseSeconds)
		}
		c.goesOn(s)
		is(c, "state of the parent", c.record(s).State, api.Running)
	}},
	{"U09", "ForkHasMemory", "A fork has the parent's memory: a value that only a process has is in both.", func(c *C) {
		s := c.create()
		c.keeper(s, "in-memory-only")
		child := c.forks(s, 1)[0]
		is(c, "the child's", c.kept(child), "in-memory-only")
		is(c, "the parent's", c.kept(s), "in-memory-only")
	}},
	{"U10", "ForkHasFiles", "A fork has the parent's files.", func(c *C) {
		s := c.create()
		c.sh(s, "echo text >/root/file 2>/dev/null || echo text >/file")
		child := c.forks(s, 1)[0]
		is(c, "a file", c.sh(child, "cat /root/file 2>/dev/null || cat /file"), "text")
	}},
	{"U11", "ForkHasProcesses", "A fork has the parent's processes with the same PIDs, and they go on in both.", func(c *C) {
		s := c.create()
		p := c.counter(s)
		child := c.forks(s, 1)[0]
		for _, one := range []*api.Sandbox{s, child} {
			c.goesOn(one)
			list, err := c.Processes(c.ctx(), one.Access())
			if err != nil {
				c.Fatal(err)
			}
			if !slices.ContainsFunc(list.Processes, func(q api.Process) bool { return q.ID == p.ID && q.PID == p.PID && q.Exit == nil }) {
				c.Errorf("processes: %+v; want %d to run", list.Processes, p.PID)
			}
			c.sh(one, fmt.Sprintf("test -d /proc/%d", p.PID))
		}
	}},
	{"U12", "MemoryIsApart", "After a fork neither side sees the other's later writes to memory.", func(c *C) {
		s := c.create()
		c.sh(s, "mkdir -p /tmp/m && mount -t tmpfs m /tmp/m && echo old >/tmp/m/v")
		child := c.forks(s, 1)[0]
		c.sh(s, "echo parent >/tmp/m/v")
		c.sh(child, "echo child >/tmp/m/v")
		is(c, "the parent's", c.sh(s, "cat /tmp/m/v"), "parent")
		is(c, "the child's", c.sh(child, "cat /tmp/m/v"), "child")
	}},
	{"U13", "DiskIsApart", "After a fork neither side sees the other's later writes to disk.", func(c *C) {
		s := c.create()
		c.sh(s, "echo old >/v; sync")
		child := c.forks(s, 1)[0]
		c.sh(s, "echo parent >/v; sync; echo 3 >/proc/sys/vm/drop_caches")
		c.sh(child, "echo child >/v; sync; echo 3 >/proc/sys/vm/drop_caches")
		is(c, "the parent's", c.sh(s, "cat /v"), "parent")
		is(c, "the child's", c.sh(child, "cat /v"), "child")
	}},
	{"U14", "DistinctID", "A fork has an id of its own.", func(c *C) {
		s := c.create()
		f := c.forks(s, 2)
		if s.ID == f[0].ID || s.ID == f[1].ID || f[0].ID == f[1].ID {
			c.Errorf("ids: %s %s %s", s.ID, f[0].ID, f[1].ID)
		}
		if c.sh(f[0], "hostname") == c.sh(f[1], "hostname") {
			c.Error("two forks have one host name")
		}
	}},
	{"U15", "DistinctToken", "A fork has a token of its own: the parent's is refused on the fork, and the reverse.", func(c *C) {
		s := c.create()
		child := c.forks(s, 1)[0]
		for _, a := range []api.Access{{ID: s.ID, Token: child.AccessToken}, {ID: child.ID, Token: s.AccessToken}, {ID: s.ID}} {
			_, err := c.Processes(c.ctx(), a)
			c.code(err, api.Unauthorized)
		}
	}},
	{"U17", "PagesShared", "Memory pages are shared until written: a fresh fork has next to nothing of its own.", func(c *C) {
		s := c.create()
		c.sh(s, "head -c 33554432 /dev/urandom >/dev/shm/x 2>/dev/null || head -c 33554432 /dev/urandom >/tmp/x")
		stats, err := c.Stats(c.ctx(), c.forks(s, 1)[0].ID)
		if err != nil {
			c.Fatal(err)
		}
		if stats.MemoryPrivateBytes > 24<<20 || stats.MemorySharedBytes < 32<<20 {
			c.Errorf("a fresh fork: %+v", stats)
		}
		pair := c.forks(s, 2)
		fresh := c.inCommon(pair[0], pair[1])
		if fresh.MemoryBytes < 32<<20 || fresh.DiskBytes == 0 {
			c.Errorf("two fresh forks: %+v", fresh)
		}
		c.sh(pair[0], "f=/dev/shm/x; test -e $f || f=/tmp/x; dd if=/dev/urandom of=$f bs=1048576 count=24 conv=notrunc 2>/dev/null")
		after := c.inCommon(pair[0], pair[1])
		if fell := fresh.MemoryBytes - after.MemoryBytes; fell < 20<<20 || fell > 40<<20 {
			c.Errorf("one wrote over 24 MiB, and they have %d bytes less in common: %+v, then %+v", fell, fresh, after)
		}
	}},
	{"U18", "BlocksShared", "Disk blocks are shared until written: a fresh fork has next to nothing on disk.", func(c *C) {
		s := c.create()
		c.sh(s, "head -c 8388608 /dev/urandom >/x; sync")
		stats, err := c.Stats(c.ctx(), c.forks(s, 1)[0].ID)
		if err != nil {
			c.Fatal(err)
		}
		if stats.DiskPrivateBytes > 256<<10 || stats.DiskSharedBytes < 8<<20 {
			c.Errorf("a fresh fork: %+v", stats)
		}
	}},
	{"U19", "StorageGrowsByChanges", "Storage grows only by what a fork changes.", func(c *C) {
		s := c.create()
		child := c.forks(s, 1)[0]
		c.sh(child, "head -c 4194304 /dev/urandom >/x; sync")
		stats, err := c.Stats(c.ctx(), child.ID)
		if err != nil {
			c.Fatal(err)
		}
		if stats.DiskPrivateBytes < 4<<20 || stats.DiskPrivateBytes > 6<<20 {
			c.Errorf("4 MiB were written: %+v", stats)
		}
	}},
	{"U20", "ManyForks", "Many forks of one parent are cheap: what one more takes does not grow.", func(c *C) {
		s := c.create()
		var private []int64
		for _, child := range c.forks(s, 8) {
			stats, err := c.Stats(c.ctx(), child.ID)
			if err != nil {
				c.Fatal(err)
			}
			private = append(private, stats.MemoryPrivateBytes)
		}
		if most := slices.Max(private); most > 24<<20 {
			c.Errorf("private bytes of 8 forks: %v", private)
		}
	}},
	{"U21", "ContextAware", "Calls end with their context, and can be made from many goroutines.", func(c *C) {
		s := c.create()
		ctx, cancel := context.WithTimeout(c.Context(), 300*time.Millisecond)
		defer cancel()
		if _, err := c.Exec(ctx, s.Access(), api.ExecRequest{Command: api.Command{Argv: []string{"sleep", "1000"}}}); ctx.Err() == nil || err == nil {
			c.Errorf("an exec whose context ended: %v", err)
		}
		is(c, "the next", c.sh(s, "echo fine"), "fine")
	}},
	{"U22", "WriteFileInFork", "A file written by absolute path in a fork is local to it.", func(c *C) {
		s := c.create()
		child := c.forks(s, 1)[0]
		c.write(child, "/some/where/file", "text")
		is(c, "in the fork", c.read(child, "/some/where/file"), "text")
		_, err := c.Stat(c.ctx(), s.Access(), "/some/where/file")
		c.code(err, api.NotFound)
	}},
	{"U23", "ForksRunAtOnce", "Forks run commands at the same time without blocking each other.", func(c *C) {
		s := c.create()
		children := c.forks(s, 4)
		var wg sync.WaitGroup
		for k, child := range children {
			wg.Go(func() {
				r, err := c.Exec(c.ctx(), child.Access(), api.ExecRequest{Command: api.Command{Argv: []string{"echo", fmt.Sprint(k)}}})
				if err != nil || string(r.Stdout) != fmt.Sprintln(k) {
					c.Errorf("child %d: %v, %v", k, r, err)
				}
			})
		}
		wg.Wait()
	}},
	{"U24", "SameStart", "All forks of an unchanged parent start from the same state of disk and memory.", func(c *C) {
		s := c.create()
		c.sh(s, "head -c 1048576 /dev/urandom >/a; mkdir -p /tmp/m; mount -t tmpfs m /tmp/m; head -c 1048576 /dev/urandom >/tmp/m/b; sync")
		c.pause(s)
		var sums []string
		for _, child := range append(c.forks(s, 2), c.forks(s, 1)...) {
			sums = append(sums, c.sh(child, "sha256sum /a /tmp/m/b"))
		}
		if sums[0] != sums[1] || sums[0] != sums[2] || !strings.Contains(sums[0], "/a") {
			c.Errorf("sums: %q", sums)
		}
	}},
	{"U25", "NonZeroExit", "A non-zero exit is a result and no error.", func(c *C) {
		r := c.run(c.create(), "echo out; echo err >&2; exit 3")
		is(c, "exit code", r.Code, 3)
		is(c, "output", string(r.Stdout)+string(r.Stderr), "out\nerr\n")
	}},
	{"U26", "DestroyIsLocal", "Destroying a fork leaves parent and siblings; the parent can go last, or first.", func(c *C) {
		s := c.create()
		children := c.forks(s, 2)
		if err := c.Destroy(c.ctx(), children[0].ID); err != nil {
			c.Fatal(err)
		}
		is(c, "the parent", c.sh(s, "echo fine"), "fine")
		if err := c.Destroy(c.ctx(), s.ID); err != nil {
			c.Fatal(err)
		}
		is(c, "the sibling", c.sh(children[1], "echo fine; head -c 1000000 /dev/zero | wc -c"), "fine\n1000000")
	}},
	{"U27", "ForkKeepsFailure", "A fork right after a failed command has the state it failed in, with what it left on disk.", func(c *C) {
		s := c.create()
		is(c, "exit code", c.run(s, "mkdir -p /build; echo half >/build/out; exit 1").Code, 1)
		is(c, "left behind", c.sh(c.forks(s, 1)[0], "cat /build/out"), "half")
	}},
	{"U28", "OriginalStaysUsable", "The original goes on and stays usable while the copy is examined.", func(c *C) {
		s := c.create()
		c.counter(s)
		child := c.forks(s, 1)[0]
		c.sh(child, "sleep 0.3; ls / >/dev/null")
		c.goesOn(s)
	}},
	{"U29", "SnapshotHasLabel", "A snapshot has an id; its label is kept and listed.", func(c *C) {
		s := c.create()
		snap := c.snapshot(s, "my label")
		page, err := c.Snapshots(c.ctx(), api.SnapshotQuery{SandboxID: s.ID})
		if err != nil || len(page.Snapshots) != 1 || page.Snapshots[0].ID != snap.ID || page.Snapshots[0].Name != "my label" {
			c.Errorf("%+v, %v", page, err)
		}
	}},
	{"U30", "SnapshotOutlivesOriginal", "A snapshot can start sandboxes after the original is destroyed.", func(c *C) {
		s := c.create()
		c.sh(s, "echo kept >/kept")
		snap := c.snapshot(s, "")
		if err := c.Destroy(c.ctx(), s.ID); err != nil {
			c.Fatal(err)
		}
		is(c, "a file", c.sh(c.from(snap.ID), "cat /kept"), "kept")
	}},
	{"U31", "RestoredByAnother", "A snapshot can be restored by another client.", func(c *C) {
		s := c.create()
		c.sh(s, "echo kept >/kept")
		snap := c.snapshot(s, "")
		other := c.target.Again(c.T)
		restored, err := other.Create(c.ctx(), api.CreateRequest{FromSnapshot: snap.ID})
		if err != nil {
			c.Fatal(err)
		}
		c.destroyLater(restored.ID)
		is(c, "a file", c.sh(restored, "cat /kept"), "kept")
	}},
	{"U32", "ListSnapshots", "All snapshots are listed, or those of one sandbox.", func(c *C) {
		a, b := c.create(), c.create()
		one, two := c.snapshot(a, ""), c.snapshot(b, "")
		all, err := c.Snapshots(c.ctx(), api.SnapshotQuery{})
		if err != nil {
			c.Fatal(err)
		}
		for _, want := range []string{one.ID, two.ID} {
			if !slices.ContainsFunc(all.Snapshots, func(s api.Snapshot) bool { return s.ID == want }) {
				c.Errorf("%s is not listed", want)
			}
		}
		ofA, err := c.Snapshots(c.ctx(), api.SnapshotQuery{SandboxID: a.ID})
		if err != nil || len(ofA.Snapshots) != 1 || ofA.Snapshots[0].ID != one.ID {
			c.Errorf("of one sandbox: %+v, %v", ofA, err)
		}
	}},
	{"U33", "DeleteSnapshot", "A deleted snapshot is gone; a later restore says not found.", func(c *C) {
		snap := c.snapshot(c.create(), "")
		if err := c.DeleteSnapshot(c.ctx(), snap.ID); err != nil {
			c.Fatal(err)
		}
		_, err := c.Create(c.ctx(), api.CreateRequest{FromSnapshot: snap.ID})
		c.code(err, api.NotFound, snap.ID)
	}},
	{"U34", "PauseKeepsID", "Pause suspends in place: the id is the same afterwards, the state is kept.", func(c *C) {
		s := c.create()
		c.sh(s, "echo text >/file")
		p := c.pause(s)
		is(c, "state", p.State, api.Paused)
		r := c.resume(s)
		is(c, "id", r.ID, s.ID)
		is(c, "a file", c.sh(r, "cat /file"), "text")
	}},
	{"U35", "ResumeGoesOn", "Resume goes on where it stopped: a process that counts goes on from its value.", func(c *C) {
		s := c.create()
		p := c.counter(s)
		before := c.sh(s, "cat /tmp/count")
		c.pause(s)
		r := c.resume(s)
		c.goesOn(r)
		c.sh(r, fmt.Sprintf("test $(cat /tmp/count) -ge %s && test -d /proc/%d", before, p.PID))
	}},
	{"U36", "TimeoutDestroys", "A time-out destroys, unless it is said otherwise.", func(c *C) {
		s := c.create(func(r *api.CreateRequest) { r.TimeoutSeconds = api.Set[int64](1) })
		is(c, "on_timeout", s.OnTimeout, api.TimeoutDestroys)
		_, err := c.Wait(c.ctx(), s.ID, api.WaitRequest{States: []api.State{api.Paused, api.Failed}, Timeout: limit})
		if err == nil {
			c.Fatal("it was not destroyed")
		}
		if _, err = c.Get(c.ctx(), s.ID); err == nil {
			c.Error("it is still there")
		}
	}},
	{"U37", "TimeoutPauses", "With on_timeout pause a time-out pauses, and the sandbox can be resumed.", func(c *C) {
		s := c.create(func(r *api.CreateRequest) { r.OnTimeout = api.TimeoutPauses })
		c.sh(s, "echo text >/file") // which may take longer than the time-out
		if _, err := c.Update(c.ctx(), s.ID, api.Patch{TimeoutSeconds: api.Set[int64](1)}); err != nil {
			c.Fatal(err)
		}
		w, err := c.Wait(c.ctx(), s.ID, api.WaitRequest{States: []api.State{api.Paused}, Timeout: limit})
		if err != nil || w.State != api.Paused {
			c.Fatalf("%+v, %v", w, err)
		}
		if _, err := c.Update(c.ctx(), s.ID, api.Patch{TimeoutSeconds: api.Clear[int64]()}); err != nil {
			c.Fatal(err)
		}
		is(c, "a file", c.sh(c.resume(s), "cat /file"), "text")
	}},
}
