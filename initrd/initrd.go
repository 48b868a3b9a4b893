// Package initrd answers what the guest boots: it finds a kernel and unpacks it to
// the ELF image a machine loads (FindKernel, FetchDebianKernel), and packs the
// initramfs (Plan, Build, Pack).
//
// The initramfs is an uncompressed newc cpio archive, made in-process, the same
// bytes for the same inputs. It holds the agent as /init, the kernel modules the
// machine's devices need (already decompressed, with their dependencies resolved on
// the host: what the guest need not do at boot it need not do in every fork's
// parent), and the embedder's files.
package initrd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/forkvm/forkvm/initrd/kmod"
	"github.com/u-root/u-root/pkg/cpio"
)

var (
	// ErrTooLarge is wrapped by errors about initramfs beyond their size limit.
	ErrTooLarge = errors.New("initramfs too large")
	// ErrCollision is wrapped by errors about two inputs for one path.
	ErrCollision = errors.New("path is taken")
	// ErrBadPath is wrapped by errors about guest paths that cannot be packed.
	ErrBadPath = errors.New("bad guest path")
	// ErrBadFile is wrapped by errors about inputs that are no files, directories or
	// symbolic links.
	ErrBadFile = errors.New("not a regular file, directory or symbolic link")
	// ErrModule is wrapped by errors about modules the kernel was meant to have.
	ErrModule = errors.New("kernel module unavailable")
)

// DefaultMaxSize is the limit, in bytes, on the size of an initramfs unless Config
// says otherwise. All of it is guest memory twice during boot: packed and unpacked.
const DefaultMaxSize = 512 << 20

// The files the agent reads in the guest.
const (
	// ModuleList names the file that lists the modules to load at boot, in load
	// order, as absolute paths, one a line. It is there and empty if there are none.
	ModuleList = "/etc/forkvm/modules"
	// InitPath is where the agent is.
	InitPath = "/init"
)

var (
	// DiskModules are the modules for disks and root file systems: names for
	// Config.Modules.
	DiskModules = []string{"virtio_blk", "ext4", "erofs", "overlay"}
	// NetModules are the modules for network interfaces: names for Config.Modules.
	NetModules = []string{"virtio_net"}
)

// bootModules are needed by every machine; each must be in the kernel or its
// modules. optionalModules exist in some kernels only, and the guest copes.
var (
	bootModules     = []string{"virtio_mmio", "virtio_rng", "vmw_vsock_virtio_transport"}
	optionalModules = []string{"vmgenid", "virtio_balloon"}
)

// Config says what goes into an initramfs. The zero value, with a Kernel, is a
// guest with nothing but the agent.
type Config struct {
	// Kernel is the kernel the guest boots, for its modules. Nil packs none.
	Kernel *Kernel
	// Agent is the path of the program that becomes /init, a static ELF for x86-64.
	// Empty: forkvm-agent beside the running executable, else in the cache, else the
	// running executable itself.
	Agent string
	// Modules names kernel modules to pack, and load at boot, besides those every
	// machine needs. What is built into the kernel may be named too.
	Modules []string
	// Files is packed at the root of the guest's file system: regular files,
	// directories and symbolic links, with their modes, owned by root. Nil: none.
	Files fs.FS
	// HostFiles are single files packed besides.
	HostFiles []HostFile
	// MaxSize limits the size of the initramfs, in bytes; 0 means DefaultMaxSize.
	MaxSize int64
}

// HostFile is one file of the host to be packed.
type HostFile struct {
	Host  string      // path on the host; symbolic links are followed
	Guest string      // absolute path in the guest
	Mode  fs.FileMode // permissions in the guest; 0 means those of the host's file
}

// Image is an initramfs that is planned: its inputs are checked and its size is
// known; the content of files is read by WriteTo. Its methods may be called from
// several goroutines.
type Image struct {
	entries []entry // sorted by path
	size    int64
	// Modules lists, in load order, the paths of the modules loaded at boot.
	Modules []string
	// Agent is the path on the host of the program that becomes /init.
	Agent string
}

// Plan checks cfg and collects what belongs into the initramfs. Errors wrap the
// sentinels of this package, or are of the file system.
func Plan(ctx context.Context, cfg Config) (*Image, error) {
	img, err := plan(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("initrd: %w", err)
	}
	return img, nil
}

func plan(ctx context.Context, cfg Config) (*Image, error) {
	limit := cmp.Or(cfg.MaxSize, DefaultMaxSize)
	t := newTree(limit)
	if err := addBase(t); err != nil {
		return nil, err
	}
	agent, err := addAgent(t, cfg.Agent)
	if err != nil {
		return nil, err
	}
	modules, err := addModules(t, cfg)
	if err != nil {
		return nil, err
	}
	if err := t.addFS(ctx, cfg.Files); err != nil {
		return nil, err
	}
	for _, file := range cfg.HostFiles {
		if err := t.addHostFile(file); err != nil {
			return nil, err
		}
	}
	img := &Image{entries: t.sorted(), Modules: modules, Agent: agent}
	img.size = archiveSize(img.entries)
	if img.size > limit {
		return nil, fmt.Errorf("%w: %d bytes, the limit is %d", ErrTooLarge, img.size, limit)
	}
	return img, nil
}

// addBase adds what every guest has.
func addBase(t *tree) error {
	for _, dir := range []struct {
		path string
		mode fs.FileMode
	}{
		{"bin", 0o755}, {"dev", 0o755}, {"etc", 0o755}, {"etc/forkvm", 0o755}, {"lib", 0o755}, {"mnt", 0o755},
		{"proc", 0o555}, {"root", 0o700}, {"run", 0o755}, {"sys", 0o555}, {"tmp", 0o777 | fs.ModeSticky},
		{"usr", 0o755}, {"usr/bin", 0o755}, {"var", 0o755}, {"var/tmp", 0o777 | fs.ModeSticky},
	} {
		if err := t.add(entry{path: dir.path, mode: fs.ModeDir | dir.mode}); err != nil {
			return err
		}
	}
	// The kernel opens /dev/console for init before anything is mounted there.
	for _, dev := range []entry{
		{path: "dev/console", mode: fs.ModeCharDevice | 0o600, major: 5, minor: 1},
		{path: "dev/null", mode: fs.ModeCharDevice | 0o666, major: 1, minor: 3},
	} {
		if err := t.add(dev); err != nil {
			return err
		}
	}
	return nil
}

// addModules packs the kernel's modules and the list of those to load at boot, and
// returns the latter.
func addModules(t *tree, cfg Config) ([]string, error) {
	var paths []string
	if cfg.Kernel != nil && cfg.Kernel.Modules != nil {
		modules, err := resolveModules(cfg.Kernel, cfg.Modules)
		if err != nil {
			return nil, err
		}
		for _, m := range modules {
			file := "lib/modules/" + cfg.Kernel.Release + "/" + m.Path
			if err := t.add(memoryFile(file, 0o644, m.Data)); err != nil {
				return nil, err
			}
			paths = append(paths, "/"+file)
		}
	}
	var list strings.Builder
	for _, path := range paths {
		list.WriteString(path + "\n")
	}
	return paths, t.add(memoryFile(strings.TrimPrefix(ModuleList, "/"), 0o644, []byte(list.String())))
}

func resolveModules(k *Kernel, extra []string) ([]kmod.Module, error) {
	if !fs.ValidPath(k.Release) || strings.Contains(k.Release, "/") {
		return nil, fmt.Errorf("%w: the kernel has modules and no release (%q)", ErrModule, k.Release)
	}
	tree, err := kmod.Open(k.Modules)
	if err != nil {
		return nil, err
	}
	names := slices.Clone(bootModules)
	for _, name := range optionalModules {
		if tree.Has(name) {
			names = append(names, name)
		}
	}
	modules, err := tree.Resolve(append(names, extra...)...)
	if err != nil {
		return nil, fmt.Errorf("%w in kernel %s: %w", ErrModule, k.Release, err)
	}
	return modules, nil
}

// Size returns the size of the initramfs in bytes.
func (i *Image) Size() int64 { return i.size }

// WriteTo writes the initramfs to w; it implements io.WriterTo.
func (i *Image) WriteTo(w io.Writer) (int64, error) {
	return i.write(context.Background(), w)
}

func (i *Image) write(ctx context.Context, w io.Writer) (int64, error) {
	out := &countingWriter{ctx: ctx, w: w}
	archive := cpio.Newc.Writer(out)
	for n, e := range i.entries {
		if err := e.writeTo(archive, uint64(n)+1); err != nil {
			return out.n, fmt.Errorf("initrd: pack /%s: %w", e.path, err)
		}
	}
	if err := cpio.WriteTrailer(archive); err != nil {
		return out.n, fmt.Errorf("initrd: %w", err)
	}
	return out.n, nil
}

// Build writes the initramfs that cfg describes to w. On an error, which may be of
// w, what was written is of no use.
func Build(ctx context.Context, w io.Writer, cfg Config) error {
	img, err := Plan(ctx, cfg)
	if err != nil {
		return err
	}
	_, err = img.write(ctx, w)
	return err
}

// Pack returns the initramfs that cfg describes.
func Pack(ctx context.Context, cfg Config) ([]byte, error) {
	img, err := Plan(ctx, cfg)
	if err != nil {
		return nil, err
	}
	out := bytes.NewBuffer(make([]byte, 0, img.Size()))
	if _, err := img.write(ctx, out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// countingWriter counts what is written and fails once its context is done.
type countingWriter struct {
	ctx context.Context
	w   io.Writer
	n   int64
}

// Write implements io.Writer.
func (c *countingWriter) Write(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}
