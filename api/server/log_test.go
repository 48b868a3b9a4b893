package server_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/forkvm/forkvm/api/internal/apitest"
	"github.com/forkvm/forkvm/api/server"
)

// TestLogs reads what is logged of requests: which it was, whose, how it went, and
// no secrets.
func TestLogs(t *testing.T) {
	var log bytes.Buffer
	b := start(t, func(c *server.Config) { c.Logger = slog.New(slog.NewJSONHandler(&log, nil)) })
	b.ask("GET", "/v1/sandboxes?name_prefix=private", "", "X-Request-Id: one")
	b.ask("GET", b.sandbox("/files?path=/private"), "", "X-Request-Id: two")
	b.fake.Fail = func(string) error { return errors.New("disk on fire") }
	b.ask("GET", b.sandbox(""), "", "X-Request-Id: three")
	b.fake.Fail = func(string) error { panic("out of cheese") }
	b.ask("GET", b.sandbox(""), "", "X-Request-Id: four")
	b.close()
	requests := make(map[string]map[string]any)
	for line := range strings.Lines(log.String()) {
		var l map[string]any
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		if l["msg"] == "request" {
			requests[l["request_id"].(string)] = l
		}
	}
	if l := requests["one"]; l["team"] != apitest.Team || l["status"] != 200.0 || l["path"] != "/v1/sandboxes" || l["method"] != "GET" {
		t.Errorf("logged %v", l)
	}
	if requests["two"]["status"] != 200.0 || requests["three"]["status"] != 500.0 || requests["four"]["status"] != 500.0 {
		t.Errorf("logged %v", requests)
	}
	for _, s := range []string{apitest.Key, apitest.Token, "private"} {
		if strings.Contains(log.String(), s) {
			t.Errorf("%q is in the log: %s", s, log.String())
		}
	}
	for _, s := range []string{"disk on fire", "out of cheese", "goroutine"} {
		if !strings.Contains(log.String(), s) {
			t.Errorf("%q is not in the log: %s", s, log.String())
		}
	}
}
