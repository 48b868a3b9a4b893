package agent

import (
	"io"
	"net"
	"syscall"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"
)

// vsockListener yields the host's connections, which tell a reset from an end.
type vsockListener struct{ *vsock.Listener }

// listenVsock listens on a vsock port of whatever context id this machine has:
// a fork may have another one than its parent.
func listenVsock(port uint32) (net.Listener, error) {
	l, err := vsock.ListenContextID(unix.VMADDR_CID_ANY, port, nil)
	if err != nil {
		return nil, err
	}
	return vsockListener{l}, nil
}

// Accept drops connections that are not the host's: with the kernel's loopback
// transport any process in the guest could otherwise have the agent act as root.
func (l vsockListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if from, ok := c.RemoteAddr().(*vsock.Addr); ok && from.ContextID == vsock.Host {
			return vsockConn{c.(*vsock.Conn)}, nil
		}
		c.Close()
	}
}

// vsockConn is a vsock connection whose Read fails with ECONNRESET if the
// transport was reset, as it is in a machine that was forked or restored.
type vsockConn struct{ *vsock.Conn }

func (c vsockConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == io.EOF && c.wasReset() {
		err = syscall.ECONNRESET
	}
	return n, err
}

// wasReset asks the kernel once more: package vsock reports both as io.EOF.
// After the peer's shutdown or reset recv returns 0; after a reset of the
// transport the socket is not connected, without that having been orderly
// (Linux: vsock_connectible_recvmsg and virtio_vsock_reset_sock).
func (c vsockConn) wasReset() bool {
	rc, err := c.SyscallConn()
	if err != nil {
		return false
	}
	reset := false
	err = rc.Control(func(fd uintptr) {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		reset = err == unix.ENOTCONN || err == unix.ECONNRESET
	})
	return err == nil && reset
}
