package initrd

import (
	"os"
	"path"
	"slices"
	"strings"
	"testing"
)

// cachedKernel returns a real kernel of that kind from the cache. Without one the
// test is skipped, or fails if FORKVM_REQUIRE_KERNEL=1.
func cachedKernel(t *testing.T, kind string) *Kernel {
	t.Helper()
	k, err := FindKernel(t.Context(), kind)
	switch {
	case err == nil:
		return k
	case os.Getenv("FORKVM_REQUIRE_KERNEL") == "1":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
	return nil
}

func TestDebianKernel(t *testing.T) {
	k := cachedKernel(t, "debian")
	if !strings.Contains(k.Release, "cloud-amd64") || k.Modules == nil || k.BzImage == "" {
		t.Errorf("incomplete: %+v", k)
	}
	if err := k.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	img, err := Plan(t.Context(), Config{Kernel: k, Agent: testAgent(t), Modules: slices.Concat(DiskModules, NetModules)})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, module := range img.Modules {
		names = append(names, strings.TrimSuffix(path.Base(module), ".ko"))
	}
	for _, pair := range [][2]string{
		{"vsock", "vmw_vsock_virtio_transport_common"}, {"vmw_vsock_virtio_transport_common", "vmw_vsock_virtio_transport"},
		{"failover", "net_failover"}, {"net_failover", "virtio_net"}, {"libcrc32c", "erofs"}, {"virtio_mmio", "virtio_blk"},
	} {
		first, second := slices.Index(names, pair[0]), slices.Index(names, pair[1])
		if first < 0 || second < first {
			t.Errorf("%s is not loaded before %s: %q", pair[0], pair[1], names)
		}
	}
	if !slices.Contains(names, "virtio-rng") || !slices.Contains(names, "virtio_balloon") || slices.Contains(names, "ext4") {
		t.Errorf("modules %q", names)
	}
}

// TestBzImageOfCachedKernels unpacks the real compressed images again, whatever
// they are compressed with, and expects the same kernel.
func TestBzImageOfCachedKernels(t *testing.T) {
	for _, kind := range []string{"debian", "minimal"} {
		t.Run(kind, func(t *testing.T) {
			want := cachedKernel(t, kind)
			got, err := newTestFinder(t).named(t.Context(), want.BzImage)
			if err != nil {
				t.Fatal(err)
			}
			if got.Release != want.Release || (got.Modules == nil) != (want.Modules == nil) {
				t.Errorf("got %+v, want the like of %+v", got, want)
			}
		})
	}
}

func TestMinimalKernelNeedsNoModules(t *testing.T) {
	k := cachedKernel(t, "minimal")
	img, err := Plan(t.Context(), Config{Kernel: k, Agent: testAgent(t), Modules: slices.Concat(DiskModules, NetModules)})
	if err != nil || len(img.Modules) != 0 {
		t.Errorf("%+v, %v", img, err)
	}
}
