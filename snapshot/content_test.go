package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// sumSlowly computes a layer's sum of all its bytes in memory, as the
// documentation of Store says.
func sumSlowly(all []byte) LayerInfo {
	info := LayerInfo{Size: int64(len(all))}
	u64 := func(n int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(n)) }
	top := bytes.NewBufferString("forkvm layer 1\n")
	for start := 0; start < len(all); start += 1 << 20 {
		part := all[start:min(start+1<<20, len(all))]
		var inner bytes.Buffer
		for len(part) > 0 {
			zeros := leading(part, true)
			part = part[zeros:]
			n := leading(part, false)
			if n > 0 {
				off := min(start+1<<20, len(all)) - len(part)
				inner.Write(append(u64(off), u64(int(n))...))
				inner.Write(part[:n])
				info.Data += n
			}
			part = part[n:]
		}
		if inner.Len() > 0 {
			sum := sha256.Sum256(inner.Bytes())
			top.Write(append(u64(start), sum[:]...))
		}
	}
	top.Write(u64(len(all)))
	info.Sum = sha256.Sum256(top.Bytes())
	return info
}

// The sum depends on the bytes alone: not on where the file system has holes,
// nor on which it is.
func TestSumIsThatOfTheBytes(t *testing.T) {
	rng := rand.New(rand.NewSource(3))
	for round := range 40 {
		all := make([]byte, (1+rng.Intn(700))*page)
		for at := 0; at < len(all); {
			n := min((1+rng.Intn(300))*page, len(all)-at)
			if rng.Intn(2) == 0 {
				rng.Read(all[at : at+n])
			}
			at += n
		}
		want := sumSlowly(all)
		for where, dir := range map[string]string{"disk": t.TempDir(), "memory": memoryDir(t)} {
			for _, sparse := range []bool{false, true} {
				f := fileOf(t, filepath.Join(dir, "f"), all, sparse)
				s := scanner{file: f, size: int64(len(all))}
				got, err := s.scan(ctx, nil, nil)
				if err != nil || got != want {
					t.Fatalf("round %d, %s, sparse %v: %+v, %v, want %+v", round, where, sparse, got, err, want)
				}
			}
		}
	}
}

// fileOf writes a file with as few or as many holes as there can be.
func fileOf(t *testing.T, name string, all []byte, sparse bool) *os.File {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(int64(len(all))); err != nil {
		t.Fatal(err)
	}
	for off := 0; off < len(all); off += page {
		p := all[off : off+page]
		if sparse && bytes.Equal(p, zeroPage[:]) {
			continue
		}
		if _, err := f.WriteAt(p, int64(off)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// Layers that differ in one page, in its place, or in their size only have
// different sums.
func TestSumsDiffer(t *testing.T) {
	const block = blockSize / page
	seen := map[Sum]string{}
	try := func(what string, size int, at ...int) {
		content := make(pages, size)
		for _, i := range at {
			content[i] = 1
		}
		l := memoryLayer(t, content)
		s := scanner{file: l.file, size: l.size}
		got, err := s.scan(ctx, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if seen[got.Sum] != "" {
			t.Errorf("%s and %s have one sum", what, seen[got.Sum])
		}
		seen[got.Sum] = what
	}
	for size := 2 * block; size < 2*block+3; size++ {
		try(fmt.Sprint("zeros ", size), size)
		for i := range size {
			if i%block < 3 || i%block > block-3 {
				try(fmt.Sprint("page ", i, " of ", size), size, i)
			}
		}
		try(fmt.Sprint("a run across blocks of ", size), size, block-1, block)
		try(fmt.Sprint("a hole of a page, ", size), size, 0, 2)
		try(fmt.Sprint("no hole, ", size), size, 0, 1)
	}
}

func TestReadingLeavesHolesAsTheyAre(t *testing.T) {
	l := memoryLayer(t, append(make(pages, 1000), 1))
	s := scanner{file: l.file, size: l.size}
	if _, err := s.scan(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(l.FD(), &st); err != nil || st.Blocks*512 > page {
		t.Errorf("%d bytes in memory, %v", st.Blocks*512, err)
	}
}

func TestRunsAreInOrder(t *testing.T) {
	content := make(pages, 3*blockSize/page)
	for i := range content {
		if i%7 > 2 {
			content[i] = byte(i%250 + 1)
		}
	}
	l := memoryLayer(t, content)
	got, last := make([]byte, l.Size()), int64(-1)
	err := l.Runs(ctx, func(off int64, p []byte) error {
		if off <= last || len(p) == 0 || len(p) > 1<<20 {
			t.Errorf("%d bytes at %d after %d", len(p), off, last)
		}
		last = off
		copy(got[off:], p)
		return nil
	})
	if err != nil || !bytes.Equal(got, content.bytes()) {
		t.Errorf("other bytes, or %v", err)
	}
	if err := l.Runs(ctx, func(int64, []byte) error { return errCut }); !errors.Is(err, errCut) {
		t.Errorf("%v, want the function's error", err)
	}
}

func TestSpansAgainstPlainSets(t *testing.T) {
	const size = 40
	rng := rand.New(rand.NewSource(1))
	plain := func(s spans) (set [size]bool) {
		for i := range set {
			set[i] = s == nil || s.within(int64(i), int64(i)+1) == 1
		}
		return set
	}
	make := func() (s spans, set [size]bool) {
		if rng.Intn(10) == 0 {
			for i := range set {
				set[i] = true
			}
			return nil, set
		}
		var ranges []span
		for range rng.Intn(5) {
			a := rng.Intn(size)
			b := a + 1 + rng.Intn(size-a)
			ranges = append(ranges, span{int64(a), int64(b)})
			for i := a; i < b; i++ {
				set[i] = true
			}
		}
		return newSpans(ranges), set
	}
	for range 2000 {
		a, inA := make()
		b, inB := make()
		if plain(a) != inA {
			t.Fatalf("%v is not %v", a, inA)
		}
		covers := b != nil || a == nil
		for i := range size {
			next := i
			for next < size && !inA[next] {
				next++
			}
			if got := a.next(int64(i)); next < size && got != int64(next) || next == size && got < size {
				t.Fatalf("%v: after %d comes %d, want %d", a, i, got, next)
			}
			if inB[i] && !inA[i] {
				covers = false
			}
		}
		if a.covers(b) != covers {
			t.Fatalf("%v covers %v: %v, want %v", a, b, !covers, covers)
		}
		for i := 1; i < len(a); i++ {
			if a[i].start <= a[i-1].end {
				t.Fatalf("%v touch", a)
			}
		}
	}
}

func BenchmarkSum(b *testing.B) {
	const mib = 128
	f, err := os.CreateTemp(memoryDir(b), "")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	p := bytes.Repeat([]byte{1}, 1<<20)
	for i := range int64(mib) {
		if _, err := f.WriteAt(p, i<<20); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(mib << 20)
	for b.Loop() {
		s := scanner{file: f, size: mib << 20}
		if _, err := s.scan(ctx, nil, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// A layer of a thousand pages here and there, as a capture makes it.
func BenchmarkSumScattered(b *testing.B) {
	const size = 256 << 20
	f, err := os.CreateTemp(memoryDir(b), "")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		b.Fatal(err)
	}
	for i := range int64(1000) {
		if _, err := f.WriteAt(pages{1}.bytes(), i*65*page); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		s := scanner{file: f, size: size}
		if _, err := s.scan(ctx, nil, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// TestFileThatBecameShorter: where a file ends there seem to be holes. It is
// damaged all the same.
func TestFileThatBecameShorter(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(bytes.Repeat([]byte{1}, 4<<20)); err != nil {
		t.Fatal(err)
	}
	layer, err := NewLayer(f, 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Release()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	s := scanner{file: f, size: 4 << 20}
	if _, err := s.scan(t.Context(), nil, nil); !errors.Is(err, ErrCorrupt) {
		t.Errorf("scan: %v", err)
	}
}
