// Package footprint tells what memory this process costs the machine.
package footprint

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Usage is bytes of memory in use.
type Usage struct {
	// PSS is what the process has mapped, shared pages divided by how often
	// they are mapped; Private the part of it that nobody else has mapped.
	PSS, Private int64
	// PageTables are those of the process: of what it maps itself.
	PageTables int64
	// Kernel is the whole machine's: slabs that cannot be reclaimed, page
	// tables of guests, stacks, per-CPU and vmalloc memory. What else runs
	// on the machine shows in it. Single pages that the kernel does not
	// account for are not in it.
	Kernel int64
}

// Total is everything, each byte once.
func (u Usage) Total() int64 { return u.PSS + u.PageTables + u.Kernel }

// Per is what has been added since before, for each of n.
func (u Usage) Per(before Usage, n int) Usage {
	each := func(now, then int64) int64 { return (now - then) / int64(n) }
	return Usage{
		PSS: each(u.PSS, before.PSS), Private: each(u.Private, before.Private),
		PageTables: each(u.PageTables, before.PageTables), Kernel: each(u.Kernel, before.Kernel),
	}
}

// Read reads it. It needs Linux 4.14.
func Read() (Usage, error) {
	var u Usage
	for _, f := range []struct {
		path string
		to   *int64
		keys []string
	}{
		{"/proc/self/smaps_rollup", &u.PSS, []string{"Pss"}},
		{"/proc/self/smaps_rollup", &u.Private, []string{"Private_Clean", "Private_Dirty"}},
		{"/proc/self/status", &u.PageTables, []string{"VmPTE"}},
		{"/proc/meminfo", &u.Kernel, []string{"SUnreclaim", "SecPageTables", "KernelStack", "Percpu", "VmallocUsed"}},
	} {
		b, err := os.ReadFile(f.path)
		if err != nil {
			return u, fmt.Errorf("footprint: %w", err)
		}
		if *f.to, err = sum(b, f.keys); err != nil {
			return u, fmt.Errorf("footprint: %s: %w", f.path, err)
		}
	}
	return u, nil
}

// sum adds up the lines "key: number kB" of the keys. One that an older kernel
// does not have counts nothing.
func sum(b []byte, keys []string) (total int64, err error) {
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		key, value, ok := strings.Cut(lines.Text(), ":")
		if !ok {
			continue
		}
		for _, k := range keys {
			if k != key {
				continue
			}
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 10, 64)
			if err != nil {
				return 0, err
			}
			total += kib << 10
		}
	}
	return total, lines.Err()
}
