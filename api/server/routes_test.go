package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/apitest"
)

// verbs call each verb of a service once. Each gets to the verb of the same name.
func verbs(b *bench) map[string]func(context.Context) error {
	snapshot := api.NewID(api.SnapshotPrefix, apitest.Now)
	stop := errors.New("enough")
	start := api.StartRequest{Command: api.Command{Argv: []string{"a"}}}
	none := api.Streams{}
	return map[string]func(context.Context) error{
		"Create": func(ctx context.Context) error { _, err := b.Create(ctx, api.CreateRequest{}); return err },
		"Get":    func(ctx context.Context) error { _, err := b.Get(ctx, b.id); return err },
		"List":   func(ctx context.Context) error { _, err := b.List(ctx, api.SandboxQuery{}); return err },
		"Update": func(ctx context.Context) error {
			_, err := b.Update(ctx, b.id, api.Patch{Name: new(string)})
			return err
		},
		"Destroy": func(ctx context.Context) error { return b.Destroy(ctx, b.id) },
		"Pause":   func(ctx context.Context) error { _, err := b.Pause(ctx, b.id); return err },
		"Resume":  func(ctx context.Context) error { _, err := b.Resume(ctx, b.id); return err },
		"Fork":    func(ctx context.Context) error { _, err := b.Fork(ctx, b.id, api.ForkRequest{Count: 2}); return err },
		"Wait": func(ctx context.Context) error {
			_, err := b.Wait(ctx, b.id, api.WaitRequest{States: []api.State{api.Paused}})
			return err
		},
		"Stats": func(ctx context.Context) error { _, err := b.Stats(ctx, b.id); return err },
		"Sharing": func(ctx context.Context) error {
			_, err := b.Sharing(ctx, api.SharingQuery{SandboxIDs: []string{b.id, b.id}})
			return err
		},
		"CreateSnapshot": func(ctx context.Context) error {
			_, err := b.CreateSnapshot(ctx, b.id, api.SnapshotRequest{})
			return err
		},
		"Snapshot": func(ctx context.Context) error { _, err := b.Snapshot(ctx, snapshot); return err },
		"Snapshots": func(ctx context.Context) error {
			_, err := b.Snapshots(ctx, api.SnapshotQuery{SandboxID: b.id})
			return err
		},
		"RenameSnapshot": func(ctx context.Context) error { _, err := b.RenameSnapshot(ctx, snapshot, "n"); return err },
		"DeleteSnapshot": func(ctx context.Context) error { return b.DeleteSnapshot(ctx, snapshot) },
		"Templates":      func(ctx context.Context) error { _, err := b.Templates(ctx); return err },
		"Template":       func(ctx context.Context) error { _, err := b.Template(ctx, "a/b"); return err },
		"BuildTemplate": func(ctx context.Context) error {
			_, err := b.BuildTemplate(ctx, api.BuildRequest{Name: "n"}, strings.NewReader("x"), io.Discard)
			return err
		},
		"TemplateLog":    func(ctx context.Context) error { r, err := b.TemplateLog(ctx, "n"); return readAll(r, err) },
		"DeleteTemplate": func(ctx context.Context) error { return b.DeleteTemplate(ctx, "n") },
		"Events": func(ctx context.Context) error {
			ctx, cancel := context.WithCancelCause(ctx)
			err := b.Events(ctx, api.EventQuery{}, func() { cancel(stop) }, nil)
			if context.Cause(ctx) == stop {
				return nil
			}
			return err
		},
		"Exec": func(ctx context.Context) error {
			_, err := b.Exec(ctx, b.access, api.ExecRequest{Command: start.Command})
			return err
		},
		"Run":         func(ctx context.Context) error { _, err := b.Run(ctx, b.access, start, none); return err },
		"Start":       func(ctx context.Context) error { _, err := b.Start(ctx, b.access, start); return err },
		"Processes":   func(ctx context.Context) error { _, err := b.Processes(ctx, b.access); return err },
		"Attach":      func(ctx context.Context) error { _, err := b.Attach(ctx, b.access, 2, none); return err },
		"WaitProcess": func(ctx context.Context) error { _, err := b.WaitProcess(ctx, b.access, 2); return err },
		"Control":     func(ctx context.Context) error { return b.Control(ctx, b.access, 2, api.Control{Signal: "TERM"}) },
		"ReadFile": func(ctx context.Context) error {
			r, _, err := b.ReadFile(ctx, b.access, "/a")
			return readAll(r, err)
		},
		"WriteFile": func(ctx context.Context) error {
			_, err := b.WriteFile(ctx, b.access, "/a", strings.NewReader("x"), api.WriteOptions{})
			return err
		},
		"Stat":      func(ctx context.Context) error { _, err := b.Stat(ctx, b.access, "/a"); return err },
		"RealPath":  func(ctx context.Context) error { _, err := b.RealPath(ctx, b.access, "/a"); return err },
		"ListFiles": func(ctx context.Context) error { _, err := b.ListFiles(ctx, b.access, "/a"); return err },
		"Mkdir":     func(ctx context.Context) error { _, err := b.Mkdir(ctx, b.access, "/a"); return err },
		"Rename":    func(ctx context.Context) error { _, err := b.Rename(ctx, b.access, "/a", "/b"); return err },
		"Remove": func(ctx context.Context) error {
			return b.Remove(ctx, b.access, "/a", api.RemoveOptions{Recursive: true})
		},
		"ReadTree":  func(ctx context.Context) error { r, err := b.ReadTree(ctx, b.access, "/a"); return readAll(r, err) },
		"WriteTree": func(ctx context.Context) error { return b.WriteTree(ctx, b.access, "/a", strings.NewReader("x")) },
		"Watch": func(ctx context.Context) error {
			return b.Watch(ctx, b.access, "/a", nil, func(api.FileEvent) error { return nil })
		},
	}
}

func readAll(r io.ReadCloser, err error) error {
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, r)
	return errors.Join(err, r.Close())
}

// TestD12_EveryRouteIsDescribed takes each path of the description, and each verb of a
// client.
func TestD12_EveryRouteIsDescribed(t *testing.T) {
	b := start(t)
	var called []string
	b.fake.Called = func(verb string, _ ...any) { called = append(called, verb) }
	all := verbs(b)
	for name, call := range all {
		if err := call(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if slices.Sort(called); len(slices.Compact(called)) != len(all) || len(all) != reflect.TypeFor[api.Service]().NumMethod() {
		t.Errorf("of %d verbs these were called: %s", reflect.TypeFor[api.Service]().NumMethod(), called)
	}
	process := b.sandbox("/processes/2")
	for _, r := range [][3]string{
		{"GET", "/healthz"}, {"GET", "/version"}, {"GET", "/openapi.yaml"}, {"GET", "/metrics"},
		{"GET", b.sandbox("/snapshots")}, {"POST", b.sandbox("/exec/stream"), `{"argv":["a"]}`},
		{"GET", process + "/attach"}, {"POST", process + "/resize", `{"rows":1,"cols":2}`},
	} {
		if status, body, _ := b.ask(r[0], r[1], r[2]); status >= 300 {
			t.Errorf("%s %s: %d %s", r[0], r[1], status, body)
		}
	}
	b.close()
	for path, item := range b.contract.doc.Paths.Map() {
		for method, op := range item.Operations() {
			if !b.contract.went[op.OperationID] {
				t.Errorf("%s %s did not go well, or is not there", method, path)
			}
		}
	}
}

var codes = []api.Code{
	api.BadRequest, api.Unauthorized, api.Forbidden, api.NotFound, api.Conflict, api.SnapshotInProgress, api.Gone,
	api.TooManySnapshots, api.TooManySnapshotsInFlight, api.TooManySandboxes, api.InternalError, api.SpawnFailed,
	api.OutOfCapacity, api.ExecTimeout, api.NotEnoughSpace,
}

// TestD10_EveryErrorCode has each verb fail with each code.
func TestD10_EveryErrorCode(t *testing.T) {
	b := start(t)
	described := b.contract.doc.Components.Schemas["ErrorDetail"].Value.Properties["code"].Value.Enum
	if len(described) != len(codes) {
		t.Errorf("%d codes are described, of %d", len(described), len(codes))
	}
	for _, code := range codes {
		failure := api.Errorf(code, "it is %s", code)
		failure.Details = map[string]any{"why": "so"}
		failure.RetryAfter = 1500 * time.Millisecond
		b.fake.Fail = func(string) error { return failure }
		for name, call := range verbs(b) {
			err := call(t.Context())
			var e *api.Error
			if !errors.Is(err, code) || !errors.As(err, &e) || e.Message != failure.Message || e.Details["why"] != "so" {
				t.Errorf("%s: got %v, want %v", name, err, failure)
			}
			if name != "Run" && name != "Attach" && e.RetryAfter != 2*time.Second {
				t.Errorf("%s: try again after %v", name, e.RetryAfter)
			}
		}
		status, body, header := b.ask("GET", b.sandbox(""), "")
		wantError(t, string(code), status, body, code, failure.Message)
		if header.Get("Retry-After") != "2" {
			t.Errorf("Retry-After: %q", header.Get("Retry-After"))
		}
	}
}

// TestErrorsOfOursAreNotTold has what is no error of the API stay in the log.
func TestErrorsOfOursAreNotTold(t *testing.T) {
	b := start(t)
	b.fake.Fail = func(string) error { return errors.New("secret") }
	status, body, _ := b.ask("GET", b.sandbox(""), "")
	wantError(t, "an unknown error", status, body, api.InternalError, "")
	b.fake.Fail = func(string) error { panic("secret") }
	status2, body2, _ := b.ask("GET", b.sandbox(""), "")
	wantError(t, "a panic", status2, body2, api.InternalError, "")
	if strings.Contains(body+body2, "secret") {
		t.Errorf("told: %s %s", body, body2)
	}
}

func TestPathsThatAreNone(t *testing.T) {
	b := start(t)
	for _, path := range []string{"/", "/v1", "/v1/sandboxes/", "//v1/sandboxes", "/v1/../v1/sandboxes", "/v2", b.sandbox("/nothing")} {
		status, body, _ := b.ask("GET", path, "")
		wantError(t, path, status, body, api.NotFound, "")
	}
	for _, path := range []string{"/v1/sandboxes/sb_1", "/v1/sandboxes/x", "/v1/snapshots/" + b.id, "/v1/sandboxes/sb_" + strings.Repeat("z", 32)} {
		status, body, _ := b.ask("GET", path, "")
		wantError(t, path, status, body, api.NotFound, "no id of ours")
	}
	for _, r := range [][2]string{{"PUT", "/v1/sandboxes"}, {"HEAD", "/healthz"}, {"GET", b.sandbox("/pause")}, {"BREW", "/version"}} {
		status, body, header := b.ask(r[0], r[1], "")
		if status != http.StatusMethodNotAllowed || header.Get("Allow") == "" || r[0] != "HEAD" && !strings.Contains(body, `"bad_request"`) {
			t.Errorf("%s %s: %d %s %s", r[0], r[1], status, header.Get("Allow"), body)
		}
	}
}

func TestVersionAndRequestIDs(t *testing.T) {
	b := start(t)
	if v, err := b.ServerVersion(t.Context()); v != "v0.0.0-test" || err != nil {
		t.Errorf("version %q, %v", v, err)
	}
	if _, _, h := b.ask("GET", "/healthz", "", "X-Request-Id: abc-1.2_3"); h.Get("X-Request-Id") != "abc-1.2_3" {
		t.Errorf("request id %q", h.Get("X-Request-Id"))
	}
	if _, _, h := b.ask("GET", "/healthz", "", "X-Request-Id: a b"); len(h.Get("X-Request-Id")) < 20 {
		t.Errorf("request id %q", h.Get("X-Request-Id"))
	}
	_, body, _ := b.ask("GET", "/metrics", "")
	want := `forkvm_http_requests_total{method="GET",route="/healthz",status="200"} 2`
	if !strings.Contains(body, want) {
		t.Errorf("no %s in %s", want, body)
	}
}

// TestRequestsArriveWhole has a client ask for everything that there is to ask.
func TestRequestsArriveWhole(t *testing.T) {
	b := start(t)
	var got []any
	b.fake.Called = func(verb string, args ...any) { got = args }
	name, ctx := "n", t.Context()
	settings := api.Settings{
		Name: "ü", Metadata: map[string]string{"k.": "v=&"}, EnvVars: map[string]string{"A": ""}, TimeoutSeconds: api.Clear[int64](),
		OnTimeout: api.TimeoutPauses, AutoDeleteSeconds: api.Set[int64](0),
	}
	command := api.Command{Argv: []string{"a", ""}, EnvVars: map[string]string{"B": "c"}, Cwd: "/x", User: "u", TimeoutSeconds: api.Set[int64](0)}
	mode := uint32(0o4755)
	start := api.StartRequest{Command: command, TTY: &api.WinSize{Rows: 1, Cols: 2}, IdleTimeoutSeconds: api.Set[int64](3)}
	page := api.Page{Cursor: "c+", Limit: 7}
	build := api.BuildRequest{
		Name: "n", File: "FROM base\nRUN a\r\n", Args: map[string]string{"A": "ü"}, VCPUs: 2, MemoryBytes: 1 << 40, DiskBytes: 5, NoCache: true, Pull: true,
	}
	for _, c := range []struct {
		call func() error
		want []any
	}{
		{func() error {
			_, err := b.Create(ctx, api.CreateRequest{Template: "t", FromSnapshot: "s", Settings: settings})
			return err
		},
			[]any{api.CreateRequest{Template: "t", FromSnapshot: "s", Settings: settings}}},
		{func() error { _, err := b.Fork(ctx, b.id, api.ForkRequest{Count: 3, Settings: settings}); return err },
			[]any{b.id, api.ForkRequest{Count: 3, Settings: settings}}},
		{func() error {
			_, err := b.Update(ctx, b.id, api.Patch{Name: &name, Metadata: map[string]string{}})
			return err
		},
			[]any{b.id, api.Patch{Name: &name, Metadata: map[string]string{}}}},
		{func() error {
			_, err := b.List(ctx, api.SandboxQuery{States: []api.State{api.Running, api.Paused}, Metadata: map[string]string{"a.b": "c d"}, NamePrefix: "p", Page: page})
			return err
		}, []any{api.SandboxQuery{States: []api.State{api.Running, api.Paused}, Metadata: map[string]string{"a.b": "c d"}, NamePrefix: "p", Page: page}}},
		{func() error {
			_, err := b.Snapshots(ctx, api.SnapshotQuery{SandboxID: b.id, NamePrefix: "p", Page: page})
			return err
		},
			[]any{api.SnapshotQuery{SandboxID: b.id, NamePrefix: "p", Page: page}}},
		{func() error {
			_, err := b.Wait(ctx, b.id, api.WaitRequest{States: []api.State{api.Failed}, Timeout: 1500 * time.Millisecond})
			return err
		}, []any{b.id, api.WaitRequest{States: []api.State{api.Failed}, Timeout: 1500 * time.Millisecond}}},
		{func() error {
			_, err := b.CreateSnapshot(ctx, b.id, api.SnapshotRequest{Name: "n", Metadata: map[string]string{"a": "b"}})
			return err
		}, []any{b.id, api.SnapshotRequest{Name: "n", Metadata: map[string]string{"a": "b"}}}},
		{func() error { _, err := b.Template(ctx, "a/b c"); return err }, []any{"a/b c"}},
		{func() error {
			_, err := b.BuildTemplate(ctx, build, nil, nil)
			return err
		}, []any{build}},
		{func() error { return b.DeleteTemplate(ctx, "a/b c") }, []any{"a/b c"}},
		{func() error { r, err := b.TemplateLog(ctx, "a/b"); return readAll(r, err) }, []any{"a/b"}},
		{func() error {
			_, err := b.Exec(ctx, b.access, api.ExecRequest{Command: command, Stdin: api.Text("\xfe"), MaxOutputBytes: 9})
			return err
		}, []any{api.ExecRequest{Command: command, Stdin: api.Text("\xfe"), MaxOutputBytes: 9}}},
		{func() error { _, err := b.Run(ctx, b.access, start, api.Streams{}); return err }, []any{start}},
		{func() error {
			_, err := b.Attach(ctx, b.access, 1<<63, api.Streams{Live: true, Stdin: strings.NewReader("")})
			return err
		},
			[]any{uint64(1 << 63), true, true}},
		{func() error { return b.Control(ctx, b.access, 4, api.Control{Resize: &api.WinSize{Rows: 9}}) },
			[]any{uint64(4), api.Control{Resize: &api.WinSize{Rows: 9}}}},
		{func() error {
			_, err := b.WriteFile(ctx, b.access, "/ü\n&", strings.NewReader(""), api.WriteOptions{Mode: &mode})
			return err
		},
			[]any{"/ü\n&", api.WriteOptions{Mode: &mode}}},
		{func() error { return b.Remove(ctx, b.access, "/\xff", api.RemoveOptions{Recursive: true}) }, []any{"/\xff", api.RemoveOptions{Recursive: true}}},
		{func() error { _, err := b.Rename(ctx, b.access, "/a", "/b+c"); return err }, []any{"/a", "/b+c"}},
		{func() error {
			ctx, cancel := context.WithCancel(ctx)
			b.Events(ctx, api.EventQuery{SandboxID: b.id, After: 5}, cancel, nil)
			return nil
		}, []any{api.EventQuery{SandboxID: b.id, After: 5}}},
	} {
		if err := c.call(); err != nil {
			t.Errorf("%v: %v", c.want, err)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("got %#v, want %#v", got, c.want)
		}
	}
}

// TestAnswersArriveWhole compares records with those of the service.
func TestAnswersArriveWhole(t *testing.T) {
	b := start(t)
	want, err := b.fake.Fork(t.Context(), b.id, api.ForkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.Fork(t.Context(), b.id, api.ForkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got.Children[0].Sandbox.ID, got.Children[0].Sandbox.ParentSandboxID = want.Children[0].Sandbox.ID, want.Children[0].Sandbox.ParentSandboxID
	if g, w := fmt.Sprint(encode(t, got)), encode(t, want); g != w {
		t.Errorf("got %s, want %s", g, w)
	}
	if !errors.Is(got.Children[1].Error, api.OutOfCapacity) {
		t.Errorf("the error is %v", got.Children[1].Error)
	}
	r, info, err := b.ReadFile(t.Context(), b.access, "/ü")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if content, err := io.ReadAll(r); string(content) != "abc" || err != nil || !reflect.DeepEqual(info, apitest.File("/ü")) {
		t.Errorf("got %q, %v, %+v", content, err, info)
	}
}

func encode(t *testing.T, v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
