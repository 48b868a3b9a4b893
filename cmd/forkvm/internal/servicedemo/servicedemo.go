// Package servicedemo shows what a server of sandboxes does, as its client.
package servicedemo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/forkvm/forkvm/api"
)

// Forks is how many forks the demo makes.
const Forks = 4

// Step is something that was asked of the server, and checked.
type Step struct {
	Name string  `json:"name"`
	OK   bool    `json:"ok"`
	MS   float64 `json:"ms"`              // how long it took, in milliseconds
	Err  string  `json:"error,omitempty"` // why it is not OK
}

// Report is what was done. After the first step that is not OK there is no other.
type Report struct {
	Steps []Step `json:"steps"`
}

// Err is the error of the step that is not OK, nil if all are.
func (r *Report) Err() error {
	for _, s := range r.Steps {
		if !s.OK {
			return fmt.Errorf("%s: %s", s.Name, s.Err)
		}
	}
	return nil
}

const (
	file    = "/demo/note"
	content = "written over HTTP\n"
)

// demo is what steps leave for those after them.
type demo struct {
	api.Service
	template string
	parent   *api.Sandbox
	forks    []*api.Sandbox
	snapshot string
	restored *api.Sandbox
	made     []string // sandboxes to destroy at the end
}

// Run goes through all steps, with a sandbox of the template, and tells done of
// each. What it made it destroys, also if it fails.
func Run(ctx context.Context, s api.Service, template string, done func(Step)) *Report {
	d := &demo{Service: s, template: template}
	defer d.cleanUp(context.WithoutCancel(ctx))
	r := &Report{}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"create", d.create}, {"write a file", d.write}, {"exec", d.exec}, {fmt.Sprintf("fork ×%d", Forks), d.fork},
		{"exec in each fork", d.execInForks}, {"snapshot", d.snap}, {"destroy the parent", d.destroy}, {"restore", d.restore},
		{"pause", d.pause}, {"resume", d.resume}, {"delete the snapshot", d.deleteSnapshot},
	} {
		begin := time.Now()
		err := step.do(ctx)
		took := Step{Name: step.name, OK: err == nil, MS: float64(time.Since(begin).Microseconds()) / 1000}
		if err != nil {
			took.Err = err.Error()
		}
		r.Steps = append(r.Steps, took)
		done(took)
		if err != nil {
			break
		}
	}
	return r
}

// cleanUp leaves nothing, as far as the server lets it.
func (d *demo) cleanUp(ctx context.Context) {
	for _, id := range d.made {
		_ = d.Destroy(ctx, id)
	}
	if d.snapshot != "" {
		_ = d.DeleteSnapshot(ctx, d.snapshot)
	}
}

func (d *demo) create(ctx context.Context) (err error) {
	d.parent, err = d.Create(ctx, api.CreateRequest{Template: d.template, Settings: api.Settings{Name: "demo"}})
	if err == nil {
		d.made = append(d.made, d.parent.ID)
	}
	return err
}

func (d *demo) write(ctx context.Context) error {
	_, err := d.WriteFile(ctx, d.parent.Access(), file, strings.NewReader(content), api.WriteOptions{})
	return err
}

// shell runs a line in a sandbox, which must print want.
func (d *demo) shell(ctx context.Context, b *api.Sandbox, line, want string) error {
	r, err := d.Exec(ctx, b.Access(), api.ExecRequest{Command: api.Command{
		Argv: []string{"sh", "-c", line}, TimeoutSeconds: api.Clear[int64](),
	}})
	if err != nil {
		return err
	}
	if r.Code != 0 || string(r.Stdout) != want {
		return fmt.Errorf("%s: ended with %d %s and printed %q %q, not %q", line, r.Code, r.Signal, r.Stdout, r.Stderr, want)
	}
	return nil
}

func (d *demo) exec(ctx context.Context) error {
	return d.shell(ctx, d.parent, "cat "+file, content)
}

func (d *demo) fork(ctx context.Context) error {
	f, err := d.Fork(ctx, d.parent.ID, api.ForkRequest{Count: Forks})
	if err != nil {
		return err
	}
	for _, c := range f.Children {
		if c.Error != nil {
			err = errors.Join(err, c.Error)
			continue
		}
		d.forks = append(d.forks, c.Sandbox)
		d.made = append(d.made, c.Sandbox.ID)
	}
	if err == nil && len(d.forks) != Forks {
		err = fmt.Errorf("%d children", len(d.forks))
	}
	return err
}

// execInForks has each see the parent's file and write it for itself.
func (d *demo) execInForks(ctx context.Context) error {
	errs := make([]error, len(d.forks))
	var wg sync.WaitGroup
	for i, b := range d.forks {
		wg.Go(func() {
			own := fmt.Sprintf("of fork %d\n", i)
			errs[i] = d.shell(ctx, b, fmt.Sprintf("cat %s && echo of fork %d >%s && cat %[1]s", file, i, file), content+own)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return d.shell(ctx, d.parent, "cat "+file, content)
}

func (d *demo) snap(ctx context.Context) error {
	s, err := d.CreateSnapshot(ctx, d.parent.ID, api.SnapshotRequest{Name: "demo"})
	if err == nil {
		d.snapshot = s.ID
	}
	return err
}

func (d *demo) destroy(ctx context.Context) error {
	if err := d.Destroy(ctx, d.parent.ID); err != nil {
		return err
	}
	if _, err := d.Get(ctx, d.parent.ID); !errors.Is(err, api.NotFound) {
		return fmt.Errorf("it is still there: %w", err)
	}
	return nil
}

func (d *demo) restore(ctx context.Context) (err error) {
	d.restored, err = d.Create(ctx, api.CreateRequest{FromSnapshot: d.snapshot, Settings: api.Settings{Name: "restored"}})
	if err != nil {
		return err
	}
	d.made = append(d.made, d.restored.ID)
	return d.read(ctx)
}

// read reads the file as a file, and not by a command.
func (d *demo) read(ctx context.Context) error {
	r, _, err := d.ReadFile(ctx, d.restored.Access(), file)
	if err != nil {
		return err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err == nil && string(b) != content {
		err = fmt.Errorf("%s is %q, not %q", file, b, content)
	}
	return err
}

func (d *demo) pause(ctx context.Context) error {
	b, err := d.Pause(ctx, d.restored.ID)
	if err == nil && b.State != api.Paused {
		err = fmt.Errorf("it is %s", b.State)
	}
	return err
}

// resume gives a new token, and the old one is dead.
func (d *demo) resume(ctx context.Context) error {
	old := d.restored.Access()
	b, err := d.Resume(ctx, d.restored.ID)
	if err != nil {
		return err
	}
	if _, err := d.Stat(ctx, old, file); !errors.Is(err, api.Unauthorized) {
		return fmt.Errorf("the token from before the pause: %w", err)
	}
	d.restored = b
	return d.read(ctx)
}

// deleteSnapshot disturbs no sandbox made of it.
func (d *demo) deleteSnapshot(ctx context.Context) error {
	if err := d.DeleteSnapshot(ctx, d.snapshot); err != nil {
		return err
	}
	if _, err := d.Snapshot(ctx, d.snapshot); !errors.Is(err, api.NotFound) {
		return fmt.Errorf("it is still there: %w", err)
	}
	return d.read(ctx)
}
