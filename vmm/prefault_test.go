package vmm

import (
	"bytes"
	"testing"
)

// TestPrefaultChangesNothing gives a child pages ahead, layers' and zeros: it
// has the same bytes, and the pages are private to it.
func TestPrefaultChangesNothing(t *testing.T) {
	vm := startMicro(t, guestHalt)
	pause(t, vm)
	want := bytes.Repeat([]byte{5}, 64*pageSize)
	if err := vm.mem.write(16<<20, want); err != nil {
		t.Fatal(err)
	}
	image, err := vm.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	ahead := []run{{16 << 20, 16<<20 + 32*pageSize}, {40 << 20, 40<<20 + 8*pageSize}}
	image.prints = &footprint{written: ahead}
	child, err := image.Start(t.Context(), StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer closeVM(t, child)
	pause(t, child)
	if !bytes.Equal(child.mem.ram[16<<20:16<<20+len(want)], want) || child.mem.ram[40<<20] != 0 {
		t.Error("the child has other bytes")
	}
	private, err := privatePages(child.mem.ram)
	if err != nil {
		t.Fatal(err)
	}
	if missing := lacking(ahead, private); len(missing) > 0 {
		t.Errorf("not copied ahead: %v", missing)
	}
	child.mem.ram[16<<20] = 6
	if vm.mem.ram[16<<20] != 5 {
		t.Error("the parent sees the child's write")
	}
}

func TestFootprintIsTakenNowAndThen(t *testing.T) {
	f := new(footprint)
	if !f.wanted() {
		t.Error("the first child is not looked at")
	}
	f.set([]run{{0, pageSize}})
	taken := 0
	for range 10 * footprintStarts {
		f.get()
		if f.wanted() {
			taken++
		}
	}
	if taken != 10 {
		t.Errorf("taken %d times in %d starts", taken, 10*footprintStarts)
	}
}
