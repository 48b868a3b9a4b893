package vmm

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/forkvm/forkvm/guestagent/client"
	"github.com/forkvm/forkvm/initrd"
	"github.com/forkvm/forkvm/initrd/rootfs"
	"github.com/forkvm/forkvm/initrd/rootfs/ext4"
	"github.com/forkvm/forkvm/kvm/probe/probetest"
)

// The guests of this file have their root file system on disks. It has users,
// one program, and neither a shell nor the directories that others are mounted
// on.

const (
	rootBig     = 12 << 20 // bytes of /srv/big
	rootDataMiB = 64
)

// rooted is booted once; tests fork it.
var rooted = &guestKind{kernel: "minimal", vcpus: 1}

func forkRooted(t testing.TB) *VM {
	t.Helper()
	probetest.NeedLinux(t)
	rooted.once.Do(func() { rooted.vm, rooted.err = bootRooted(rooted.kernel, nil) })
	return rooted.fork(t)
}

// bootRooted boots a machine with a root of two disks, or as change has it.
func bootRooted(kernel string, change func(*Config)) (*VM, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	cfg, err := rootConfig(ctx, kernel)
	if err != nil {
		return nil, err
	}
	if change != nil {
		change(&cfg)
	}
	return Start(ctx, cfg)
}

func rootConfig(ctx context.Context, kernel string) (Config, error) {
	if override := os.Getenv("FORKVM_TEST_KERNEL"); override != "" {
		kernel = override
	}
	k, err := initrd.FindKernel(ctx, kernel)
	if err != nil {
		return Config{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return Config{}, err
	}
	initramfs, err := initrd.Pack(ctx, initrd.Config{
		Kernel: k, Agent: os.Getenv("FORKVM_TEST_AGENT"), Modules: initrd.DiskModules,
		HostFiles: []initrd.HostFile{{Host: self, Guest: "/lib/large/ballast"}},
	})
	if err != nil {
		return Config{}, err
	}
	images, err := rootImages()
	return Config{
		Kernel: k.Vmlinux, Initramfs: initramfs, Cmdline: os.Getenv("FORKVM_CMDLINE"),
		Disks: []Disk{{Name: "base", Image: images[0], ReadOnly: true}, {Name: "data", Image: images[1]}},
		Root:  []string{"base", "data"},
	}, err
}

// rootImages makes the two images, once.
var rootImages = sync.OnceValues(func() (paths [2]string, err error) {
	dir, err := sharedDir()
	if err != nil {
		return paths, err
	}
	paths = [2]string{filepath.Join(dir, "root-base.erofs"), filepath.Join(dir, "root-data.ext4")}
	archive, err := rootArchive()
	if err == nil {
		_, err = rootfs.Build(context.Background(), paths[0], rootfs.Tar(archive), rootfs.Options{UUID: [16]byte{7}})
	}
	if err == nil {
		err = ext4.Write(paths[1], rootDataMiB<<20, ext4.Options{UUID: [16]byte{8}, Directories: []string{"upper", "work"}})
	}
	return paths, err
})

// rootArchive is the root file system as a tar archive.
func rootArchive() (io.Reader, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return nil, err
	}
	big := make([]byte, rootBig)
	(&pattern{}).Read(big)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range []struct {
		tar.Header
		content []byte
	}{
		{tar.Header{Name: "bin/", Mode: 0o755}, nil},
		{tar.Header{Name: "bin/" + guestHelper, Mode: 0o4755}, program},
		{tar.Header{Name: "usr/local/bin/" + guestHelper, Linkname: helperPath, Typeflag: tar.TypeSymlink}, nil},
		{tar.Header{Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0::/root:/bin/sh\nalice:x:1000:1001::/home/alice:/bin/sh\n")},
		{tar.Header{Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\nalice:x:1001:\nstaff:x:50:bob,alice\n")},
		{tar.Header{Name: "home/alice/", Mode: 0o750, Uid: 1000, Gid: 1001}, nil},
		{tar.Header{Name: "tmp", Linkname: "/home/alice", Typeflag: tar.TypeSymlink}, nil}, // to be replaced
		{tar.Header{Name: "srv/dir/a", Mode: 0o644}, []byte("a")},
		{tar.Header{Name: "srv/dir/deep/b", Mode: 0o644}, []byte("b")},
		{tar.Header{Name: "srv/full/1", Mode: 0o644}, []byte("1")},
		{tar.Header{Name: "srv/full/2", Mode: 0o644}, []byte("2")},
		{tar.Header{Name: "srv/one", Mode: 0o644}, []byte("of two names")},
		{tar.Header{Name: "srv/two", Linkname: "srv/one", Typeflag: tar.TypeLink}, nil},
		{tar.Header{Name: "srv/big", Mode: 0o644, Uid: 1000}, big},
	} {
		f.Size = int64(len(f.content))
		if err := w.WriteHeader(&f.Header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	return &out, w.Close()
}

// outputAs is output of a command that a user of the guest runs.
func outputAs(t testing.TB, vm *VM, user, name string, arg ...string) string {
	t.Helper()
	cmd := vm.CommandContext(t.Context(), name, arg...)
	cmd.User = user
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s as %s: %v\n%s", name, user, err, out)
	}
	return strings.TrimSpace(string(out))
}

// wants compares what a file of the guest holds.
func wants(t testing.TB, vm *VM, name, want string) {
	t.Helper()
	if got, err := vm.Agent().FS().ReadFile(name); err != nil || string(got) != want {
		t.Errorf("%s: %.100q, %v; want %q", name, got, err, want)
	}
}

// missing fails if the guest has a file.
func missing(t testing.TB, vm *VM, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := vm.Agent().FS().Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRootWithBothKernels(t *testing.T) {
	for _, kernel := range []string{"minimal", "debian"} {
		t.Run(kernel, func(t *testing.T) {
			probetest.NeedLinux(t)
			vm, err := bootRooted(kernel, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer closeVM(t, vm)
			if len(vm.info.Warnings) > 0 {
				t.Errorf("the agent warns: %q", vm.info.Warnings)
			}
			b := vm.info.Boot
			t.Logf("modules %v, root %v, listening %v", b.Modules-b.Mounted, b.Root-b.Modules, b.Listening)
			if b.Root < b.Modules || b.Root > b.Listening {
				t.Errorf("boot: %+v", b)
			}
			wants(t, vm, "/srv/dir/a", "a")
			output(t, vm, "sh", "-c", "mv /srv/dir /srv/moved && echo x > /srv/x && rm /srv/full/1")
		})
	}
}

// TestRootIsWhatCommandsSee runs commands by their names, as users, in
// directories, on a terminal, and looks for what is mounted where.
func TestRootIsWhatCommandsSee(t *testing.T) {
	vm := forkRooted(t)
	if got := output(t, vm, guestHelper, "clocks"); !strings.Contains(got, "back 0") {
		t.Errorf("a program of the root: %q", got)
	}
	if got := output(t, vm, "which", guestHelper); got != "/usr/local/bin/"+guestHelper {
		t.Errorf("which: %q", got)
	}
	ids := strings.Fields(outputAs(t, vm, "alice", "grep", "-E", "^(Uid|Gid|Groups)", "/proc/self/status"))
	if got := strings.Join(ids, " "); got != "Uid: 1000 1000 1000 1000 Gid: 1001 1001 1001 1001 Groups: 50" {
		t.Errorf("alice is %s", got)
	}
	if got := outputAs(t, vm, "alice", "sh", "-c", "echo $HOME $USER; echo hers > $HOME/f; cat /home/alice/f"); got != "/home/alice alice\nhers" {
		t.Errorf("at home: %q", got)
	}
	// Its owner's rights are those of a program that is set so.
	outputAs(t, vm, "alice", guestHelper, "hold")
	if info, err := vm.Agent().FS().Stat(holdFile); err != nil || info.Sys().(client.Sys).UID != 0 {
		t.Errorf("written by a set-uid program: %+v, %v", info, err)
	}
	cmd := vm.CommandContext(t.Context(), "sh", "-c", "tty > /dev/null && pwd")
	cmd.Dir, cmd.TTY = "/srv/dir", &client.WinSize{Rows: 24, Cols: 80}
	if out, err := cmd.Output(); err != nil || strings.TrimSpace(string(out)) != "/srv/dir" {
		t.Errorf("on a terminal: %q, %v", out, err)
	}
	var start *client.StartError
	if err := vm.CommandContext(t.Context(), "/bin/sh").Run(); !errors.As(err, &start) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a shell that the root does not have: %v", err)
	}
	var dirs []string
	for line := range strings.Lines(output(t, vm, "cat", "/proc/self/mounts")) {
		dirs = append(dirs, strings.Fields(line)[1])
	}
	slices.Sort(dirs)
	if got := strings.Join(slices.Compact(dirs), " "); got != "/ /dev /dev/pts /dev/shm /proc /proc/sys/kernel/random/boot_id /run /run/forkvm/init /sys /sys/fs/cgroup /tmp" &&
		got != "/ /dev /dev/pts /dev/shm /proc /proc/sys/kernel/random/boot_id /run /run/forkvm/init /sys /tmp" {
		t.Errorf("mounted: %s", got)
	}
	missing(t, vm, "/init", "/forkvm", "/etc/forkvm", "/lib/modules")
}

// TestRootKeepsTheCommands: they are there, for users and for programs of the
// guest, after those of the root.
func TestRootKeepsTheCommands(t *testing.T) {
	vm := forkRooted(t)
	for range 4 { // more than there are spares
		if got := output(t, vm, "echo", "hello"); got != "hello" {
			t.Errorf("echo: %q", got)
		}
	}
	if got := outputAs(t, vm, "alice", "sh", "-c", "echo one | cat; sh -c 'echo two'; echo 'echo three' > /tmp/s; chmod +x /tmp/s; /tmp/s; kill -0 $$; echo four"); got != "one\ntwo\nthree\nfour" {
		t.Errorf("sh: %q", got)
	}
	if got := output(t, vm, "sh", "-c", "which sh; echo $PATH"); got != "/run/forkvm/bin/sh\n/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/forkvm/bin" {
		t.Errorf("sh: %q", got)
	}
	if err := vm.Agent().FS().Symlink(helperPath, "/usr/local/bin/cat"); err != nil {
		t.Fatal(err)
	}
	if got := output(t, vm, "which", "cat"); got != "/usr/local/bin/cat" {
		t.Errorf("the root's own cat is hidden by %q", got)
	}
}

// TestRootFreesTheInitramfs: of what was in it, the agent's program alone is in
// memory.
func TestRootFreesTheInitramfs(t *testing.T) {
	vm := forkRooted(t)
	program, err := vm.Agent().FS().Stat("/run/forkvm/init")
	if err != nil {
		t.Fatal(err)
	}
	ballast, err := vm.Agent().FS().Stat(helperPath)
	if err != nil {
		t.Fatal(err)
	}
	var held int64
	for line := range strings.Lines(output(t, vm, "cat", "/proc/meminfo")) {
		var name string
		var kib int64
		if _, err := fmt.Sscanf(line, "%s %d kB", &name, &kib); err == nil && (name == "Unevictable:" || name == "Shmem:") {
			held = max(held, kib<<10) // which of the two depends on the kernel
		}
	}
	if limit := program.Size() + ballast.Size()/2; held < program.Size()/2 || held > limit {
		t.Errorf("%d bytes are held, the agent's program has %d, what else was there %d", held, program.Size(), ballast.Size())
	}
}

// TestRootIsChanged does to the base what a disk allows: renames, deletes,
// writes to a large file and to one of two names. It all survives a reboot.
func TestRootIsChanged(t *testing.T) {
	vm := forkRooted(t)
	files := vm.Agent().FS()
	before, err := files.Stat("/srv/one")
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		files.Rename("/srv/dir", "/srv/renamed"),
		files.Rename("/srv/renamed/deep", "/srv/renamed/deeper"),
		files.Remove("/srv/full/1"),
		files.RemoveAll("/srv/full"),
		files.Mkdir("/srv/full", 0o755),
		files.Chmod("/etc/group", 0o600),
		files.Chown("/srv/big", 1234, 50),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	f, err := files.OpenFile("/srv/big", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("here"), rootBig/2); err != nil {
		t.Error(err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		t.Error(err)
	}
	output(t, vm, "sh", "-c", "echo more >> /srv/one")
	check := func(vm *VM) {
		t.Helper()
		if after, err := vm.Agent().FS().Stat("/srv/two"); err != nil || after.Sys().(client.Sys) != before.Sys().(client.Sys) {
			t.Errorf("the file of two names: %+v, %v; it was %+v", after, err, before)
		}
		wants(t, vm, "/srv/renamed/a", "a")
		wants(t, vm, "/srv/renamed/deeper/b", "b")
		wants(t, vm, "/srv/two", "of two namesmore\n")
		missing(t, vm, "/srv/dir", "/srv/full/1", "/srv/full/2", "/srv/renamed/deep")
		big := make([]byte, rootBig)
		(&pattern{}).Read(big)
		copy(big[rootBig/2:], "here")
		if got := output(t, vm, "sha256sum", "/srv/big"); !strings.HasPrefix(got, fmt.Sprintf("%x", sha256.Sum256(big))) {
			t.Errorf("the large file: %s", got)
		}
		info, err := vm.Agent().FS().Stat("/srv/big")
		if err != nil || info.Sys().(client.Sys).UID != 1234 || info.Sys().(client.Sys).GID != 50 {
			t.Errorf("the large file: %+v, %v", info, err)
		}
		if info, err := vm.Agent().FS().Stat(helperPath); err != nil || info.Mode() != 0o755|fs.ModeSetuid {
			t.Errorf("the program: %+v, %v", info, err)
		}
	}
	check(vm)
	renamed, err := files.Stat("/srv/renamed")
	if err != nil {
		t.Fatal(err)
	}
	output(t, vm, "sync")
	e2fsck(t, vm, 1)
	data := filepath.Join(t.TempDir(), "data")
	dump(t, vm, 1, data)
	again, err := bootRooted("minimal", func(c *Config) { c.Disks[1].Image = data })
	if err != nil {
		t.Fatal(err)
	}
	defer closeVM(t, again)
	if after, err := again.Agent().FS().Stat("/srv/renamed"); err != nil || after.Sys().(client.Sys).Inode != renamed.Sys().(client.Sys).Inode {
		t.Errorf("the renamed directory: %+v, %v; it was %+v", after, err, renamed)
	}
	check(again)
	e2fsck(t, again, 1)
}

// TestRootOfForks: children have what was written, synced or not, and write
// each to its own; so has and does what is restored from a snapshot. Nothing
// changes the base.
func TestRootOfForks(t *testing.T) {
	vm := forkRooted(t)
	output(t, vm, "sh", "-c", "echo parent > /srv/parent; sync; echo late > /srv/late; rm /srv/dir/a")
	all := append(forks(t, vm, 3), storedIn(t, vm, t.TempDir()))
	var wg sync.WaitGroup
	for i, m := range all {
		wg.Go(func() {
			output(t, m, "sh", "-c", fmt.Sprintf("echo own %d > /srv/own; mv /srv/full /srv/full-%d; cp /srv/big /srv/copy; sync", i, i))
		})
	}
	wg.Wait()
	for i, m := range all {
		output(t, m, "sh", "-c", "echo 3 > /proc/sys/vm/drop_caches")
		wants(t, m, "/srv/parent", "parent\n")
		wants(t, m, "/srv/late", "late\n")
		wants(t, m, "/srv/own", fmt.Sprintf("own %d\n", i))
		wants(t, m, fmt.Sprintf("/srv/full-%d/2", i), "2")
		missing(t, m, "/srv/dir/a", "/srv/full")
		output(t, m, "sh", "-c", "cmp=$(sha256sum < /srv/big); test \"$cmp\" = \"$(sha256sum < /srv/copy)\"")
		e2fsck(t, m, 1)
	}
	missing(t, vm, "/srv/own", "/srv/copy")
	base := filepath.Join(t.TempDir(), "base")
	dump(t, all[0], 0, base)
	images, err := rootImages()
	if err != nil {
		t.Fatal(err)
	}
	if sumFile(t, base) != sumFile(t, images[0]) {
		t.Error("the base is not what it was")
	}
}

func sumFile(t testing.TB, path string) [sha256.Size]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(b)
}

// TestRootIsFull fills the disk: who writes is told so by an errno, through the
// agent as well, and the guest lives on.
func TestRootIsFull(t *testing.T) {
	vm := forkRooted(t)
	files := vm.Agent().FS()
	f, err := files.Create("/srv/fill")
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(f, io.LimitReader(&pattern{}, 2*rootDataMiB<<20))
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("after %d bytes: %v", n, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := files.WriteFile("/srv/big", []byte("x"), 0o644); err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("write to a file of the base: %v", err)
	}
	if err := files.TarIn(t.Context(), "/srv/in", oneFileTar(t, 8<<20)); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("unpack: %v", err)
	}
	out, err := vm.CommandContext(t.Context(), "dd", "if=/dev/zero", "of=/srv/more", "bs=1M", "count=8").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "no space left") {
		t.Errorf("dd: %q, %v", out, err)
	}
	if got := output(t, vm, "echo", "alive"); got != "alive" {
		t.Error(got)
	}
	output(t, vm, "sh", "-c", "rm -rf /srv/fill /srv/in /srv/more; sync; echo again > /srv/again")
	child := forks(t, vm, 1)[0]
	wants(t, child, "/srv/again", "again\n")
	e2fsck(t, child, 1)
}

func oneFileTar(t testing.TB, size int64) io.Reader {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.WriteHeader(&tar.Header{Name: "file", Mode: 0o644, Size: size}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, io.LimitReader(&pattern{}, size)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

// TestRootOfOneDisk keeps what is written in memory.
func TestRootOfOneDisk(t *testing.T) {
	probetest.NeedLinux(t)
	vm, err := bootRooted("minimal", func(c *Config) { c.Disks, c.Root = c.Disks[:1], c.Root[:1] })
	if err != nil {
		t.Fatal(err)
	}
	defer closeVM(t, vm)
	output(t, vm, "sh", "-c", "mv /srv/dir /srv/moved; rm -rf /srv/full; mkdir /srv/full; echo x >> /srv/one")
	child := forks(t, vm, 1)[0]
	wants(t, child, "/srv/moved/a", "a")
	wants(t, child, "/srv/two", "of two namesx\n")
	missing(t, child, "/srv/full/1")
	if len(vm.info.Warnings) > 0 {
		t.Errorf("the agent warns: %q", vm.info.Warnings)
	}
}

// TestRootThatCannotBe: Start fails at once and says why.
func TestRootThatCannotBe(t *testing.T) {
	probetest.NeedLinux(t)
	images, err := rootImages()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	damaged := filepath.Join(dir, "damaged")
	writeHead(t, damaged, images[0], 1024+16, 128<<10) // nothing but a superblock's beginning
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, bytes.Repeat([]byte("text"), 1024), 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(dir, "foreign")
	if err := ext4.Write(foreign, ext4.MinSize, ext4.Options{}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Config)
		want   []string
	}{
		"no such disk":      {func(c *Config) { c.Cmdline += " forkvm.root=nosuch" }, []string{"nosuch", "no such disk"}},
		"no file system":    {func(c *Config) { c.Disks[0].Image = text }, []string{"disk base", "no EROFS"}},
		"damaged base":      {func(c *Config) { c.Disks[0].Image = damaged }, []string{"disk base", "mount as erofs"}},
		"damaged data":      {func(c *Config) { c.Disks[1].Image = text }, []string{"disk data", "no EROFS"}},
		"data of zeros":     {func(c *Config) { c.Disks[1] = Disk{Name: "data", Size: 16 << 20} }, []string{"disk data", "no EROFS"}},
		"data is read-only": {func(c *Config) { c.Root = c.Root[:1]; c.Cmdline += " forkvm.root=data,base" }, []string{"disk base", "is ext4, not erofs"}},
	} {
		t.Run(name, func(t *testing.T) {
			vm, err := bootRooted("minimal", c.change)
			if err == nil {
				closeVM(t, vm)
				t.Fatal("it booted")
			}
			if !errors.Is(err, client.ErrBoot) {
				t.Errorf("not an ErrBoot: %v", err)
			}
			for _, w := range append(c.want, "root file system") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not in: %v", w, err)
				}
			}
			t.Log(err)
		})
	}
}

// TestRootOfAnotherBase: what was written over one base is not laid over another.
func TestRootOfAnotherBase(t *testing.T) {
	vm := forkRooted(t)
	dir := t.TempDir()
	data, base := filepath.Join(dir, "data"), filepath.Join(dir, "base")
	dump(t, vm, 1, data)
	if _, err := rootfs.Build(t.Context(), base, rootfs.Tar(oneFileTar(t, 4096)), rootfs.Options{UUID: [16]byte{9}}); err != nil {
		t.Fatal(err)
	}
	vm, err := bootRooted("minimal", func(c *Config) { c.Disks[0].Image, c.Disks[1].Image = base, data })
	if err == nil {
		closeVM(t, vm)
		t.Fatal("it booted")
	}
	if !errors.Is(err, syscall.ESTALE) || !strings.Contains(err.Error(), "another base") {
		t.Error(err)
	}
}

// writeHead makes a file of size bytes of which the first n are those of
// another.
func writeHead(t testing.TB, path, from string, n, size int64) {
	t.Helper()
	b := make([]byte, size)
	f, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.ReadFull(f, b[:n]); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRootIsValidated(t *testing.T) {
	good := Config{Kernel: "vmlinux", Disks: []Disk{{Name: "a", Size: 4096}, {Name: "b", Size: 4096}, {Name: "c", Size: 4096, ReadOnly: true}}}.withDefaults()
	for _, root := range [][]string{nil, {"a"}, {"c"}, {"a", "b"}, {"c", "b"}} {
		c := good
		c.Root = root
		if err := c.validate(); err != nil {
			t.Errorf("%q: %v", root, err)
		}
		line, err := c.cmdline()
		if want := " forkvm.root=" + strings.Join(root, ","); err != nil || strings.Contains(line, want) != (root != nil) {
			t.Errorf("%q: command line %q, %v", root, line, err)
		}
	}
	for _, root := range [][]string{{"x"}, {""}, {"a", "x"}, {"a", "a"}, {"a", "c"}, {"a", "b", "c"}} {
		c := good
		c.Root = root
		if err := c.validate(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "Root") {
			t.Errorf("%q: %v", root, err)
		}
	}
}
