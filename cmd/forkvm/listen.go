package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/forkvm/forkvm/api/server"
	"github.com/forkvm/forkvm/api/template"
)

// listenFlags say where to listen.
type listenFlags struct {
	socket, address, keys string
	plain                 bool
	cert, key             string
}

func (l *listenFlags) add(f *pflag.FlagSet) {
	f.StringVar(&l.socket, "socket", "", "the Unix `socket` (default forkvm/forkvm.sock in $XDG_RUNTIME_DIR; without that, or with a --state of its own, forkvm.sock there)")
	f.StringVar(&l.address, "listen", "", "listen on TCP too, at this `address:port`")
	f.StringVar(&l.keys, "keys", "", "the `file` of account keys, which requests over TCP need")
	f.BoolVar(&l.plain, "insecure-plain-http", false, "listen beyond this machine without TLS: who is on the network reads keys and all else")
	f.StringVar(&l.cert, "tls-cert", "", "the `file` of the TLS certificate chain, in PEM")
	f.StringVar(&l.key, "tls-key", "", "the `file` of its private key, in PEM")
}

func (l *listenFlags) check() error {
	switch {
	case (l.cert == "") != (l.key == ""):
		return usageError("--tls-cert and --tls-key go together")
	case l.address == "":
		return nil
	case l.keys == "":
		return usageError("--listen needs --keys (try: forkvm key new --help)")
	case l.cert == "" && !l.plain && !loopback(l.address):
		return usageError("--listen %s is beyond this machine: it needs --tls-cert and --tls-key, or --insecure-plain-http", l.address)
	}
	return nil
}

// loopback tells whether only this machine reaches an address. What is not
// numeric might change what it means.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// readKeys is nil if there are none.
func (l *listenFlags) readKeys() (*server.Keys, error) {
	if l.keys == "" {
		return nil, nil
	}
	b, err := os.ReadFile(l.keys)
	if err != nil {
		return nil, err
	}
	return server.ParseKeys(b)
}

// open listens where the flags say, or on what a service manager passed.
func (l *listenFlags) open(ctx context.Context, state string) (all []net.Listener, err error) {
	defer func() {
		if err != nil {
			for _, o := range all {
				o.Close()
			}
		}
	}()
	if all, err = passedListeners(); err != nil {
		return all, err
	}
	for i, p := range all {
		if p.Addr().Network() == "unix" {
			continue
		}
		if l.keys == "" || l.cert == "" && !l.plain && !loopback(p.Addr().String()) {
			return all, usageError("the socket %s that was passed needs --keys, and beyond this machine TLS", p.Addr())
		}
		if all[i], err = l.secure(p); err != nil {
			return all, err
		}
	}
	if len(all) == 0 {
		path := l.socket
		if path == "" {
			path = socketPath(state)
		}
		s, err := listenUnix(ctx, path)
		if err != nil {
			return all, err
		}
		all = append(all, s)
	}
	if l.address != "" {
		t, err := new(net.ListenConfig).Listen(ctx, "tcp", l.address)
		if err != nil {
			return all, err
		}
		all = append(all, t)
		if all[len(all)-1], err = l.secure(t); err != nil {
			return all, err
		}
	}
	return all, nil
}

// secure is the listener with TLS, if there is a certificate.
func (l *listenFlags) secure(plain net.Listener) (net.Listener, error) {
	if l.cert == "" {
		return plain, nil
	}
	c, err := tls.LoadX509KeyPair(l.cert, l.key)
	if err != nil {
		return plain, err
	}
	return tls.NewListener(plain, &tls.Config{Certificates: []tls.Certificate{c}}), nil
}

// errInUse: somebody listens there.
var errInUse = errors.New("another server listens there")

// listenUnix listens on a socket that its user alone may open. One that nobody
// listens on any more is replaced.
func listenUnix(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case info.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("serve: %s: is no socket", path)
	default:
		c, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err == nil {
			c.Close()
			return nil, fmt.Errorf("serve: %s: %w", path, errInUse)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, err
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	// Until the mode is set the umask keeps others out, who need write
	// permission to connect, and by default the directory does.
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// firstPassed is the first descriptor that a service manager passes, see
// sd_listen_fds(3).
const firstPassed = 3

// passedListeners are the sockets that a service manager passed to this process.
func passedListeners() ([]net.Listener, error) {
	pid, _ := strconv.Atoi(os.Getenv("LISTEN_PID"))
	n, _ := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	os.Unsetenv("LISTEN_PID")
	os.Unsetenv("LISTEN_FDS")
	if pid != os.Getpid() || n < 1 || n > 64 {
		return nil, nil
	}
	var all []net.Listener
	for fd := firstPassed; fd < firstPassed+n; fd++ {
		syscall.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), "passed socket "+strconv.Itoa(fd))
		l, err := net.FileListener(f) // has a descriptor of its own
		f.Close()
		if err != nil {
			return all, fmt.Errorf("serve: passed socket %d: %w", fd, err)
		}
		all = append(all, l)
	}
	return all, nil
}

// notifyReady tells the service manager, if there is one, see sd_notify(3).
func notifyReady() error {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil
	}
	c, err := net.Dial("unixgram", name) // an @ is that of an abstract name
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte("READY=1"))
	return err
}

// stateDir is where a server keeps sandboxes.
func stateDir(dir string) (string, error) {
	if dir != "" {
		return filepath.Abs(dir)
	}
	templates, err := template.DefaultDir()
	return filepath.Dir(templates), err
}

// socketPath is where the server of a directory listens unless it is told
// otherwise. That of the user's own is found by all sessions of the user.
func socketPath(state string) string {
	runtime := os.Getenv("XDG_RUNTIME_DIR")
	if own, err := stateDir(""); runtime != "" && err == nil && own == state {
		return filepath.Join(runtime, "forkvm", "forkvm.sock")
	}
	return filepath.Join(state, "forkvm.sock")
}
