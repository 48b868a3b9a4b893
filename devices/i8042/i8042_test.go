package i8042

import "testing"

func newCounting() (*Device, *int) {
	n := new(int)
	return New(Config{}, Env{Reset: func() { *n++ }}), n
}

func TestReset(t *testing.T) {
	d, n := newCounting()
	d.Write(0, []byte{0xfe})    // data, not a command
	d.Write(4, []byte{0xff})    // the null command Linux sends first
	d.Write(4, []byte{0xd1})    // A20
	d.Write(0, []byte{0xdf})    //
	d.Write(3, []byte{0xfe, 0}) // lands on 0x63
	if *n != 0 {
		t.Fatalf("reset %d times for nothing", *n)
	}
	d.Write(4, []byte{0xfe})
	if *n != 1 {
		t.Fatalf("reset called %d times, want 1", *n)
	}
	Restore(Config{}, Env{Reset: func() { *n++ }}, d.Save()).Write(3, []byte{0, 0xfe})
	if *n != 2 {
		t.Fatalf("a wide write to a restored controller: %d resets, want 2", *n)
	}
	New(Config{}, Env{}).Write(4, []byte{0xfe}) // no Reset function: no panic
}

func read(d *Device, off uint64) byte {
	p := make([]byte, 1)
	d.Read(off, p)
	return p[0]
}

// The steps of Linux's drivers/input/serio/i8042.c and arch/x86 reboot: the
// wait before a command must not loop, the flush must see the buffer full
// after 16 bytes.
func TestProbeEndsAtOnce(t *testing.T) {
	d, _ := newCounting()
	if read(d, 4)&0x02 != 0 {
		t.Error("input buffer full: every command would wait for its time-out")
	}
	for range 17 {
		if read(d, 4)&0x01 == 0 {
			t.Fatal("output buffer ran empty: the driver would go on probing")
		}
		read(d, 0)
	}
}

func TestReadFillsEveryByte(t *testing.T) {
	d, _ := newCounting()
	p := make([]byte, 8)
	d.Read(0, p)
	for i, want := range []byte{0, 0xff, 0xff, 0xff, 1, 0xff, 0xff, 0xff} {
		if p[i] != want {
			t.Errorf("port %#x reads %#x, want %#x", 0x60+i, p[i], want)
		}
	}
}

func FuzzAccess(f *testing.F) {
	f.Add(uint64(4), []byte{0xfe})
	f.Add(^uint64(0), []byte{0, 0, 0, 0, 0, 0xfe})
	f.Fuzz(func(t *testing.T, off uint64, p []byte) {
		d, n := newCounting()
		want := 0
		for i, v := range p {
			if off+uint64(i) == 4 && v == 0xfe {
				want++
			}
		}
		d.Write(off, p)
		if *n != want {
			t.Fatalf("%d resets, want %d", *n, want)
		}
		d.Read(off, p)
	})
}
