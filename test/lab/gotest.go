package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/forkvm/forkvm/test/lab/internal/session"
)

// testAttempts is how often a test binary is started if the machine, and not the test, fails.
const testAttempts = 2

// testCommand is a runner for go test -exec: it gets the test binary and its arguments, in the
// folder of the package.
func testCommand(ctx context.Context, args []string) (int, error) {
	var j job
	args, err := j.flags("test", "[flags] TEST-BINARY [ARGS]", args)
	if err != nil {
		return 0, err
	}
	if err := j.setProgram(args); err != nil {
		return 0, err
	}
	j.asTest()
	for attempt := 1; ; attempt++ {
		exit, err := j.run(ctx)
		if !failed(err) || attempt == testAttempts {
			return status(exit), err
		}
		fmt.Fprintf(os.Stderr, "lab: %v\n\nlab: THE MACHINE FAILED (not the test): starting %s once more in a new one\n",
			err, filepath.Base(j.command.Path))
	}
}

// asTest adds what go test and the tests of this module expect around a test binary.
func (j *job) asTest() {
	j.once = true // Its name is that of a temporary folder.
	if info, err := os.Stat("testdata"); err == nil && info.IsDir() {
		path := filepath.Join(j.command.Dir, "testdata")
		j.files = append(j.files, session.Copy{Host: path, Guest: path})
	}
	j.command.Env = slices.Concat(passedEnv(os.Environ()), []string{"FORKVM_REQUIRE_KVM=1"}, j.command.Env)
	for _, path := range testOutputs(j.command.Args, j.command.Dir) {
		j.outputs = append(j.outputs, output{guest: path, host: path, optional: true})
	}
}

// passedEnv picks the variables that mean something to a test: those of this module and of Go. What
// is about the lab itself has no meaning inside it.
func passedEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(s string) bool {
		lab := strings.HasPrefix(s, modeVariable) || strings.HasPrefix(s, requireVariable)
		return lab || !strings.HasPrefix(s, "FORKVM_") && !strings.HasPrefix(s, "GO")
	})
}

// outputFlags are the flags of test binaries that name files to write. testlogfile, by which go test
// knows what a cached result depends on, and gocoverdir are always absolute.
var outputFlags = []string{
	"blockprofile", "coverprofile", "cpuprofile", "gocoverdir", "memprofile", "mutexprofile", "testlogfile", "trace",
}

// testOutputs returns the files and folders that a test binary will write.
func testOutputs(args []string, dir string) []string {
	var paths []string
	for _, arg := range args {
		name, value, ok := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		name, isTest := strings.CutPrefix(name, "test.")
		switch {
		case !ok || !isTest || value == "":
		case name == "outputdir":
			dir = filepath.Join(dir, value)
			if filepath.IsAbs(value) {
				dir = value
			}
		case slices.Contains(outputFlags, name):
			paths = append(paths, value)
		}
	}
	for i, path := range paths {
		if !filepath.IsAbs(path) {
			paths[i] = filepath.Join(dir, path)
		}
	}
	return paths
}
