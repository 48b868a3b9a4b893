package disk

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
)

const benchSize = 256 << 20

// written is a disk all of which was written, in as many layers as depth says,
// in pieces of a size.
func written(b *testing.B, depth int, piece int64) *Disk {
	d := newDisk(b, benchSize, Options{})
	p := bytes.Repeat([]byte{1}, int(piece))
	for level := range depth {
		for off := int64(level * len(p)); off < benchSize; off += int64(depth * len(p)) {
			if err := d.WriteAt([][]byte{p}, off); err != nil {
				b.Fatal(err)
			}
		}
		d = fork(b, d)
	}
	return d
}

// BenchmarkRead reads 4 KiB at random places. Depth 1 is one extent, any other
// depth one a piece. What small pieces cost is neither the depth nor the list of
// extents but the kernel's index of a file's pages, which in a file with holes
// is less dense: with pieces of a size the depths differ little.
func BenchmarkRead(b *testing.B) {
	for _, piece := range []int64{1 << 20, 64 << 10} {
		for _, depth := range []int{1, 2, 4, 8, 16} {
			b.Run(fmt.Sprintf("piece=%dK/depth=%d", piece>>10, depth), func(b *testing.B) {
				d, r := written(b, depth, piece), rand.New(rand.NewPCG(1, 1))
				bufs := [][]byte{make([]byte, 4096)}
				b.SetBytes(4096)
				b.ReportAllocs()
				for b.Loop() {
					if err := d.ReadAt(bufs, r.Int64N(benchSize/4096)*4096); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkFirstWrite writes 4 KiB to places that are all below. With units of
// 64 KiB in place of 4 KiB each write would read and write that much.
func BenchmarkFirstWrite(b *testing.B) {
	for _, unit := range []int64{4 << 10, 16 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("unit=%dK", unit>>10), func(b *testing.B) {
			parent, r := written(b, 1, 64<<10), rand.New(rand.NewPCG(1, 1))
			d := fork(b, parent)
			page, rest := make([]byte, 4096), make([]byte, unit)
			b.SetBytes(4096)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%(benchSize/(64<<10)) == 0 {
					b.StopTimer()
					d.Close()
					d = fork(b, parent)
					b.StartTimer()
				}
				off := r.Int64N(benchSize/unit) * unit
				if unit > 4096 {
					if err := d.ReadAt([][]byte{rest}, off); err != nil {
						b.Fatal(err)
					}
					page = rest
				}
				if err := d.WriteAt([][]byte{page}, off); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFreeze is what a capture waits for, and what its children do.
func BenchmarkFreeze(b *testing.B) {
	for _, pages := range []int64{0, 100, 10000} {
		b.Run(fmt.Sprintf("pages=%d", pages), func(b *testing.B) {
			d := newDisk(b, benchSize, Options{})
			p := make([]byte, 4096)
			for b.Loop() {
				b.StopTimer()
				for k := range pages {
					if err := d.WriteAt([][]byte{p}, k*2*4096); err != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
				f, err := d.Freeze()
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				t, err := f.Table()
				if err != nil {
					b.Fatal(err)
				}
				t.Release()
				f.Close()
				b.StartTimer()
			}
		})
	}
}
