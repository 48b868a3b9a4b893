package initrd

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/forkvm/forkvm/initrd/bzimage"
	"github.com/forkvm/forkvm/initrd/deb"
	"github.com/forkvm/forkvm/initrd/internal/fakekernel"
)

// newTestFinder looks in empty directories only.
func newTestFinder(t testing.TB) *finder {
	t.Helper()
	dir := t.TempDir()
	f := &finder{kernels: dir + "/cache/kernels", boot: dir + "/boot", modules: dir + "/lib/modules"}
	for _, d := range []string{f.boot, f.modules} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func write(t testing.TB, name string, data []byte) string {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, data, 0o644)); err != nil {
		t.Fatal(err)
	}
	return name
}

func testDeb(release string) []byte {
	return fakekernel.Deb(map[string][]byte{
		"boot/vmlinuz-" + release:                           fakekernel.BzImage(release),
		"boot/config-" + release:                            []byte("CONFIG_X=y\n"),
		"lib/modules/" + release + "/modules.builtin":       []byte("kernel/fs/ext4/ext4.ko\n"),
		"lib/modules/" + release + "/kernel/virtio_mmio.ko": fakekernel.Module(fakekernel.AMD64, "depends="),
		"usr/share/doc/readme":                              []byte("not wanted"),
	})
}

func isVmlinux(t *testing.T, k *Kernel, release string) {
	t.Helper()
	data, err := os.ReadFile(k.Vmlinux)
	if err != nil || !bytes.Equal(data, fakekernel.Vmlinux(release)) {
		t.Errorf("%s is not the vmlinux of %s (%v)", k.Vmlinux, release, err)
	}
	if k.Release != release {
		t.Errorf("release %q, want %q", k.Release, release)
	}
}

func TestKernelFromELF(t *testing.T) {
	f := newTestFinder(t)
	path := write(t, t.TempDir()+"/my-vmlinux", fakekernel.Vmlinux("6.9.1-mine"))
	write(t, f.modules+"/6.9.1-mine/modules.builtin", nil)
	k, err := f.named(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	isVmlinux(t, k, "6.9.1-mine")
	if k.Vmlinux != path {
		t.Errorf("used %s, not the file itself", k.Vmlinux)
	}
	if k.Modules == nil {
		t.Error("modules of its release were not found")
	}
}

func TestKernelFromBzImage(t *testing.T) {
	f := newTestFinder(t)
	path := write(t, t.TempDir()+"/bzImage", fakekernel.BzImage("6.9.1"))
	first, err := f.named(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	isVmlinux(t, first, "6.9.1")
	if err := first.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	if first.BzImage != path {
		t.Errorf("bzImage %q", first.BzImage)
	}
	before, err := os.Stat(first.Vmlinux)
	if err != nil {
		t.Fatal(err)
	}
	second, err := f.named(t.Context(), write(t, t.TempDir()+"/other-name", fakekernel.BzImage("6.9.1")))
	if err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(second.Vmlinux)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("equal content was unpacked again (%v)", err)
	}
}

func TestKernelFromDeb(t *testing.T) {
	f := newTestFinder(t)
	k, err := f.named(t.Context(), write(t, t.TempDir()+"/linux-image.deb", testDeb("6.12.7-cloud")))
	if err != nil {
		t.Fatal(err)
	}
	isVmlinux(t, k, "6.12.7-cloud")
	if err := k.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := fs.Stat(k.Modules, "kernel/virtio_mmio.ko"); err != nil {
		t.Error(err)
	}
	if k.BzImage == "" || k.Source != "linux-image.deb" {
		t.Errorf("bzImage %q, source %q", k.BzImage, k.Source)
	}
	again, err := f.named(t.Context(), "debian")
	if err != nil || again.Vmlinux != k.Vmlinux {
		t.Errorf("%+v, %v", again, err)
	}
	byName, err := f.named(t.Context(), "debian-6.12.7-cloud")
	if err != nil || byName.Vmlinux != k.Vmlinux {
		t.Errorf("%+v, %v", byName, err)
	}
}

// TestDebOfSameReleaseReplaces: a rebuilt package may keep its release.
func TestDebOfSameReleaseReplaces(t *testing.T) {
	f := newTestFinder(t)
	if _, err := f.named(t.Context(), write(t, t.TempDir()+"/a.deb", testDeb("6.12.7"))); err != nil {
		t.Fatal(err)
	}
	rebuilt := fakekernel.Deb(map[string][]byte{"boot/vmlinuz-6.12.7": fakekernel.BzImage("6.12.7")})
	k, err := f.named(t.Context(), write(t, t.TempDir()+"/b.deb", rebuilt))
	if err != nil || k.Modules != nil || k.Source != "b.deb" {
		t.Fatalf("%+v, %v: the old package is still there", k, err)
	}
	left, err := filepath.Glob(f.kernels + "/*")
	hidden, err2 := filepath.Glob(f.kernels + "/.*")
	if err != nil || err2 != nil || len(left)+len(hidden) != 1 {
		t.Errorf("cache holds %q and %q", left, hidden)
	}
}

func TestConcurrentUnpacking(t *testing.T) {
	f := newTestFinder(t)
	path := write(t, t.TempDir()+"/x.deb", testDeb("6.12.7"))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			k, err := f.named(context.Background(), path)
			if err != nil {
				t.Error(err)
				return
			}
			isVmlinux(t, k, "6.12.7")
		})
	}
	wg.Wait()
}

func TestOrderOfPreference(t *testing.T) {
	f := newTestFinder(t)
	cached := func(name, release string) {
		write(t, filepath.Join(f.kernels, name, fileVmlinux), fakekernel.Vmlinux(release))
	}
	expect := func(release string) {
		t.Helper()
		k, err := f.any(t.Context())
		if err != nil {
			t.Fatalf("want %s: %v", release, err)
		}
		if k.Release != release {
			t.Errorf("got %s, want %s", k.Release, release)
		}
	}
	if _, err := f.any(t.Context()); !errors.Is(err, ErrNoKernel) || !strings.Contains(err.Error(), "make kernel") ||
		!strings.Contains(err.Error(), "forkvm kernel fetch") {
		t.Errorf("no kernel anywhere: %v", err)
	}
	write(t, f.boot+"/vmlinuz-6.1.9-installed", fakekernel.BzImage("6.1.9-installed"))
	write(t, f.boot+"/vmlinuz-6.1.10-installed", fakekernel.BzImage("6.1.10-installed"))
	expect("6.1.10-installed")
	cached("image-abc", "6.0.0-image")
	expect("6.0.0-image")
	cached("debian-6.12.99", "6.12.99")
	cached("debian-6.12.117", "6.12.117")
	expect("6.12.117")
	cached("minimal-5.0.0", "5.0.0")
	expect("5.0.0")
	// The newest is damaged: the next best is taken.
	write(t, filepath.Join(f.kernels, "minimal-9.0.0", fileVmlinux), fakekernel.Vmlinux("9.0.0")[:500])
	expect("5.0.0")
}

func TestCachedKernels(t *testing.T) {
	t.Setenv("FORKVM_CACHE", t.TempDir())
	if list, err := CachedKernels(); err != nil || len(list) != 0 {
		t.Errorf("empty cache: %v, %v", list, err)
	}
	f, err := newFinder()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"image-x", "debian-2", "debian-10", "minimal-1", ".staging-9"} {
		write(t, filepath.Join(f.kernels, name, fileVmlinux), fakekernel.Vmlinux("6.0."+name[strings.Index(name, "-")+1:]))
	}
	write(t, filepath.Join(f.kernels, "debian-11", fileVmlinux), nil)
	list, err := CachedKernels()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, k := range list {
		got = append(got, filepath.Base(filepath.Dir(k.Vmlinux)))
	}
	if want := []string{"minimal-1", "debian-10", "debian-2", "image-x"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNothingUsableTellsWhy(t *testing.T) {
	f := newTestFinder(t)
	write(t, f.boot+"/vmlinuz-6.1.0", fakekernel.BzImage("6.1.0")[:1650])
	_, err := f.any(t.Context())
	if !errors.Is(err, ErrNoKernel) || !strings.Contains(err.Error(), "truncated") {
		t.Errorf("error %v", err)
	}
}

func TestBadKernels(t *testing.T) {
	thirtyTwo := fakekernel.Vmlinux("6.0")
	thirtyTwo[4] = 1
	tests := []struct {
		name string
		data []byte
		want error
	}{
		{"empty", nil, bzimage.ErrTruncated},
		{"text", []byte(strings.Repeat("text ", 500)), bzimage.ErrNotKernel},
		{"vmlinux cut", fakekernel.Vmlinux("6.0")[:1000], bzimage.ErrTruncated},
		{"vmlinux 32-bit", thirtyTwo, bzimage.ErrWrongArch},
		{"bzImage cut", fakekernel.BzImage("6.0")[:1600], bzimage.ErrTruncated},
		{"deb cut", testDeb("6.0")[:300], deb.ErrTruncated},
		{"deb of something else", fakekernel.Deb(map[string][]byte{"usr/bin/true": nil}), bzimage.ErrNotKernel},
		{"deb of a bad kernel", fakekernel.Deb(map[string][]byte{"boot/vmlinuz-6.0": []byte("x")}), bzimage.ErrNotKernel},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newTestFinder(t)
			path := write(t, t.TempDir()+"/kernel", tt.data)
			_, err := f.named(t.Context(), path)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if left, _ := os.ReadDir(f.kernels); len(left) != 0 {
				t.Errorf("cache holds %v after the failure", left)
			}
		})
	}
}

func TestFindKernelByEnvironment(t *testing.T) {
	t.Setenv("FORKVM_CACHE", t.TempDir())
	path := write(t, t.TempDir()+"/vmlinux", fakekernel.Vmlinux("6.9.1"))
	t.Setenv("FORKVM_KERNEL", path)
	k, err := FindKernel(t.Context(), "")
	if err != nil || k.Vmlinux != path {
		t.Errorf("%+v, %v", k, err)
	}
	t.Setenv("FORKVM_KERNEL", path+"-missing")
	if _, err := FindKernel(t.Context(), ""); !errors.Is(err, ErrNoKernel) || !strings.Contains(err.Error(), "FORKVM_KERNEL") {
		t.Errorf("error %v", err)
	}
	if _, err := FindKernel(t.Context(), "minimal"); !errors.Is(err, ErrNoKernel) || !strings.Contains(err.Error(), "make kernel") {
		t.Errorf("error %v", err)
	}
}

func TestVerifyFindsDamage(t *testing.T) {
	f := newTestFinder(t)
	k, err := f.named(t.Context(), write(t, t.TempDir()+"/x.deb", testDeb("6.12.7")))
	if err != nil {
		t.Fatal(err)
	}
	damaged := fakekernel.Vmlinux("6.12.7")
	damaged[3000] ^= 1
	write(t, k.Vmlinux, damaged)
	if err := k.Verify(t.Context()); !errors.Is(err, ErrDamaged) {
		t.Errorf("error %v", err)
	}
}

func TestCanceledUnpackingLeavesNothing(t *testing.T) {
	f := newTestFinder(t)
	path := write(t, t.TempDir()+"/x.deb", testDeb("6.12.7"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.named(ctx, path); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if left, _ := os.ReadDir(f.kernels); len(left) != 0 {
		t.Errorf("cache holds %v", left)
	}
}

func TestCompareReleases(t *testing.T) {
	sorted := []string{"", "5.10", "6.1.9", "6.1.10-1", "6.12.9+deb12-cloud", "6.12.117+deb12-cloud", "6.12.117+deb12-cloud-amd64", "7"}
	shuffled := slices.Clone(sorted)
	slices.Reverse(shuffled)
	slices.SortFunc(shuffled, compareReleases)
	if !slices.Equal(shuffled, sorted) {
		t.Errorf("got %q", shuffled)
	}
}

func TestNewestPackage(t *testing.T) {
	got := newestOf([]string{"linux-image-6.12.99+deb12-cloud-amd64", "linux-image-6.12.117+deb12-amd64",
		"linux-image-6.12.117+deb12-cloud-amd64-dbg", "linux-image-6.12.118+deb12-cloud-amd64-unsigned",
		"linux-image-6.12.117+deb12-cloud-amd64", "linux-image-6.12-cloud-amd64"})
	if got != "linux-image-6.12.117+deb12-cloud-amd64" {
		t.Errorf("got %q", got)
	}
	if got := newestOf(nil); got != "" {
		t.Errorf("got %q of nothing", got)
	}
}

func TestFetchWithoutAPT(t *testing.T) {
	t.Setenv("FORKVM_CACHE", t.TempDir())
	t.Setenv("PATH", t.TempDir())
	if _, err := FetchDebianKernel(t.Context()); !errors.Is(err, ErrNoAPT) || !strings.Contains(err.Error(), "packages.debian.org") {
		t.Errorf("error %v", err)
	}
}
