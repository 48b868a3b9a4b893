package sandbox

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/server"
)

var (
	schemathesisExamples = flag.Int("schemathesis-examples", 5, "how many requests of a kind TestSchemathesis makes of each operation")
	schemathesisSeed     = flag.Int("schemathesis-seed", 1, "what TestSchemathesis draws from")
)

// schemathesisConfig has the program ask for things that exist often enough. Its
// words to be filled in are the file of hooks and the token of a sandbox.
const schemathesisConfig = `
hooks = %q

[dictionaries]
path.values = ["/", "/tmp", "/tmp/a", "/tmp/a/b", "/etc/passwd", "/dev/null", "/nothing"]

# Requests that are as described may come at the wrong time (409, 410, 429, 503),
# or ask for what there is not (404, 422).
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "410", "422", "429", "503", "504", "507"]

# What a path is the name of decides whether it can be read, listed or renamed,
# and what a file says whether a template can be built of it; what needs a
# WebSocket does not say so in a way that the program knows.
[[operations]]
include-tag = ["files"]
checks.positive_data_acceptance.enabled = false

[[operations]]
include-operation-id = ["buildTemplate", "execSocket", "attachProcess"]
checks.positive_data_acceptance.enabled = false

[[operations]]
include-tag = ["commands", "files"]
headers = {"X-Access-Token" = %q}
[operations.parameters]
"query.path" = {dictionary = "path", probability = 0.7}
"query.to" = {dictionary = "path", probability = 0.7}
`

// schemathesisHooks has commands be such as there are, if they could be any. That
// what is asked of metadata was no text is no failure: in a query all is. The
// program loads it as a part of itself.
const schemathesisHooks = `
import schemathesis

COMMANDS = [["true"], ["false"], ["echo"], ["ls", "/"], ["cat", "/etc/passwd"], ["printenv"], ["id", "-u"],
            ["seq", "1000"], ["sleep", "0.1"], ["sh", "-c", "echo out; echo err >&2; kill -9 $$"], ["nothing"]]

@schemathesis.hook
def map_body(context, body):
    argv = body.get("argv") if isinstance(body, dict) else None
    if isinstance(argv, list) and argv and argv[0] and all(isinstance(a, str) and "\0" not in a for a in argv):
        n = sum(map(ord, argv[0]))
        body["argv"] = COMMANDS[n % len(COMMANDS)] + argv[1:]
    return body

@schemathesis.hook
def filter_failure(context, failure, case, response):
    return "parameter \x60metadata\x60 in query" not in failure.message
`

// TestSchemathesis has a program make requests of the description of the API,
// good and bad, and check each answer against it. Commands run, and files are,
// in jails: they are as arbitrary as the rest.
func TestSchemathesis(t *testing.T) {
	program := os.Getenv("FORKVM_TEST_SCHEMATHESIS")
	if program == "" {
		needTool(t, "FORKVM_TEST_SCHEMATHESIS does not name the program")
	}
	needJails(t)
	r := newRig(t, Limits{Memory: 1 << 50, SandboxesPerTeam: 100}) // to be out of memory is a status of 503
	r.w.jails = true
	inside := r.create(t, api.Settings{}) // no request destroys it, since it is another team's
	key := server.NewKey()
	f := &fuzzed{inside: inside.ID, statuses: make(map[int]int), next: server.New(server.Config{
		Account:      func(team string) (api.Service, error) { return r.Engine.Team(team), nil },
		Open:         func(a api.Access) (server.Sandbox, error) { return r.Holder(a) },
		Authenticate: func(k string) (string, bool) { return "fuzz", k == key },
		Admin:        func(string) bool { return true },
	})}
	srv := httptest.NewServer(f)
	defer srv.Close()
	b := must[*api.Sandbox](t)(r.Engine.Team("fuzz").Create(t.Context(), api.CreateRequest{}))
	must[*api.Snapshot](t)(r.Engine.Team("fuzz").CreateSnapshot(t.Context(), b.ID, api.SnapshotRequest{}))

	dir := t.TempDir() // it leaves files
	hooks, config := filepath.Join(dir, "hooks.py"), filepath.Join(dir, "schemathesis.toml")
	if err := errors.Join(os.WriteFile(hooks, []byte(schemathesisHooks), 0o600),
		os.WriteFile(config, fmt.Appendf(nil, schemathesisConfig, hooks, inside.AccessToken), 0o600)); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "--config-file", config, "run", srv.URL+"/openapi.yaml", "--url", srv.URL,
		"-H", "Authorization: Bearer "+key, "--seed", strconv.Itoa(*schemathesisSeed), "--request-timeout", "30",
		"--max-examples", strconv.Itoa(*schemathesisExamples), "--no-color",
		// The snapshots of a sandbox outlive it.
		"--exclude-checks", "use_after_free")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	t.Logf("requests by status: %v", f.statuses)
}

// fuzzed makes of what is asked at random something that there may be, and that
// ends.
type fuzzed struct {
	next   http.Handler
	inside string // the sandbox whose token is known

	mu       sync.Mutex
	statuses map[int]int // of all answers; guarded by mu
}

// The id of a sandbox in a path for what is inside, and that of a process.
var (
	insideID  = regexp.MustCompile(`^/v1/sandboxes/(sb_[0-9a-v]{32})/(?:exec|processes|files)`)
	processID = regexp.MustCompile(`/processes/([0-9]+)/`)
)

func (f *fuzzed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if m := insideID.FindStringSubmatch(path); m != nil {
		path = strings.Replace(path, m[1], f.inside, 1)
	}
	if m := processID.FindStringSubmatchIndex(path); m != nil {
		if n, err := strconv.ParseUint(path[m[2]:m[3]], 10, 64); err == nil {
			path = fmt.Sprint(path[:m[2]], n%32, path[m[3]:])
		}
	}
	r.URL.Path = path
	answer := &answered{ResponseWriter: w, status: http.StatusOK}
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.statuses[answer.status]++
	}()
	serveImpatiently(f.next, answer, r)
}

// answered knows its status.
type answered struct {
	http.ResponseWriter
	status int
}

func (c *answered) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *answered) WriteHeader(status int) {
	c.status = status
	c.ResponseWriter.WriteHeader(status)
}

// serveImpatiently bounds how long a request takes that would go on for as long
// as its client wants: streams end soon, as if by themselves, and nobody waits
// for long.
func serveImpatiently(h http.Handler, w http.ResponseWriter, r *http.Request) {
	const soon = 200 * time.Millisecond
	switch path := r.URL.Path; {
	case path == "/v1/events", strings.HasSuffix(path, "/files/watch"), strings.HasSuffix(path, "/exec/stream"), strings.HasSuffix(path, "/attach"):
		ctx, cancel := context.WithTimeout(r.Context(), soon)
		defer cancel()
		defer func() {
			if why := recover(); why != nil && ctx.Err() == nil {
				panic(why)
			}
		}()
		w, r = flusher{w}, r.WithContext(ctx)
	case strings.HasPrefix(path, "/v1/sandboxes/") && strings.HasSuffix(path, "/wait"):
		q := r.URL.Query()
		if s, err := strconv.ParseFloat(q.Get("timeout"), 64); err == nil && s > soon.Seconds() && s <= api.MaxWait {
			q.Set("timeout", fmt.Sprint(soon.Seconds()))
			r.URL.RawQuery = q.Encode()
		}
	}
	h.ServeHTTP(w, r)
}

// flusher is a writer whose deadlines are not the handler's to set.
type flusher struct{ http.ResponseWriter }

func (f flusher) Flush() { _ = http.NewResponseController(f.ResponseWriter).Flush() }

// needTool skips where a program is missing that FORKVM_REQUIRE_TOOLS demands.
func needTool(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("FORKVM_REQUIRE_TOOLS") == "1" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// needProgram skips where this machine lacks a program that commands of fake
// machines are.
func needProgram(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		needTool(t, err.Error())
	}
}
