package footprint

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestSum(t *testing.T) {
	const text = "Pss:      12 kB\nPss_Anon: 7 kB\nno number\nPrivate_Clean:  3 kB\nPrivate_Dirty:\t4 kB\n"
	for want, keys := range map[int64][]string{
		12 << 10: {"Pss"}, 7 << 10: {"Private_Clean", "Private_Dirty"}, 0: {"SecPageTables"},
	} {
		if got, err := sum([]byte(text), keys); got != want || err != nil {
			t.Errorf("%v: %d, %v, want %d", keys, got, err, want)
		}
	}
	if _, err := sum([]byte("Pss: many kB\n"), []string{"Pss"}); err == nil {
		t.Error("a line without a number is taken")
	}
}

// TestMemoryIsSeen writes 16 MiB of 1 GiB that it maps.
func TestMemoryIsSeen(t *testing.T) {
	const mapped, written = 1 << 30, 16 << 20
	before, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	m, err := unix.Mmap(-1, 0, mapped, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	if err := unix.Madvise(m, unix.MADV_NOHUGEPAGE); err != nil {
		t.Log(err)
	}
	for i := 0; i < written; i += 4096 {
		m[i] = 1
	}
	after, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	const slack = 2 << 20 // of the Go runtime
	d := after.Per(before, 1)
	for name, got := range map[string]int64{"PSS": d.PSS, "private": d.Private} {
		if got < written || got > written+slack {
			t.Errorf("%s: %d bytes more, wrote %d", name, got, written)
		}
	}
	if d.PageTables < 8*written/4096 {
		t.Errorf("page tables: %d bytes more", d.PageTables)
	}
	if got := after.Per(before, 4).PSS; got != d.PSS/4 {
		t.Errorf("a fourth of %d is %d", d.PSS, got)
	}
}
