package server_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/client"
	"github.com/forkvm/forkvm/api/internal/apitest"
	"github.com/forkvm/forkvm/api/server"
)

// TestD09_RequestsAreStrict sends what makes no sense. The message names the
// field, and the service is not asked.
func TestD09_RequestsAreStrict(t *testing.T) {
	b := start(t, func(c *server.Config) { c.MaxBody = 1000 })
	b.fake.Called = func(verb string, _ ...any) { t.Errorf("%s was called", verb) }
	snapshot := "/v1/snapshots/" + api.NewID(api.SnapshotPrefix, apitest.Now)
	for _, c := range []struct{ method, path, body, words string }{
		{"POST", "/v1/sandboxes", `{"nme":"x"}`, "nme"},
		{"POST", "/v1/sandboxes", `{"Name":"x"}`, "Name"},
		{"POST", "/v1/sandboxes", `{"name":"x","name":"y"}`, "name"},
		{"POST", "/v1/sandboxes", `{"name":1}`, "name: a string is expected, not number"},
		{"POST", "/v1/sandboxes", `{"name":null}`, "name"},
		{"POST", "/v1/sandboxes", `{"metadata":[]}`, "metadata: an object"},
		{"POST", "/v1/sandboxes", `{"metadata":{"a":1}}`, "metadata.a"},
		{"POST", "/v1/sandboxes", `{"metadata":{"a":"1","a":"2"}}`, "metadata.a"},
		{"POST", "/v1/sandboxes", `{"timeout_seconds":1.5}`, "timeout_seconds: a whole number"},
		{"POST", "/v1/sandboxes", `{"timeout_seconds":"1"}`, "timeout_seconds"},
		{"POST", "/v1/sandboxes", `{"timeout_seconds":1e99}`, "timeout_seconds"},
		{"POST", "/v1/sandboxes", `{} {}`, "body"},
		{"POST", "/v1/sandboxes", `{}x`, "body"},
		{"POST", "/v1/sandboxes", `{`, "body"},
		{"POST", "/v1/sandboxes", `[]`, "body: an object"},
		{"POST", "/v1/sandboxes", `null`, "body"},
		{"POST", "/v1/sandboxes", "{\"name\":\"\xff\"}", "UTF-8"},
		{"POST", "/v1/sandboxes", `{"name":"` + strings.Repeat("x", 1000) + `"}`, "body"},
		{"POST", "/v1/sandboxes?x=1", `{}`, "x"},
		{"GET", "/v1/sandboxes?limit=0", "", "limit"},
		{"GET", "/v1/sandboxes?limit=101", "", "limit"},
		{"GET", "/v1/sandboxes?limit=1&limit=1", "", "limit"},
		{"GET", "/v1/sandboxes?limit=-1", "", "limit"},
		{"GET", "/v1/sandboxes?state=asleep", "", "state"},
		{"GET", "/v1/sandboxes?metadata=1", "", "metadata"},
		{"GET", "/v1/sandboxes?a=%zz", "", "query"},
		{"GET", "/v1/snapshots?sandbox_id=x", "", "sandbox_id"},
		{"GET", "/v1/events?after=x", "", "after"},
		{"GET", "/v1/events?sandbox_id=", "", "sandbox_id"},
		{"GET", b.sandbox("/wait"), "", "state"},
		{"GET", b.sandbox("/wait?state=paused&timeout=NaN"), "", "timeout"},
		{"GET", b.sandbox("/wait?state=paused&timeout=3601"), "", "timeout"},
		{"GET", b.sandbox("/wait?state=paused&timeout=-1"), "", "timeout"},
		{"PATCH", b.sandbox(""), ``, "body"},
		{"PATCH", b.sandbox(""), `{}`, "body"},
		{"PATCH", b.sandbox(""), `{"state":"paused"}`, "state"},
		{"PATCH", snapshot, `{}`, "name"},
		{"POST", b.sandbox("/pause"), `{"now":true}`, "now"},
		{"POST", b.sandbox("/fork"), `{"count":"2"}`, "count"},
		{"POST", b.sandbox("/exec"), ``, "body"},
		{"POST", b.sandbox("/exec"), `{"argv":"ls"}`, "argv"},
		{"POST", b.sandbox("/exec"), `{"argv":["ls",2]}`, "argv[1]"},
		{"POST", b.sandbox("/exec"), `{"argv":["ls"],"stdin":5}`, "stdin"},
		{"POST", b.sandbox("/exec"), `{"argv":["ls"],"stdin":{}}`, "stdin: an object has base64"},
		{"POST", b.sandbox("/exec"), `{"argv":["ls"],"stdin":{"base64":null}}`, "stdin"},
		{"POST", b.sandbox("/exec"), `{"argv":["ls"],"stdin":{"Base64":"eA=="}}`, "stdin"},
		{"POST", b.sandbox("/exec"), `{"argv":["ls"],"stdin":{"base64":"eA==","b":"eA=="}}`, "stdin"},
		{"POST", b.sandbox("/exec/stream"), `{"argv":["ls"],"stdin":true}`, "stdin"},
		{"POST", b.sandbox("/exec/stream"), `{"argv":["ls"],"tty":{"rows":70000,"cols":1}}`, "tty.rows"},
		{"GET", b.sandbox("/exec/ws"), ``, "WebSocket"},
		{"POST", b.sandbox("/processes/1/signal"), `{}`, "signal"},
		{"POST", b.sandbox("/processes/1/signal"), `{"signal":9}`, "signal"},
		{"GET", b.sandbox("/processes/1/attach?live=1"), "", "live"},
		{"GET", b.sandbox("/processes/1/attach?stdin=true"), "", "stdin"},
		{"GET", b.sandbox("/files"), "", "path"},
		{"GET", b.sandbox("/files?path="), "", "path"},
		{"PUT", b.sandbox("/files?path=/a&mode=0999"), "", "mode"},
		{"PUT", b.sandbox("/files?path=/a&mode=10000"), "", "mode"},
		{"POST", b.sandbox("/files/rename?path=/a"), "", "to"},
		{"DELETE", b.sandbox("/files?path=/a&recursive=yes"), "", "recursive"},
	} {
		status, body, _ := b.ask(c.method, c.path, c.body)
		wantError(t, c.method+" "+c.path+" "+c.body, status, body, api.BadRequest, c.words)
	}
	status, body, _ := b.ask("GET", b.sandbox("/processes/x/wait"), "")
	wantError(t, "a process that is none", status, body, api.NotFound, "x")
}

// TestX13_PatchWithNothing is X13 for a client.
func TestX13_PatchWithNothing(t *testing.T) {
	b := start(t)
	if _, err := b.Update(t.Context(), b.id, api.Patch{}); !errors.Is(err, api.BadRequest) {
		t.Errorf("got %v", err)
	}
}

// TestD11_WhoMayDoWhat tries keys and tokens on what they are for and on what
// they are not.
func TestD11_WhoMayDoWhat(t *testing.T) {
	b := start(t)
	wrong := api.Access{ID: b.id, Token: "tok_wrong"}
	if _, err := b.Exec(t.Context(), wrong, api.ExecRequest{}); !errors.Is(err, api.Unauthorized) {
		t.Errorf("a wrong token: %v", err)
	}
	if _, err := b.Run(t.Context(), wrong, api.StartRequest{}, api.Streams{}); !errors.Is(err, api.Unauthorized) {
		t.Errorf("a wrong token: %v", err)
	}
	const noKey, noToken = "X-API-Key: ", "X-Access-Token: "
	for _, c := range []struct {
		path    string
		headers []string
		ok      bool
	}{
		{"/v1/sandboxes", nil, true},
		{"/v1/sandboxes", []string{noToken}, true},
		{"/v1/sandboxes", []string{noKey}, false},
		{"/v1/sandboxes", []string{noKey, "Authorization: Bearer " + apitest.Key}, true},
		{"/v1/sandboxes", []string{noKey, "Authorization: bearer  " + apitest.Key}, true},
		{"/v1/sandboxes", []string{noKey, "Authorization: Basic " + apitest.Key}, false},
		{"/v1/sandboxes", []string{noKey, "Authorization: Bearer wrong"}, false},
		{"/v1/sandboxes", []string{"X-API-Key: wrong"}, false},
		{"/v1/sandboxes", []string{"Authorization: Bearer other"}, false},
		{"/metrics", []string{noKey}, false},
		{b.sandbox("/processes"), []string{noKey}, true},
		{b.sandbox("/processes"), []string{noToken}, false},
		{b.sandbox("/processes"), []string{"X-Access-Token: " + apitest.Key}, false},
		{b.sandbox("/files/stat?path=/"), []string{noToken}, false},
	} {
		status, body, header := b.ask("GET", c.path, "", c.headers...)
		if c.ok && status != http.StatusOK {
			t.Errorf("%s %q: %d %s", c.path, c.headers, status, body)
		}
		if !c.ok {
			wantError(t, c.path, status, body, api.Unauthorized, "")
			if header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s %q: no WWW-Authenticate", c.path, c.headers)
			}
		}
	}
}

// TestSocketsNeedNoKey has a team for those that can open the socket, and no
// other way around a key.
func TestSocketsNeedNoKey(t *testing.T) {
	t.Setenv(client.KeyVariable, "")
	fake := new(apitest.Fake)
	config := fake.Config()
	config.SocketTeam = "local"
	var team string
	config.Account = func(name string) (api.Service, error) { team = name; return fake, nil }
	h := server.New(config)
	path := t.TempDir() + "/s"
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.Listener.Close()
	s.Listener = l
	s.Start()
	defer s.Close()
	c, err := client.New("unix://"+path, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseIdle()
	if _, err := c.List(t.Context(), api.SandboxQuery{}); err != nil || team != "local" {
		t.Errorf("team %q, %v", team, err)
	}
	if err := c.DeleteTemplate(t.Context(), "web"); err != nil {
		t.Errorf("who can open the socket is an administrator: %v", err)
	}
	wrong, _ := client.New(path, client.Options{Key: "wrong"})
	defer wrong.CloseIdle()
	if _, err := wrong.List(t.Context(), api.SandboxQuery{}); !errors.Is(err, api.Unauthorized) {
		t.Errorf("a wrong key over a socket: %v", err)
	}
	a := api.Access{ID: api.NewID(api.SandboxPrefix, apitest.Now), Token: apitest.Token}
	if _, err := c.Run(t.Context(), a, api.StartRequest{Command: api.Command{Argv: []string{"a"}}}, api.Streams{}); err != nil {
		t.Errorf("a WebSocket over a socket: %v", err)
	}
	tcp, _ := apitest.Serve(t, h)
	remote, _ := client.New(tcp.URL, client.Options{})
	defer remote.CloseIdle()
	if _, err := remote.List(context.Background(), api.SandboxQuery{}); !errors.Is(err, api.Unauthorized) {
		t.Errorf("no key over TCP: %v", err)
	}
}

// TestSocketsAreAdministratorsOnlyWithATeam: without one they need the key of an
// administrator as others do, and what comes with a key over one is what the key is.
func TestSocketsAreAdministratorsOnlyWithATeam(t *testing.T) {
	t.Setenv(client.KeyVariable, "")
	for _, c := range []struct {
		team, key string
		admin     bool
		want      error
	}{
		{"", "", true, api.Unauthorized}, {"", apitest.Key, false, api.Forbidden}, {"", apitest.Key, true, nil},
		{"local", "", false, nil}, {"local", apitest.Key, false, api.Forbidden}, {"local", apitest.Key, true, nil},
	} {
		config := new(apitest.Fake).Config()
		config.SocketTeam, config.Admin = c.team, func(string) bool { return c.admin }
		l, err := net.Listen("unix", t.TempDir()+"/s")
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: server.New(config)}
		go s.Serve(l)
		defer s.Close()
		by, err := client.New("unix://"+l.Addr().String(), client.Options{Key: c.key})
		if err != nil {
			t.Fatal(err)
		}
		defer by.CloseIdle()
		_, buildErr := by.BuildTemplate(t.Context(), api.BuildRequest{Name: "web", File: "FROM base"}, nil, nil)
		for _, err := range []error{buildErr, by.DeleteTemplate(t.Context(), "web")} {
			if !errors.Is(err, c.want) {
				t.Errorf("%+v: %v", c, err)
			}
		}
	}
}
