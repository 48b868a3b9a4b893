package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/client"
	"github.com/forkvm/forkvm/api/server"
)

// overheard is what somebody reads who may read much, but no secrets.
type overheard struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (o *overheard) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *overheard) add(t *testing.T, v any, err error) {
	t.Helper()
	b, failed := json.Marshal(v)
	if failed != nil {
		t.Fatal(failed)
	}
	fmt.Fprintf(o, "%s %v\n", b, err)
}

func (o *overheard) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// TestScenarioB23SecretsStayWithTheirOwner: a sandbox's token opens neither its
// forks nor its past, and no list, event, snapshot, figure, error or log has a
// token, a key, or a value of an environment.
func TestScenarioB23SecretsStayWithTheirOwner(t *testing.T) {
	var heard overheard
	key := server.NewKey()
	r := newRig(t, Limits{})
	r.log = slog.New(slog.NewJSONHandler(&heard, &slog.HandlerOptions{Level: slog.LevelDebug}))
	registry := prometheus.NewRegistry()
	if err := registry.Register(r.Engine); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(server.New(server.Config{
		Account:      func(team string) (api.Service, error) { return r.Engine.Team(team), nil },
		Open:         func(a api.Access) (server.Sandbox, error) { return r.Holder(a) },
		Authenticate: func(k string) (string, bool) { return "one", k == key },
		Logger:       r.log, Registry: registry,
	}))
	defer srv.Close()
	c := must[*client.Client](t)(client.New(srv.URL, client.Options{Key: key}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- c.Events(ctx, api.EventQuery{}, func() { close(ready) }, func(e api.Event) error {
			heard.add(t, e, nil)
			if e.Type == api.SnapshotDeleted { // the last
				return io.EOF
			}
			return nil
		})
	}()
	soon(t, ready)

	secrets := map[string]string{"the key": key}
	value := func(what string) map[string]string {
		secrets["the value for "+what] = "hush-" + what
		return map[string]string{"NAME": "hush-" + what}
	}
	parent := must[*api.Sandbox](t)(c.Create(ctx, api.CreateRequest{Settings: api.Settings{EnvVars: value("parent")}}))
	f := must[*api.ForkResult](t)(c.Fork(ctx, parent.ID, api.ForkRequest{Settings: api.Settings{EnvVars: value("fork")}}))
	child := f.Children[0].Sandbox
	snap := must[*api.Snapshot](t)(c.CreateSnapshot(ctx, parent.ID, api.SnapshotRequest{Name: "s"}))
	restored := must[*api.Sandbox](t)(c.Create(ctx, api.CreateRequest{FromSnapshot: snap.ID, Settings: api.Settings{EnvVars: value("restored")}}))
	must[*api.Sandbox](t)(c.Pause(ctx, parent.ID))
	resumed := must[*api.Sandbox](t)(c.Resume(ctx, parent.ID))
	tokens := map[string]string{
		"parent": parent.AccessToken, "child": child.AccessToken, "restored": restored.AccessToken, "resumed": resumed.AccessToken,
	}
	ids := map[string]string{"child": child.ID, "restored": restored.ID, "resumed": parent.ID}
	for whose, token := range tokens {
		secrets["the token of "+whose] = token
		for which, id := range ids {
			_, err := c.Processes(ctx, api.Access{ID: id, Token: token})
			heard.add(t, nil, err)
			switch {
			case whose == which && err != nil:
				t.Errorf("%s with its own token: %v", which, err)
			case whose != which:
				wantCode(t, err, api.Unauthorized)
			}
		}
	}
	_, err := c.Exec(ctx, child.Access(), api.ExecRequest{Command: api.Command{Argv: []string{"/no/such/file"}, EnvVars: value("command")}})
	wantCode(t, err, api.SpawnFailed)
	heard.add(t, nil, err)
	_, err = c.Exec(ctx, child.Access(), api.ExecRequest{Command: api.Command{Argv: []string{"x"}, EnvVars: map[string]string{"1": value("refused")["NAME"]}}})
	wantCode(t, err, api.BadRequest)
	heard.add(t, nil, err)
	_, err = c.Create(ctx, api.CreateRequest{Template: "missing", Settings: api.Settings{EnvVars: value("failed")}})
	wantCode(t, err, api.NotFound)
	heard.add(t, nil, err)
	r.w.mu.Lock()
	r.w.saveErr = errors.New("disk broken")
	r.w.mu.Unlock()
	_, err = c.Pause(ctx, child.ID)
	heard.add(t, nil, err)
	r.w.mu.Lock()
	r.w.saveErr = nil
	r.w.mu.Unlock()
	r.machine(child.ID).die(errors.New("guest panicked"))
	r.awaitState(t, child.ID, api.Failed)

	name := "renamed"
	must[*api.Sandbox](t)(c.Update(ctx, parent.ID, api.Patch{Name: &name}))
	boxes, err := c.List(ctx, api.SandboxQuery{})
	heard.add(t, boxes, err)
	snaps, err := c.Snapshots(ctx, api.SnapshotQuery{})
	heard.add(t, snaps, err)
	one, err := c.Snapshot(ctx, snap.ID)
	heard.add(t, []any{snap, one}, err)
	stats, err := c.Stats(ctx, parent.ID)
	heard.add(t, stats, err)
	sharing, err := c.Sharing(ctx, api.SharingQuery{})
	heard.add(t, sharing, err)
	procs, err := c.Processes(ctx, restored.Access())
	heard.add(t, procs, err)
	figures := must[*http.Response](t)(http.DefaultClient.Do(withKey(t, srv.URL+"/metrics", key)))
	defer figures.Body.Close()
	if _, err := io.Copy(&heard, figures.Body); err != nil {
		t.Error(err)
	}
	if err := c.DeleteSnapshot(ctx, snap.ID); err != nil {
		t.Error(err)
	}
	if err := soon(t, ended); !errors.Is(err, io.EOF) {
		t.Errorf("the events ended with %v", err)
	}

	text := heard.String()
	for what, s := range secrets {
		if strings.Contains(text, s) {
			i := strings.Index(text, s)
			t.Errorf("%s can be read: …%s…", what, text[max(0, i-200):min(len(text), i+200)])
		}
	}
	for _, s := range []string{"disk broken", "guest panicked", parent.ID, snap.ID, "forkvm_sandboxes", string(api.SandboxForked), `"msg":"request"`} {
		if !strings.Contains(text, s) {
			t.Errorf("%q was not heard, of what should be", s)
		}
	}
	// What is stored has them, and is its user's alone.
	info := must[os.FileInfo](t)(os.Stat(filepath.Join(r.dir, "sandboxes.db")))
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the records are %v", info.Mode())
	}
}

func withKey(t *testing.T, url, key string) *http.Request {
	t.Helper()
	q := must[*http.Request](t)(http.NewRequestWithContext(t.Context(), "GET", url, nil))
	q.Header.Set("X-API-Key", key)
	return q
}
