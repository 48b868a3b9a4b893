package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/guestagent/proto"
)

const (
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	listedArgs  = 1024 // bytes of a command line that a list shows
)

// startError is a failure to start a command, with the errno of err if any.
func startError(stage proto.Stage, err error) error {
	e := &proto.Error{Code: proto.CodeStart, Stage: stage, Message: err.Error()}
	if errno, ok := unwrapErrno(err); ok {
		e.Errno = int(errno)
	}
	return e
}

// launch starts the command that req asks for. Its streams stand still until
// its run method is called.
func (s *server) launch(req *proto.ExecRequest, w *proto.Writer) (*process, error) {
	if err := s.procs.reserve(); err != nil {
		return nil, err
	}
	p, err := s.startProcess(req, w)
	if err != nil {
		s.procs.release()
		return nil, err
	}
	s.procs.add(p)
	return p, nil
}

func (s *server) startProcess(req *proto.ExecRequest, w *proto.Writer) (*process, error) {
	acc, err := lookupAccount(req.User)
	if err != nil {
		return nil, err
	}
	dir, err := s.workingDir(string(req.Dir))
	if err != nil {
		return nil, err
	}
	env := s.environment(req, acc)
	program, err := s.lookPath(string(req.Path), dir, env)
	if err != nil {
		return nil, startError(proto.StageLookup, err)
	}
	if req.Detach {
		w = nil
	}
	own := s.spares.run(program, string(req.Args[0]))
	var p *process
	if own && req.TTY == nil && req.User == "" {
		p = s.fromSpare(req, w, program, dir, env)
	}
	if p == nil {
		p, err = s.fork(req, w, program, dir, env, acc, s.slack(own))
	}
	if err != nil {
		return nil, err
	}
	p.args, p.started = listed(req.Args), time.Now()
	p.detached.Store(req.Detach)
	return p, nil
}

// fork starts the command as a new process.
func (s *server) fork(req *proto.ExecRequest, w *proto.Writer, program, dir string, env []string, acc account, slack uintptr) (*process, error) {
	p := &process{done: make(chan struct{})}
	std, err := s.streams(p, req, w)
	if err != nil {
		return nil, startError(proto.StageStdio, err)
	}
	defer std.closeChild()
	attr := &syscall.ProcAttr{Dir: dir, Env: env, Files: std.child[:], Sys: &syscall.SysProcAttr{
		Setsid: true, Setctty: req.TTY != nil, Credential: acc.cred,
	}}
	p.cgroup = s.cgroup.get(attr.Sys)
	p.pid, p.exited, err = s.reaper.start(program, proto.Strings(req.Args), attr, slack)
	if err != nil {
		std.closeOwn()
		s.cgroup.put(p.cgroup)
		return nil, startError(proto.StageExec, &os.PathError{Op: "exec", Path: program, Err: err})
	}
	return p, nil
}

// slack is the timer slack of a command, which may be one of this program's
// own. What an ordinary process starts inherits its own.
func (s *server) slack(own bool) uintptr {
	switch {
	case own:
		return lazySlack
	case s.opts.ReapAll:
		return commandSlack
	}
	return 0
}

// workingDir resolves a command's directory, and fails if it is none.
func (s *server) workingDir(dir string) (string, error) {
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(s.opts.Dir, dir)
	}
	st, err := os.Stat(dir)
	if err == nil && !st.IsDir() {
		err = &os.PathError{Op: "chdir", Path: dir, Err: syscall.ENOTDIR}
	}
	if err != nil {
		return "", startError(proto.StageDir, err)
	}
	return dir, nil
}

// environment returns a command's environment; later values replace earlier.
func (s *server) environment(req *proto.ExecRequest, acc account) []string {
	env := proto.Strings(req.Env)
	if req.Env == nil {
		env = s.opts.Env
	}
	if env == nil {
		env = []string{"PATH=" + s.opts.Path, "HOME=" + acc.home}
		if acc.name != "" {
			env = append(env, "USER="+acc.name)
		}
		if req.TTY != nil {
			env = append(env, "TERM=xterm-256color")
		} else {
			env = append(env, "TERM=dumb")
		}
	}
	return dedupe(append(env[:len(env):len(env)], proto.Strings(req.ExtraEnv)...))
}

// dedupe keeps the last value of each variable, in the place of the first.
func dedupe(env []string) []string {
	at := make(map[string]int, len(env))
	out := make([]string, 0, len(env))
	for _, kv := range env {
		key, _, _ := strings.Cut(kv, "=")
		if i, ok := at[key]; ok {
			out[i] = kv
			continue
		}
		at[key] = len(out)
		out = append(out, kv)
	}
	return out
}

// lookPath finds the program of a command as execvp(3) does, in the PATH that
// the command will have.
func (s *server) lookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	path := s.opts.Path
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	failure := syscall.ENOENT
	for _, d := range filepath.SplitList(path) {
		if !filepath.IsAbs(d) {
			d = filepath.Join(dir, d)
		}
		file := filepath.Join(d, name)
		st, err := os.Stat(file)
		if err != nil || st.IsDir() {
			continue
		}
		if st.Mode()&0o111 != 0 {
			return file, nil
		}
		failure = syscall.EACCES
	}
	return "", &os.PathError{Op: "lookup", Path: name, Err: failure}
}

// listed returns as much of a command line as a list shows.
func listed(args []proto.Text) []proto.Text {
	var out []proto.Text
	left := listedArgs
	for _, a := range args {
		if left <= 0 {
			break
		}
		a = a[:min(len(a), left)]
		left -= len(a) + 1
		out = append(out, a)
	}
	return out
}

// stdio is the descriptors of a command being started.
type stdio struct {
	child [3]uintptr // what the command gets
	open  []int      // of those, what this process must close
	own   []*os.File // this process's ends
}

func (std *stdio) closeChild() {
	for _, fd := range std.open {
		unix.Close(fd)
	}
}

func (std *stdio) closeOwn() {
	for _, f := range std.own {
		f.Close()
	}
}

// streams opens a command's standard streams and fills in p's ends of them.
func (s *server) streams(p *process, req *proto.ExecRequest, w *proto.Writer) (_ *stdio, err error) {
	std := &stdio{}
	defer func() {
		if err != nil {
			std.closeChild()
			std.closeOwn()
		}
	}()
	if req.TTY != nil {
		return std, s.terminal(p, req, w, std)
	}
	if req.Stdin {
		f, err := std.pipe(0, true)
		if err != nil {
			return nil, err
		}
		p.stdin = newInput(f, false)
	} else {
		null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open /dev/null: %w", err)
		}
		std.give(0, null)
	}
	for i, typ := range []proto.Type{proto.TypeStdout, proto.TypeStderr} {
		f, err := std.pipe(1+i, false)
		if err != nil {
			return nil, err
		}
		p.outs = append(p.outs, newOutput(typ, f, w, s.opts.KeepOutput))
	}
	return std, nil
}

// terminal makes all three streams one new terminal.
func (s *server) terminal(p *process, req *proto.ExecRequest, w *proto.Writer, std *stdio) error {
	master, slave, err := pty.Open()
	if err != nil {
		return fmt.Errorf("open terminal: %w", err)
	}
	defer slave.Close()
	std.own = append(std.own, master)
	if err := pty.Setsize(master, &pty.Winsize{Rows: req.TTY.Rows, Cols: req.TTY.Cols}); err != nil {
		return fmt.Errorf("resize terminal: %w", err)
	}
	fd, err := unix.FcntlInt(slave.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("dup terminal: %w", err)
	}
	std.open = append(std.open, fd)
	if err := unix.SetNonblock(fd, false); err != nil { // the runtime had made it so
		return fmt.Errorf("dup terminal: %w", err)
	}
	for i := range std.child {
		std.child[i] = uintptr(fd)
	}
	p.pty = master
	p.stdin = newInput(master, true)
	p.outs = []*output{newOutput(proto.TypeStdout, master, w, s.opts.KeepOutput)}
	if !req.Stdin && !req.Detach {
		p.stdin.end()
	}
	return nil
}

func (std *stdio) give(i, fd int) {
	std.child[i] = uintptr(fd)
	std.open = append(std.open, fd)
}

// pipe makes the command's descriptor i one end of a pipe and returns the
// other. Only the returned end is non-blocking: commands expect theirs to block.
func (std *stdio) pipe(i int, commandReads bool) (*os.File, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	theirs, ours := fds[1], fds[0]
	if commandReads {
		theirs, ours = fds[0], fds[1]
	}
	std.give(i, theirs)
	if err := unix.SetNonblock(ours, true); err != nil {
		unix.Close(ours)
		return nil, fmt.Errorf("pipe: %w", err)
	}
	f := os.NewFile(uintptr(ours), "|")
	std.own = append(std.own, f)
	return f, nil
}
