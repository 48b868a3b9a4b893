// Package promises is what a sandbox promises, numbered, each with its test.
// The tests are for any api.Service that has real machines: the engine in this
// process, and a server of it over HTTP.
//
// U is about forks, snapshots and pauses of a running sandbox, S about snapshots
// and what is made from them, X about the rest, and D decides what those leave
// open. Numbers that are missing concern networks and secrets.
//
//go:generate go run ./page ../../../docs/semantics.md
package promises

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
)

// Promise is one of them.
type Promise struct {
	ID   string // such as U08
	Name string // of the test, after the id
	Text string
	Test func(c *C)
}

// All are the promises, in order.
func All() []Promise {
	var all []Promise
	for _, part := range [][]Promise{forks, snapshots, rest, decisions} {
		all = append(all, part...)
	}
	return all
}

// Target is what is tested.
type Target struct {
	// Service is the service; Again returns another client of it, as another
	// process would have.
	Service api.Service
	Again   func(t *testing.T) api.Service
	// Template is the name of a template with a disk, with the variable
	// FROM_TEMPLATE in its environment.
	Template string
}

// Run tests all promises.
func Run(t *testing.T, target Target) {
	for _, p := range All() {
		t.Run(p.ID+"_"+p.Name, func(t *testing.T) {
			p.Test(&C{T: t, Service: target.Service, target: target})
		})
	}
}

// C is what a test has. Its helpers end it at the first error.
type C struct {
	*testing.T
	api.Service
	target Target
}

// limit is how long a single call may take. Emulated machines take seconds.
const limit = 2 * time.Minute

// ctx is for one call.
func (c *C) ctx() context.Context {
	ctx, cancel := context.WithTimeout(c.Context(), limit)
	c.Cleanup(cancel)
	return ctx
}

// create makes a sandbox, which is destroyed when the test ends.
func (c *C) create(set ...func(*api.CreateRequest)) *api.Sandbox {
	c.Helper()
	r := api.CreateRequest{Template: c.target.Template}
	for _, f := range set {
		f(&r)
	}
	s, err := c.Create(c.ctx(), r)
	if err != nil {
		c.Fatalf("create: %v", err)
	}
	c.destroyLater(s.ID)
	return s
}

func (c *C) destroyLater(id string) {
	c.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := c.Destroy(ctx, id); err != nil {
			c.Errorf("destroy: %v", err)
		}
	})
}

// from is create from a snapshot.
func (c *C) from(snapshot string, set ...func(*api.CreateRequest)) *api.Sandbox {
	c.Helper()
	return c.create(append([]func(*api.CreateRequest){func(r *api.CreateRequest) { r.Template, r.FromSnapshot = "", snapshot }}, set...)...)
}

// forks makes n children.
func (c *C) forks(s *api.Sandbox, n int) []*api.Sandbox {
	c.Helper()
	f, err := c.Fork(c.ctx(), s.ID, api.ForkRequest{Count: n})
	if err != nil {
		c.Fatalf("fork: %v", err)
	}
	var children []*api.Sandbox
	for _, child := range f.Children {
		if child.Error != nil {
			c.Fatalf("fork: a child: %v", child.Error)
		}
		c.destroyLater(child.Sandbox.ID)
		children = append(children, child.Sandbox)
	}
	if len(children) != n {
		c.Fatalf("fork: %d children, want %d", len(children), n)
	}
	return children
}

// snapshot takes one, which is deleted when the test ends.
func (c *C) snapshot(s *api.Sandbox, name string) *api.Snapshot {
	c.Helper()
	snap, err := c.CreateSnapshot(c.ctx(), s.ID, api.SnapshotRequest{Name: name})
	if err != nil {
		c.Fatalf("snapshot: %v", err)
	}
	c.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := c.DeleteSnapshot(ctx, snap.ID); err != nil {
			c.Errorf("delete snapshot: %v", err)
		}
	})
	return snap
}

func (c *C) pause(s *api.Sandbox) *api.Sandbox {
	c.Helper()
	p, err := c.Pause(c.ctx(), s.ID)
	if err != nil {
		c.Fatalf("pause: %v", err)
	}
	return p
}

func (c *C) resume(s *api.Sandbox) *api.Sandbox {
	c.Helper()
	r, err := c.Resume(c.ctx(), s.ID)
	if err != nil {
		c.Fatalf("resume: %v", err)
	}
	return r
}

func (c *C) record(s *api.Sandbox) *api.Sandbox {
	c.Helper()
	r, err := c.Get(c.ctx(), s.ID)
	if err != nil {
		c.Fatalf("get: %v", err)
	}
	return r
}

// sh runs a script, which must succeed, and returns what it prints.
func (c *C) sh(s *api.Sandbox, script string) string {
	c.Helper()
	r := c.run(s, script)
	if r.Code != 0 {
		c.Fatalf("%s: exit code %d, %s%s", script, r.Code, r.Stdout, r.Stderr)
	}
	return strings.TrimSuffix(string(r.Stdout), "\n")
}

// run runs a script, whatever its exit code.
func (c *C) run(s *api.Sandbox, script string) *api.ExecResult {
	c.Helper()
	r, err := c.Exec(c.ctx(), s.Access(), api.ExecRequest{Command: api.Command{Argv: []string{"sh", "-c", script}}})
	if err != nil {
		c.Fatalf("%s: %v", script, err)
	}
	return r
}

// inCommon is what two sandboxes that run have in common.
func (c *C) inCommon(a, b *api.Sandbox) api.SharingPair {
	c.Helper()
	s, err := c.Sharing(c.ctx(), api.SharingQuery{SandboxIDs: []string{a.ID, b.ID}})
	if err != nil {
		c.Fatalf("sharing: %v", err)
	}
	if len(s.Sandboxes) != 2 || len(s.Pairs) != 1 {
		c.Fatalf("sharing: %+v", s)
	}
	for _, one := range s.Sandboxes {
		if p := s.Pairs[0]; p.MemoryBytes > one.MemorySharedBytes || p.DiskBytes > one.DiskSharedBytes ||
			one.MemoryPrivateBytes+one.MemorySharedBytes > one.MemoryBytes {
			c.Errorf("sharing: more is shared than there is: %+v", s)
		}
	}
	return s.Pairs[0]
}

// start starts a script in the background.
func (c *C) start(s *api.Sandbox, script string) *api.Process {
	c.Helper()
	p, err := c.Start(c.ctx(), s.Access(), api.StartRequest{Command: api.Command{
		Argv: []string{"sh", "-c", script}, TimeoutSeconds: api.Clear[int64](),
	}})
	if err != nil {
		c.Fatalf("start %s: %v", script, err)
	}
	return p
}

// keeper starts a process that has a value in its memory only, and writes it to
// /tmp/value whenever it is not there. It returns when the process has the
// value.
func (c *C) keeper(s *api.Sandbox, value string) *api.Process {
	c.Helper()
	c.sh(s, "echo "+value+" >/tmp/secret")
	p := c.start(s, `v=$(cat /tmp/secret); rm /tmp/secret; while true; do test -e /tmp/value || { echo $v >/tmp/value.new; mv /tmp/value.new /tmp/value; }; sleep 0.1; done`)
	c.kept(s)
	return p
}

// kept is the value that the process of keeper has.
func (c *C) kept(s *api.Sandbox) string {
	c.Helper()
	return c.sh(s, `rm -f /tmp/value; while ! test -e /tmp/value; do sleep 0.1; done; cat /tmp/value`)
}

// counter starts a process that counts in /tmp/count, and returns when it does.
func (c *C) counter(s *api.Sandbox) *api.Process {
	c.Helper()
	p := c.start(s, `i=0; while true; do i=$((i+1)); echo $i >/tmp/count.new; mv /tmp/count.new /tmp/count; sleep 0.05; done`)
	c.sh(s, `while ! test -e /tmp/count; do sleep 0.05; done`)
	return p
}

// goesOn waits until the counter is past what it was.
func (c *C) goesOn(s *api.Sandbox) {
	c.Helper()
	c.sh(s, `a=$(cat /tmp/count); while test $(cat /tmp/count) -le $a; do sleep 0.05; done`)
}

// write writes a file.
func (c *C) write(s *api.Sandbox, path, text string) {
	c.Helper()
	if _, err := c.WriteFile(c.ctx(), s.Access(), path, strings.NewReader(text), api.WriteOptions{}); err != nil {
		c.Fatalf("write %s: %v", path, err)
	}
}

// read reads a file.
func (c *C) read(s *api.Sandbox, path string) string {
	c.Helper()
	r, _, err := c.ReadFile(c.ctx(), s.Access(), path)
	if err != nil {
		c.Fatalf("read %s: %v", path, err)
	}
	defer r.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(r); err != nil {
		c.Fatalf("read %s: %v", path, err)
	}
	return b.String()
}

// code checks the code of an error, and that it mentions words.
func (c *C) code(err error, want api.Code, words ...string) {
	c.Helper()
	if !errors.Is(err, want) {
		c.Errorf("error %v; want %s", err, want)
		return
	}
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Code != want || e.StatusCode() != want.StatusCode() {
		c.Errorf("%v is no api.Error with the code %s", err, want)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			c.Errorf("%q does not mention %q", err, w)
		}
	}
}

// is checks that two values are equal.
func is[T comparable](c *C, what string, got, want T) {
	c.Helper()
	if got != want {
		c.Errorf("%s: %v; want %v", what, got, want)
	}
}

// ptr is v, or the zero value where there is none.
func ptr[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
