package vsock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// maxLine bounds the client's first line, in bytes.
	maxLine = 64
	// lineTimeout is how long a client may take to send it.
	lineTimeout = 10 * time.Second
	// copySize is the buffer of each direction, in bytes.
	copySize = 64 << 10
)

// ServeUnix lets other programs connect to the guest through l, with the
// protocol of Firecracker: a client sends "CONNECT <port>\n" with a decimal
// guest port, gets "OK <host port>\n" once the guest has accepted, and from
// then on the two are connected, with half-close. On any failure the client's
// connection is closed without an answer.
//
// It returns after all of its connections have ended: with the error of ctx,
// which ends them, or with the error of l. It closes l.
func (d *Device) ServeUnix(ctx context.Context, l *net.UnixListener) error {
	ctx, cancel := context.WithCancel(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	slots := make(chan struct{}, d.cfg.MaxConns)
	for {
		u, err := l.AcceptUnix()
		if ctx.Err() != nil {
			if err == nil {
				u.Close()
			}
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("vsock: serve %v: %w", l.Addr(), err)
		}
		select {
		case slots <- struct{}{}:
		default: // more could not be connected anyway
			u.Close()
			continue
		}
		clients.Go(func() {
			defer func() { <-slots }()
			d.serveClient(ctx, u)
		})
	}
}

// serveClient serves one client of a Unix socket until it is done.
func (d *Device) serveClient(ctx context.Context, u *net.UnixConn) {
	defer u.Close()
	stop := context.AfterFunc(ctx, func() { u.Close() })
	defer stop()

	u.SetReadDeadline(time.Now().Add(lineTimeout))
	r := bufio.NewReaderSize(u, maxLine)
	port, err := readConnect(r)
	if err != nil {
		return
	}
	u.SetReadDeadline(time.Time{})
	nc, err := d.Dial(ctx, port)
	if err != nil {
		return
	}
	c := nc.(*Conn)
	defer c.Close()
	stopConn := context.AfterFunc(ctx, func() { c.Close() })
	defer stopConn()
	if _, err := fmt.Fprintf(u, "OK %d\n", c.ports.host); err != nil {
		return
	}
	// The reader may have read beyond the line.
	early := make([]byte, r.Buffered())
	r.Read(early)
	if _, err := c.Write(early); err != nil {
		return
	}
	splice(c, u)
}

var errBadLine = errors.New("vsock: unix: not a CONNECT line")

// readConnect reads the client's first line.
func readConnect(r *bufio.Reader) (port uint32, err error) {
	line, err := r.ReadSlice('\n') // at most the reader's buffer
	if err != nil {
		return 0, err
	}
	s, ok := strings.CutPrefix(string(line[:len(line)-1]), "CONNECT ")
	if !ok {
		return 0, errBadLine
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, errBadLine
	}
	return uint32(n), nil
}

// splice copies both ways until both have ended, or one has failed.
func splice(c *Conn, u *net.UnixConn) {
	var there sync.WaitGroup
	there.Go(func() { forward(c, u) })
	forward(u, c)
	there.Wait()
}

// stream is what splice connects.
type stream interface {
	net.Conn
	CloseWrite() error
}

// forward copies from one stream to the other and hands on its end. After a
// failure neither direction makes sense any more.
func forward(to, from stream) {
	// Neither side's ReadFrom or WriteTo: they would allocate less than this.
	_, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, make([]byte, copySize))
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		to.Close()
		from.Close()
	}
}
