package vmm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/guestagent/proto"
)

// awaitAgent waits for the agent's word that it takes connections.
func (vm *VM) awaitAgent(ctx context.Context, l net.Listener) error {
	told := make(chan error, 1)
	go func() { told <- vm.readReady(l) }()
	select {
	case err := <-told:
		return vm.because(err)
	case <-vm.ended:
		// An agent that gives up ends the machine when it has said why.
		if err := <-told; errors.Is(err, client.ErrBoot) {
			return err
		}
		return vm.err()
	case <-ctx.Done():
		return fmt.Errorf("no word from the agent: %w%s", ctx.Err(), consoleEnd(vm.console.Bytes()))
	}
}

// readReady ends when the listener or the machine is closed, at the latest.
func (vm *VM) readReady(l net.Listener) error {
	conn, err := l.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	info, err := client.ReadReady(conn)
	if err != nil {
		return err
	}
	for _, w := range info.Warnings {
		vm.cfg.Logger.Warn("guest agent", "warning", w)
	}
	vm.info = info
	return nil
}

// confirmTimeout bounds how long an agent may take to confirm an identity,
// however long its caller would wait. Emulated machines take seconds.
const confirmTimeout = 2 * time.Minute

// renewIdentity gives the machine an identity that no other has, and returns
// when the agent has taken it. Until then the agent refuses all other work.
func (vm *VM) renewIdentity(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	id := client.Identity{Entropy: make([]byte, 64), Hostname: vm.cfg.Hostname}
	rand.Read(id.Generation[:]) // never fails
	rand.Read(id.Entropy)
	agent := client.New(vm.dialAgent, client.WithKeptConn(vm.keepConn))
	if conn := vm.board.Load().vsock.Inherited(proto.AgentPort); conn != nil {
		agent.Adopt(&guestConn{conn, vm})
	}
	if _, err := agent.Renew(ctx, id); err != nil {
		return vm.because(err)
	}
	vm.agent.Store(agent)
	return nil
}

func (vm *VM) dialAgent(ctx context.Context) (net.Conn, error) { return vm.Dial(ctx, proto.AgentPort) }

// Agent is the client of the guest's agent: commands, processes and files. A
// reset ends what is done through it; the machine has another one then. It is
// nil for a machine without an agent.
func (vm *VM) Agent() *client.Client { return vm.agent.Load() }

// Command prepares a command to run in the guest, as [os/exec.Command] does
// on the host.
func (vm *VM) Command(name string, arg ...string) *client.Cmd {
	return vm.Agent().Command(name, arg...)
}

// CommandContext is Command with a context that kills the command when it
// ends.
func (vm *VM) CommandContext(ctx context.Context, name string, arg ...string) *client.Cmd {
	return vm.Agent().CommandContext(ctx, name, arg...)
}

// Dial connects to a vsock port on which a process in the guest listens.
func (vm *VM) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	conn, err := vm.board.Load().vsock.Dial(ctx, port)
	if err != nil {
		return nil, vm.because(err)
	}
	return &guestConn{conn.(guestStream), vm}, nil
}

// keepConn has the connection to the agent, while nothing is under way on it,
// live on in children: so these need no other one.
func (vm *VM) keepConn(nc net.Conn, idle bool) {
	nc.(*guestConn).Keep(idle)
	if idle {
		vm.commandEnded()
	}
}

// Close is the end of a command, more often than not.
func (c *guestConn) Close() error {
	err := c.guestStream.Close()
	c.vm.commandEnded()
	return err
}

func (vm *VM) commandEnded() {
	if vm.Timings().AgentReady > 0 {
		vm.recordFootprint()
	}
}

// Listen takes connections that processes in the guest make to a vsock port
// of the host, context id 2.
func (vm *VM) Listen(port uint32) (net.Listener, error) { return vm.board.Load().vsock.Listen(port) }

// ServeUnix lets other programs connect to the guest through a Unix socket:
// they write "CONNECT port\n", read "OK hostport\n", and go on. It returns
// when ctx or the machine ends.
func (vm *VM) ServeUnix(ctx context.Context, l *net.UnixListener) error {
	return vm.board.Load().vsock.ServeUnix(ctx, l)
}

type guestStream interface {
	net.Conn
	CloseWrite() error
	CloseRead() error
	Keep(bool)
}

// guestConn says why the machine ended where the connection alone would only
// say that it was reset.
type guestConn struct {
	guestStream
	vm *VM
}

func (c *guestConn) Read(p []byte) (int, error) {
	n, err := c.guestStream.Read(p)
	return n, c.vm.because(err)
}

func (c *guestConn) Write(p []byte) (int, error) {
	n, err := c.guestStream.Write(p)
	return n, c.vm.because(err)
}

// because replaces an error that the end of the machine may have caused by
// how it ended.
func (vm *VM) because(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, client.ErrBoot) {
		return err
	}
	if outcome := vm.err(); outcome != nil {
		return outcome
	}
	return err
}
