package client

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/internal/apitest"
)

func TestAddresses(t *testing.T) {
	for address, base := range map[string]string{
		"http://localhost:1": "http://localhost:1", "https://h/p/": "https://h/p", "unix:///run/s": "http://forkvm", "/run/s": "http://forkvm",
		"": "", "localhost:1": "", "ftp://h": "", "http://": "", "unix://host/s": "", "unix://": "", "http://u:secret@h": "", "http://h?x": "", "http://h/%zz": "",
	} {
		c, err := New(address, Options{})
		if (err == nil) != (base != "") || err == nil && c.base != base {
			t.Errorf("%q: %v, %v", address, c, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error tells the password: %v", err)
		}
	}
}

// TestU21_KeyOfTheEnvironment takes the key from the environment, and rather from
// the options.
func TestU21_KeyOfTheEnvironment(t *testing.T) {
	t.Setenv(KeyVariable, "env")
	var got string
	s, _ := apitest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization") + r.Header.Get("X-Access-Token")
		w.Write([]byte("{}"))
	}))
	id := api.NewID(api.SandboxPrefix, apitest.Now)
	for option, want := range map[string]string{"": "Bearer env", "option": "Bearer option"} {
		c, err := New(s.URL, Options{Key: option})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Get(t.Context(), id); err != nil || got != want {
			t.Errorf("key %q, %v", got, err)
		}
		if _, err := c.Stat(t.Context(), api.Access{ID: id, Token: "tok"}, "/"); err != nil || got != "tok" {
			t.Errorf("a file is asked for with %q, %v", got, err)
		}
	}
}

// TestRetries cuts the first answers of each request. What may not be repeated is
// not.
func TestRetries(t *testing.T) {
	var n atomic.Int64
	keys := make(chan string, 100)
	s, _ := apitest.Serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		n.Add(1)
		keys <- r.Header.Get("Idempotency-Key")
		panic(http.ErrAbortHandler)
	}))
	transport := &http.Transport{DisableKeepAlives: true} // which has retries of its own for connections that were kept
	c, err := New(s.URL, Options{Key: "k", Transport: transport, Tries: 3})
	if err != nil {
		t.Fatal(err)
	}
	id, ctx := api.NewID(api.SandboxPrefix, apitest.Now), t.Context()
	a := api.Access{ID: id}
	argv := api.Command{Argv: []string{"a"}}
	for name, call := range map[string]struct {
		f     func() error
		tries int64
	}{
		"get":     {func() error { _, err := c.Get(ctx, id); return err }, 3},
		"destroy": {func() error { return c.Destroy(ctx, id) }, 3},
		"create":  {func() error { _, err := c.Create(ctx, api.CreateRequest{}); return err }, 3},
		"fork":    {func() error { _, err := c.Fork(ctx, id, api.ForkRequest{}); return err }, 3},
		"exec":    {func() error { _, err := c.Exec(ctx, a, api.ExecRequest{Command: argv}); return err }, 1},
		"run":     {func() error { _, err := c.Run(ctx, a, api.StartRequest{Command: argv}, api.Streams{}); return err }, 1},
		"write": {func() error {
			_, err := c.WriteFile(ctx, a, "/a", strings.NewReader("x"), api.WriteOptions{})
			return err
		}, 1},
	} {
		n.Store(0)
		err := call.f()
		var e *api.Error
		if !errors.As(err, &e) || !errors.Is(err, api.InternalError) || n.Load() != call.tries {
			t.Errorf("%s: %v after %d tries, want %d", name, err, n.Load(), call.tries)
		}
		first := <-keys
		for range call.tries - 1 {
			if key := <-keys; key != first || (key != "") != (name == "create" || name == "fork") {
				t.Errorf("%s: keys %q and %q", name, first, key)
			}
		}
	}
	ctx2, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := c.Get(ctx2, id); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a context that ends between two tries: %v", err)
	}
}

// TestNoServer: whoever may start one can tell that there is none.
func TestNoServer(t *testing.T) {
	c, err := New(t.TempDir()+"/none", Options{Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.List(t.Context(), api.SandboxQuery{})
	if !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, api.InternalError) {
		t.Errorf("got %v", err)
	}
}

// TestAnswersOfOthers reads what servers in between say.
func TestAnswersOfOthers(t *testing.T) {
	status, body := 0, ""
	s, _ := apitest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "http://elsewhere/")
		w.Header().Set("Retry-After", "soon")
		w.WriteHeader(status)
		w.Write([]byte(body))
	}))
	c, err := New(s.URL, Options{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	for _, answer := range []struct {
		status int
		body   string
		code   api.Code
	}{
		{502, "<html>", api.InternalError}, {302, "", api.InternalError}, {404, "nothing here", api.NotFound},
		{413, "", api.BadRequest}, {200, "<html>", api.InternalError}, {500, `{"error":{"code":"from_the_future"}}`, "from_the_future"},
	} {
		status, body = answer.status, answer.body
		var e *api.Error
		if _, err := c.Templates(t.Context()); !errors.As(err, &e) || e.Code != answer.code || e.RetryAfter != 0 {
			t.Errorf("%d %q: %v", status, body, err)
		}
	}
}
