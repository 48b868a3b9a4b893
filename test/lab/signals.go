package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/forkvm/forkvm/test/lab/internal/session"
)

// toProgram hands signals to whoever runs a program at the moment.
var toProgram session.Signals

// catchSignals passes signals on to the program while one runs. While none does, they end the
// context: there is a lock to wait for, or a machine to start.
func catchSignals(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	caught := make(chan os.Signal, 8)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	go func() {
		for sig := range caught {
			if !toProgram.Pass(sig) {
				cancel(fmt.Errorf("ended by signal: %v", sig))
			}
		}
	}()
	return ctx, func() {
		signal.Stop(caught)
		close(caught)
		cancel(nil)
	}
}
