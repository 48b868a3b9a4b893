package main

import (
	"bytes"
	"fmt"
	"maps"
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
	file           string
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
		file: "pause.svg", where: result.Native, metric: result.Pause,
		scenarios: []string{"floor-pooled", "fork-pooled", "fork-rewriting"},
		x:         "dirty pages", value: func(l result.Line) int64 { return l.DirtyPages },
		// One page belongs to a parent that runs.
		choose: func(l result.Line) bool { return l.N == 1 && l.Depth == 1 && l.DirtyPages >= 100 },
		y:      "ms, median", scale: 1e3, logX: true,
	},
	{
		file: "children.svg", where: result.Native, metric: result.TimePerChild,
		scenarios: []string{"floor-pooled", "fork-pooled"},
		x:         "children", value: func(l result.Line) int64 { return int64(l.N) },
		choose: func(l result.Line) bool { return l.DirtyPages == 1 },
		y:      "ms, median", scale: 1e3, logX: true, fromZero: true,
	},
	{
		file: "bytes.svg", where: result.Native, metric: result.BytesPerChild,
		scenarios: []string{"floor-pooled", "fork-pooled"},
		x:         "children", value: func(l result.Line) int64 { return int64(l.N) },
		choose: func(l result.Line) bool { return l.N >= 10 },
		y:      "KiB, median", scale: 1 << 10, logX: true, fromZero: true,
	},
	{
		file: "depth.svg", where: result.Native, metric: result.FirstInstruction,
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

// draw returns nothing if there is nothing to draw. The library's logarithmic
// axis is none, so what is drawn is logarithms.
func (f figure) draw(lines []result.Line) ([]byte, error) {
	graph := chart.Chart{
		Width: 720, Height: 400,
		Background: chart.Style{Padding: chart.Box{Top: 40, Left: 20, Right: 20, Bottom: 20}},
		XAxis:      chart.XAxis{Name: f.x},
		YAxis:      chart.YAxis{Name: f.y, ValueFormatter: label},
	}
	x, y := math.Log10, math.Log10
	if !f.logX {
		x = linear
	}
	if f.fromZero {
		y = linear
	}
	seen := map[float64]bool{}
	var most, least float64 = 0, math.Inf(1)
	for i, scenario := range f.scenarios {
		xs, ys := f.points(lines, scenario)
		if len(xs) == 0 {
			continue
		}
		for k := range xs {
			seen[xs[k]] = true
			most, least = max(most, ys[k]), min(least, ys[k])
			xs[k], ys[k] = x(xs[k]), y(max(ys[k], 1e-6))
		}
		graph.Series = append(graph.Series, chart.ContinuousSeries{
			Name: scenario, XValues: xs, YValues: ys,
			Style: chart.Style{StrokeColor: chart.GetDefaultColor(i), StrokeWidth: 2, DotColor: chart.GetDefaultColor(i), DotWidth: 3},
		})
	}
	if len(seen) < 2 {
		return nil, nil
	}
	graph.XAxis.Ticks = ticks(seen, x)
	graph.YAxis.Ticks = steps(most)
	if !f.fromZero {
		graph.YAxis.Ticks = decades(least, most)
	}
	graph.Elements = []chart.Renderable{chart.LegendThin(&graph)}
	var out bytes.Buffer
	if err := graph.Render(chart.SVG, &out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func linear(v float64) float64 { return v }

// ticks are where there are points.
func ticks(seen map[float64]bool, x func(float64) float64) []chart.Tick {
	var all []chart.Tick
	for _, v := range slices.Sorted(maps.Keys(seen)) {
		all = append(all, chart.Tick{Value: x(v), Label: label(v)})
	}
	return all
}

// steps are four to ten round numbers from nothing to the most.
func steps(most float64) []chart.Tick {
	unit := math.Pow(10, math.Floor(math.Log10(max(most, 1e-3))))
	if most < 2*unit {
		unit /= 5
	} else if most < 5*unit {
		unit /= 2
	}
	all := []chart.Tick{{Label: label(0.)}}
	for i := 1.; all[len(all)-1].Value < most; i++ {
		all = append(all, chart.Tick{Value: i * unit, Label: label(i * unit)})
	}
	return all
}

// decades are powers of ten around a range, at their logarithms.
func decades(least, most float64) []chart.Tick {
	var all []chart.Tick
	for e := math.Floor(math.Log10(least)); e <= math.Ceil(math.Log10(most)); e++ {
		all = append(all, chart.Tick{Value: e, Label: label(math.Pow(10, e))})
	}
	return all
}

// label writes a number with as many digits as it needs, but four behind the
// point at most.
func label(v any) string {
	f, _ := v.(float64)
	return strconv.FormatFloat(math.Round(f*1e4)/1e4, 'f', -1, 64)
}
