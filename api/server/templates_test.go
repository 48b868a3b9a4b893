package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/client"
	"github.com/forkvm/forkvm/api/internal/apitest"
	"github.com/forkvm/forkvm/api/server"
)

// form is a body of parts, each a name and what is in it.
func form(parts ...[2]string) string {
	var b strings.Builder
	for _, p := range parts {
		fmt.Fprintf(&b, "--frontier\r\nContent-Disposition: form-data; name=%q\r\n\r\n%s\r\n", p[0], p[1])
	}
	return b.String() + "--frontier--\r\n"
}

const formType = "Content-Type: multipart/form-data; boundary=frontier"

var build = api.BuildRequest{Name: "web", File: "FROM base"}

// TestEventsOfABuild reads a stream as it is on the wire.
func TestEventsOfABuild(t *testing.T) {
	b := start(t)
	b.fake.OnBuild = func(_ context.Context, r api.BuildRequest, archive io.Reader, log io.Writer) (*api.Template, error) {
		if archive != nil {
			if _, err := io.Copy(io.Discard, archive); err != nil {
				return nil, err
			}
		}
		io.WriteString(log, "[1/1] FROM base\n")
		log.Write([]byte{0xff})
		return &api.Template{Name: r.Name, Ready: true}, nil
	}
	request := [2]string{"request", `{"name":"web"}`}
	want := `event: log
data: "[1/1] FROM base\n"

event: log
data: {"base64":"/w=="}

event: template
data: {"name":"web","built_in":false,"ready":true}

`
	for _, body := range []string{form(request), form(request, [2]string{"context", "a tar"})} {
		status, got, h := b.ask("POST", "/v1/templates", body, formType)
		if status != http.StatusOK || got != want || h.Get("Content-Type") != "text/event-stream" {
			t.Errorf("got %d %s", status, got)
		}
	}
	failure := api.Errorf(api.BadRequest, "step 2 failed")
	b.fake.OnBuild = func(_ context.Context, _ api.BuildRequest, _ io.Reader, log io.Writer) (*api.Template, error) {
		io.WriteString(log, "x")
		return nil, failure
	}
	status, got, _ := b.ask("POST", "/v1/templates", form(request), formType)
	want = "event: error\ndata: {\"error\":{\"code\":\"bad_request\",\"message\":\"step 2 failed\"}}\n\n"
	if status != http.StatusOK || !strings.HasSuffix(got, want) {
		t.Errorf("got %d %s", status, got)
	}
	var log strings.Builder
	if _, err := b.BuildTemplate(t.Context(), build, nil, &log); !errors.Is(err, api.BadRequest) || err.Error() != failure.Message || log.String() != "x" {
		t.Errorf("the client got %v, %q", err, &log)
	}
	b.fake.OnBuild = func(context.Context, api.BuildRequest, io.Reader, io.Writer) (*api.Template, error) {
		return nil, failure
	}
	status, got, _ = b.ask("POST", "/v1/templates", form(request), formType)
	wantError(t, "before the first event", status, got, api.BadRequest, failure.Message)
}

// TestBodiesOfBuilds: what is none is refused before the service sees it.
func TestBodiesOfBuilds(t *testing.T) {
	b := start(t, func(c *server.Config) { c.MaxBody = 1000 })
	b.fake.OnBuild = func(_ context.Context, _ api.BuildRequest, archive io.Reader, log io.Writer) (*api.Template, error) {
		if archive == nil {
			t.Error("it was built")
			return nil, nil
		}
		_, err := io.Copy(io.Discard, archive)
		if err == nil {
			t.Error("a context that is not whole ended well")
		}
		return nil, err
	}
	good := [2]string{"request", `{"name":"web"}`}
	for what, c := range map[string][2]string{
		"no parts":                {form(), "no part request"},
		"no form":                 {`{"name":"web"}`, "body"},
		"cut":                     {"--frontier\r\nContent-Disposition: form-data; name=\"request\"\r\n\r\n{", "body"},
		"another part":            {form([2]string{"else", "{}"}), "is not expected"},
		"context first":           {form([2]string{"context", "x"}, good), "is not expected"},
		"another part after":      {form(good, [2]string{"else", "x"}), "is not expected"},
		"one more":                {form(good, [2]string{"context", "x"}, [2]string{"context", "y"}), "after its last part"},
		"a cut context":           {strings.TrimSuffix(form(good, [2]string{"context", "x"}), "\r\n--frontier--\r\n"), "body"},
		"much after":              {form(good) + strings.Repeat("x", 1<<20), "after its last part"},
		"much after a context":    {form(good, [2]string{"context", "x"}) + strings.Repeat("x", 1<<20), "after its last part"},
		"no JSON":                 {form([2]string{"request", "x"}), "not JSON"},
		"empty":                   {form([2]string{"request", ""}), "missing"},
		"unknown field":           {form([2]string{"request", `{"name":"web","path":"/etc"}`}), "path: unknown field"},
		"too large":               {form([2]string{"request", `{"name":"` + strings.Repeat("x", 1000) + `"}`}), "larger than"},
		"a field of another kind": {form([2]string{"request", `{"name":"web","vcpus":"2"}`}), "vcpus"},
	} {
		kind := formType
		if what == "no form" {
			kind = "Content-Type: application/json"
		}
		status, body, _ := b.ask("POST", "/v1/templates", c[0], kind)
		wantError(t, what, status, body, api.BadRequest, c[1])
	}
}

// TestContextsAreStreamed with flat memory on both sides, before the log is.
func TestContextsAreStreamed(t *testing.T) {
	b := start(t)
	const size = 32 << 20
	line := bytes.Repeat([]byte("x"), 1024)
	b.fake.OnBuild = func(_ context.Context, r api.BuildRequest, archive io.Reader, log io.Writer) (*api.Template, error) {
		n, err := io.Copy(io.Discard, archive)
		if n != size || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		for range size / 64 / 1024 {
			log.Write(line)
		}
		return apitest.Template(r.Name), nil
	}
	var log counter
	made, err := b.BuildTemplate(t.Context(), build, io.LimitReader(zeros{}, size), &log)
	if err != nil || !reflect.DeepEqual(made, apitest.Template("web")) || log != size/64 {
		t.Errorf("%+v, %v, %d bytes of log", made, err, log)
	}
	broken := errors.New("disk on fire")
	b.fake.OnBuild = func(_ context.Context, _ api.BuildRequest, archive io.Reader, _ io.Writer) (*api.Template, error) {
		_, err := io.Copy(io.Discard, archive)
		if err == nil {
			t.Error("half a context was taken for a whole one")
		}
		return nil, err
	}
	if _, err := b.BuildTemplate(t.Context(), build, io.MultiReader(strings.NewReader("half"), errorReader{broken}), nil); !errors.Is(err, broken) {
		t.Errorf("a context that cannot be read: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type counter int64

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

type errorReader struct{ err error }

func (e errorReader) Read([]byte) (int, error) { return 0, e.err }

// TestBuildEndsWithItsClient, also while it says nothing; and what the client
// cannot write ends both.
func TestBuildEndsWithItsClient(t *testing.T) {
	b := start(t)
	begun, ended := make(chan struct{}, 1), make(chan error, 1)
	b.fake.OnBuild = func(ctx context.Context, _ api.BuildRequest, archive io.Reader, log io.Writer) (*api.Template, error) {
		if archive != nil {
			io.Copy(io.Discard, archive)
			io.WriteString(log, "x")
		}
		begun <- struct{}{}
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}
	for _, archive := range []io.Reader{nil, strings.NewReader("a tar")} {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-begun; cancel() }()
		if _, err := b.BuildTemplate(ctx, build, archive, io.Discard); !errors.Is(err, context.Canceled) {
			t.Errorf("the client: %v", err)
		}
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the build: %v", err)
		}
	}
	full := errors.New("full")
	if _, err := b.BuildTemplate(t.Context(), build, strings.NewReader("a tar"), fullWriter{full}); !errors.Is(err, full) {
		t.Errorf("the log cannot be written: %v", err)
	}
	<-begun
	<-ended
	b.fake.OnBuild = func(ctx context.Context, _ api.BuildRequest, _ io.Reader, log io.Writer) (*api.Template, error) {
		io.WriteString(log, "x")
		panic(http.ErrAbortHandler)
	}
	if _, err := b.BuildTemplate(t.Context(), build, nil, nil); !errors.Is(err, client.ErrCut) {
		t.Errorf("a stream without its end: %v", err)
	}
}

// TestBuildDoesNotWaitForItsReader: a client that takes nothing of a log has gone.
func TestBuildDoesNotWaitForItsReader(t *testing.T) {
	b := start(t, func(c *server.Config) { c.KeepAlive = 20 * time.Millisecond })
	ended := make(chan error, 1)
	b.fake.OnBuild = func(_ context.Context, _ api.BuildRequest, _ io.Reader, log io.Writer) (*api.Template, error) {
		for {
			if _, err := log.Write(make([]byte, 64<<10)); err != nil {
				ended <- err
				return nil, err
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	body := form([2]string{"request", `{"name":"web"}`})
	req, err := http.NewRequestWithContext(ctx, "POST", b.url+"/v1/templates", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", apitest.Key)
	name, value, _ := strings.Cut(formType, ": ")
	req.Header.Set(name, value)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	select {
	case err := <-ended:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Error("it still waits")
	}
}

type fullWriter struct{ err error }

func (w fullWriter) Write([]byte) (int, error) { return 0, w.err }

// pipes listens for connections that are in memory.
type pipes chan net.Conn

func (p pipes) Addr() net.Addr { return &net.UnixAddr{Net: "pipe"} }
func (p pipes) Close() error   { close(p); return nil }

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

// TestContextThatDoesNotCome: a client that sends nothing for a minute is not
// waited for, and its connection is closed; one that is slow is waited for. How long
// a build takes then does not matter.
func TestContextThatDoesNotCome(t *testing.T) { synctest.Test(t, testContextThatDoesNotCome) }

func testContextThatDoesNotCome(t *testing.T) {
	var given time.Time // up
	fake := &apitest.Fake{OnBuild: func(ctx context.Context, r api.BuildRequest, archive io.Reader, _ io.Writer) (*api.Template, error) {
		if _, err := io.Copy(io.Discard, archive); err != nil {
			given = time.Now()
			return nil, err
		}
		select {
		case <-time.After(time.Hour):
			return apitest.Template(r.Name), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	l := make(pipes)
	s := &http.Server{Handler: server.New(fake.Config())}
	go s.Serve(l)
	defer s.Close()
	whole := form([2]string{"request", `{"name":"web"}`}, [2]string{"context", strings.Repeat("x", 100)})
	for what, c := range map[string]struct {
		sent string
		took time.Duration // after the last piece was sent
	}{"all": {whole, time.Hour}, "half": {whole[:len(whole)-80], time.Minute}} {
		ours, theirs := net.Pipe()
		defer ours.Close()
		l <- theirs
		fmt.Fprintf(ours, "POST /v1/templates HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\n%s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", apitest.Key, formType, len(whole))
		head := strings.Index(c.sent, "xxx")
		for k := range 4 { // it comes in a minute
			time.Sleep(14 * time.Second)
			io.WriteString(ours, c.sent[k*head/4:(k+1)*head/4])
		}
		for rest := c.sent[head:]; len(rest) > 0; {
			time.Sleep(59 * time.Second)
			n := min(len(rest), 50)
			io.WriteString(ours, rest[:n])
			rest = rest[n:]
		}
		begin := time.Now()
		all, err := io.ReadAll(ours) // an answer, if there is one, is a matter of luck: reading that fails ends the request
		ended, ok := time.Now(), strings.HasPrefix(string(all), "HTTP/1.1 200")
		if what == "half" {
			ended, ok = given, !ok
		}
		if ended.Sub(begin) != c.took || !ok || err != nil {
			t.Errorf("%s: after %v: %s, %v", what, ended.Sub(begin), all, err)
		}
	}
}

// TestX18_AdministratorsBuildAndDelete: over HTTP nobody else does.
func TestX18_AdministratorsBuildAndDelete(t *testing.T) {
	var keys []string
	var file bytes.Buffer
	for _, admin := range []bool{false, true} {
		key := server.NewKey()
		line, err := server.KeyLine("team", fmt.Sprint("key-", admin), key, admin)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
		fmt.Fprintln(&file, line)
	}
	known, err := server.ParseKeys(file.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	for name, admins := range map[string]func(string) bool{"keys": known.Admin, "no administrators": nil} {
		b := start(t, func(c *server.Config) { c.Authenticate, c.Admin = known.Team, admins })
		called := 0
		b.fake.Called = func(verb string, _ ...any) { called++ }
		for k, key := range keys {
			c, err := client.New(b.url, client.Options{Key: key})
			if err != nil {
				t.Fatal(err)
			}
			defer c.CloseIdle()
			may := k == 1 && admins != nil
			called = 0
			_, err = c.BuildTemplate(t.Context(), build, io.LimitReader(zeros{}, 1<<20), nil)
			err2 := c.DeleteTemplate(t.Context(), "web")
			if may && (err != nil || err2 != nil || called != 2) {
				t.Errorf("%s: an administrator: %v, %v", name, err, err2)
			}
			if !may && (!errors.Is(err, api.Forbidden) || !errors.Is(err2, api.Forbidden) || called != 0) {
				t.Errorf("%s: somebody else: %v, %v, %d calls", name, err, err2, called)
			}
			if _, err := c.Template(t.Context(), "web"); err != nil {
				t.Errorf("%s: all may look: %v", name, err)
			}
			if r, err := c.TemplateLog(t.Context(), "web"); readAll(r, err) != nil {
				t.Errorf("%s: all may read the log: %v", name, err)
			}
		}
		if err := b.DeleteTemplate(t.Context(), "web"); !errors.Is(err, api.Unauthorized) {
			t.Errorf("%s: an unknown key: %v", name, err)
		}
	}
}
