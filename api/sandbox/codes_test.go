package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/server"
)

// notYet are the codes that nothing answers, and why.
var notYet = map[api.Code]string{
	api.SnapshotInProgress: "it is what attaching a secret meets (S42), and there are no secrets",
}

// provoked are requests, each with the code that it meets.
var provoked = map[api.Code]struct {
	limits Limits
	// request comes after what leads to it, of which the rig has one sandbox.
	request func(t *testing.T, s *coded) *http.Response
}{
	api.BadRequest: {request: func(t *testing.T, s *coded) *http.Response {
		return s.ask(t, "POST", "/v1/sandboxes", `{"timeout_seconds":-1}`)
	}},
	api.Unauthorized: {request: func(t *testing.T, s *coded) *http.Response {
		return s.ask(t, "GET", "/v1/sandboxes", "", "X-API-Key", "of nobody")
	}},
	api.Forbidden: {request: func(t *testing.T, s *coded) *http.Response {
		return s.ask(t, "DELETE", "/v1/templates/base", "")
	}},
	api.NotFound: {request: func(t *testing.T, s *coded) *http.Response {
		return s.ask(t, "GET", "/v1/sandboxes/"+api.NewID(api.SandboxPrefix, now()), "")
	}},
	api.Conflict: {request: func(t *testing.T, s *coded) *http.Response {
		s.ask(t, "POST", "/v1/sandboxes", "{}", "Idempotency-Key", "k")
		return s.ask(t, "POST", "/v1/sandboxes", `{"name":"another"}`, "Idempotency-Key", "k")
	}},
	api.Gone: {request: func(t *testing.T, s *coded) *http.Response {
		s.killMachines()
		s.await(t, api.Failed)
		return s.ask(t, "GET", s.path("/processes"), "")
	}},
	api.TooManySnapshots: {limits: Limits{SnapshotsPerSandbox: 1}, request: func(t *testing.T, s *coded) *http.Response {
		s.take(t, s.box.ID, 1)
		return s.ask(t, "POST", s.path("/snapshots"), "{}")
	}},
	api.TooManySnapshotsInFlight: {limits: Limits{SnapshotsInFlight: 1}, request: func(t *testing.T, s *coded) *http.Response {
		s.w.saving = make(chan struct{})
		first := make(chan error, 1)
		go func() {
			_, err := s.CreateSnapshot(t.Context(), s.box.ID, api.SnapshotRequest{})
			first <- err
		}()
		<-s.w.saving
		resp := s.ask(t, "POST", s.path("/snapshots"), "{}")
		s.w.goOn <- struct{}{}
		if err := <-first; err != nil {
			t.Error(err)
		}
		return resp
	}},
	api.TooManySandboxes: {limits: Limits{SandboxesPerTeam: 1}, request: func(t *testing.T, s *coded) *http.Response {
		return s.ask(t, "POST", "/v1/sandboxes", "{}")
	}},
	api.InternalError: {request: func(t *testing.T, s *coded) *http.Response {
		s.w.saveErr = errors.New("the disk is broken")
		return s.ask(t, "POST", s.path("/pause"), "")
	}},
	api.SpawnFailed: {request: func(t *testing.T, s *coded) *http.Response {
		return s.ask(t, "POST", s.path("/exec"), `{"argv":["/nothing/here"]}`)
	}},
	api.OutOfCapacity: {limits: Limits{Memory: 64 << 20}, request: func(t *testing.T, s *coded) *http.Response {
		return s.ask(t, "POST", s.path("/fork"), "{}")
	}},
	api.ExecTimeout: {request: func(t *testing.T, s *coded) *http.Response {
		body := must[[]byte](t)(json.Marshal(map[string]any{
			"argv": []string{must[string](t)(os.Executable())}, "env_vars": map[string]string{sleeper: "yes"}, "timeout_seconds": 1,
		}))
		return s.ask(t, "POST", s.path("/exec"), string(body))
	}},
	api.NotEnoughSpace: {request: func(t *testing.T, s *coded) *http.Response {
		s.w.saveErr = syscall.ENOSPC
		return s.ask(t, "POST", s.path("/snapshots"), "{}")
	}},
}

// TestD10_EveryCodeIsProvoked: each code that the description has is met by some
// request, with the status that goes with it, and no other code is.
func TestD10_EveryCodeIsProvoked(t *testing.T) {
	doc := must[*openapi3.T](t)(openapi3.NewLoader().LoadFromData(server.OpenAPI()))
	var documented []api.Code
	for _, code := range doc.Components.Schemas["ErrorDetail"].Value.Properties["code"].Value.Enum {
		documented = append(documented, api.Code(code.(string)))
	}
	for code := range maps.Keys(notYet) {
		if _, ok := provoked[code]; ok {
			t.Errorf("%s is provoked, and is said not to be", code)
		}
	}
	known := slices.Concat(slices.Collect(maps.Keys(provoked)), slices.Collect(maps.Keys(notYet)))
	slices.Sort(documented)
	slices.Sort(known)
	if !slices.Equal(documented, known) {
		t.Errorf("documented are %v, provoked (or not yet) %v", documented, known)
	}
	for code, p := range provoked {
		t.Run(string(code), func(t *testing.T) {
			s := newCoded(t, p.limits)
			resp := p.request(t, s)
			body := must[[]byte](t)(io.ReadAll(resp.Body))
			var got struct{ Error api.Error }
			if err := json.Unmarshal(body, &got); err != nil {
				t.Fatalf("%d %s: %v", resp.StatusCode, body, err)
			}
			if got.Error.Code != code || got.Error.Message == "" || resp.StatusCode != code.StatusCode() {
				t.Errorf("%d %s, want %d %s", resp.StatusCode, body, code.StatusCode(), code)
			}
			if tooMany := resp.StatusCode == http.StatusServiceUnavailable; tooMany && resp.Header.Get("Retry-After") == "" {
				t.Error("it does not say when to try again")
			}
			checkDescribed(t, doc, resp)
		})
	}
}

// checkDescribed checks that the answer's status is in the description of the
// operation, by its number.
func checkDescribed(t *testing.T, doc *openapi3.T, resp *http.Response) {
	t.Helper()
	path := resp.Request.URL.Path
	for _, id := range []string{"sandboxes", "templates"} {
		if rest, ok := strings.CutPrefix(path, "/v1/"+id+"/"); ok {
			_, sub, more := strings.Cut(rest, "/")
			path = "/v1/" + id + map[string]string{"sandboxes": "/{id}", "templates": "/{name}"}[id]
			if more {
				path += "/" + sub
			}
		}
	}
	op := doc.Paths.Value(path).GetOperation(resp.Request.Method)
	if resp.StatusCode != http.StatusInternalServerError && op.Responses.Status(resp.StatusCode) == nil {
		t.Errorf("%s %s does not have %d", resp.Request.Method, path, resp.StatusCode)
	}
}

// coded is a server of a rig that has one sandbox.
type coded struct {
	*rig
	box *api.Sandbox
	url string
	key string
}

func newCoded(t *testing.T, limits Limits) *coded {
	s := &coded{rig: newRig(t, limits), key: server.NewKey()}
	s.box = s.create(t, api.Settings{})
	srv := httptest.NewServer(server.New(server.Config{
		Account:      func(team string) (api.Service, error) { return s.Engine.Team(team), nil },
		Open:         func(a api.Access) (server.Sandbox, error) { return s.Holder(a) },
		Authenticate: func(k string) (string, bool) { return "one", k == s.key },
	}))
	t.Cleanup(srv.Close)
	s.url = srv.URL
	return s
}

func (s *coded) path(sub string) string { return "/v1/sandboxes/" + s.box.ID + sub }

func (s *coded) ask(t *testing.T, method, path, body string, headers ...string) *http.Response {
	t.Helper()
	r := must[*http.Request](t)(http.NewRequestWithContext(t.Context(), method, s.url+path, bytes.NewReader([]byte(body))))
	r.Header.Set("X-API-Key", s.key)
	r.Header.Set("X-Access-Token", s.box.AccessToken)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp := must[*http.Response](t)(http.DefaultClient.Do(r))
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// await waits for a state of the sandbox.
func (s *coded) await(t *testing.T, state api.State) {
	t.Helper()
	r := api.WaitRequest{States: []api.State{state}, Timeout: time.Minute}
	if b, err := s.Wait(t.Context(), s.box.ID, r); err != nil || b.State != state {
		t.Fatalf("%+v, %v", b, err)
	}
}
