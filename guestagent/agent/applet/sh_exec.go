package applet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// What a job is rewritten with, see [jobs.mark].
const (
	jobVariable = "__forkvm_job"      // within a job: which one it is
	jobLaunched = "__forkvm_launched" // the shell is about to start a job
	jobEnded    = "__forkvm_ended"    // within a job: it has come to its end
)

// killProgram is the command kill, of which the interpreter would make its own.
const killProgram = "__forkvm_kill"

// jobStart bounds how long the end of a script waits for its jobs to begin.
const jobStart = time.Second

// jobs makes sure that what a script starts in the background has begun when
// the script ends. The interpreter runs such a job in a goroutine, which the
// end of the process would take along; once the job has become a process it
// lives on, as the jobs of other shells do.
type jobs struct {
	mu       sync.Mutex
	launched int             // guarded by mu
	begun    map[string]bool // guarded by mu, by the job's value of jobVariable
	news     chan struct{}   // has room for one: begun has grown
}

func newJobs() *jobs {
	return &jobs{begun: make(map[string]bool), news: make(chan struct{}, 1)}
}

// mark rewrites each "command &" to
//
//	{ launched; { jobVariable=$RANDOM$RANDOM; command; ended $?; } & }
func (j *jobs) mark(prog syntax.Node) {
	syntax.Walk(prog, func(n syntax.Node) bool {
		st, ok := n.(*syntax.Stmt)
		if !ok || !st.Background || st.Cmd == nil {
			return true
		}
		command := *st
		command.Background = false
		job := &syntax.Stmt{Background: true, Cmd: block(
			&syntax.Stmt{Cmd: &syntax.CallExpr{Assigns: []*syntax.Assign{{
				Name: lit(jobVariable), Value: word(param("RANDOM"), param("RANDOM")),
			}}}},
			&command,
			call(word(lit(jobEnded)), word(param("?"))),
		)}
		*st = syntax.Stmt{Position: st.Position, Semicolon: st.Semicolon, Cmd: block(call(word(lit(jobLaunched))), job)}
		j.mark(&command) // and not what was put around it
		return false
	})
}

func block(stmts ...*syntax.Stmt) *syntax.Block  { return &syntax.Block{Stmts: stmts} }
func call(args ...*syntax.Word) *syntax.Stmt     { return &syntax.Stmt{Cmd: &syntax.CallExpr{Args: args}} }
func word(parts ...syntax.WordPart) *syntax.Word { return &syntax.Word{Parts: parts} }
func lit(value string) *syntax.Lit               { return &syntax.Lit{Value: value} }
func param(name string) *syntax.ParamExp         { return &syntax.ParamExp{Short: true, Param: lit(name)} }

// begin notes that a job has become a process, or ended.
func (j *jobs) begin(env expand.Environ) {
	job := env.Get(jobVariable)
	if !job.IsSet() {
		return
	}
	j.mu.Lock()
	j.begun[job.String()] = true
	j.mu.Unlock()
	select {
	case j.news <- struct{}{}:
	default:
	}
}

// settle waits until each job has begun.
func (j *jobs) settle() {
	timeout := time.After(jobStart)
	for {
		j.mu.Lock()
		missing := j.launched > len(j.begun)
		j.mu.Unlock()
		if !missing {
			return
		}
		select {
		case <-j.news:
		case <-timeout:
			return
		}
	}
}

// handle is the interpreter's way to run what is no builtin.
func (j *jobs) handle(ctx context.Context, args []string) error {
	switch args[0] {
	case jobLaunched:
		j.mu.Lock()
		j.launched++
		j.mu.Unlock()
		return nil
	case jobEnded:
		j.begin(interp.HandlerCtx(ctx).Env)
		if status, err := strconv.ParseUint(args[1], 10, 8); err == nil && status > 0 {
			return interp.ExitStatus(status)
		}
		return nil
	}
	if args[0] == killProgram {
		args = append([]string{"kill"}, args[1:]...)
	}
	return j.exec(ctx, args)
}

// exec runs a command as a process. Its error is an exit status.
func (j *jobs) exec(ctx context.Context, args []string) error {
	hc := interp.HandlerCtx(ctx)
	path, err := interp.LookPathDir(hc.Dir, hc.Env, args[0])
	if err != nil {
		fmt.Fprintln(hc.Stderr, err)
		return interp.ExitStatus(127)
	}
	cmd := &exec.Cmd{
		Path: path, Args: args, Dir: hc.Dir, Env: exported(hc.Env),
		Stdin: hc.Stdin, Stdout: hc.Stdout, Stderr: hc.Stderr,
	}
	err = start(cmd)
	if errors.Is(err, syscall.ENOEXEC) { // a script without "#!" is one of ours
		cmd = &exec.Cmd{
			Path: "/proc/self/exe", Args: append([]string{"sh", path}, args[1:]...), Dir: hc.Dir, Env: cmd.Env,
			Stdin: hc.Stdin, Stdout: hc.Stdout, Stderr: hc.Stderr,
		}
		err = start(cmd)
	}
	if err != nil {
		fmt.Fprintln(hc.Stderr, err)
		if errors.Is(err, os.ErrPermission) {
			return interp.ExitStatus(126)
		}
		return interp.ExitStatus(127)
	}
	j.begin(hc.Env)
	return commandStatus(cmd.Wait())
}

// commandStatus turns how a process ended into a shell's exit status.
func commandStatus(err error) error {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return err
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return interp.ExitStatus(128 + ws.Signal())
	}
	return interp.ExitStatus(exit.ExitCode())
}

// exported returns the variables that commands get; a later one of the same
// name hides an earlier.
func exported(env expand.Environ) []string {
	values := make(map[string]string)
	env.Each(func(name string, v expand.Variable) bool {
		delete(values, name)
		if v.IsSet() && v.Exported && v.Kind == expand.String {
			values[name] = v.String()
		}
		return true
	})
	out := make([]string, 0, len(values))
	for name, v := range values {
		out = append(out, name+"="+v)
	}
	slices.Sort(out)
	return out
}
