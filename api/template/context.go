package template

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// maxEntries is how many files a step may copy.
const maxEntries = 1 << 20

// ErrContext: the context directory does not have what COPY or FROM is to take
// from it.
var ErrContext = errors.New("context directory")

// errChanged is a file that was another one when it was summed.
var errChanged = errors.New("changed while it was copied")

// copyContext is the directory that COPY takes files from. Nothing outside of
// it is read, whatever links are in it.
type copyContext struct {
	root   *os.Root
	ignore ignoreRules
}

// openContext opens a directory; the empty name is a context without files.
func openContext(dir string) (*copyContext, error) {
	if dir == "" {
		return &copyContext{}, nil
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("template: context: %w", err)
	}
	rules, err := readIgnore(root)
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("template: context: %w", err)
	}
	return &copyContext{root, rules}, nil
}

func (c *copyContext) close() {
	if c.root != nil {
		c.root.Close()
	}
}

// entry is something to copy.
type entry struct {
	host string // its path in the context
	name string // below the destination; empty: it becomes the destination
	info fs.FileInfo
	link string // where a symbolic link leads
}

// entries calls fn with what a step copies: directories before what is in
// them, all in an order that is the same each time.
func (c *copyContext) entries(ctx context.Context, s step, fn func(entry) error) error {
	if c.root == nil {
		return errors.New("there is no context directory to copy from")
	}
	var sources []string
	for _, src := range s.sources {
		found, err := c.find(src)
		if err != nil {
			return err
		}
		sources = append(sources, found...)
	}
	if len(sources) > 1 && !s.intoDir {
		return fmt.Errorf("%q matches %d files: the destination must end in a slash", s.sources[0], len(sources))
	}
	w := contextWalk{ctx: ctx, c: c, fn: fn}
	for _, src := range sources {
		if err := w.source(src, s.intoDir); err != nil {
			return err
		}
	}
	return nil
}

// find resolves a source, which is a path or a pattern.
func (c *copyContext) find(src string) ([]string, error) {
	name := path.Clean("/" + src)[1:]
	if name == "" {
		return []string{"."}, nil
	}
	if _, err := c.root.Lstat(name); err == nil && !c.ignore.ignores(name) {
		return []string{name}, nil
	}
	found, err := fs.Glob(c.root.FS(), name)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", src, err)
	}
	found = slices.DeleteFunc(found, c.ignore.ignores)
	if len(found) == 0 {
		return nil, fmt.Errorf("%q: no such file in the context directory, or %s names it", src, ignoreFile)
	}
	return found, nil
}

// contextWalk goes through what is copied.
type contextWalk struct {
	ctx   context.Context
	c     *copyContext
	fn    func(entry) error
	count int
	skip  bool // what cannot be copied
}

// source takes what a source names: of a directory, what is in it.
func (w *contextWalk) source(src string, intoDir bool) error {
	info, err := w.c.root.Stat(src)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return w.dir(src, "")
	}
	name := ""
	if intoDir {
		name = path.Base(src)
	}
	return w.entry(entry{host: src, name: name, info: info})
}

func (w *contextWalk) dir(host, name string) error {
	list, err := w.list(host)
	if err != nil {
		return err
	}
	for _, n := range list {
		e := entry{host: path.Join(host, n), name: path.Join(name, n)}
		ignored := w.c.ignore.ignores(e.host)
		if ignored && w.c.ignore.prunes() {
			continue
		}
		if e.info, err = w.c.root.Lstat(e.host); err != nil {
			return err
		}
		if !ignored {
			if err := w.entry(e); err != nil {
				return err
			}
		}
		if e.info.IsDir() {
			if err := w.dir(e.host, e.name); err != nil {
				return err
			}
		}
	}
	return nil
}

// list names what is in a directory, sorted.
func (w *contextWalk) list(host string) ([]string, error) {
	d, err := w.c.root.Open(host)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxEntries)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}

func (w *contextWalk) entry(e entry) error {
	if err := context.Cause(w.ctx); err != nil {
		return err
	}
	if w.count++; w.count > maxEntries {
		return fmt.Errorf("more than %d files", maxEntries)
	}
	switch e.info.Mode().Type() {
	case 0, fs.ModeDir:
	case fs.ModeSymlink:
		var err error
		if e.link, err = w.c.root.Readlink(e.host); err != nil {
			return err
		}
	default:
		if w.skip {
			return nil
		}
		return fmt.Errorf("%s: neither a file, nor a directory, nor a symbolic link", e.host)
	}
	return w.fn(e)
}

// content calls fn with a file's content, which must be as long as it was.
func (c *copyContext) content(e entry, fn func(r io.Reader) error) error {
	// O_NONBLOCK: should the file have become a FIFO, open must not wait.
	f, err := c.root.OpenFile(e.host, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil {
		return err
	} else if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: %w", e.host, errChanged)
	}
	r := &countingReader{r: io.LimitReader(f, e.info.Size())}
	if err := fn(r); err != nil {
		return err
	}
	if r.n != e.info.Size() {
		return fmt.Errorf("%s: %w", e.host, errChanged)
	}
	return nil
}

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// describe sums what is copied of an entry but for its content.
func (e entry) describe(k *keyWriter) {
	k.text("entry", e.name, e.info.Mode().String(), e.link)
	if e.info.Mode().IsRegular() {
		k.number(e.info.Size())
	}
}

// sum sums all that a step copies: names, kinds, permissions and content, and
// no times.
func (c *copyContext) sum(ctx context.Context, s step, h hash.Hash) error {
	k := &keyWriter{h}
	return c.entries(ctx, s, func(e entry) error {
		e.describe(k)
		if !e.info.Mode().IsRegular() {
			return nil
		}
		return c.content(e, func(r io.Reader) error {
			_, err := io.Copy(h, r)
			return err
		})
	})
}

// archive writes what a step copies as a tar archive, and sums it as sum does.
// A file that becomes the destination is named base. Symbolic links are not
// written but returned; all is what is to have another owner.
func (c *copyContext) archive(ctx context.Context, s step, base string, w io.Writer, h hash.Hash) (all, links []entry, err error) {
	k := &keyWriter{h}
	tw := tar.NewWriter(w)
	err = c.entries(ctx, s, func(e entry) error {
		e.describe(k)
		if e.name == "" {
			e.name = base
		}
		if s.chown != "" {
			all = append(all, e)
		}
		if e.link != "" {
			links = append(links, e)
			return nil
		}
		return c.add(tw, e, h)
	})
	if err != nil {
		return nil, nil, err
	}
	return all, links, tw.Close()
}

// add adds an entry to an archive. Its content goes to also as well.
func (c *copyContext) add(tw *tar.Writer, e entry, also io.Writer) error {
	head, err := tar.FileInfoHeader(e.info, e.link)
	if err != nil {
		return err
	}
	head.Name = e.name
	if e.info.IsDir() {
		head.Name = strings.TrimSuffix(e.name, "/") + "/"
	}
	head.Uid, head.Gid, head.Uname, head.Gname = 0, 0, "", ""
	if err := tw.WriteHeader(head); err != nil || !e.info.Mode().IsRegular() {
		return err
	}
	return c.content(e, func(r io.Reader) error {
		_, err := io.Copy(io.MultiWriter(tw, also), r)
		return err
	})
}
