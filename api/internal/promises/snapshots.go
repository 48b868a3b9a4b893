package promises

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/forkvm/forkvm/api"
)

var snapshots = []Promise{
	{"S01", "OneInstant", "A snapshot holds memory and disk of one instant: what memory says is synced is on disk.", func(c *C) {
		s := c.create()
		c.sh(s, "mkdir -p /tmp/m && mount -t tmpfs m /tmp/m && echo 0 >/tmp/m/synced")
		c.start(s, "i=0; while true; do i=$((i+1)); echo $i >/log.$((i%4)); sync; echo $i >/tmp/m/synced; done")
		c.sh(s, "while test $(cat /tmp/m/synced) -lt 3; do sleep 0.05; done")
		r := c.from(c.snapshot(s, "").ID)
		c.sh(r, "n=$(cat /tmp/m/synced); test -n \"$n\" && test $(cat /log.$((n%4))) -ge $n")
	}},
	{"S02", "StartsWhereItStopped", "A fork starts where the snapshot stopped: files and running processes.", func(c *C) {
		s := c.create()
		c.keeper(s, "remembered")
		c.sh(s, "echo text >/file")
		r := c.from(c.snapshot(s, "").ID)
		is(c, "a process's memory", c.kept(r), "remembered")
		is(c, "a file", c.sh(r, "cat /file"), "text")
	}},
	{"S03", "AnyNumber", "A snapshot starts any number of sandboxes, repeatedly and at once.", func(c *C) {
		s := c.create()
		c.sh(s, "echo text >/file")
		snap := c.snapshot(s, "")
		var mu sync.Mutex
		var made []*api.Sandbox
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				b, err := c.Create(c.ctx(), api.CreateRequest{FromSnapshot: snap.ID})
				if err != nil {
					c.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				made = append(made, b)
			})
		}
		wg.Wait()
		for _, b := range append(made, c.from(snap.ID)) {
			c.destroyLater(b.ID)
			is(c, "a file", c.sh(b, "cat /file"), "text")
		}
	}},
	{"S04", "PersistsUntilDeleted", "A snapshot persists until it is deleted, also after its sandbox is.", func(c *C) {
		s := c.create()
		snap := c.snapshot(s, "")
		if err := c.Destroy(c.ctx(), s.ID); err != nil {
			c.Fatal(err)
		}
		got, err := c.Snapshot(c.ctx(), snap.ID)
		if err != nil || got.SandboxID != s.ID {
			c.Errorf("%+v, %v", got, err)
		}
	}},
	{"S05", "OfActive", "A snapshot of a running sandbox works.", func(c *C) {
		is(c, "a command", c.sh(c.from(c.snapshot(c.create(), "").ID), "echo fine"), "fine")
	}},
	{"S06", "OfPaused", "A snapshot of a paused sandbox works.", func(c *C) {
		s := c.create()
		c.sh(s, "echo text >/file")
		c.pause(s)
		snap := c.snapshot(s, "")
		is(c, "a file", c.sh(c.from(snap.ID), "cat /file"), "text")
		is(c, "state of the source", c.record(s).State, api.Paused)
	}},
	{"S07", "SourceRunsOn", "A running source is paused briefly and then runs again by itself.", func(c *C) {
		s := c.create()
		c.counter(s)
		snap := c.snapshot(s, "")
		if snap.PauseSeconds <= 0 || snap.PauseSeconds > 5 {
			c.Errorf("it stood still for %v s", snap.PauseSeconds)
		}
		c.goesOn(s)
		is(c, "state", c.record(s).State, api.Running)
	}},
	{"S08", "LaterOnesAreIncremental", "The first snapshot may take longer: later ones store only what has changed.", func(c *C) {
		s := c.create()
		c.sh(s, "head -c 4194304 /dev/urandom >/x; sync")
		c.snapshot(s, "first")
		second := c.snapshot(s, "second")
		if second.StoredBytes <= 0 {
			c.Errorf("the second: %+v", second)
		}
		is(c, "the bytes", c.sh(c.from(second.ID), "wc -c </x"), "4194304")
	}},
	{"S09", "UsableAtReturn", "The call returns only once the snapshot can be used.", func(c *C) {
		s := c.create()
		for range 2 {
			c.from(c.snapshot(s, "").ID)
		}
	}},
	{"S10", "HasName", "A snapshot takes a name.", func(c *C) {
		is(c, "name", c.snapshot(c.create(), "a name").Name, "a name")
	}},
	{"S11", "CreateByID", "A sandbox is created from a snapshot by its id, and what is no id is refused.", func(c *C) {
		snap := c.snapshot(c.create(), "")
		is(c, "source", ptr(c.from(snap.ID).SourceSnapshotID), snap.ID)
		_, err := c.Create(c.ctx(), api.CreateRequest{FromSnapshot: "../" + snap.ID})
		c.code(err, api.NotFound)
	}},
	{"S12", "NotBoth", "Giving both a snapshot and a template is a client's error, and creates nothing.", func(c *C) {
		snap := c.snapshot(c.create(), "")
		before := c.count()
		_, err := c.Create(c.ctx(), api.CreateRequest{FromSnapshot: snap.ID, Template: c.target.Template})
		c.code(err, api.BadRequest, "from_snapshot")
		is(c, "sandboxes", c.count(), before)
	}},
	{"S13", "OwnName", "A forked sandbox takes its own name at creation.", func(c *C) {
		s := c.create(func(r *api.CreateRequest) { r.Name = "original" })
		r := c.from(c.snapshot(s, "").ID, func(r *api.CreateRequest) { r.Name = "mine" })
		is(c, "name", r.Name, "mine")
	}},
	{"S14", "SnapshotUnchanged", "Changes in a fork leave the snapshot unchanged.", func(c *C) {
		s := c.create()
		c.sh(s, "echo original >/file; sync")
		snap := c.snapshot(s, "")
		c.sh(c.from(snap.ID), "echo changed >/file; sync")
		is(c, "a later fork", c.sh(c.from(snap.ID), "cat /file"), "original")
	}},
	{"S15", "OriginalUnchanged", "Changes in a fork leave the original unchanged.", func(c *C) {
		s := c.create()
		c.sh(s, "echo original >/file; sync")
		c.sh(c.from(c.snapshot(s, "").ID), "echo changed >/file; sync")
		is(c, "the original", c.sh(s, "cat /file"), "original")
	}},
	{"S16", "OtherForksUnchanged", "Changes in a fork leave other forks unchanged.", func(c *C) {
		s := c.create()
		c.sh(s, "echo original >/file; sync")
		snap := c.snapshot(s, "")
		a, b := c.from(snap.ID), c.from(snap.ID)
		c.sh(a, "echo changed >/file; sync")
		is(c, "the other", c.sh(b, "cat /file"), "original")
	}},
	{"S17", "SizesAreTheSnapshots", "vCPUs, memory, disk and template are the snapshot's.", func(c *C) {
		s := c.create()
		snap := c.snapshot(s, "")
		r := c.from(snap.ID)
		is(c, "vcpus", r.VCPUs, s.VCPUs)
		is(c, "memory", r.MemoryBytes, s.MemoryBytes)
		is(c, "disk", r.DiskBytes, s.DiskBytes)
		is(c, "template", r.Template, s.Template)
		is(c, "memory of the snapshot", snap.MemoryBytes, s.MemoryBytes)
	}},
	{"S21", "TimeoutIsTheOriginals", "The time-out and what it does default to the original's.", func(c *C) {
		s := c.create(func(r *api.CreateRequest) { r.TimeoutSeconds, r.OnTimeout = api.Set[int64](3000), api.TimeoutPauses })
		r := c.from(c.snapshot(s, "").ID)
		is(c, "timeout_seconds", ptr(r.TimeoutSeconds), 3000)
		is(c, "on_timeout", r.OnTimeout, api.TimeoutPauses)
	}},
	{"S22", "TimeoutReplaced", "An explicit time-out replaces it.", func(c *C) {
		s := c.create(func(r *api.CreateRequest) { r.TimeoutSeconds = api.Set[int64](3000) })
		snap := c.snapshot(s, "")
		r := c.from(snap.ID, func(r *api.CreateRequest) { r.TimeoutSeconds = api.Set[int64](4000) })
		is(c, "timeout_seconds", ptr(r.TimeoutSeconds), 4000)
		r = c.from(snap.ID, func(r *api.CreateRequest) { r.TimeoutSeconds = api.Clear[int64]() })
		is(c, "timeout_seconds", r.TimeoutSeconds, nil)
	}},
	{"S26", "EnvironmentIsTheOriginals", "Commands in a fork see the original's environment.", func(c *C) {
		s := c.create(func(r *api.CreateRequest) { r.EnvVars = map[string]string{"OWN": "mine"} })
		r := c.from(c.snapshot(s, "").ID)
		is(c, "environment", c.sh(r, "echo $FROM_TEMPLATE $OWN"), "yes mine")
		is(c, "environment of a live fork", c.sh(c.forks(s, 1)[0], "echo $FROM_TEMPLATE $OWN"), "yes mine")
	}},
	{"S27", "EnvironmentIsLayered", "Variables given at creation are on top; of the same name the new value wins.", func(c *C) {
		s := c.create(func(r *api.CreateRequest) { r.EnvVars = map[string]string{"A": "1", "B": "1", "FROM_TEMPLATE": "no"} })
		is(c, "of the original", c.sh(s, "echo $FROM_TEMPLATE"), "no")
		r := c.from(c.snapshot(s, "").ID, func(r *api.CreateRequest) { r.EnvVars = map[string]string{"B": "2", "C": "2"} })
		is(c, "environment", c.sh(r, "echo $A $B $C"), "1 2 2")
		is(c, "of the original, after", c.sh(s, "echo $A $B $C"), "1 1")
	}},
	{"S28", "ProcessesKeepTheirs", "Processes that run when the snapshot is taken keep their environment.", func(c *C) {
		s := c.create(func(r *api.CreateRequest) { r.EnvVars = map[string]string{"A": "old"} })
		c.start(s, "while true; do test -e /tmp/env || { echo $A >/tmp/env.new; mv /tmp/env.new /tmp/env; }; sleep 0.1; done")
		c.sh(s, "while ! test -e /tmp/env; do sleep 0.1; done")
		r := c.from(c.snapshot(s, "").ID, func(r *api.CreateRequest) { r.EnvVars = map[string]string{"A": "new"} })
		is(c, "the process's", c.sh(r, "rm /tmp/env; while ! test -e /tmp/env; do sleep 0.1; done; cat /tmp/env"), "old")
		is(c, "a new command's", c.sh(r, "echo $A"), "new")
	}},
	{"S30", "NewestFirst", "A sandbox's snapshots are listed newest first.", func(c *C) {
		s := c.create()
		var want []string
		for k := range 3 {
			want = append([]string{c.snapshot(s, fmt.Sprint(k)).ID}, want...)
			time.Sleep(2 * time.Millisecond) // ids are sorted by the millisecond
		}
		page, err := c.Snapshots(c.ctx(), api.SnapshotQuery{SandboxID: s.ID})
		if err != nil {
			c.Fatal(err)
		}
		var got []string
		for _, s := range page.Snapshots {
			got = append(got, s.ID)
		}
		if !slices.Equal(got, want) {
			c.Errorf("%v; want %v", got, want)
		}
	}},
	{"S31", "GetSnapshot", "A snapshot is looked up by its id.", func(c *C) {
		snap := c.snapshot(c.create(), "one")
		got, err := c.Snapshot(c.ctx(), snap.ID)
		if err != nil || got.ID != snap.ID || got.Name != "one" || !got.CreatedAt.Equal(snap.CreatedAt) {
			c.Errorf("%+v, %v", got, err)
		}
	}},
	{"S32", "Rename", "A renamed snapshot has the same id; get and list show the new name.", func(c *C) {
		s := c.create()
		snap := c.snapshot(s, "old")
		got, err := c.RenameSnapshot(c.ctx(), snap.ID, "new")
		if err != nil || got.ID != snap.ID || got.Name != "new" {
			c.Errorf("%+v, %v", got, err)
		}
		page, err := c.Snapshots(c.ctx(), api.SnapshotQuery{SandboxID: s.ID, NamePrefix: "ne"})
		if err != nil || len(page.Snapshots) != 1 {
			c.Errorf("listed: %+v, %v", page, err)
		}
	}},
	{"S33", "Delete", "Delete removes a snapshot.", func(c *C) {
		snap := c.snapshot(c.create(), "")
		for range 2 { // again is no error
			if err := c.DeleteSnapshot(c.ctx(), snap.ID); err != nil {
				c.Fatal(err)
			}
		}
		_, err := c.Snapshot(c.ctx(), snap.ID)
		c.code(err, api.NotFound, snap.ID)
	}},
	{"S34", "OfDeletedSandbox", "Snapshots of a deleted sandbox are listed by its id.", func(c *C) {
		s := c.create()
		snap := c.snapshot(s, "")
		if err := c.Destroy(c.ctx(), s.ID); err != nil {
			c.Fatal(err)
		}
		page, err := c.Snapshots(c.ctx(), api.SnapshotQuery{SandboxID: s.ID})
		if err != nil || len(page.Snapshots) != 1 || page.Snapshots[0].ID != snap.ID {
			c.Errorf("%+v, %v", page, err)
		}
	}},
	{"S35", "DeletionIsImmediate", "The next get, list and create say not found.", func(c *C) {
		s := c.create()
		snap := c.snapshot(s, "")
		if err := c.DeleteSnapshot(c.ctx(), snap.ID); err != nil {
			c.Fatal(err)
		}
		_, err := c.Snapshot(c.ctx(), snap.ID)
		c.code(err, api.NotFound)
		_, err = c.Create(c.ctx(), api.CreateRequest{FromSnapshot: snap.ID})
		c.code(err, api.NotFound)
		_, err = c.RenameSnapshot(c.ctx(), snap.ID, "x")
		c.code(err, api.NotFound)
		page, err := c.Snapshots(c.ctx(), api.SnapshotQuery{SandboxID: s.ID})
		if err != nil || len(page.Snapshots) != 0 {
			c.Errorf("%+v, %v", page, err)
		}
	}},
	{"S36", "DeletionDisturbsNobody", "Deletion does not affect sandboxes made from it, pages and blocks that they have not read yet included.", func(c *C) {
		s := c.create()
		c.sh(s, "head -c 4194304 /dev/urandom >/x; mkdir -p /tmp/m; mount -t tmpfs m /tmp/m; cp /x /tmp/m/y; sync; echo 3 >/proc/sys/vm/drop_caches")
		want := c.sh(s, "sha256sum </x; sha256sum </tmp/m/y")
		snap := c.snapshot(s, "")
		r := c.from(snap.ID)
		if err := c.DeleteSnapshot(c.ctx(), snap.ID); err != nil {
			c.Fatal(err)
		}
		if err := c.Destroy(c.ctx(), s.ID); err != nil {
			c.Fatal(err)
		}
		is(c, "sums", c.sh(r, "sha256sum </x; sha256sum </tmp/m/y"), want)
	}},
	{"S46", "ObjectsAndCalls", "There is a call for each verb, and an object with methods for those who like that better.", func(c *C) {
		b, err := api.Open(c.ctx(), c.Service, api.CreateRequest{Template: c.target.Template})
		if err != nil {
			c.Fatal(err)
		}
		c.destroyLater(b.ID)
		r, err := b.Exec(c.ctx(), "echo", "hello")
		if err != nil || string(r.Stdout) != "hello\n" {
			c.Errorf("%+v, %v", r, err)
		}
		snap, err := b.Snapshot(c.ctx(), "of an object")
		if err != nil {
			c.Fatal(err)
		}
		defer c.DeleteSnapshot(c.ctx(), snap.ID)
		list, err := b.Snapshots(c.ctx())
		if err != nil || len(list) != 1 || !strings.HasPrefix(list[0].Name, "of an") {
			c.Errorf("%+v, %v", list, err)
		}
		children, err := b.Fork(c.ctx(), 1)
		if err != nil {
			c.Fatal(err)
		}
		c.destroyLater(children[0].ID)
		if err := children[0].Destroy(c.ctx()); err != nil {
			c.Error(err)
		}
	}},
}

// count is how many sandboxes there are.
func (c *C) count() (n int) {
	c.Helper()
	q := api.SandboxQuery{}
	for {
		page, err := c.List(c.ctx(), q)
		if err != nil {
			c.Fatal(err)
		}
		n += len(page.Sandboxes)
		if q.Cursor = page.NextCursor; q.Cursor == "" {
			return n
		}
	}
}
