package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// vsockAddr is the address of one end of a vsock connection.
type vsockAddr struct{ cid, port uint32 }

func (vsockAddr) Network() string  { return "vsock" }
func (a vsockAddr) String() string { return fmt.Sprintf("%d:%d", a.cid, a.port) }

// newVsock makes a vsock stream socket that blocks or not.
func newVsock(flags int) (int, error) {
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|flags, 0)
	if err != nil {
		return -1, fmt.Errorf("vsock: socket: %w", err)
	}
	return fd, nil
}

// vsockListener yields the host's connections, which tell a reset from an end.
type vsockListener struct {
	file *os.File
	raw  syscall.RawConn
	addr vsockAddr
}

// listenVsock listens on a vsock port of whatever context id this machine has:
// a fork may have another one than its parent.
func listenVsock(port uint32) (net.Listener, error) {
	fd, err := newVsock(unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, err
	}
	addr := &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: port}
	if err = unix.Bind(fd, addr); err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("vsock: listen on port %d: %w", port, err)
	}
	l := &vsockListener{file: os.NewFile(uintptr(fd), "vsock"), addr: vsockAddr{addr.CID, port}}
	if l.raw, err = l.file.SyscallConn(); err != nil {
		l.file.Close()
		return nil, fmt.Errorf("vsock: listen: %w", err)
	}
	return l, nil
}

// Accept drops connections that are not the host's: with the kernel's loopback
// transport any process in the guest could otherwise have the agent act as root.
func (l *vsockListener) Accept() (net.Conn, error) {
	for {
		fd, from, err := l.accept()
		if err != nil {
			return nil, err
		}
		if vm, ok := from.(*unix.SockaddrVM); ok && vm.CID == unix.VMADDR_CID_HOST {
			return &vsockConn{os.NewFile(uintptr(fd), "vsock"), l.addr, vsockAddr{vm.CID, vm.Port}}, nil
		}
		unix.Close(fd)
	}
}

func (l *vsockListener) accept() (fd int, from unix.Sockaddr, err error) {
	waitErr := l.raw.Read(func(s uintptr) bool {
		fd, from, err = unix.Accept4(int(s), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		for err == unix.EINTR {
			fd, from, err = unix.Accept4(int(s), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		}
		return err != unix.EAGAIN
	})
	if waitErr != nil {
		err = waitErr
	}
	return fd, from, err
}

func (l *vsockListener) Close() error   { return l.file.Close() }
func (l *vsockListener) Addr() net.Addr { return l.addr }

// dialVsock connects to a port of the host. The kernel gives up after two
// seconds.
func dialVsock(port uint32) (net.Conn, error) {
	fd, err := newVsock(0)
	if err != nil {
		return nil, err
	}
	if err = unix.Connect(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_HOST, Port: port}); err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("vsock: dial port %d of the host: %w", port, err)
	}
	return &vsockConn{os.NewFile(uintptr(fd), "vsock"), vsockAddr{}, vsockAddr{unix.VMADDR_CID_HOST, port}}, nil
}

// vsockConn is a vsock connection whose Read fails with ECONNRESET if the
// transport was reset, as it is in a machine that was forked or restored. An
// os.File does what a connection needs and nothing else.
type vsockConn struct {
	*os.File
	local, remote vsockAddr
}

// Read has ENOTCONN from the kernel where the connection was not ended in
// order (Linux: vsock_connectible_recvmsg and virtio_vsock_reset_sock). After
// the peer's shutdown or reset it has the end of the stream.
func (c *vsockConn) Read(b []byte) (int, error) {
	n, err := c.File.Read(b)
	if errors.Is(err, unix.ENOTCONN) {
		err = syscall.ECONNRESET
	}
	return n, err
}

func (c *vsockConn) LocalAddr() net.Addr  { return c.local }
func (c *vsockConn) RemoteAddr() net.Addr { return c.remote }

// CloseWrite ends the stream to the peer.
func (c *vsockConn) CloseWrite() error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var shutErr error
	if err := raw.Control(func(fd uintptr) { shutErr = unix.Shutdown(int(fd), unix.SHUT_WR) }); err != nil {
		return err
	}
	return shutErr
}
