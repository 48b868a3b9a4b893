package sandbox

import (
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/api/server"
)

// TestSchemathesis has a program make requests of the description of the API,
// good and bad, and check each answer against it. What is inside of sandboxes is
// left out: the machines here are none, and their files would be this machine's.
func TestSchemathesis(t *testing.T) {
	program := os.Getenv("FORKVM_TEST_SCHEMATHESIS")
	if program == "" {
		needTool(t, "FORKVM_TEST_SCHEMATHESIS does not name the program")
	}
	r := newRig(t, Limits{Memory: 1 << 50, SandboxesPerTeam: 200}) // to be out of memory is a status of 503
	key := server.NewKey()
	srv := httptest.NewServer(server.New(server.Config{
		Account:      func(team string) (api.Service, error) { return r.Engine.Team(team), nil },
		Open:         func(a api.Access) (server.Sandbox, error) { return r.Holder(a) },
		Authenticate: func(k string) (string, bool) { return "fuzz", k == key },
	}))
	defer srv.Close()
	b := must[*api.Sandbox](t)(r.Engine.Team("fuzz").Create(t.Context(), api.CreateRequest{}))
	must[*api.Snapshot](t)(r.Engine.Team("fuzz").CreateSnapshot(t.Context(), b.ID, api.SnapshotRequest{}))
	cmd := exec.CommandContext(t.Context(), program, "run", srv.URL+"/openapi.yaml", "--url", srv.URL,
		"-H", "Authorization: Bearer "+key, "--exclude-path-regex", "/(exec|processes|files|events|wait)", "--seed", "1",
		"--max-examples", "20", "--no-color",
		// The description does not say all that makes a request a bad one; and the
		// snapshots of a sandbox outlive it.
		"--exclude-checks", "unsupported_method,positive_data_acceptance,use_after_free")
	cmd.Dir = t.TempDir() // it leaves files
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// needTool skips where a program is missing that FORKVM_REQUIRE_TOOLS demands.
func needTool(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("FORKVM_REQUIRE_TOOLS") == "1" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// needProgram skips where this machine lacks a program that commands of fake
// machines are.
func needProgram(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		needTool(t, err.Error())
	}
}
