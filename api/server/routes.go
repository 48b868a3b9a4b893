package server

import (
	_ "embed"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

//go:embed openapi.yaml
var openapi []byte

// OpenAPI is the description of the API, in YAML.
func OpenAPI() []byte { return openapi }

// routes are all paths of the API.
func routes() []route {
	const (
		get, post, patch, del, put = http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodDelete, http.MethodPut
		sandbox                    = "/v1/sandboxes/{id}"
		process                    = sandbox + "/processes/{pid}"
		snapshot                   = "/v1/snapshots/{id}"
		template                   = "/v1/templates/{name}"
		created, none              = http.StatusCreated, http.StatusNoContent
	)
	path := []string{"path"}
	return []route{
		{method: get, path: "/healthz", act: (*call).health},
		{method: get, path: "/version", act: (*call).version},
		{method: get, path: "/openapi.yaml", serve: (*call).openapi},
		{method: get, path: "/metrics", who: account, serve: (*call).exposition},

		{method: get, path: "/v1/sandboxes", who: account, act: (*call).list,
			query: []string{"state", "name_prefix", "cursor", "limit", metadataPrefix}},
		{method: post, path: "/v1/sandboxes", who: account, act: (*call).create, body: true, status: created, once: true},
		{method: get, path: sandbox, who: account, act: (*call).get},
		{method: patch, path: sandbox, who: account, act: (*call).update, body: true},
		{method: del, path: sandbox, who: account, act: (*call).destroy, status: none},
		{method: post, path: sandbox + "/pause", who: account, act: (*call).pause},
		{method: post, path: sandbox + "/resume", who: account, act: (*call).resume},
		{method: post, path: sandbox + "/fork", who: account, act: (*call).fork, body: true, status: created, once: true},
		{method: get, path: sandbox + "/wait", who: account, act: (*call).wait, query: []string{"state", "timeout"}},
		{method: get, path: sandbox + "/stats", who: account, act: (*call).stats},
		{method: post, path: sandbox + "/snapshots", who: account, act: (*call).createSnapshot, body: true, status: created, once: true},
		{method: get, path: sandbox + "/snapshots", who: account, act: (*call).sandboxSnapshots, query: []string{"name_prefix", "cursor", "limit"}},

		{method: get, path: "/v1/sharing", who: account, act: (*call).sharing, query: []string{"id"}},

		{method: get, path: "/v1/snapshots", who: account, act: (*call).snapshots,
			query: []string{"sandbox_id", "name_prefix", "cursor", "limit"}},
		{method: get, path: snapshot, who: account, act: (*call).snapshot},
		{method: patch, path: snapshot, who: account, act: (*call).renameSnapshot, body: true},
		{method: del, path: snapshot, who: account, act: (*call).deleteSnapshot, status: none},
		{method: get, path: "/v1/templates", who: account, act: (*call).templates},
		{method: post, path: "/v1/templates", who: admin, serve: (*call).buildTemplate},
		{method: get, path: template, who: account, act: (*call).template},
		{method: del, path: template, who: admin, act: (*call).deleteTemplate, status: none},
		{method: get, path: template + "/log", who: account, serve: (*call).templateLog},
		{method: get, path: "/v1/events", who: account, serve: (*call).watchEvents, query: []string{"sandbox_id", "after"}},

		{method: post, path: sandbox + "/exec", who: token, act: (*call).exec, body: true},
		{method: post, path: sandbox + "/exec/stream", who: token, serve: (*call).execStream},
		{method: get, path: sandbox + "/exec/ws", who: token, serve: (*call).execSocket},
		{method: get, path: sandbox + "/processes", who: token, act: (*call).processes},
		{method: post, path: sandbox + "/processes", who: token, act: (*call).start, body: true, status: created},
		{method: get, path: process + "/wait", who: token, act: (*call).waitProcess},
		{method: get, path: process + "/attach", who: token, serve: (*call).attach, query: []string{"live", "stdin"}},
		{method: post, path: process + "/signal", who: token, act: (*call).signal, body: true, status: none},
		{method: post, path: process + "/resize", who: token, act: (*call).resize, body: true, status: none},

		{method: get, path: sandbox + "/files", who: token, serve: (*call).readFile, query: path},
		{method: put, path: sandbox + "/files", who: token, serve: (*call).writeFile, query: []string{"path", "mode"}},
		{method: del, path: sandbox + "/files", who: token, act: (*call).removeFile, query: []string{"path", "recursive"}, status: none},
		{method: get, path: sandbox + "/files/stat", who: token, act: (*call).statFile, query: path},
		{method: get, path: sandbox + "/files/realpath", who: token, act: (*call).realPath, query: path},
		{method: get, path: sandbox + "/files/list", who: token, act: (*call).listFiles, query: path},
		{method: post, path: sandbox + "/files/mkdir", who: token, act: (*call).makeDirectory, query: path},
		{method: post, path: sandbox + "/files/rename", who: token, act: (*call).renameFile, query: []string{"path", "to"}},
		{method: get, path: sandbox + "/files/watch", who: token, serve: (*call).watchFile, query: path},
		{method: get, path: sandbox + "/files/tar", who: token, serve: (*call).readTree, query: path},
		{method: put, path: sandbox + "/files/tar", who: token, serve: (*call).writeTree, query: path},
	}
}

func (c *call) health() (any, error) { return map[string]string{"status": "ok"}, nil }

func (c *call) version() (any, error) { return map[string]string{"version": c.Version}, nil }

func (c *call) openapi() error {
	c.w.Header().Set("Content-Type", "application/yaml")
	_, err := c.w.Write(openapi)
	return err
}

func (c *call) exposition() error {
	promhttp.HandlerFor(c.Registry, promhttp.HandlerOpts{Registry: c.Registry}).ServeHTTP(c.w, c.r)
	return nil
}
