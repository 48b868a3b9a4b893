package vmm

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// writeTracker finds the pages that were written since it last looked, while
// the machine runs. It needs Linux 6.7, and a process that may make a
// userfaultfd.
//
// Pages are write-protected through the userfaultfd; the first write to one,
// by the guest or by a device, takes the protection away. PAGEMAP_SCAN tells
// which pages have none, and protects them in the same atomic step. A page
// that the memory got since, by copying one of a layer, has none either.
type writeTracker struct {
	fd  int
	ram []byte
	not uint64 // categories of pages that are not the machine's own
}

// newWriteTracker tracks writes to memory in which pages of layers show, or do
// not. It fails where the kernel or a sandbox of the process does not allow it.
func newWriteTracker(ram []byte, layers bool) (*writeTracker, error) {
	fd, err := openUffd()
	if err != nil {
		return nil, fmt.Errorf("vmm: userfaultfd: %w", err)
	}
	t := &writeTracker{fd: fd, ram: ram}
	if layers {
		// The kernel has to look at each page to know, which for many takes
		// five times as long as the rest.
		t.not = pageIsFile
	}
	if err := t.register(run{0, int64(len(ram))}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return t, nil
}

// register begins to track what is mapped in a range.
func (t *writeTracker) register(r run) error {
	if err := registerUffd(t.fd, t.ram[r.start:r.end]); err != nil {
		return fmt.Errorf("vmm: UFFDIO_REGISTER: %w", err)
	}
	return nil
}

// forget is called for pages that were dropped. Where a layer is mapped the
// kernel remembers of each that it was protected, and would say that it is
// swapped out.
func (t *writeTracker) forget(r run) error {
	if err := unprotectUffd(t.fd, t.ram[r.start:r.end]); err != nil {
		return fmt.Errorf("vmm: UFFDIO_WRITEPROTECT: %w", err)
	}
	return nil
}

// written are the private pages that were written since they were taken.
func (t *writeTracker) written() ([]run, error) { return t.scan(run{0, int64(len(t.ram))}, 0) }

// Protecting costs a system call for each range, and the guest a fault for
// each page in it that it touches again: all of KVM's mappings there go.
const maxTakes = 64

// take returns the written pages within about the given ranges, from now on
// protected: a write that comes later makes a page count as written again. If it
// fails, what it returns may have been taken.
func (t *writeTracker) take(within []run) (taken []run, err error) {
	for _, r := range coalesce(within, 0, maxTakes) {
		got, err := t.scan(r, scanWPMatching|scanCheckWPAsync)
		if err != nil {
			return append(taken, r), err
		}
		taken = append(taken, got...)
	}
	return taken, nil
}

func (t *writeTracker) scan(within run, flags uint64) ([]run, error) {
	f, err := pagemap()
	if err != nil {
		return nil, fmt.Errorf("vmm: find written pages: %w", err)
	}
	runs, err := scan(f, t.ram[within.start:within.end], t.not, pageIsWritten, flags)
	if err != nil {
		return nil, fmt.Errorf("vmm: PAGEMAP_SCAN: %w", err)
	}
	for i := range runs {
		runs[i].start += within.start
		runs[i].end += within.start
	}
	return runs, nil
}

func (t *writeTracker) close() error { return unix.Close(t.fd) }
