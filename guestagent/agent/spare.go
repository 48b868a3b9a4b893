package agent

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/forkvm/forkvm/guestagent/agent/applet"
	"github.com/forkvm/forkvm/guestagent/proto"
)

// To start a program costs more than most of the guest's own commands do, and
// in a fork, which has none of its memory yet, several times as much. So PID 1
// has processes of its program started ahead, the spares: each waits for a
// command line on its standard input, and then is that command. Whatever is not
// a command of this program is started as anywhere else.

const (
	// spareName is the spare's argv[0].
	spareName = "forkvm-spare"
	// spareArgs is the room for the command line that a list of processes
	// shows of a command, in bytes.
	spareArgs = 512
	// maxSpareRequest bounds what a spare reads as its command, in bytes.
	maxSpareRequest = proto.MaxPayload

	// maxSpares is how many are kept ready. A fork has those of its parent for
	// its first commands, and starts none of its own for a while.
	maxSpares = 2

	// restTime is how long after a command the next spare is started, so that
	// it is not in the way of another command; freshTime is how long after a
	// renewal, as a fork has to answer first.
	restTime  = 100 * time.Millisecond
	freshTime = 2 * time.Second
)

// spares keeps processes ready for the next commands. The zero value never has
// any.
type spares struct {
	program string // that spares run, and that commands of its own are links to
	start   func() (*spare, error)

	mu    sync.Mutex
	ready []*spare    // guarded by mu
	next  *time.Timer // guarded by mu; nil: none is to be started
	fresh time.Time   // guarded by mu: no start before
	over  bool        // guarded by mu: no start any more
}

// spare is a process that waits for its command.
type spare struct {
	process *process
	request *os.File // its standard input
	release func()   // gives back what it took, if it gets no command
}

// postpone starts no spare before the machine had time to answer.
func (s *spares) postpone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fresh = time.Now().Add(freshTime)
	if s.next != nil {
		s.next.Reset(freshTime)
	}
}

// prepare has a spare started after a while, and another, until there are
// enough.
func (s *spares) prepare() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prepareLocked()
}

func (s *spares) prepareLocked() {
	if s.start == nil || s.over || len(s.ready) == maxSpares || s.next != nil {
		return
	}
	s.next = time.AfterFunc(max(restTime, time.Until(s.fresh)), s.refill)
}

func (s *spares) refill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = nil
	if s.over {
		return
	}
	sp, err := s.start()
	if err != nil {
		return // commands are merely slower
	}
	s.ready = append(s.ready, sp)
	s.prepareLocked()
}

// take returns a spare, if there is one that lives.
func (s *spares) take() *spare {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.ready) > 0 {
		sp := s.ready[0]
		s.ready = s.ready[1:]
		if !sp.process.hasExited() {
			return sp
		}
		sp.discard()
	}
	return nil
}

// close ends the spares and starts no other.
func (s *spares) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	if s.next != nil {
		s.next.Stop()
	}
	for _, sp := range s.ready {
		sp.discard()
	}
}

// discard ends a process that has not been given a command.
func (sp *spare) discard() {
	sp.request.Close() // at which it exits
	<-sp.process.exited
	sp.process.discardOutput()
	sp.release()
}

// useSpares has commands that are links to program, which is this one, run by
// spares.
func (s *server) useSpares(program string) {
	s.spares.program = program
	s.spares.start = s.startSpare
	s.spares.prepare()
}

// startSpare starts a process that will wait for its command.
func (s *server) startSpare() (*spare, error) {
	p := &process{done: make(chan struct{})}
	std, err := s.streams(p, &proto.ExecRequest{Stdin: true}, nil)
	if err != nil {
		return nil, err
	}
	defer std.closeChild()
	attr := &syscall.ProcAttr{Dir: "/", Files: std.child[:], Sys: &syscall.SysProcAttr{Setsid: true}}
	p.cgroup = s.cgroup.get(attr.Sys)
	p.pid, p.exited, err = s.reaper.start(s.spares.program, []string{spareName, strings.Repeat("-", spareArgs)}, attr, lazySlack)
	if err != nil {
		std.closeOwn()
		s.cgroup.put(p.cgroup)
		return nil, err
	}
	p.pumpLater()
	sp := &spare{p, p.stdin.file, func() { s.cgroup.put(p.cgroup) }}
	if err := sp.send(proto.ExecRequest{}); err != nil { // at which it gets ready
		sp.discard()
		return nil, err
	}
	return sp, nil
}

// fromSpare makes the spare the command that req asks for, which is one that it
// can become. It returns nil if there is no spare.
func (s *server) fromSpare(req *proto.ExecRequest, w *proto.Writer, program, dir string, env []string) *process {
	sp := s.spares.take()
	if sp == nil {
		return nil
	}
	p := sp.process
	for _, o := range p.outs {
		o.connect(w)
	}
	if err := sp.send(proto.ExecRequest{Path: proto.Text(program), Args: req.Args, Env: proto.Texts(env), Dir: proto.Text(dir)}); err != nil {
		sp.discard()
		return nil
	}
	if !req.Stdin {
		p.stdin = nil
		sp.request.Close()
	}
	return p
}

// run reports whether a program, started under the name argv0, is a command
// that a spare can become.
func (s *spares) run(program, argv0 string) bool {
	if s.program == "" || !applet.Shares(filepath.Base(argv0)) {
		return false
	}
	target, err := os.Readlink(program)
	return err == nil && target == s.program
}

// send gives a spare its command.
func (sp *spare) send(req proto.ExecRequest) error {
	b, err := proto.Encode(req)
	if err != nil {
		return err
	}
	b = append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
	_, err = sp.request.Write(b)
	return err
}

// isSpare reports whether this process was started as a spare.
func isSpare() bool {
	return len(os.Args) == 2 && os.Args[0] == spareName && isInitProgram()
}

// runSpare waits for a command line, becomes that command and returns its exit
// code.
func runSpare() (code int) {
	memory := argsMemory()
	showCommand(memory, []string{spareName})
	restoreSlack()
	onGrownStack(func() { code = awaitCommand(memory) })
	return code
}

func awaitCommand(memory []byte) int {
	for {
		req, err := readSpareRequest(os.Stdin)
		switch {
		case err == io.EOF: // it was not needed
			return 0
		case err != nil:
			fmt.Fprintln(os.Stderr, "forkvm:", err)
			return 126
		case req.Path == "":
			applet.Warm()
		default:
			return becomeCommand(req, memory)
		}
	}
}

func readSpareRequest(r io.Reader) (*proto.ExecRequest, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxSpareRequest {
		return nil, fmt.Errorf("spare: command of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("spare: %w", err)
	}
	req := new(proto.ExecRequest)
	if err := proto.Decode(b, req); err != nil {
		return nil, fmt.Errorf("spare: %w", err)
	}
	return req, nil
}

// becomeCommand makes of this process what it would be had it been started
// with the command line, environment and directory of req, and runs it. memory
// is where its command line is shown from.
func becomeCommand(req *proto.ExecRequest, memory []byte) int {
	args := proto.Strings(req.Args)
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "forkvm: spare: no command")
		return 126
	}
	if err := os.Chdir(string(req.Dir)); err != nil {
		fmt.Fprintln(os.Stderr, "forkvm:", err)
		return 126
	}
	name := filepath.Base(args[0])
	run := applet.Find(name)
	if run == nil {
		fmt.Fprintln(os.Stderr, "forkvm: spare: no command", name)
		return 127
	}
	os.Clearenv()
	for _, kv := range proto.Strings(req.Env) {
		key, value, _ := strings.Cut(kv, "=")
		_ = os.Setenv(key, value) // what is none is not passed on by Go programs either
	}
	showCommand(memory, args)
	setName(name)
	os.Args = args
	return run(args)
}
