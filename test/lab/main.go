// Lab runs programs on a genuine hardware KVM, on any Linux machine.
//
// Where /dev/kvm is one, the program simply runs. Elsewhere it runs in a machine of its own, which
// QEMU emulates whole (an AMD processor with SVM, so no virtualization is needed), with a stock
// Debian kernel and its kvm-amd module.
//
//	lab run [flags] [--] PROGRAM [ARGS]     run a program of this host, as if it ran here
//	go test -exec 'lab test' PACKAGES       run tests
//	lab up, lab down                        keep a machine between runs
//	lab status, lab doctor                  say how things are
//
// Of a program, what crosses into the machine are its standard streams, its arguments, signals, its
// exit code and the files that flags name. One CPU is emulated, so one run at a time has the machine
// and others wait, unless they ask to share it.
//
// The environment decides with FORKVM_LAB: "force" always takes a machine, "direct" never does.
// FORKVM_CACHE is the folder for what is kept between runs; its kernels are visible inside.
// FORKVM_LAB_NAME=lab-NAME is a lab beside the usual one, with a machine of its own.
//
// # Exit status
//
// That of the program, or 128 and a signal's number if a signal ended it, or
//
//	123  the machine itself failed: its kernel stopped or panicked
//	124  --timeout ended the program
//	125  anything else went wrong with the lab, for a reason given on standard error
//	126  the program cannot be executed
//	127  there is no such program
//
// lab status exits with 0 if a machine is up and with 1 if none is, lab doctor with 1 if something
// is missing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"

	"github.com/forkvm/forkvm/test/lab/internal/inside"
	"github.com/forkvm/forkvm/test/lab/internal/machine"
	"github.com/forkvm/forkvm/test/lab/internal/session"
)

// Exit codes, see the package's documentation.
const (
	exitNo         = 1
	exitStuck      = 123
	exitTimeout    = 124
	exitTrouble    = 125
	exitCannotExec = 126
	exitNotFound   = 127
)

const usage = `usage: lab run [flags] [--] PROGRAM [ARGS]
       lab test [flags] TEST-BINARY [ARGS]      (for go test -exec 'lab test')
       lab up [flags] | down [--now] | status | doctor
       lab COMMAND --help
`

var commands = map[string]func(ctx context.Context, args []string) (int, error){
	"run":    runCommand,
	"test":   testCommand,
	"up":     upCommand,
	"down":   downCommand,
	"status": statusCommand,
	"doctor": doctorCommand,
}

func main() {
	inside.Main()
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return exitTrouble
	}
	command, ok := commands[args[0]]
	if !ok {
		fmt.Fprintf(os.Stderr, "lab: no command %q\n%s", args[0], usage)
		return exitTrouble
	}
	ctx, stop := catchSignals(context.Background())
	defer stop()
	code, err := command(ctx, args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		return exitCode(err)
	}
	return code
}

func exitCode(err error) int {
	switch {
	case errors.Is(err, machine.ErrStuck), errors.Is(err, machine.ErrDied):
		return exitStuck
	case errors.Is(err, exec.ErrNotFound):
		return exitNotFound
	case errors.Is(err, session.ErrStart), errors.Is(err, fs.ErrPermission) && errors.Is(err, errProgram):
		return exitCannotExec
	}
	return exitTrouble
}
