package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/forkvm/forkvm/test/bench/floor/bare"
	"github.com/forkvm/forkvm/test/bench/native"
	"github.com/forkvm/forkvm/test/bench/result"
)

func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure how fast machines fork here, beside what the kernel takes for it",
		Long: `Measure how fast machines fork here, and what children cost, with a guest of a few
instructions that runs on any KVM. Beside each figure is its floor: what the bare
system calls cost, measured in turns with ours.

Standard output is Go benchmark text, or with --json an object a line: scenario, metric,
n, dirty_pages, depth, unit (us or bytes), p50, p90, p99, max, samples, kvm, where. A
table for people goes to standard error.`,
		Example: `  forkvm bench --quick
  forkvm bench --groups fork,pause --json >here.jsonl`,
		Args: cobra.NoArgs,
	}
	o := native.Options{Floor: []string{os.Args[0], floorCommand}}
	f := cmd.Flags()
	f.BoolVar(&o.Quick, "quick", false, "take about a fourth of the samples")
	f.IntVar(&o.Rounds, "rounds", 0, "how many `samples` each measurement takes (default as many as it needs)")
	f.Int64Var(&o.Most, "most", 0, "leave out more children and more dirty pages than `so many` (default none)")
	f.StringSliceVar(&o.Groups, "groups", nil, "comma-separated `names` of what to measure (default all: "+strings.Join(native.Groups(), ",")+")")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.Progress = cmd.ErrOrStderr()
		if o.Rounds < 0 || o.Most < 0 {
			return usageError("bench: negative --rounds or --most")
		}
		for _, name := range o.Groups {
			if !slices.Contains(native.Groups(), name) {
				return usageError("bench: no group %q", name)
			}
		}
		host, results, err := bench(cmd.Context(), o)
		if err != nil {
			return err
		}
		return results.Print(cmd.OutOrStdout(), cmd.ErrOrStderr(), host, result.Format{JSON: *asJSON})
	}
	return cmd
}

func bench(ctx context.Context, o native.Options) (result.Host, *result.Recorder, error) {
	v := readVersion()
	commit := cmp.Or(v.Commit, "unknown")
	if v.Modified {
		commit += "-dirty"
	}
	host, err := result.ReadHost(result.Native, commit, time.Now().Format(time.DateOnly))
	if err != nil {
		return host, nil, err
	}
	results := result.NewRecorder()
	if err := native.Run(ctx, o, results); err != nil {
		return host, nil, fmt.Errorf("bench: %w", err)
	}
	return host, results, nil
}

// floorCommand is how forkvm becomes the process in which the floor is
// measured.
const floorCommand = "bench-floor"

func newBenchFloor() *cobra.Command {
	return &cobra.Command{
		Use:    floorCommand,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return bare.Serve(os.Stdin, os.Stdout) },
	}
}
