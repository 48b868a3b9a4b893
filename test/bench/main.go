// Command bench measures how fast machines boot and fork, beside other
// monitors that boot the same kernel from the same bytes.
//
//	bench boot [flags]      measure on this machine's KVM
//	bench lab [flags]       the same in the lab, with all that it needs there
//
// It prints Go benchmark text, or with --json an object a line, on standard
// output, and a table for people on standard error. docs/benchmarks.md says
// what is measured and how.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes.
const (
	exitFailed = 1 // a scenario of ours failed, or nothing could be measured
	exitUsage  = 2
)

const usage = "usage: bench boot|lab [flags]    (bench boot --help lists them)"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, usage)
		return exitUsage
	}
	var err error
	switch args[0] {
	case "boot":
		err = bootCommand(ctx, args[1:])
	case "lab":
		return labCommand(ctx, args[1:])
	case gokvmVerb:
		err = gokvmGuest(args[1:])
	default:
		err = fmt.Errorf("%w: no command %q\n%s", errUsage, args[0], usage)
	}
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "bench:", err)
		return exitUsage
	default:
		fmt.Fprintln(os.Stderr, "bench:", err)
		return exitFailed
	}
}

var errUsage = errors.New("wrong usage")
