package bare

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// layer is memory that parent and children map copy-on-write, a memfd.
type layer struct {
	fd     int
	window []byte // its bytes, if they are there already
}

// newLayer makes a layer. Into one that is populated, copying is two to three
// times as fast: its pages are there, and mapped.
func newLayer(size int64, populated bool) (*layer, error) {
	fd, err := unix.MemfdCreate("floor", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("bare: memfd: %w", err)
	}
	l := &layer{fd: fd}
	if err = unix.Ftruncate(fd, size); err == nil && populated {
		err = l.populate(size)
	}
	if err != nil {
		l.close()
		return nil, fmt.Errorf("bare: layer of %d bytes: %w", size, err)
	}
	return l, nil
}

func (l *layer) populate(size int64) (err error) {
	if l.window, err = unix.Mmap(l.fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return err
	}
	return unix.Madvise(l.window, unix.MADV_POPULATE_WRITE)
}

// write copies all of b into the layer.
func (l *layer) write(b []byte, at int64) error {
	if l.window != nil {
		copy(l.window[at:], b)
		return nil
	}
	for len(b) > 0 {
		n, err := unix.Pwrite(l.fd, b, at)
		if err != nil {
			return fmt.Errorf("bare: write to a layer: %w", err)
		}
		b, at = b[n:], at+int64(n)
	}
	return nil
}

// fewPages are copied sooner than they are mapped. The kernel tells every VM of
// the process of a change to a mapping, so among a thousand VMs one costs as
// much as copying fifty pages; but the copies are memory of the child's own.
const fewPages = 8

// lay gives ram the runs that the layer holds one after the other.
func (l *layer) lay(ram []byte, runs []run) error {
	var at int64
	for _, r := range runs {
		dst := ram[r.start:r.end]
		var err error
		switch {
		case len(dst) > fewPages*pageSize:
			err = overlay(dst, l.fd, at)
		case l.window != nil:
			copy(dst, l.window[at:])
		default:
			_, err = unix.Pread(l.fd, dst, at)
		}
		if err != nil {
			return fmt.Errorf("bare: lay a layer over memory: %w", err)
		}
		at += int64(len(dst))
	}
	return nil
}

// close may be called for a layer that was never made.
func (l *layer) close() {
	if l == nil {
		return
	}
	if l.window != nil {
		_ = unix.Munmap(l.window)
	}
	unix.Close(l.fd)
}
