package initrd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/forkvm/forkvm/initrd/internal/fakekernel"
	"github.com/u-root/u-root/pkg/cpio"
	"golang.org/x/sys/unix"
)

const testRelease = "6.12.1-test"

// testAgent writes a program that can be an agent, and returns its path.
func testAgent(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent")
	if err := os.WriteFile(path, fakekernel.Vmlinux("0"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func modularKernel() *Kernel {
	module := func(info ...string) *fstest.MapFile {
		return &fstest.MapFile{Data: fakekernel.Module(fakekernel.AMD64, info...)}
	}
	return &Kernel{Release: testRelease, Modules: fstest.MapFS{
		"modules.builtin":                                 {Data: []byte("kernel/fs/ext4/ext4.ko\n")},
		"kernel/drivers/virtio/virtio_mmio.ko":            module("depends="),
		"kernel/drivers/char/virtio-rng.ko":               module("depends="),
		"kernel/net/vsock.ko":                             module("depends="),
		"kernel/net/vmw_vsock_virtio_transport_common.ko": module("depends=vsock"),
		"kernel/net/vmw_vsock_virtio_transport.ko":        module("depends=vmw_vsock_virtio_transport_common,vsock"),
		"kernel/virtio_net.ko":                            module("depends=net_failover"),
		"kernel/net_failover.ko":                          module("depends="),
	}}
}

// unpacked reads an initramfs back.
func unpacked(t *testing.T, data []byte) map[string]cpio.Record {
	t.Helper()
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(bytes.NewReader(data)))
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]cpio.Record{}
	for _, r := range records {
		if _, twice := byName[r.Name]; twice {
			t.Errorf("%s is packed twice", r.Name)
		}
		byName[r.Name] = r
	}
	return byName
}

func content(t *testing.T, r cpio.Record) string {
	t.Helper()
	if r.ReaderAt == nil {
		t.Fatal("no such file, or one without content")
	}
	data, err := io.ReadAll(io.NewSectionReader(r, 0, int64(r.FileSize)))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func pack(t *testing.T, cfg Config) map[string]cpio.Record {
	t.Helper()
	data, err := Pack(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return unpacked(t, data)
}

func TestPackBase(t *testing.T) {
	files := pack(t, Config{Agent: testAgent(t)})
	for name, mode := range map[string]uint64{
		"init": unix.S_IFREG | 0o755, "dev": unix.S_IFDIR | 0o755, "proc": unix.S_IFDIR | 0o555,
		"tmp": unix.S_IFDIR | unix.S_ISVTX | 0o777, "dev/console": unix.S_IFCHR | 0o600, "dev/null": unix.S_IFCHR | 0o666,
		"etc/forkvm/modules": unix.S_IFREG | 0o644,
	} {
		if files[name].Mode != mode {
			t.Errorf("%s has mode %#o, want %#o", name, files[name].Mode, mode)
		}
	}
	console := files["dev/console"]
	if console.Rmajor != 5 || console.Rminor != 1 {
		t.Errorf("console is device %d:%d", console.Rmajor, console.Rminor)
	}
	if content(t, files["init"]) != string(fakekernel.Vmlinux("0")) {
		t.Error("init is not the agent")
	}
	if got := content(t, files["etc/forkvm/modules"]); got != "" {
		t.Errorf("a kernel without modules loads %q", got)
	}
}

func TestPackIsDeterministic(t *testing.T) {
	cfg := Config{Agent: testAgent(t), Kernel: modularKernel(),
		Files: fstest.MapFS{"b": {Data: []byte("x")}, "a/c": {Data: []byte("y")}}}
	one, err := Pack(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	two, err := Pack(t.Context(), cfg)
	if err != nil || !bytes.Equal(one, two) {
		t.Fatalf("two archives of the same differ (%v)", err)
	}
	var names []string
	for name, r := range unpacked(t, one) {
		names = append(names, name)
		if r.MTime != 0 || r.UID != 0 || r.GID != 0 {
			t.Errorf("%s: time %d, owner %d:%d", name, r.MTime, r.UID, r.GID)
		}
		if dir := filepath.Dir(name); dir != "." && !slices.Contains(names, dir) {
			if _, ok := unpacked(t, one)[dir]; !ok {
				t.Errorf("%s is packed and its directory is not", name)
			}
		}
	}
}

func TestSizeIsKnownBeforehand(t *testing.T) {
	img, err := Plan(t.Context(), Config{Agent: testAgent(t), Kernel: modularKernel(), Files: fstest.MapFS{
		"one": {Data: []byte("1")}, "four": {Data: []byte("1234")}, "empty": {}, "a/long/er/path": {Data: []byte("12345")}}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	n, err := img.WriteTo(&out)
	if err != nil || n != img.Size() || int64(out.Len()) != n {
		t.Errorf("announced %d bytes, wrote %d (%d arrived), %v", img.Size(), n, out.Len(), err)
	}
}

func TestModulesInLoadOrder(t *testing.T) {
	const dir = "/lib/modules/" + testRelease + "/kernel/"
	boot := []string{dir + "drivers/virtio/virtio_mmio.ko", dir + "drivers/char/virtio-rng.ko", dir + "net/vsock.ko",
		dir + "net/vmw_vsock_virtio_transport_common.ko", dir + "net/vmw_vsock_virtio_transport.ko"}
	tests := []struct {
		name  string
		extra []string
		want  []string
	}{
		{"boot", nil, boot},
		{"named", []string{"virtio_net", "ext4", "vsock"}, append(slices.Clone(boot), dir+"net_failover.ko", dir+"virtio_net.ko")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			files := pack(t, Config{Agent: testAgent(t), Kernel: modularKernel(), Modules: tt.extra})
			list := strings.Fields(content(t, files["etc/forkvm/modules"]))
			if !slices.Equal(list, tt.want) {
				t.Errorf("got  %q\nwant %q", list, tt.want)
			}
			for _, path := range list {
				if !strings.HasPrefix(content(t, files[path[1:]]), "\x7fELF") {
					t.Errorf("%s is not packed as ELF", path)
				}
			}
		})
	}
}

func TestOptionalModules(t *testing.T) {
	for _, name := range []string{"vmgenid", "virtio_balloon"} {
		k := modularKernel()
		k.Modules.(fstest.MapFS)["kernel/"+name+".ko"] = &fstest.MapFile{Data: fakekernel.Module(fakekernel.AMD64)}
		files := pack(t, Config{Agent: testAgent(t), Kernel: k})
		if list := content(t, files["etc/forkvm/modules"]); !strings.HasSuffix(list, "/"+name+".ko\n") {
			t.Errorf("%s is not loaded: %q", name, list)
		}
	}
}

func TestMissingModule(t *testing.T) {
	k := modularKernel()
	delete(k.Modules.(fstest.MapFS), "kernel/net/vsock.ko")
	for _, cfg := range []Config{{Kernel: k}, {Kernel: modularKernel(), Modules: []string{"floppy"}}} {
		cfg.Agent = testAgent(t)
		_, err := Plan(t.Context(), cfg)
		if !errors.Is(err, ErrModule) || !strings.Contains(err.Error(), testRelease) {
			t.Errorf("error %v", err)
		}
	}
	k = modularKernel()
	k.Release = "../.."
	if _, err := Plan(t.Context(), Config{Kernel: k, Agent: testAgent(t)}); !errors.Is(err, ErrModule) {
		t.Errorf("release %q: error %v", k.Release, err)
	}
}

func TestEmbeddersFiles(t *testing.T) {
	host := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(host, []byte("#!tool"), 0o750); err != nil {
		t.Fatal(err)
	}
	tree := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(tree, "srv"), 0o700), os.Symlink("/srv", filepath.Join(tree, "data")),
		os.WriteFile(filepath.Join(tree, "srv/x"), []byte("content"), 0o644), os.Chmod(filepath.Join(tree, "srv/x"), fs.ModeSetuid|0o755)); err != nil {
		t.Fatal(err)
	}
	files := pack(t, Config{Agent: testAgent(t), Files: os.DirFS(tree), HostFiles: []HostFile{
		{Host: host, Guest: "/opt/deep/tool"}, {Host: host, Guest: "/bin/tool", Mode: 0o555}}})
	for name, mode := range map[string]uint64{
		"srv": unix.S_IFDIR | 0o700, "srv/x": unix.S_IFREG | unix.S_ISUID | 0o755, "data": unix.S_IFLNK | 0o777,
		"opt/deep": unix.S_IFDIR | 0o755, "opt/deep/tool": unix.S_IFREG | 0o750, "bin/tool": unix.S_IFREG | 0o555,
	} {
		if files[name].Mode != mode {
			t.Errorf("%s has mode %#o, want %#o", name, files[name].Mode, mode)
		}
	}
	if content(t, files["srv/x"]) != "content" || content(t, files["data"]) != "/srv" || content(t, files["bin/tool"]) != "#!tool" {
		t.Error("content differs")
	}
}

func TestRefusedInputs(t *testing.T) {
	host := testAgent(t)
	fifo := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(fifo, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := fstest.MapFS{"out": {Mode: fs.ModeSymlink | 0o777, Data: []byte("/etc")}}
	at := func(guest string) Config { return Config{HostFiles: []HostFile{{Host: host, Guest: guest}}} }
	tests := []struct {
		name string
		cfg  Config
		want error
	}{
		{"init replaced", Config{Files: fstest.MapFS{"init": {}}}, ErrCollision},
		{"module list replaced", at(ModuleList), ErrCollision},
		{"directory replaced", at("/dev"), ErrCollision},
		{"twice", Config{Files: fstest.MapFS{"x": {}}, HostFiles: []HostFile{{Host: host, Guest: "/x"}}}, ErrCollision},
		{"below a file", at("/dev/null/x"), ErrCollision},
		{"below a link", Config{Files: link, HostFiles: []HostFile{{Host: host, Guest: "/out/x"}}}, ErrCollision},
		{"relative", at("x"), ErrBadPath},
		{"escape", at("/../x"), ErrBadPath},
		{"not clean", at("/a//b"), ErrBadPath},
		{"root", at("/"), ErrBadPath},
		{"NUL", at("/a\x00b"), ErrBadPath},
		{"name too long", at("/" + strings.Repeat("x", 256)), ErrBadPath},
		{"path too long", at(strings.Repeat("/x", 2100)), ErrBadPath},
		{"trailer", at("/" + cpio.Trailer), ErrBadPath},
		{"pipe", Config{Files: os.DirFS(fifo)}, ErrBadFile},
		{"host directory", Config{HostFiles: []HostFile{{Host: fifo, Guest: "/x"}}}, ErrBadFile},
		{"host file missing", Config{HostFiles: []HostFile{{Host: fifo + "/none", Guest: "/x"}}}, fs.ErrNotExist},
		{"odd mode", Config{HostFiles: []HostFile{{Host: host, Guest: "/x", Mode: fs.ModeDir}}}, ErrBadFile},
		{"content too large", Config{MaxSize: 6000, Files: fstest.MapFS{"big": {Data: make([]byte, 5000)}}}, ErrTooLarge},
		{"headers too large", Config{MaxSize: 5000}, ErrTooLarge},
		{"no agent", Config{Agent: fifo + "/none"}, fs.ErrNotExist},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.cfg.Agent == "" {
				tt.cfg.Agent = host
			}
			_, err := Plan(t.Context(), tt.cfg)
			if !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if err != nil && !strings.HasPrefix(err.Error(), "initrd: ") {
				t.Errorf("error %q does not say whose it is", err)
			}
		})
	}
}

func TestAgentThatCannotRun(t *testing.T) {
	object := fakekernel.Module(fakekernel.AMD64)
	arm := fakekernel.Vmlinux("0")
	arm[18] = fakekernel.ARM64
	for name, program := range map[string]struct {
		data []byte
		says string
	}{
		"script": {[]byte("#!/bin/sh\n"), "not an ELF program"}, "object": {object, "no program"},
		"arm": {arm, "not for x86-64"}, "dynamic": {fakekernel.Interpreted(), "CGO_ENABLED=0"},
	} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, program.data, 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := Plan(t.Context(), Config{Agent: path})
		if !errors.Is(err, ErrAgent) || !strings.Contains(err.Error(), program.says) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestDefaultAgentIsInTheCacheOrSelf(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("FORKVM_CACHE", cache)
	if got := findAgent(); got != "/proc/self/exe" {
		t.Errorf("agent %s", got)
	}
	want := filepath.Join(cache, agentName)
	if err := os.WriteFile(want, fakekernel.Vmlinux("0"), 0o755); err != nil {
		t.Fatal(err)
	}
	img, err := Plan(t.Context(), Config{})
	if err != nil || img.Agent != want {
		t.Errorf("agent %v, %v; want %s", img, err, want)
	}
}

func TestFileThatChanges(t *testing.T) {
	for _, size := range []int64{3, 5} {
		host := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(host, []byte("1234"), 0o644); err != nil {
			t.Fatal(err)
		}
		img, err := Plan(t.Context(), Config{Agent: testAgent(t), HostFiles: []HostFile{{Host: host, Guest: "/f"}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(host, size); err != nil {
			t.Fatal(err)
		}
		if _, err := img.WriteTo(io.Discard); !errors.Is(err, errChanged) {
			t.Errorf("4 bytes became %d: error %v", size, err)
		}
	}
}

func TestCanceledContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Build(ctx, io.Discard, Config{Agent: testAgent(t)}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
