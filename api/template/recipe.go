package template

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/forkvm/forkvm/initrd/rootfs"
)

// ErrNoTool is a program that building a template needs and this machine
// lacks.
var ErrNoTool = errors.New("a program that building needs is missing")

// recipe is a base made of Debian's packages.
type recipe struct {
	packages []string // besides the essential ones and apt
}

// recipes are the built-in bases, but for the one that has no disk.
var recipes = map[string]recipe{
	"debian": {[]string{"ca-certificates"}},
	"python": {[]string{"ca-certificates", "git", "python3", "python3-pip", "python3-pytest", "python3-venv"}},
}

// builtins are the templates that are built when they are first used.
var builtins = map[string]string{
	"base":   "FROM base\n",
	"debian": "FROM debian\n",
	// What Python and pytest need is then in memory, and in that of all forks.
	"python": "FROM python\nRUN python3 -m pytest --version\nRUN python3 -c pass\n",
}

// Builtin tells whether name is a template that needs no file.
func Builtin(name string) bool { return builtins[name] != "" }

// Builtins are the names of the built-in templates, in order.
func Builtins() []string { return slices.Sorted(maps.Keys(builtins)) }

// arguments are those of mmdebstrap(1).
func (r recipe) arguments(sources string) []string {
	args := []string{
		"--variant=minbase", "--format=tar", "--mode=auto", "--quiet",
		"--include=" + strings.Join(r.packages, ","),
		`--aptopt=APT::Install-Recommends "false"`,
	}
	for _, dir := range []string{"doc", "info", "locale", "man"} {
		args = append(args, "--dpkgopt=path-exclude=/usr/share/"+dir+"/*")
	}
	args = append(args, "--dpkgopt=path-include=/usr/share/doc/*/copyright")
	// Names are resolved by what the guest's network says, not this machine's,
	// and those of the machine itself without it.
	args = append(args, `--customize-hook=rm -f "$1/etc/resolv.conf" "$1/etc/hostname"`,
		`--customize-hook=printf "127.0.0.1 localhost\\n::1 localhost ip6-localhost ip6-loopback\\n" >"$1/etc/hosts"`)
	return append(args, debianSuite, "-", sources)
}

// text identifies the recipe.
func (r recipe) text() string { return "mmdebstrap " + strings.Join(r.arguments("SOURCES"), " ") }

// build writes the image of the recipe to path. dir is for what is needed
// meanwhile; what the program says goes to log.
func (r recipe) build(ctx context.Context, path, dir string, log io.Writer) (rootfs.Info, error) {
	program, err := exec.LookPath("mmdebstrap")
	if err != nil {
		return rootfs.Info{}, fmt.Errorf("%w: mmdebstrap (try: apt-get install mmdebstrap)", ErrNoTool)
	}
	sources := filepath.Join(dir, "sources.list")
	if err := os.WriteFile(sources, []byte(aptSources(os.DirFS("/etc/apt"))), 0o644); err != nil {
		return rootfs.Info{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	end := &tail{}
	cmd := exec.CommandContext(ctx, program, r.arguments(sources)...)
	cmd.Stderr = io.MultiWriter(log, end)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it cleans up
	cmd.WaitDelay = 10 * time.Second
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return rootfs.Info{}, err
	}
	if err := cmd.Start(); err != nil {
		return rootfs.Info{}, err
	}
	info, buildErr := rootfs.Build(ctx, path, rootfs.Tar(stdout), rootfs.Options{})
	if buildErr != nil {
		cancel()
	}
	// A tar archive that is complete may be followed by padding. Others may hold
	// the pipe open when the program is gone.
	stop := context.AfterFunc(ctx, func() { stdout.Close() })
	_, _ = io.Copy(io.Discard, stdout)
	stop()
	if err := cmd.Wait(); err != nil && (buildErr == nil || !errors.Is(err, context.Canceled)) {
		return rootfs.Info{}, fmt.Errorf("mmdebstrap: %w\n%s", err, end.lines())
	}
	return info, buildErr
}
