// Command bench measures how fast machines fork, boot and come back, beside
// other monitors that boot the same kernel from the same bytes and beside the
// bare system calls.
//
//	bench all [flags]       everything, natively and in the lab
//	bench native [flags]    a guest of a few instructions, on this machine's KVM
//	bench linux [flags]     a Linux guest, on this machine's KVM
//	bench lab [flags]       a Linux guest in the lab, with all that it needs there
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
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/forkvm/forkvm/test/bench/floor/bare"
)

// Exit codes.
const (
	exitFailed = 1 // a scenario of ours failed, or nothing could be measured
	exitUsage  = 2
)

// floorVerb is the command as which this program is the floor.
const floorVerb = "floor"

const usage = "usage: bench all|native|linux|lab [flags]    (bench all --help lists them)"

func main() {
	if os.Args[0] == diskInit {
		runDiskInit()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	err := command(ctx, args)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
		return exit.ExitCode() // it has said why
	}
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "bench:", err)
		return exitUsage
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	return exitFailed
}

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("%w: %s", errUsage, usage)
	}
	switch args[0] {
	case floorVerb:
		return bare.Serve(os.Stdin, os.Stdout)
	case gokvmVerb:
		return gokvmGuest(args[1:])
	}
	commands := map[string]func(context.Context, options, []string) error{
		"all": allCommand, "native": nativeCommand, "linux": linuxCommand, "lab": labCommand,
	}
	c := commands[args[0]]
	if c == nil {
		return fmt.Errorf("%w: no command %q\n%s", errUsage, args[0], usage)
	}
	o, err := parseOptions(args[1:])
	if err != nil {
		return err
	}
	return c(ctx, o, args[1:])
}

var errUsage = errors.New("wrong usage")
