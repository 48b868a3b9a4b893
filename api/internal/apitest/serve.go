package apitest

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/server"
)

// Key is the account key of a server of Serve, and Team its team.
const (
	Key  = "fk_of_a_test"
	Team = "team"
)

// Config is that of a server of f.
func (f *Fake) Config() server.Config {
	return server.Config{
		Account: func(string) (api.Service, error) { return f, nil },
		Open: func(a api.Access) (server.Sandbox, error) {
			return f, f.open(a)
		},
		Authenticate: func(key string) (string, bool) { return Team, key == Key },
		Admin:        func(key string) bool { return key == Key },
		Version:      "v0.0.0-test",
	}
}

// Serve serves h until the test ends. Cancel ends the server's base context.
func Serve(t testing.TB, h http.Handler) (s *httptest.Server, cancel context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s = httptest.NewUnstartedServer(h)
	s.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	s.Start()
	t.Cleanup(func() {
		cancel()
		s.Close()
	})
	return s, cancel
}
