package template

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/agent"
	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/kvm/probe/probetest"
	"github.com/forkvm/forkvm/vmm"
)

// The test binary is the agent of its guests unless FORKVM_TEST_AGENT names
// one.
func TestMain(m *testing.M) {
	agent.Main()
	if filepath.Base(os.Args[0]) == "mmdebstrap" {
		os.Exit(toolMain())
	}
	os.Exit(m.Run())
}

// linuxMachine is one of the usual size.
func linuxMachine(t *testing.T) Machine {
	t.Helper()
	probetest.NeedLinux(t)
	kernel, err := initrd.FindKernel(t.Context(), first(os.Getenv("FORKVM_TEST_KERNEL"), "minimal"))
	if err != nil {
		t.Fatal(err)
	}
	return Machine{Kernel: kernel, Agent: os.Getenv("FORKVM_TEST_AGENT"), Cmdline: os.Getenv("FORKVM_CMDLINE")}
}

// linuxStore is an empty store whose machines are small.
func linuxStore(t *testing.T) *Store {
	t.Helper()
	m := linuxMachine(t)
	m.Memory, m.Disk = 256<<20, 64<<20
	return openStore(t, t.TempDir(), Options{Machine: m})
}

func openStore(t *testing.T, dir string, o Options) *Store {
	t.Helper()
	s, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// startFrom starts a machine of a template.
func startFrom(t *testing.T, s *Store, name string) (*vmm.VM, Info) {
	t.Helper()
	image, info, err := s.Image(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	vm, err := image.Start(ctx, vmm.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vm.Close() })
	return vm, info
}

func TestLinuxBaseTemplate(t *testing.T) {
	s := linuxStore(t)
	dir := t.TempDir()
	put(t, dir, "data/one.txt", "1\n")
	put(t, dir, "data/sub/two.txt", "2\n")
	if err := os.Symlink("/etc/elsewhere", filepath.Join(dir, "data/link")); err != nil {
		t.Fatal(err)
	}
	src := `FROM base
ENV GREETING="hello there"
WORKDIR /srv
COPY --chown=12:34 data d/
RUN echo "$GREETING" >said && cat d/one.txt d/sub/two.txt >>said
CMD ["/bin/sh", "-c", "echo up >/srv/up; sleep 1000"]
HEALTHCHECK CMD test -f up
`
	spec := Spec{Name: "mine", Source: []byte(src), Context: dir}
	var log bytes.Buffer
	info, err := s.Build(t.Context(), spec, BuildOptions{Output: &log})
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	t.Logf("built in %.2f s, %d bytes stored", info.BuildSeconds, info.Stored)
	vm, got := startFrom(t, s, "mine")
	out, err := got.Command(t.Context(), vm, "sh", "-c", `pwd; cat said; echo $GREETING; readlink d/link`).CombinedOutput()
	if want := "/srv\nhello there\n1\n2\nhello there\n/etc/elsewhere\n"; err != nil || string(out) != want {
		t.Errorf("a fork printed %q, %v; want %q", out, err, want)
	}
	procs, err := vm.Agent().Processes(t.Context())
	if err != nil || len(procs) != 1 || procs[0].Exited {
		t.Errorf("processes in a fork: %+v, %v; want the start command", procs, err)
	}
	file, err := vm.Agent().FS().Stat("/srv/d/sub/two.txt")
	if err != nil {
		t.Fatal(err)
	}
	if sys, ok := file.Sys().(client.Sys); !ok || sys.UID != 12 || sys.GID != 34 {
		t.Errorf("a copied file belongs to %+v", file.Sys())
	}
	again, err := s.Build(t.Context(), spec, BuildOptions{})
	if err != nil || again.Snapshot != info.Snapshot {
		t.Errorf("the same again: snapshot %s, %v; want %s", again.Snapshot, err, info.Snapshot)
	}
}

// TestLinuxImage: of those who use a built-in template first one builds it, and
// each has the same image; it can be used when the template is gone.
func TestLinuxImage(t *testing.T) {
	s := linuxStore(t)
	builds := make(chan struct{}, 8)
	images := make([]*vmm.Image, 4)
	var wg sync.WaitGroup
	for k := range images {
		wg.Go(func() {
			image, info, err := s.ImageOrBuild(t.Context(), "base", BuildOptions{Progress: func(p Progress) {
				if p.Step == 1 && !p.Cached && !p.Done {
					builds <- struct{}{}
				}
			}})
			if err != nil || info.Name != "base" {
				t.Errorf("%+v, %v", info, err)
			}
			images[k] = image
		})
	}
	wg.Wait()
	if len(builds) != 1 {
		t.Errorf("built %d times", len(builds))
	}
	for _, i := range images[1:] {
		if i != images[0] {
			t.Error("there are several images")
		}
	}
	if t.Failed() {
		return
	}
	first, _ := startFrom(t, s, "base")
	if err := s.Remove(t.Context(), "base"); err != nil {
		t.Fatal(err)
	}
	second, err := images[0].Start(t.Context(), vmm.StartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	for _, vm := range []*vmm.VM{first, second} {
		if out, err := vm.CommandContext(t.Context(), "echo", "here").Output(); err != nil || string(out) != "here\n" {
			t.Errorf("%q, %v", out, err)
		}
	}
	again, info := startFrom(t, s, "base")
	if out, err := info.Command(t.Context(), again, "echo", "again").Output(); err != nil || string(out) != "again\n" {
		t.Errorf("built again: %q, %v", out, err)
	}
}

// tinyRoot is an archive of a root file system with nothing but its name.
func tinyRoot(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, d := range []string{"bin/", "etc/", "tmp/"} {
		if err := w.WriteHeader(&tar.Header{Name: d, Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
			t.Fatal(err)
		}
	}
	text := "tiny\n"
	if err := w.WriteHeader(&tar.Header{Name: "etc/name", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))}); err != nil {
		t.Fatal(err)
	}
	w.Write([]byte(text))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "root.tar")
	if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestLinuxTarTemplate builds on disks: what a step fails at leaves those
// before it, and what a fork writes is its own.
func TestLinuxTarTemplate(t *testing.T) {
	s := linuxStore(t)
	root := tinyRoot(t)
	source := func(last string) []byte {
		return []byte("FROM " + root + "\nRUN [\"sh\", \"-c\", \"cat /etc/name >/copied\"]\n" + last + "\n")
	}
	_, err := s.Build(t.Context(), Spec{Name: "tiny", Source: source(`RUN ["sh", "-c", "echo broken; exit 7"]`)}, BuildOptions{})
	step, ok := errors.AsType[*StepError](err)
	if !ok || step.Code != 7 || step.Step != 3 || step.Line != 3 || !strings.Contains(step.Output, "broken") {
		t.Fatalf("a step that fails: %v", err)
	}
	var seen []Progress
	info, err := s.Build(t.Context(), Spec{Name: "tiny", Source: source("ENV A=b")}, BuildOptions{Progress: func(p Progress) { seen = append(seen, p) }})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) < 2 || !seen[0].Cached || !seen[1].Cached {
		t.Errorf("after a failure: %+v", seen)
	}
	if info.Disk != 64<<20 || info.Base == 0 {
		t.Errorf("disk of %d bytes, base of %d", info.Disk, info.Base)
	}
	one, _ := startFrom(t, s, "tiny")
	two, _ := startFrom(t, s, "tiny")
	usage, err := one.Disks()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("disks of a fresh fork: %+v", usage)
	if out, err := one.CommandContext(t.Context(), "sh", "-c", "cat /copied; echo more >/copied; sync").CombinedOutput(); err != nil || string(out) != "tiny\n" {
		t.Errorf("first fork: %q, %v", out, err)
	}
	if out, err := two.CommandContext(t.Context(), "cat", "/copied").CombinedOutput(); err != nil || string(out) != "tiny\n" {
		t.Errorf("second fork: %q, %v", out, err)
	}
}

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	name = filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
