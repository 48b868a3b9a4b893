package guest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/agent"
)

func exec(t testing.TB, g *Guest, r api.ExecRequest) *api.ExecResult {
	t.Helper()
	res, err := g.Exec(within(t, 30*time.Second), r)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// TestU03_ExecArgv: no shell unless it is named.
func TestU03_ExecArgv(t *testing.T) {
	g := start(t, agent.Options{})
	res := exec(t, g, api.ExecRequest{Command: api.Command{Argv: []string{"echo", "a  b", "$HOME"}}})
	if string(res.Stdout) != "a  b $HOME\n" || len(res.Stderr) != 0 || res.Exit != (api.Exit{}) || res.Truncated || res.DurationSeconds <= 0 {
		t.Errorf("%+v", res)
	}
}

// TestU04_SameDirectory: a cd is not seen by the next command.
func TestU04_SameDirectory(t *testing.T) {
	g := start(t, agent.Options{})
	g.Dir = t.TempDir()
	exec(t, g, api.ExecRequest{Command: sh("mkdir sub; cd sub")})
	res := exec(t, g, api.ExecRequest{Command: sh("pwd; ls")})
	if string(res.Stdout) != g.Dir+"\nsub\n" {
		t.Errorf("%q", res.Stdout)
	}
	c := sh("pwd")
	c.Cwd = "/"
	if res = exec(t, g, api.ExecRequest{Command: c}); string(res.Stdout) != "/\n" {
		t.Errorf("%q", res.Stdout)
	}
}

// TestU25_NonZeroIsResult covers X5 as well.
func TestU25_NonZeroIsResult(t *testing.T) {
	g := start(t, agent.Options{})
	res := exec(t, g, api.ExecRequest{Command: sh("echo out; echo err >&2; exit 3")})
	if res.Code != 3 || res.Signal != "" || string(res.Stdout) != "out\n" || string(res.Stderr) != "err\n" {
		t.Errorf("%+v", res)
	}
	res = exec(t, g, api.ExecRequest{Command: sh("kill -TERM $$")})
	if res.Code != -1 || res.Signal != "SIGTERM" {
		t.Errorf("%+v", res)
	}
	if res = exec(t, g, api.ExecRequest{Command: sh("exec no-such-program")}); res.Code != 127 {
		t.Errorf("%+v", res)
	}
}

// TestX05_SpawnFailed: a command that cannot be started is no exit code.
func TestX05_SpawnFailed(t *testing.T) {
	g := start(t, agent.Options{})
	ctx := within(t, 30*time.Second)
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		c            api.Command
		stage, errno string
	}{
		"no such program": {api.Command{Argv: []string{"no-such-program"}}, "lookup", "ENOENT"},
		"no such file":    {api.Command{Argv: []string{"/no/such"}}, "exec", "ENOENT"},
		"not executable":  {api.Command{Argv: []string{plain}}, "exec", "EACCES"},
		"no directory":    {api.Command{Argv: []string{"true"}, Cwd: "/no/such"}, "dir", "ENOENT"},
		"a file":          {api.Command{Argv: []string{"true"}, Cwd: plain}, "dir", "ENOTDIR"},
		"no user":         {api.Command{Argv: []string{"true"}, User: "no-such-user"}, "user", "ENOENT"},
	} {
		_, err := g.Exec(ctx, api.ExecRequest{Command: tc.c})
		e := want(t, err, api.SpawnFailed)
		errno, _ := e.Details["errno"].(string)
		if e.Details["stage"] != tc.stage || errno != tc.errno || e.StatusCode() != 422 {
			t.Errorf("%s: %v", name, e.Details)
		}
	}
}

// TestX05_ExecTimeout: the whole session ends, and what was printed is told.
func TestX05_ExecTimeout(t *testing.T) {
	g := start(t, agent.Options{})
	c := sh("seq 1 5000; echo why >&2; sleep 1000 & echo child $!; wait")
	c.TimeoutSeconds = api.Set[int64](1)
	_, err := g.Exec(within(t, 30*time.Second), api.ExecRequest{Command: c, MaxOutputBytes: 100})
	e := want(t, err, api.ExecTimeout)
	stdout, _ := e.Details["stdout"].(api.Text)
	stderr, _ := e.Details["stderr"].(api.Text)
	if len(stdout) != tailSize || !strings.Contains(string(stdout), "\n5000\nchild ") || string(stderr) != "why\n" {
		t.Errorf("printed %q and %q", stdout, stderr)
	}
	_, pid, _ := strings.Cut(strings.TrimSpace(string(stdout)), "child ")
	awaitGone(t, pid)
}

// awaitGone waits until a process has ended, which is when its parent is told
// and shortly after it was killed.
func awaitGone(t *testing.T, pid string) {
	t.Helper()
	ctx := within(t, 20*time.Second)
	for ctx.Err() == nil {
		b, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(b), ") Z ") {
			return
		}
	}
	t.Errorf("process %s lives", pid)
}

func TestExecKilledWithContext(t *testing.T) {
	g := start(t, agent.Options{})
	pids := filepath.Join(t.TempDir(), "pid")
	if err := mkfifo(pids); err != nil {
		t.Fatal(err)
	}
	why := errors.New("no longer wanted")
	ctx, cancel := context.WithCancelCause(within(t, 30*time.Second))
	failed := make(chan error, 1)
	go func() {
		_, err := g.Exec(ctx, api.ExecRequest{Command: sh("echo $$ >" + pids + "; exec sleep 1000")})
		failed <- err
	}()
	pid, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	cancel(why)
	if err := <-failed; err != why {
		t.Errorf("Exec: %v", err)
	}
	awaitGone(t, strings.TrimSpace(string(pid)))
}

// TestExecHungGuest: a guest that does not keep time is not waited for.
func TestExecHungGuest(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, timedOut())
	defer cancel()
	<-ctx.Done()
	_, err := ended(ctx, context.DeadlineExceeded)
	want(t, err, api.ExecTimeout)
}

// TestX06_OutputCap: what is too much is dropped, and the command goes on.
func TestX06_OutputCap(t *testing.T) {
	g := start(t, agent.Options{})
	for _, tc := range []struct {
		max       int64
		script    string
		out, err  int
		truncated bool
	}{
		{10, "printf 0123456789", 10, 0, false},
		{10, "printf 0123456789a", 10, 0, true},
		{10, "printf 0123456789a >&2; printf x", 1, 10, true},
		{0, "head -c 1048576 /dev/zero", api.DefaultOutput, 0, false},
		{0, "head -c 30000000 /dev/zero; echo >&2", api.DefaultOutput, 1, true},
		{api.MaxOutput, "head -c 30000000 /dev/zero", api.MaxOutput, 0, true},
	} {
		res := exec(t, g, api.ExecRequest{Command: sh(tc.script), MaxOutputBytes: tc.max})
		if len(res.Stdout) != tc.out || len(res.Stderr) != tc.err || res.Truncated != tc.truncated || res.Code != 0 {
			t.Errorf("%s: %d and %d bytes, truncated %t, exit code %d", tc.script, len(res.Stdout), len(res.Stderr), res.Truncated, res.Code)
		}
	}
}

// TestB25_StdinEndsByDefault: a command that reads gets the end of its input.
func TestB25_StdinEndsByDefault(t *testing.T) {
	g := start(t, agent.Options{})
	if res := exec(t, g, api.ExecRequest{Command: sh("cat; echo end")}); string(res.Stdout) != "end\n" {
		t.Errorf("%q", res.Stdout)
	}
	if res := exec(t, g, api.ExecRequest{Command: sh("cat; echo end"), Stdin: api.Text("in\n")}); string(res.Stdout) != "in\nend\n" {
		t.Errorf("%q", res.Stdout)
	}
	id := background(t, g, api.StartRequest{Command: sh("cat")})
	if exit, err := g.WaitProcess(within(t, 20*time.Second), id); err != nil || exit.Code != 0 {
		t.Errorf("in the background: %v, %v", exit, err)
	}
}

// TestS27_EnvironmentLayers: the agent's default, the sandbox's, the command's.
func TestS27_EnvironmentLayers(t *testing.T) {
	g := start(t, agent.Options{})
	g.Env = []string{"A=sandbox", "B=sandbox"}
	c := sh("echo $A $B $C; test -n \"$PATH\"")
	c.EnvVars = map[string]string{"B": "command", "C": "x=y"}
	if res := exec(t, g, api.ExecRequest{Command: c}); string(res.Stdout) != "sandbox command x=y\n" || res.Code != 0 {
		t.Errorf("%+v", res)
	}
	if g.Env[0] != "A=sandbox" || len(g.Env) != 2 {
		t.Errorf("the sandbox's environment became %q", g.Env)
	}
}

func TestS27_EnvironmentTooLarge(t *testing.T) {
	g := answering(nil)
	g.Env = []string{"A=" + strings.Repeat("x", maxCommand)}
	_, err := g.Exec(t.Context(), api.ExecRequest{Command: sh("true")})
	want(t, err, api.BadRequest)
}

// TestD09_ExecFields: what is out of range is refused, by the field's name, and
// nothing is asked of the guest.
func TestD09_ExecFields(t *testing.T) {
	many := make(map[string]string)
	for i := range api.MaxEnvVars + 1 {
		many[strings.Repeat("A", i+1)] = ""
	}
	for name, tc := range map[string]struct {
		field string
		mod   func(*api.ExecRequest)
	}{
		"no argv":         {"argv", func(r *api.ExecRequest) { r.Argv = nil }},
		"no program":      {"argv", func(r *api.ExecRequest) { r.Argv[0] = "" }},
		"NUL":             {"argv", func(r *api.ExecRequest) { r.Argv[1] = "a\x00" }},
		"many":            {"argv", func(r *api.ExecRequest) { r.Argv = make([]string, 20000); r.Argv[0] = "x" }},
		"large":           {"argv", func(r *api.ExecRequest) { r.Argv[1] = strings.Repeat("x", 1<<20) }},
		"relative cwd":    {"cwd", func(r *api.ExecRequest) { r.Cwd = "a" }},
		"NUL in cwd":      {"cwd", func(r *api.ExecRequest) { r.Cwd = "/\x00" }},
		"long cwd":        {"cwd", func(r *api.ExecRequest) { r.Cwd = "/" + strings.Repeat("a", 4095) }},
		"long user":       {"user", func(r *api.ExecRequest) { r.User = strings.Repeat("a", 257) }},
		"NUL in user":     {"user", func(r *api.ExecRequest) { r.User = "a\x00" }},
		"empty variable":  {"env_vars", func(r *api.ExecRequest) { r.EnvVars = map[string]string{"": "x"} }},
		"digit":           {"env_vars", func(r *api.ExecRequest) { r.EnvVars = map[string]string{"1A": "x"} }},
		"equals":          {"env_vars", func(r *api.ExecRequest) { r.EnvVars = map[string]string{"A=B": "x"} }},
		"line end":        {"env_vars", func(r *api.ExecRequest) { r.EnvVars = map[string]string{"A\n": "x"} }},
		"NUL in value":    {"env_vars", func(r *api.ExecRequest) { r.EnvVars = map[string]string{"A": "\x00"} }},
		"large value":     {"env_vars", func(r *api.ExecRequest) { r.EnvVars = map[string]string{"A": strings.Repeat("x", 1<<16)} }},
		"many variables":  {"env_vars", func(r *api.ExecRequest) { r.EnvVars = many }},
		"negative time":   {"timeout_seconds", func(r *api.ExecRequest) { r.TimeoutSeconds = api.Set[int64](-1) }},
		"much time":       {"timeout_seconds", func(r *api.ExecRequest) { r.TimeoutSeconds = api.Set[int64](86401) }},
		"negative output": {"max_output_bytes", func(r *api.ExecRequest) { r.MaxOutputBytes = -1 }},
		"much output":     {"max_output_bytes", func(r *api.ExecRequest) { r.MaxOutputBytes = api.MaxOutput + 1 }},
	} {
		r := api.ExecRequest{Command: sh("true")}
		tc.mod(&r)
		_, err := new(Guest).Exec(t.Context(), r)
		if e := want(t, err, api.BadRequest); !strings.HasPrefix(e.Message, tc.field+": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	idle := api.StartRequest{Command: sh("true"), IdleTimeoutSeconds: api.Set[int64](-1)}
	if e := want(t, CheckStart(idle), api.BadRequest); !strings.HasPrefix(e.Message, "idle_timeout_seconds: ") {
		t.Error(e)
	}
}

// TestD13_DefaultTimeout: 60 s if nothing is said, and none for null and 0.
func TestD13_DefaultTimeout(t *testing.T) {
	g := answering(nil)
	for want, o := range map[time.Duration]api.Opt[int64]{60 * time.Second: {}, 0: api.Set[int64](0), time.Hour: api.Set[int64](3600)} {
		cmd, err := g.command(t.Context(), api.Command{Argv: []string{"x"}, TimeoutSeconds: o})
		if err != nil || cmd.Timeout != want {
			t.Errorf("%v, %v, want %v", cmd.Timeout, err, want)
		}
	}
	cmd, err := g.command(t.Context(), api.Command{Argv: []string{"x"}, TimeoutSeconds: api.Clear[int64]()})
	if err != nil || cmd.Timeout != 0 {
		t.Errorf("null: %v, %v", cmd.Timeout, err)
	}
}
