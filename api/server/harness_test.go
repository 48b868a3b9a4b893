package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/client"
	"github.com/forkvm/forkvm/api/internal/apitest"
	"github.com/forkvm/forkvm/api/server"
)

// contract checks answers against the description.
type contract struct {
	t      testing.TB
	doc    *openapi3.T
	router routers.Router
	next   http.Handler

	mu   sync.Mutex
	went map[string]bool // operations that went well; guarded by mu
}

var load = sync.OnceValues(func() (*openapi3.T, error) {
	doc, err := openapi3.NewLoader().LoadFromData(server.OpenAPI())
	if err == nil {
		err = doc.Validate(context.Background())
	}
	return doc, err
})

func under(t testing.TB, next http.Handler) *contract {
	t.Helper()
	doc, err := load()
	if err != nil {
		t.Fatal(err)
	}
	r, err := legacy.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return &contract{t: t, doc: doc, router: r, next: next, went: make(map[string]bool)}
}

func (c *contract) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	tee := &tee{ResponseWriter: w}
	defer c.check(r, tee) // also if the connection is cut
	c.next.ServeHTTP(tee, r)
}

func (c *contract) check(r *http.Request, a *tee) {
	if a.status == 0 {
		return // cut before it began
	}
	if a.Header().Get("X-Request-Id") == "" {
		c.t.Errorf("%s %s: no request id", r.Method, r.URL)
	}
	route, params, err := c.router.FindRoute(r)
	if err != nil {
		if a.status != http.StatusNotFound && a.status != http.StatusMethodNotAllowed {
			c.t.Errorf("%s %s: not described, and answered %d", r.Method, r.URL, a.status)
		}
		return
	}
	if a.status < 300 {
		c.mu.Lock()
		c.went[route.Operation.OperationID] = true
		c.mu.Unlock()
	}
	kind := a.Header().Get("Content-Type")
	if a.status >= 400 && kind != "application/json" {
		c.t.Errorf("%s %s: error %d in %q", r.Method, r.URL, a.status, kind)
	}
	req := &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route}
	in := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: req, Status: a.status, Header: a.Header(), Body: io.NopCloser(&a.body),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, ExcludeResponseBody: kind != "application/json"},
	}
	if err := openapi3filter.ValidateResponse(context.Background(), in); err != nil {
		c.t.Errorf("%s %s: %v", r.Method, r.URL, err)
	}
	if kind != "application/json" && a.status == http.StatusOK && route.Operation.Responses.Status(200).Value.Content[strings.Split(kind, ";")[0]] == nil {
		c.t.Errorf("%s %s: %q is not described", r.Method, r.URL, kind)
	}
}

// tee keeps what is written in JSON.
type tee struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (t *tee) Unwrap() http.ResponseWriter { return t.ResponseWriter }

func (t *tee) WriteHeader(status int) {
	t.status = status
	t.ResponseWriter.WriteHeader(status)
}

func (t *tee) Write(b []byte) (int, error) {
	if t.status == 0 {
		t.status = http.StatusOK
	}
	if t.Header().Get("Content-Type") == "application/json" {
		t.body.Write(b)
	}
	return t.ResponseWriter.Write(b)
}

// bench is a server of a fake, and a client of it.
type bench struct {
	*client.Client
	t        testing.TB
	fake     *apitest.Fake
	contract *contract
	url      string
	cancel   context.CancelFunc // of the base context
	close    func()             // returns when no request is under way
	id       string
	access   api.Access
}

func start(t testing.TB, change ...func(*server.Config)) *bench {
	t.Helper()
	b := &bench{t: t, fake: new(apitest.Fake), id: api.NewID(api.SandboxPrefix, apitest.Now)}
	b.access = api.Access{ID: b.id, Token: apitest.Token}
	config := b.fake.Config()
	for _, f := range change {
		f(&config)
	}
	b.contract = under(t, server.New(config))
	s, cancel := apitest.Serve(t, b.contract)
	b.url, b.cancel, b.close = s.URL, cancel, s.Close
	c, err := client.New(s.URL, client.Options{Key: apitest.Key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdle)
	b.Client = c
	return b
}

func (b *bench) sandbox(sub string) string { return "/v1/sandboxes/" + b.id + sub }

// ask sends a request with a key and a token, and returns the status, what is in
// the body and the header of the answer. More headers are "Name: value".
func (b *bench) ask(method, path, body string, headers ...string) (int, string, http.Header) {
	b.t.Helper()
	req, err := http.NewRequest(method, b.url+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("X-API-Key", apitest.Key)
	req.Header.Set("X-Access-Token", apitest.Token)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
		if value == "" {
			req.Header.Del(name)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp.StatusCode, string(got), resp.Header
}

// wantError checks that an answer is an error with the code, whose message has
// the words.
func wantError(t testing.TB, what string, status int, body string, code api.Code, words string) {
	t.Helper()
	var e struct {
		Error api.Error `json:"error"`
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil {
		t.Errorf("%s: %d %q: %v", what, status, body, err)
	}
	if status != code.StatusCode() || e.Error.Code != code || !strings.Contains(e.Error.Message, words) {
		t.Errorf("%s: %d %s, want %d %s … %s", what, status, body, code.StatusCode(), code, words)
	}
}
