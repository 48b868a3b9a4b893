package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/client"
	"github.com/forkvm/forkvm/internal/descriptors"
)

// serverVariable is the environment variable with the server's address.
const serverVariable = "FORKVM_SERVER"

// startServerWithin is how long a server that is started may take to listen.
const startServerWithin = time.Minute

// A server that is started ends when it was not used for a while: 0 is never.
const (
	idleVariable = "FORKVM_IDLE_EXIT"
	idleDefault  = 15 * time.Minute
)

// serverHelp says which server commands ask.
const serverHelp = `It asks the server of --server or $` + serverVariable + `, with the key of $` + client.KeyVariable + ` if it has one; by
default that of this user, over a Unix socket. Where none runs, one is started in the
background, which goes on until no sandbox runs and nothing is asked for 15 minutes, or
$` + idleVariable + ` ('forkvm serve --help').
`

// boxesHelp says how commands take sandboxes.
const boxesHelp = `A sandbox is named by its id, by the beginning of its id, or by its name, if no other
sandbox has the same.
`

// onServer makes do what cmd does, with the server that --server names.
func onServer(cmd *cobra.Command, do func(cmd *cobra.Command, s api.Service, args []string) error) *cobra.Command {
	address := addServerFlag(cmd)
	if cmd.Long == "" {
		cmd.Long = cmd.Short + "."
	}
	cmd.Long += "\n\n" + serverHelp
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withServer(cmd.Context(), *address, func(s api.Service) error { return do(cmd, s, args) })
	}
	return cmd
}

// addServerFlag adds the flag that names the server.
func addServerFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("server", os.Getenv(serverVariable),
		"`address` of the server: http://, https:// or unix:/// ($"+serverVariable+"; default the user's own)")
}

// withServer calls do with the server at the address.
func withServer(ctx context.Context, address string, do func(s api.Service) error) error {
	s, done, err := connect(ctx, address, true)
	if err == nil {
		defer done()
		err = do(s)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx) // which signal it was
	}
	return serviceError(err)
}

// serviceError is err with the exit code that it stands for.
func serviceError(err error) error {
	var coded *codeError
	if errors.Is(err, api.BadRequest) && !errors.As(err, &coded) {
		return &codeError{exitUsage, err}
	}
	return err
}

// connect returns a client of the server at the address, which may be empty:
// then it is the user's own, and start says whether to start it if it does not
// run. It does not end for want of use until done is called.
func connect(ctx context.Context, address string, start bool) (c *client.Client, done func(), err error) {
	if address != "" {
		c, err := client.New(address, client.Options{})
		if err != nil {
			return nil, nil, usageError("--server: %w", err)
		}
		return c, c.CloseIdle, nil
	}
	state, err := stateDir(os.Getenv("FORKVM_STATE"))
	if err != nil {
		return nil, nil, err
	}
	if start {
		if err := os.MkdirAll(state, 0o700); err != nil {
			return nil, nil, err
		}
	}
	used, err := takeLock(ctx, state, useLock, unix.LOCK_SH)
	if err != nil {
		return nil, nil, err
	}
	socket := socketPath(state)
	err = dial(ctx, socket)
	if notServed(err) && start {
		err = startOnce(ctx, state, socket)
	}
	if err == nil {
		c, err = client.New("unix://"+socket, client.Options{})
	}
	if err != nil {
		used.Close()
		return nil, nil, err
	}
	return c, func() { c.CloseIdle(); used.Close() }, nil
}

// dial tells whether somebody listens on a socket.
func dial(ctx context.Context, socket string) error {
	c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return c.Close()
}

func notServed(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// startOnce starts a server unless another process has done so meanwhile, of
// which one at a time does. If one is ending it waits for that.
func startOnce(ctx context.Context, state, socket string) error {
	lock, err := takeLock(ctx, state, startLock, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := dial(ctx, socket); !notServed(err) {
		return err
	}
	return startServer(ctx, state)
}

// startServer starts a server in the background, and returns when it listens.
func startServer(ctx context.Context, state string) error {
	idle, err := idleExit()
	if err != nil {
		return err
	}
	ready, cleanUp, err := listenForReady()
	if err != nil {
		return err
	}
	defer cleanUp()
	logName := filepath.Join(state, "serve.log")
	log, err := os.OpenFile(logName, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("/proc/self/exe", "serve", "--state", state, "--idle-exit", idle.String())
	cmd.Args[0] = "forkvm"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+ready.LocalAddr().String())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals of this terminal are not for it
	if err := descriptors.Keep(); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	listens := make(chan error, 1)
	go func() {
		_, err := ready.Read(make([]byte, 64))
		listens <- err
	}()
	within, cancel := context.WithTimeout(ctx, startServerWithin)
	defer cancel()
	select {
	case err := <-listens:
		if err == nil {
			fmt.Fprintf(os.Stderr, "forkvm: started a server, process %d, which logs to %s\n", cmd.Process.Pid, logName)
		}
		return err
	case <-ended:
		return fmt.Errorf("the server did not start: see %s\n%s", logName, lastLine(logName))
	case <-within.Done():
		_ = cmd.Process.Kill() // it has ended, or does
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("the server did not start within %v: see %s", startServerWithin, logName)
	}
}

// idleExit is for how long a server that is started goes on without use.
func idleExit() (time.Duration, error) {
	v := os.Getenv(idleVariable)
	if v == "" {
		return idleDefault, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		return 0, usageError("$%s: %q is no time such as 15m, or 0 for ever", idleVariable, v)
	}
	return d, nil
}

// lastLine is the last line of a file, if it is not too long; there is nobody to
// tell of an error.
func lastLine(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	b, err := io.ReadAll(io.NewSectionReader(f, max(end-4096, 0), 4096))
	if err != nil {
		return ""
	}
	return string(b[bytes.LastIndexByte(bytes.TrimRight(b, "\n"), '\n')+1:])
}

// listenForReady makes a socket that a server tells when it listens.
func listenForReady() (c net.Conn, cleanUp func(), err error) {
	dir, err := os.MkdirTemp("", "forkvm-ready-")
	if err != nil {
		return nil, nil, err
	}
	u, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "socket"), Net: "unixgram"})
	if err != nil {
		os.RemoveAll(dir)
		return nil, nil, err
	}
	return u, func() { u.Close(); os.RemoveAll(dir) }, nil
}
