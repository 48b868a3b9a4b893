package rootfs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// builder gathers a file system: contents in the image, everything else in a tree.
type builder struct {
	limits   Limits
	rootOwns bool
	uuid     [16]byte
	progress progress

	image    *blocks
	tree     tree
	entries  int
	content  int64 // bytes of regular files
	stream   int64 // bytes of decompressed archives
	metadata int64
}

func newBuilder(f *os.File, opts Options) *builder {
	b := &builder{
		limits: opts.Limits.withDefaults(), rootOwns: opts.RootOwns, uuid: opts.UUID,
		image: newBlocks(f, 1),
	}
	b.progress = progress{report: opts.Progress, entries: &b.entries}
	b.tree = tree{root: newDirectory(), layer: 1, depth: b.limits.Depth, release: b.release}
	return b
}

// release frees the contents of a file that is in the tree no more.
func (b *builder) release(i *inode) error {
	if !i.is(unix.S_IFREG) {
		return nil
	}
	return b.image.erase(i.block, i.size)
}

// count charges an entry to the limits.
func (b *builder) count(parts []string, more int) error {
	if b.entries++; b.entries > b.limits.Entries {
		return fmt.Errorf("%w: more than %d entries", ErrLimit, b.limits.Entries)
	}
	for _, part := range parts {
		more += len(part)
	}
	if b.metadata += int64(more); b.metadata > b.limits.Metadata {
		return fmt.Errorf("%w: names and attributes of more than %d bytes", ErrLimit, b.limits.Metadata)
	}
	return nil
}

// add puts i at parts. The contents of a regular file are read from content.
func (b *builder) add(parts []string, i *inode, xattrs map[string]string, content io.Reader) error {
	list, size, err := makeXattrs(xattrs, b.limits.Xattrs)
	if err != nil {
		return err
	}
	if err := b.count(parts, size+len(i.target)); err != nil {
		return err
	}
	if err := check(i); err != nil {
		return err
	}
	i.xattrs = list
	if b.rootOwns {
		i.uid, i.gid = 0, 0
	}
	if i.is(unix.S_IFREG) {
		if err := b.store(i, content); err != nil {
			return err
		}
	}
	return b.tree.put(parts, i)
}

// check refuses what no file of Linux has.
func check(i *inode) error {
	switch {
	case i.is(unix.S_IFLNK) && i.target == "":
		return fmt.Errorf("%w: symbolic link to nothing", ErrFormat)
	case len(i.target) > maxTarget:
		return fmt.Errorf("%w: symbolic link to more than %d bytes", ErrLimit, maxTarget)
	case i.size < 0:
		return fmt.Errorf("%w: negative size", ErrFormat)
	}
	return nil
}

// store writes the contents of i to the image.
func (b *builder) store(i *inode, content io.Reader) error {
	// Before anything is read: a size that is declared costs nothing to refuse.
	if i.size > b.limits.Content-b.content {
		return fmt.Errorf("%w: contents of more than %d bytes", ErrLimit, b.limits.Content)
	}
	b.content += i.size
	block, err := b.image.write(content, i.size)
	i.block = block
	return err
}

// meter counts the bytes of decompressed archives against the limit.
type meter struct {
	r     *bufio.Reader
	b     *builder
	zeros int // how many zeros the last bytes read were
}

// Read implements io.Reader.
func (m *meter) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	if m.b.stream += int64(n); m.b.stream > m.b.limits.Content {
		return 0, fmt.Errorf("%w: archives of more than %d bytes", ErrLimit, m.b.limits.Content)
	}
	last := n
	for last > 0 && p[last-1] == 0 {
		last--
	}
	if last > 0 {
		m.zeros = 0
	}
	m.zeros += n - last
	return n, err
}

// contextReader reads until its context ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	if err != nil && c.ctx.Err() != nil && !errors.Is(err, io.EOF) {
		err = c.ctx.Err() // what a connection says when it is cut
	}
	return n, err
}

// progressStep is how many bytes are read between two reports.
const progressStep = 1 << 20

// progress tells the caller how far the source is read.
type progress struct {
	Progress
	report  func(Progress)
	entries *int
	last    int64 // Bytes at the last report
}

// read counts the bytes of r as bytes of the source.
func (p *progress) read(r io.Reader) io.Reader { return &progressReader{r, p} }

func (p *progress) add(n int64) {
	if p.Bytes += n; p.Bytes-p.last >= progressStep {
		p.tell()
	}
}

func (p *progress) tell() {
	p.last = p.Bytes
	if p.report != nil {
		p.Entries = *p.entries
		p.report(p.Progress)
	}
}

type progressReader struct {
	r io.Reader
	p *progress
}

// Read implements io.Reader.
func (r *progressReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.p.add(int64(n))
	return n, err
}
