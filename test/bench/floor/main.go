// Command floor measures what the bare system calls of a fork cost, in the
// best order and with nothing else. Package bare says what they are; the
// benchmarks run the same measurements beside ours.
//
//	go run ./test/bench/floor -n 10 -dirty 100 -rounds 200
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/forkvm/forkvm/test/bench/floor/bare"
	"github.com/forkvm/forkvm/test/bench/microguest"
)

func main() {
	var (
		n      = flag.Int("n", 1, "children of a fork")
		dirty  = flag.Int64("dirty", 1, "pages that the parent writes before each fork")
		reset  = flag.Int64("reset", 1000, "pages that a child writes before each reset")
		rounds = flag.Int("rounds", 100, "how often each is measured")
		memory = flag.Int64("memory", 256, "guest memory in `MiB`")
	)
	flag.Parse()
	if flag.NArg() > 0 || *rounds < 1 {
		flag.Usage()
		os.Exit(2)
	}
	guest := microguest.Params{Pages: *dirty, ChildPages: *reset}
	if err := measure(*memory<<20, guest, *n, *rounds); err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}

func measure(memory int64, guest microguest.Params, n, rounds int) error {
	runtime.LockOSThread()
	s, err := bare.NewSession()
	if err != nil {
		return err
	}
	defer s.Close()
	times := map[string][]time.Duration{}
	for range rounds {
		for _, kind := range []bare.Kind{bare.Pooled, bare.Cold, bare.Reset} {
			sample, err := s.Measure(bare.Request{Kind: kind, N: n, Memory: memory, Guest: guest})
			if err != nil {
				return err
			}
			add := func(metric string, d time.Duration) {
				key := string(kind) + "\t" + metric
				times[key] = append(times[key], d)
			}
			if kind != bare.Reset {
				add("pause", sample.Pause)
			}
			for _, c := range sample.Children {
				add("state ready", c.StateReady)
				add("first instruction", c.FirstInstruction)
			}
		}
	}
	printTable(times)
	return nil
}

// printTable writes quantiles in microseconds.
func printTable(times map[string][]time.Duration) {
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "kind\tmetric\tp50 µs\tp90 µs\tp99 µs\tmax µs\tsamples\t")
	for _, kind := range []bare.Kind{bare.Pooled, bare.Cold, bare.Reset} {
		for _, metric := range []string{"pause", "state ready", "first instruction"} {
			key := string(kind) + "\t" + metric
			all := times[key]
			if len(all) == 0 {
				continue
			}
			slices.Sort(all)
			fmt.Fprint(t, key)
			for _, q := range []float64{0.5, 0.9, 0.99, 1} {
				fmt.Fprintf(t, "\t%d", all[int(q*float64(len(all)-1))].Microseconds())
			}
			fmt.Fprintf(t, "\t%d\t\n", len(all))
		}
	}
	t.Flush()
}
