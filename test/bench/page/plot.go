package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/wcharczuk/go-chart/v2"

	"github.com/forkvm/forkvm/test/bench/result"
)

// figure is a plot of medians: lines of one metric, a line a scenario, over a
// number that belongs to each result.
type figure struct {
	file, title    string
	where, metric  string
	scenarios      []string
	x              string
	value          func(result.Line) int64
	choose         func(result.Line) bool
	y              string
	scale          float64 // what the results are divided by
	logX, fromZero bool
}

var figures = []figure{
	{
		file: "pause.svg", title: "Pause of the parent", where: result.Native, metric: result.Pause,
		scenarios: []string{"floor-pooled", "fork-pooled", "fork-rewriting"},
		x:         "dirty pages", value: func(l result.Line) int64 { return l.DirtyPages },
		// One page belongs to a parent that runs.
		choose: func(l result.Line) bool { return l.N == 1 && l.Depth == 1 && l.DirtyPages >= 100 },
		y:      "ms, median", scale: 1e3, logX: true,
	},
	{
		file: "children.svg", title: "Time for each of n children", where: result.Native, metric: result.TimePerChild,
		scenarios: []string{"floor-pooled", "fork-pooled"},
		x:         "children", value: func(l result.Line) int64 { return int64(l.N) },
		choose: func(l result.Line) bool { return l.DirtyPages == 1 },
		y:      "ms, median", scale: 1e3, logX: true, fromZero: true,
	},
	{
		file: "bytes.svg", title: "Memory of each of n children that idle", where: result.Native, metric: result.BytesPerChild,
		scenarios: []string{"floor-pooled", "fork-pooled"},
		x:         "children", value: func(l result.Line) int64 { return int64(l.N) },
		choose: func(l result.Line) bool { return l.N >= 10 },
		y:      "KiB, median", scale: 1 << 10, logX: true, fromZero: true,
	},
	{
		file: "depth.svg", title: "Fork to first instruction by generation", where: result.Native, metric: result.FirstInstruction,
		scenarios: []string{"fork-pooled"},
		x:         "generation", value: func(l result.Line) int64 { return int64(l.Depth) },
		choose: func(l result.Line) bool { return l.N == 1 && l.DirtyPages == 10 },
		y:      "ms, median", scale: 1e3, fromZero: true,
	},
}

// plot writes all figures for which there are results.
func (d *data) plot(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range figures {
		svg, err := f.draw(d.by[f.where].lines)
		if err != nil {
			return fmt.Errorf("%s: %w", f.file, err)
		}
		if svg == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, f.file), svg, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// points are the x and y of a scenario, by x.
func (f figure) points(lines []result.Line, scenario string) (xs, ys []float64) {
	var chosen []result.Line
	for _, l := range lines {
		if l.Scenario == scenario && l.Metric == f.metric && l.Samples > 0 && f.choose(l) {
			chosen = append(chosen, l)
		}
	}
	slices.SortFunc(chosen, func(a, b result.Line) int { return int(f.value(a) - f.value(b)) })
	for _, l := range chosen {
		xs = append(xs, float64(f.value(l)))
		ys = append(ys, l.P50/f.scale)
	}
	return xs, ys
}

// draw returns nothing if there is nothing to draw.
func (f figure) draw(lines []result.Line) ([]byte, error) {
	graph := chart.Chart{
		Title: f.title, Width: 720, Height: 400,
		Background: chart.Style{Padding: chart.Box{Top: 40, Left: 20, Right: 20, Bottom: 20}},
		XAxis:      chart.XAxis{Name: f.x},
		YAxis:      chart.YAxis{Name: f.y, ValueFormatter: label},
	}
	seen := map[float64]bool{}
	var most, least float64 = 0, math.Inf(1)
	for i, scenario := range f.scenarios {
		xs, ys := f.points(lines, scenario)
		if len(xs) == 0 {
			continue
		}
		graph.Series = append(graph.Series, chart.ContinuousSeries{
			Name: scenario, XValues: xs, YValues: ys,
			Style: chart.Style{StrokeColor: chart.GetDefaultColor(i), StrokeWidth: 2, DotColor: chart.GetDefaultColor(i), DotWidth: 3},
		})
		for i := range xs {
			seen[xs[i]] = true
			most, least = max(most, ys[i]), min(least, ys[i])
		}
	}
	if len(seen) < 2 {
		return nil, nil
	}
	graph.XAxis.Ticks = ticks(seen)
	if f.logX {
		graph.XAxis.Range = &chart.LogarithmicRange{}
	}
	switch {
	case f.fromZero:
		graph.YAxis.Range = &chart.ContinuousRange{Min: 0, Max: most * 1.1}
	case least > 0:
		graph.YAxis.Range = &chart.LogarithmicRange{}
		graph.YAxis.Ticks = decades(least, most)
	}
	graph.Elements = []chart.Renderable{chart.LegendThin(&graph)}
	var out bytes.Buffer
	if err := graph.Render(chart.SVG, &out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// ticks are where there are points.
func ticks(seen map[float64]bool) []chart.Tick {
	var all []chart.Tick
	for x := range seen {
		all = append(all, chart.Tick{Value: x, Label: label(x)})
	}
	slices.SortFunc(all, func(a, b chart.Tick) int { return int(math.Copysign(1, a.Value-b.Value)) })
	return all
}

// decades are powers of ten around a range.
func decades(least, most float64) []chart.Tick {
	var all []chart.Tick
	for e := math.Floor(math.Log10(least)); e <= math.Ceil(math.Log10(most)); e++ {
		v := math.Pow(10, e)
		all = append(all, chart.Tick{Value: v, Label: label(v)})
	}
	return all
}

// label writes a number as short as it can be.
func label(v any) string {
	f, _ := v.(float64)
	return strconv.FormatFloat(f, 'g', 4, 64)
}
