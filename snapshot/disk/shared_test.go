package disk

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/forkvm/forkvm/snapshot"
)

// sharedPages is what Shared says, by page.
func sharedPages(t *testing.T, d *Disk) map[int64]bool {
	t.Helper()
	pages, last := map[int64]bool{}, int64(0)
	err := d.Shared(func(e snapshot.Extent) bool {
		if e.Start < last || e.Length <= 0 || e.Layer == nil {
			t.Fatalf("extent %+v after %d", e, last)
		}
		last = e.End()
		for at := e.Start; at < e.End(); at += pageSize {
			pages[at/pageSize] = true
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// TestShared: a fork has in common with what it comes from what it has neither
// written nor discarded, and zeros it has with nobody.
func TestShared(t *testing.T) {
	const pages = 300
	r := rand.New(rand.NewPCG(1, 2))
	parent := newDisk(t, pages*pageSize, Options{})
	page := make([]byte, pageSize)
	want := map[int64]bool{}
	for range 100 {
		k := r.Int64N(pages)
		if err := parent.WriteAt([][]byte{page}, k*pageSize); err != nil {
			t.Fatal(err)
		}
		want[k] = true
	}
	if got := sharedPages(t, parent); len(got) != 0 {
		t.Errorf("of a disk of its own: %v", got)
	}
	child := fork(t, parent)
	for range 50 {
		k := r.Int64N(pages)
		var err error
		switch r.IntN(3) {
		case 0:
			err = child.WriteAt([][]byte{page[:512]}, k*pageSize+512)
		case 1:
			err = child.WriteAt([][]byte{page}, k*pageSize)
		default:
			err = child.Discard(k*pageSize, pageSize)
		}
		if err != nil {
			t.Fatal(err)
		}
		delete(want, k)
		got := sharedPages(t, child)
		if len(got) != len(want) {
			t.Fatalf("%d pages, want %d", len(got), len(want))
		}
		for k := range want {
			if !got[k] {
				t.Fatalf("page %d is missing", k)
			}
		}
	}
	calls := 0
	if err := child.Shared(func(snapshot.Extent) bool { calls++; return false }); err != nil || calls != 1 {
		t.Errorf("told to stop: %d calls, %v", calls, err)
	}
	child.Close()
	if err := child.Shared(nil); !errors.Is(err, ErrClosed) {
		t.Errorf("of a closed disk: %v", err)
	}
}

// TestSharedWhileItIsWritten: what is written meanwhile is there or not, and no
// extent is empty or before another.
func TestSharedWhileItIsWritten(t *testing.T) {
	const pages = 1 << 14
	parent := newDisk(t, pages*pageSize, Options{})
	if err := parent.WriteAt([][]byte{make([]byte, pages*pageSize)}, 0); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		child := fork(t, parent)
		written := make(chan struct{})
		go func() {
			defer close(written)
			for k := range int64(pages) {
				if err := child.WriteAt([][]byte{make([]byte, pageSize)}, k*pageSize); err != nil {
					t.Error(err)
				}
			}
		}()
		for over := false; !over; {
			sharedPages(t, child)
			select {
			case <-written:
				over = true
			default:
			}
		}
		child.Close()
	}
}

// TestUsageHoldsNobodyUp: while what is below has yet to be laid out, who asks how
// much it is keeps no request waiting.
func TestUsageHoldsNobodyUp(t *testing.T) {
	d := newDisk(t, 4*pageSize, Options{})
	page := [][]byte{make([]byte, pageSize)}
	if err := d.WriteAt(page, 0); err != nil {
		t.Fatal(err)
	}
	frozen, err := d.Freeze()
	if err != nil {
		t.Fatal(err)
	}
	defer frozen.Close()
	bottom := frozen.level.below
	laying, goOn, asked := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var below int64
	bottom.once = sync.Once{} // as if nobody had looked yet
	go bottom.once.Do(func() { close(laying); <-goOn })
	<-laying
	go func() {
		var err error
		_, below, err = d.Usage()
		asked <- err
	}()
	written := make(chan error, 1)
	go func() {
		var err error
		for range 10000 { // it asks at some time
			err = errors.Join(err, d.writeShared(newVector(page), pageSize, pageSize))
		}
		written <- err
	}()
	select {
	case err := <-written:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("requests wait")
	}
	close(goOn)
	if err := <-asked; err != nil || below != pageSize {
		t.Errorf("%d bytes below, %v", below, err)
	}
}
