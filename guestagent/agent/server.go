package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/guestagent/proto"
)

const (
	handshakeTime   = 10 * time.Second      // for a client's first frame
	lingerTime      = 2 * time.Second       // for a client to take the last frame
	acceptPause     = 20 * time.Millisecond // when there is nothing to accept with
	defaultMaxConns = 2048
	defaultMaxProcs = 1024
	defaultKeep     = 1 << 20
)

// Options say how an agent serves. The zero Options suit an ordinary process.
type Options struct {
	// Machine carries out what concerns the machine as a whole: clock,
	// entropy, host name, power. Nil: these operations are refused.
	Machine Machine
	// Logger gets what no client is told. Nil: nobody does.
	Logger *slog.Logger
	// Dir is where commands start that name no directory, and what relative
	// paths are relative to. Empty: /root if there is one, else /.
	Dir string
	// Env is the environment of commands that bring none. Nil: PATH, TERM,
	// and HOME and USER of the user they run as.
	Env []string
	// Path is the PATH of commands that bring none. Empty: the directories
	// where Linux systems have programs.
	Path string
	// MaxConns bounds the connections at once, MaxProcs the commands that run
	// at once. 0: 2048 and 1024.
	MaxConns, MaxProcs int
	// KeepOutput is how many bytes of each stream of a background command are
	// kept for those who attach. 0: 1 MiB.
	KeepOutput int
	// ReapAll makes the agent collect every child that this process gets. For
	// PID 1 only, and only if nothing else in it waits for children.
	ReapAll bool
	// KeepOnReset says that a connection which breaks, rather than ends, means
	// that this machine was forked or restored from a snapshot: its commands
	// then go on in the background. Otherwise a lost client ends its commands.
	KeepOnReset bool
	// CgroupDir is a cgroup v2 directory to put each command in a cgroup of
	// its own below, so that none of its processes escapes a kill. Empty: none.
	CgroupDir string
	// Boot and Warnings are passed on in the answer to hello.
	Boot     proto.Boot
	Warnings []string
}

func (o Options) withDefaults() Options {
	if o.Machine == nil {
		o.Machine = noMachine{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Dir == "" {
		o.Dir = "/"
		if st, err := os.Stat("/root"); err == nil && st.IsDir() {
			o.Dir = "/root"
		}
	}
	if o.Path == "" {
		o.Path = defaultPath
	}
	if o.MaxConns == 0 {
		o.MaxConns = defaultMaxConns
	}
	if o.MaxProcs == 0 {
		o.MaxProcs = defaultMaxProcs
	}
	if o.KeepOutput == 0 {
		o.KeepOutput = defaultKeep
	}
	return o
}

// server is an agent at work.
type server struct {
	opts   Options
	reaper *reaper
	procs  *table
	cgroup *cgroups
	slots  chan struct{} // one token a connection
	conns  connSet
	crew   *crew // while it serves
	spares spares
	// onPanic is deferred by each operation. PID 1 has one; elsewhere a panic
	// is the process's.
	onPanic func()

	mu  sync.Mutex
	gen proto.Generation // guarded by mu
}

// Serve answers operations on l until ctx is done or l fails. Before it
// returns it closes l and all connections, kills every command it started and
// waits for what it was doing. It returns nil if ctx ended it.
func Serve(ctx context.Context, l net.Listener, o Options) error {
	return newServer(o).serve(ctx, l)
}

func newServer(o Options) *server {
	o = o.withDefaults()
	return &server{
		opts:    o,
		reaper:  newReaper(o.ReapAll),
		procs:   newTable(o.MaxProcs),
		cgroup:  newCgroups(o.CgroupDir),
		slots:   make(chan struct{}, o.MaxConns),
		onPanic: func() {},
	}
}

func (s *server) serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		l.Close()
		s.conns.closeAll()
	})()
	if s.opts.ReapAll {
		reaping, stop := context.WithCancel(context.WithoutCancel(ctx))
		defer stop() // after the last command was killed and collected
		go s.reaper.run(reaping)
	}
	s.crew = newCrew(ctx.Done())
	var work sync.WaitGroup
	var failure error
	for {
		nc, err := l.Accept()
		if err != nil && ctx.Err() == nil && isShortage(err) {
			s.opts.Logger.Warn("cannot accept", "err", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		if err != nil {
			if ctx.Err() == nil {
				failure = fmt.Errorf("agent: accept: %w", err)
			}
			break
		}
		work.Add(1)
		s.crew.run(func() {
			defer work.Done()
			s.handle(ctx, nc)
		})
	}
	cancel()
	l.Close()
	s.conns.closeAll()
	work.Wait()
	s.spares.close()
	s.killAll()
	s.cgroup.close()
	return failure
}

// isShortage reports whether an error of accept will pass: it must not end an
// agent, and with it a guest, that commands have run out of memory or
// descriptors.
func isShortage(err error) bool {
	for _, errno := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.ECONNABORTED} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// conn is one client's connection and its operation.
type conn struct {
	net.Conn
	r *proto.Reader
	w *proto.Writer

	// next is the payload of the next operation's handshake, if that was read
	// while the last one ended.
	next []byte
}

// handshake reads the first frame of the next operation.
func (c *conn) handshake() (proto.Handshake, error) {
	if payload := c.next; payload != nil {
		c.next = nil
		return proto.ParseHandshake(proto.TypeHandshake, payload)
	}
	t, payload, err := c.r.Next()
	if err != nil {
		return proto.Handshake{}, &readError{err}
	}
	return proto.ParseHandshake(t, payload)
}

// readError is that of a client which has gone, and so is told nothing.
type readError struct{ error }

func (e *readError) Unwrap() error { return e.error }

// handle answers the operations of one connection.
func (s *server) handle(ctx context.Context, nc net.Conn) {
	defer s.onPanic()
	defer nc.Close()
	if !s.conns.add(nc) {
		return
	}
	defer s.conns.remove(nc)
	c := &conn{Conn: nc, r: proto.NewReader(nc), w: proto.NewWriter(nc)}
	_ = nc.SetDeadline(time.Now().Add(handshakeTime))
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		_ = c.w.WriteValue(proto.TypeError, &proto.Error{Code: proto.CodeBusy, Message: "too many operations"})
		return
	}
	for s.operate(ctx, c) {
	}
}

// operate answers one operation. It reports whether another may follow.
func (s *server) operate(ctx context.Context, c *conn) bool {
	h, err := c.handshake()
	if err == nil {
		err = s.admit(h)
	}
	if err == nil {
		_ = c.SetDeadline(time.Time{}) // from the first operation on it may take its time
		err = s.dispatch(ctx, c, h)
	}
	if err == nil {
		return h.Op.Repeats()
	}
	s.opts.Logger.Debug("operation failed", "op", h.Op, "err", err)
	if _, gone := err.(*readError); !gone {
		_ = c.SetWriteDeadline(time.Now().Add(handshakeTime))
		_ = c.w.WriteValue(proto.TypeError, wireError(err))
		c.linger()
	}
	return false
}

// admit is the gate that a forked machine is behind until it was renewed.
func (s *server) admit(h proto.Handshake) error {
	if h.Op == proto.OpHello || h.Op == proto.OpRenew {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.Generation != s.gen {
		return &proto.Error{
			Code:    proto.CodeGeneration,
			Message: fmt.Sprintf("generation %v asked for, this machine is %v", h.Generation, s.gen),
		}
	}
	return nil
}

// linger lets the client take the last frame: closing a socket that has unread
// bytes makes the peer's kernel drop what it has not read either.
func (c *conn) linger() {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); !ok || cw.CloseWrite() != nil {
		return
	}
	_ = c.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.Copy(io.Discard, c.Conn)
}

func (s *server) dispatch(ctx context.Context, c *conn, h proto.Handshake) error {
	switch h.Op {
	case proto.OpExec:
		return s.exec(c, h)
	case proto.OpAttach, proto.OpWait, proto.OpSignal, proto.OpResize:
		return s.onProcess(ctx, c, h)
	case proto.OpList:
		return s.list(c)
	case proto.OpHello, proto.OpRenew, proto.OpClock, proto.OpEntropy, proto.OpHostname, proto.OpPowerOff, proto.OpReboot:
		return s.onMachine(c, h)
	case proto.OpOpen:
		return s.open(c, h)
	case proto.OpWatch:
		return s.watch(c, h)
	case proto.OpTarOut:
		return s.tarOut(c, h)
	case proto.OpTarIn:
		return s.tarIn(c, h)
	case proto.OpReadDir:
		return s.readDir(c, h)
	}
	return s.onPath(c, h)
}

// info describes this agent.
func (s *server) info() proto.Info {
	var uts unix.Utsname
	_ = unix.Uname(&uts)
	s.mu.Lock()
	defer s.mu.Unlock()
	return proto.Info{
		Version:    proto.Version,
		Generation: s.gen,
		Kernel:     unix.ByteSliceToString(uts.Release[:]),
		Hostname:   unix.ByteSliceToString(uts.Nodename[:]),
		CPUs:       runtime.NumCPU(),
		Boot:       s.opts.Boot,
		Warnings:   s.opts.Warnings,
	}
}

// wireError turns err into what the client is told.
func wireError(err error) *proto.Error {
	if e, ok := errors.AsType[*proto.Error](err); ok {
		return e
	}
	code := proto.CodeBadRequest
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno):
		code = proto.CodeFile
	case errors.Is(err, fs.ErrNotExist):
		code, errno = proto.CodeFile, syscall.ENOENT
	case errors.Is(err, fs.ErrExist):
		code, errno = proto.CodeFile, syscall.EEXIST
	}
	return &proto.Error{Code: code, Message: err.Error(), Errno: int(errno)}
}
