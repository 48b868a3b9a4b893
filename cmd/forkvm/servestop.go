package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

const (
	// stopPath is where a server is asked to stop, over a Unix socket. It is no
	// part of the API: who may open the socket may end the process as well.
	stopPath = "/stop"
	// saidStopped is what a server says that has stopped as it should.
	saidStopped = "stopped\n"
)

func newServeStop() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "Stop the server on the user's Unix socket, and wait until it has ended",
		Long: `Stop the server on the user's own Unix socket, or on that of --server, as SIGTERM does,
and wait until it has ended: sandboxes that run are paused or destroyed, as its --on-stop
says. Not stopping one that does not run is no error.`,
		Args: cobra.NoArgs,
	}
	address := addServerFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		err := stopAt(cmd.Context(), *address)
		if err != nil && cmd.Context().Err() != nil {
			err = context.Cause(cmd.Context()) // which signal it was
		}
		return err
	}
	return cmd
}

// stopAt stops the server at a Unix socket, by default the user's own, and
// waits for its end.
func stopAt(ctx context.Context, address string) error {
	if address != "" {
		socket, ok := strings.CutPrefix(address, "unix://")
		if !ok && !strings.HasPrefix(address, "/") {
			return usageError("serve stop: %s is no Unix socket, over which alone a server stops", address)
		}
		_, err := askToStop(ctx, socket)
		return err
	}
	state, err := stateDir(os.Getenv("FORKVM_STATE"))
	if err != nil {
		return err
	}
	used, err := takeLock(ctx, state, useLock, unix.LOCK_SH) // it does not end for another reason meanwhile
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer used.Close()
	if answered, err := askToStop(ctx, socketPath(state)); answered {
		return err
	}
	// It may be ending, as somebody else told it, or only just be starting.
	lock, err := takeLock(ctx, state, startLock, unix.LOCK_EX)
	if err != nil {
		return err
	}
	lock.Close()
	_, err = askToStop(ctx, socketPath(state))
	return err
}

// askToStop stops a server and waits for its end. It tells whether one answered.
func askToStop(ctx context.Context, socket string) (answered bool, err error) {
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer t.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://forkvm"+stopPath, nil)
	if err != nil {
		return false, err
	}
	answer, err := t.RoundTrip(r)
	if notServed(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return true, fmt.Errorf("serve stop: the server at %s does not know how to: %s", socket, answer.Status)
	}
	said, err := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	switch {
	case err != nil:
		return true, err
	case string(said) == saidStopped:
		return true, nil
	case len(said) == 0:
		return true, errors.New("serve stop: the server has ended, and did not say how")
	}
	return true, fmt.Errorf("serve stop: the server has ended: %s", said)
}
