package initrd

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/forkvm/forkvm/initrd/bzimage"
	"github.com/forkvm/forkvm/initrd/deb"
)

var (
	// ErrNoKernel is wrapped by errors of FindKernel when there is none to be had.
	ErrNoKernel = errors.New("no guest kernel")
	// ErrDamaged is wrapped by errors about cached kernels that are not what they
	// were when they were put there.
	ErrDamaged = errors.New("damaged kernel in the cache")
)

// howToGet ends every message about a missing kernel.
const howToGet = "`forkvm kernel fetch` downloads Debian's, `make kernel` builds the minimal one, FORKVM_KERNEL names any other"

// Kernel is a kernel ready to boot. It is a plain value: nothing is held open.
type Kernel struct {
	// Vmlinux is the path of the ELF image, which is what a machine loads.
	Vmlinux string
	// BzImage is the path of the compressed image Vmlinux was made from, for other
	// machine monitors; empty if it is not at hand.
	BzImage string
	// Release is what `uname -r` says in the guest; empty if the image does not tell.
	Release string
	// Modules is the tree of the kernel's modules, as below /lib/modules/RELEASE;
	// nil if everything is built in (or no modules were found).
	Modules fs.FS
	// Source says what the kernel was made from, for people.
	Source string
}

// The files of a cached kernel's directory. build.sh writes the same ones.
const (
	fileVmlinux   = "vmlinux"
	fileBzImage   = "bzImage"
	fileRelease   = "release"    // one line
	fileSource    = "source"     // one line
	fileBuiltFrom = "built-from" // fingerprint of the input
	fileSums      = "SHA256SUMS" // of vmlinux, as sha256sum prints it
	dirModules    = "modules"
)

// The kinds of cached kernels, which begin their directories' names.
const (
	kindMinimal = "minimal"
	kindDebian  = "debian"
	kindImage   = "image"
	kindOther   = "" // any but minimal and Debian's
)

// finder holds the places where kernels are looked for.
type finder struct {
	kernels string // cache: a directory a kernel
	boot    string // installed kernels, /boot
	modules string // their modules, /lib/modules
}

func newFinder() (*finder, error) {
	kernels, err := kernelsDir()
	if err != nil {
		return nil, err
	}
	return &finder{kernels: kernels, boot: "/boot", modules: "/lib/modules"}, nil
}

// FindKernel returns the kernel that spec names:
//
//   - "": what FORKVM_KERNEL names if it is set; else the newest minimal kernel in
//     the cache, else the newest Debian one, else any other there, else the newest
//     installed in /boot.
//   - "minimal" or "debian": the newest of that kind in the cache.
//   - a path: of an ELF vmlinux, a bzImage, a Debian linux-image package (.deb), or
//     a directory with a vmlinux. What has to be unpacked is unpacked into the
//     cache, once for the same content.
//   - a name of a directory in the cache.
//
// Errors wrap ErrNoKernel, or the sentinels of bzimage, deb and decompress for a
// file that is none. It may be called concurrently, also from several processes.
func FindKernel(ctx context.Context, spec string) (*Kernel, error) {
	f, err := newFinder()
	if err != nil {
		return nil, err
	}
	origin := ""
	if spec == "" {
		spec, origin = os.Getenv("FORKVM_KERNEL"), "FORKVM_KERNEL: "
	}
	var k *Kernel
	if spec == "" {
		origin = ""
		k, err = f.any(ctx)
	} else {
		k, err = f.named(ctx, spec)
	}
	if err != nil {
		return nil, fmt.Errorf("initrd: %s%w", origin, err)
	}
	return k, nil
}

// any returns the kernel taken when nobody asked for one.
func (f *finder) any(ctx context.Context) (*Kernel, error) {
	var problems []error
	for _, find := range []func() (*Kernel, error){
		func() (*Kernel, error) { return f.newest(kindMinimal) },
		func() (*Kernel, error) { return f.newest(kindDebian) },
		func() (*Kernel, error) { return f.newest(kindOther) },
		func() (*Kernel, error) { return f.installed(ctx) },
	} {
		k, err := find()
		if err == nil || ctx.Err() != nil {
			return k, err
		}
		if !errors.Is(err, ErrNoKernel) {
			problems = append(problems, err)
		}
	}
	return nil, fmt.Errorf("%w in %s or %s: %s%s", ErrNoKernel, f.kernels, f.boot, howToGet, passedOver(problems))
}

// passedOver tells of kernels that are there and cannot be used.
func passedOver(problems []error) string {
	if len(problems) == 0 {
		return ""
	}
	return "; passed over: " + strings.ReplaceAll(errors.Join(problems...).Error(), "\n", "; ")
}

// named returns the kernel of a spec that is not empty.
func (f *finder) named(ctx context.Context, spec string) (*Kernel, error) {
	if spec == kindMinimal || spec == kindDebian {
		k, err := f.newest(spec)
		if errors.Is(err, ErrNoKernel) {
			return nil, fmt.Errorf("%w: no %s kernel in %s: %s", ErrNoKernel, spec, f.kernels, howToGet)
		}
		return k, err
	}
	info, err := os.Stat(spec)
	if errors.Is(err, fs.ErrNotExist) && !strings.ContainsRune(spec, filepath.Separator) {
		cached := filepath.Join(f.kernels, spec)
		if _, cachedErr := os.Stat(cached); cachedErr == nil {
			return f.loadDir(cached)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %q is neither a file nor a cached kernel: %w", ErrNoKernel, spec, err)
	}
	if info.IsDir() {
		return f.loadDir(spec)
	}
	return f.fromFile(ctx, spec)
}

// kindOf returns the kind of the cached kernel in a directory of that name.
func kindOf(name string) string {
	kind, _, _ := strings.Cut(name, "-")
	if kind == kindMinimal || kind == kindDebian {
		return kind
	}
	return kindOther
}

// CachedKernels returns the usable kernels in the cache, in the order in which
// FindKernel prefers them.
func CachedKernels() ([]*Kernel, error) {
	f, err := newFinder()
	if err != nil {
		return nil, err
	}
	var list []*Kernel
	for _, kind := range []string{kindMinimal, kindDebian, kindOther} {
		kernels, _, err := f.cachedOf(kind)
		if err != nil {
			return nil, fmt.Errorf("initrd: %w", err)
		}
		list = append(list, kernels...)
	}
	return list, nil
}

// newest returns the newest usable kernel of that kind in the cache. Damaged ones
// are passed over, and told of if there is no other.
func (f *finder) newest(kind string) (*Kernel, error) {
	kernels, problem, err := f.cachedOf(kind)
	if err != nil {
		return nil, err
	}
	if len(kernels) == 0 {
		return nil, cmp.Or(problem, ErrNoKernel)
	}
	return kernels[0], nil
}

// cachedOf returns the usable kernels of that kind in the cache, newest first, and
// what is wrong with one of the others.
func (f *finder) cachedOf(kind string) (kernels []*Kernel, problem, err error) {
	entries, err := os.ReadDir(f.kernels)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return compareReleases(b.Name(), a.Name()) })
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || kindOf(e.Name()) != kind {
			continue
		}
		k, err := f.loadDir(filepath.Join(f.kernels, e.Name()))
		if err != nil {
			problem = err
			continue
		}
		kernels = append(kernels, k)
	}
	return kernels, problem, nil
}

// installed returns the newest kernel in /boot that can be used.
func (f *finder) installed(ctx context.Context) (*Kernel, error) {
	images, err := filepath.Glob(filepath.Join(f.boot, "vmlinuz-*"))
	if err != nil {
		return nil, err
	}
	slices.SortFunc(images, func(a, b string) int { return compareReleases(b, a) })
	problem := ErrNoKernel
	for _, image := range images {
		k, err := f.fromFile(ctx, image)
		if err == nil || ctx.Err() != nil {
			return k, err
		}
		problem = err
	}
	return nil, problem
}

// loadDir returns the kernel in a directory of the cache's layout.
func (f *finder) loadDir(dir string) (*Kernel, error) {
	vmlinux := filepath.Join(dir, fileVmlinux)
	if err := checkVmlinux(vmlinux); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: %s holds no vmlinux", ErrNoKernel, dir)
		}
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	k := &Kernel{Vmlinux: vmlinux, Release: readLine(dir, fileRelease), Source: readLine(dir, fileSource)}
	if bz := filepath.Join(dir, fileBzImage); isFile(bz) {
		k.BzImage = bz
	}
	if k.Source == "" {
		k.Source = dir
	}
	return k, f.complete(k)
}

// complete fills in release and modules if they are not known yet.
func (f *finder) complete(k *Kernel) error {
	if k.Release == "" {
		file, err := os.Open(k.Vmlinux)
		if err != nil {
			return err
		}
		defer file.Close()
		if k.Release, err = bzimage.Release(file); err != nil {
			return err
		}
	}
	k.Modules = modulesIn(filepath.Join(filepath.Dir(k.Vmlinux), dirModules))
	if k.Modules == nil && k.Release != "" {
		k.Modules = modulesIn(filepath.Join(f.modules, k.Release))
	}
	return nil
}

// modulesIn returns the module tree in dir, or nil if there is no such directory.
func modulesIn(dir string) fs.FS {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil
	}
	return os.DirFS(dir)
}

// fromFile returns the kernel in a file of any of the known formats.
func (f *finder) fromFile(ctx context.Context, name string) (*Kernel, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w: not a regular file", name, bzimage.ErrNotKernel)
	}
	head := make([]byte, len(deb.Magic))
	n, err := file.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	head = head[:n]
	switch {
	case bzimage.IsELF(head):
		return f.fromELF(file, info.Size())
	case string(head) == deb.Magic:
		return f.fromDeb(ctx, file, info.Size())
	default:
		return f.fromBzImage(ctx, file, info.Size())
	}
}

// fromELF uses a vmlinux where it is.
func (f *finder) fromELF(file *os.File, size int64) (*Kernel, error) {
	if err := bzimage.CheckVmlinux(file, size); err != nil {
		return nil, fmt.Errorf("%s: %w", file.Name(), err)
	}
	path, err := filepath.Abs(file.Name())
	if err != nil {
		return nil, err
	}
	k := &Kernel{Vmlinux: path, Source: path}
	return k, f.complete(k)
}

// Verify reads the kernel's vmlinux and compares it with the checksum recorded when
// it was put into the cache. It returns an error that wraps ErrDamaged if they
// differ, and nil if no checksum is recorded (the kernel is not from the cache).
func (k *Kernel) Verify(ctx context.Context) error {
	want, _, ok := strings.Cut(readLine(filepath.Dir(k.Vmlinux), fileSums), " ")
	if !ok {
		return nil
	}
	file, err := os.Open(k.Vmlinux)
	if err != nil {
		return fmt.Errorf("initrd: %w", err)
	}
	defer file.Close()
	got, err := digest(ctx, file)
	if err != nil {
		return fmt.Errorf("initrd: %w", err)
	}
	if got != want {
		return fmt.Errorf("initrd: %w: %s has sha256 %s, not %s", ErrDamaged, k.Vmlinux, got, want)
	}
	return nil
}

func checkVmlinux(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	return bzimage.CheckVmlinux(file, info.Size())
}

// readLine returns the first line of a small file, or "" if there is none.
func readLine(dir, name string) string {
	file, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, 4096))
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return line
}

func isFile(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

// digest returns the SHA-256 of what r holds, in hexadecimal.
func digest(ctx context.Context, r io.Reader) (string, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, contextReader{ctx, r}); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// contextReader fails once its context is done.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

// Read implements io.Reader.
func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
