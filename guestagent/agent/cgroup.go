package agent

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// spareCgroups is how many empty cgroups are kept for the next commands.
const spareCgroups = 8

// cgroups hands out one cgroup v2 (kernel: admin-guide/cgroup-v2) a command.
// A nil *cgroups hands out none.
type cgroups struct {
	dir string

	mu    sync.Mutex
	made  int       // names given so far
	free  []*cgroup // empty ones
	inUse []*cgroup // whose command has ended, but not all of its processes
}

// cgroup is that of one command. A nil *cgroup is none.
type cgroup struct {
	path   string
	dir    *os.File
	killed atomic.Bool // not to be used again: Linux 6.18 kills what is cloned into it
}

// newCgroups returns cgroups below dir, which it makes. It returns nil if dir
// is empty or the kernel cannot kill a cgroup.
func newCgroups(dir string) *cgroups {
	if dir == "" {
		return nil
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return nil
	}
	if unix.Access(filepath.Join(dir, "cgroup.kill"), unix.W_OK) != nil {
		return nil
	}
	return &cgroups{dir: dir}
}

// get has a command that is about to start with sys start in a cgroup of its
// own. It returns nil if there can be none: then the command does without.
func (c *cgroups) get(sys *syscall.SysProcAttr) *cgroup {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.inUse) > 0 { // look after one of them each time
		g := c.inUse[0]
		c.inUse = c.inUse[1:]
		c.file(g)
	}
	g := c.next()
	if g != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, int(g.dir.Fd())
	}
	return g
}

// next returns an empty cgroup. c.mu is held.
func (c *cgroups) next() *cgroup {
	if n := len(c.free); n > 0 {
		g := c.free[n-1]
		c.free = c.free[:n-1]
		return g
	}
	c.made++
	path := filepath.Join(c.dir, fmt.Sprintf("cmd%d", c.made))
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil
	}
	dir, err := os.Open(path)
	if err != nil {
		_ = os.Remove(path)
		return nil
	}
	return &cgroup{path: path, dir: dir}
}

// put takes back the cgroup of a command that has ended.
func (c *cgroups) put(g *cgroup) {
	if g == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.file(g)
}

// file puts a cgroup where it belongs. c.mu is held.
func (c *cgroups) file(g *cgroup) {
	switch {
	case !g.empty():
		c.inUse = append(c.inUse, g)
	case len(c.free) < spareCgroups && !g.killed.Load():
		c.free = append(c.free, g)
	default:
		g.remove()
	}
}

// close removes the cgroups, as far as they are empty.
func (c *cgroups) close() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range append(c.free, c.inUse...) {
		g.remove()
	}
	c.free, c.inUse = nil, nil
}

func (g *cgroup) empty() bool {
	b, err := os.ReadFile(filepath.Join(g.path, "cgroup.events"))
	return err == nil && bytes.Contains(b, []byte("populated 0"))
}

func (g *cgroup) remove() {
	g.dir.Close()
	_ = os.Remove(g.path)
}

// kill kills every process in the cgroup. Those forked meanwhile die as well.
func (g *cgroup) kill() {
	if g != nil {
		g.killed.Store(true)
		_ = os.WriteFile(filepath.Join(g.path, "cgroup.kill"), []byte("1"), 0)
	}
}
