package main

import (
	"fmt"
	"strings"

	"github.com/forkvm/forkvm/test/bench/result"
)

// goal is what we hold ourselves to: a quantile of a series, in milliseconds or
// as a multiple of another's, and the most that it may be.
type goal struct {
	where, name string
	series, by  string // by is empty for a time
	quantile    func(result.Line) float64
	most        float64
}

func p50(l result.Line) float64     { return l.P50 }
func p99(l result.Line) float64     { return l.P99 }
func slowest(l result.Line) float64 { return l.Max }

func goals() []goal {
	all := []goal{
		{result.Native, "fork to first instruction, machines made ahead, p50 by the floor's", "fork-pooled/first_instruction/dirty=1", "floor-pooled/first_instruction/dirty=1", p50, 1.5},
		{result.Native, "the same, p99", "fork-pooled/first_instruction/dirty=1", "floor-pooled/first_instruction/dirty=1", p99, 2},
		{result.Native, "the same, nothing made ahead, p50", "fork-cold/first_instruction/dirty=1", "floor-cold/first_instruction/dirty=1", p50, 1.5},
	}
	for _, pages := range []int{0, 100, 1000, 10_000, 100_000} {
		all = append(all, goal{
			result.Native, fmt.Sprintf("pause, %d dirty pages", pages), fmt.Sprintf("fork-pooled/pause/dirty=%d", pages), "", p50,
			0.3 + 0.0015*float64(pages) + populated(pages),
		})
	}
	all = append(all, goal{
		result.Native, "pause of a parent that goes on writing, 100000 dirty pages", "fork-rewriting/pause/dirty=100000", "", p50, 1.5 + populated(100_000),
	}, goal{
		result.Native, "time per child, 1000 by 10", "fork-pooled/time_per_child/n=1000", "fork-pooled/time_per_child/n=10", p50, 1.2,
	}, goal{
		result.Native, "bytes per child, 1000 by 10", "fork-pooled/bytes_per_child/n=1000", "fork-pooled/bytes_per_child/n=10", p50, 1.2,
	})
	for _, n := range []int{10, 100, 1000} {
		all = append(all, goal{
			result.Native, fmt.Sprintf("bytes per child of %d, by the floor's", n),
			fmt.Sprintf("fork-pooled/bytes_per_child/n=%d", n), fmt.Sprintf("floor-pooled/bytes_per_child/n=%d", n), p50, 1.2,
		})
	}
	all = append(all,
		goal{result.Lab, "fork to first life, by QEMU's restore", "fork-pooled/first_life", "qemu-restore/first_life", p50, 0.12},
		goal{result.Lab, "time per child to first life, 4 by 1", "fork-pooled/time_per_child/n=4", "fork-pooled/time_per_child", p50, 1},
		goal{result.Lab, "fork to first reply, by a cold boot's", "fork-pooled/first_reply", "cold-boot/first_reply", p50, 1. / 15},
		goal{result.Lab, "restore from disk to first reply, by a fork's", "restore-disk/first_reply", "fork-pooled/first_reply", p50, 2},
		goal{result.Lab, "template's name to first reply, by a fork's", "template-start/first_reply", "template-fork/first_reply/depth=2", p50, 1.3},
	)
	for _, job := range []string{"write_128k", "read_128k", "write_4k", "read_4k"} {
		all = append(all, goal{result.Lab, "time of a disk request, " + job + ", by QEMU's", "forkvm-disk/" + job, "qemu-disk/" + job, p50, 1 / 0.7})
	}
	return append(all,
		goal{result.NativeLinux, "fork to first reply, p50", "fork-pooled/first_reply", "", p50, 15},
		goal{result.NativeLinux, "fork to first reply, p99", "fork-pooled/first_reply", "", p99, 30},
		goal{result.NativeLinux, "100 children, the last first reply", "fork-pooled/first_reply/n=100", "", slowest, 1500},
	)
}

// populated is the part of a pause that the memory in use costs, in
// milliseconds: 5 for each GiB. The guest uses what it dirties.
func populated(pages int) float64 { return 5 * float64(pages) * 4096 / (1 << 30) }

// goalTable says what is met where.
func (d *data) goalTable() string {
	var b strings.Builder
	b.WriteString("| where | goal | measured | at most | met |\n|---|---|--:|--:|---|\n")
	for _, g := range goals() {
		measured, met := d.judge(g)
		unit := "×"
		if g.by == "" {
			unit = "ms"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s %s | %s |\n", g.where, g.name, measured, number(g.most), unit, met)
	}
	return b.String()
}

func (d *data) judge(g goal) (measured, met string) {
	l, err := d.find(g.where, g.series)
	if err != nil || l.Samples == 0 {
		return "not measured", ""
	}
	v, unit := g.quantile(l)/1000, "ms"
	if g.by != "" {
		base, err := d.find(g.where, g.by)
		if err != nil || g.quantile(base) == 0 {
			return "not measured", ""
		}
		v, unit = g.quantile(l)/g.quantile(base), "×"
	}
	met = "yes"
	if v > g.most {
		met = "**no**"
	}
	return number(v) + " " + unit, met
}
