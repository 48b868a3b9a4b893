package initrd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/forkvm/forkvm/initrd/bzimage"
	"github.com/forkvm/forkvm/initrd/deb"
)

const (
	// maxModuleFiles and maxModuleBytes bound what is taken of a package's modules.
	// The largest distribution kernels have some 7000, 500 MiB uncompressed.
	maxModuleFiles = 20000
	maxModuleBytes = 2 << 30
	// maxBzImage bounds a compressed image, in bytes.
	maxBzImage = 256 << 20
)

// fromBzImage unpacks a bzImage into the cache, or finds it there.
func (f *finder) fromBzImage(ctx context.Context, file *os.File, size int64) (*Kernel, error) {
	if size > maxBzImage {
		return nil, fmt.Errorf("%s: %w: %d MiB", file.Name(), bzimage.ErrTooLarge, size>>20)
	}
	header, err := bzimage.Parse(file, size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file.Name(), err)
	}
	sum, err := digest(ctx, io.NewSectionReader(file, 0, size))
	if err != nil {
		return nil, err
	}
	source, err := filepath.Abs(file.Name())
	if err != nil {
		return nil, err
	}
	name := kindImage + "-" + sum[:32]
	k, err := f.cached(name, sum, func(staging *os.Root) error {
		if err := unpackImage(ctx, staging, file, size); err != nil {
			return fmt.Errorf("%s: %w", file.Name(), err)
		}
		return writeLines(staging, map[string]string{fileRelease: header.Release, fileSource: source, fileBuiltFrom: sum})
	})
	if err != nil {
		return nil, err
	}
	k.BzImage = source // of equal content, wherever it was when it was unpacked
	if k.Modules == nil {
		k.Modules = modulesIn(filepath.Join(filepath.Dir(source), dirModules))
	}
	return k, nil
}

// cached returns the kernel of that name and fingerprint, filling it in first if it
// is missing, damaged, or of another origin.
func (f *finder) cached(name, builtFrom string, fill func(staging *os.Root) error) (*Kernel, error) {
	dir := filepath.Join(f.kernels, name)
	if readLine(dir, fileBuiltFrom) == builtFrom {
		if k, err := f.loadDir(dir); err == nil {
			return k, nil
		}
	}
	if err := publish(f.kernels, name, fill); err != nil {
		return nil, err
	}
	return f.loadDir(dir)
}

// unpackImage writes vmlinux and its checksum.
func unpackImage(ctx context.Context, staging *os.Root, image io.ReaderAt, size int64) error {
	out, err := staging.OpenFile(fileVmlinux, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	sum := sha256.New()
	n, err := bzimage.Unpack(io.MultiWriter(out, sum), contextReaderAt{ctx, image}, size)
	if err != nil {
		return err
	}
	if err := bzimage.CheckVmlinux(out, n); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return writeLines(staging, map[string]string{fileSums: hex.EncodeToString(sum.Sum(nil)) + "  " + fileVmlinux})
}

// fromDeb unpacks a linux-image package into the cache, or finds it there.
func (f *finder) fromDeb(ctx context.Context, file *os.File, size int64) (*Kernel, error) {
	sum, err := digest(ctx, io.NewSectionReader(file, 0, size))
	if err != nil {
		return nil, err
	}
	release, err := packageRelease(file, size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file.Name(), err)
	}
	return f.cached(kindDebian+"-"+release, sum, func(staging *os.Root) error {
		p := &packageUnpacker{staging: staging, release: release}
		if err := p.unpack(ctx, file, size); err != nil {
			return fmt.Errorf("%s: %w", file.Name(), err)
		}
		return writeLines(staging, map[string]string{fileRelease: release, fileSource: filepath.Base(file.Name()), fileBuiltFrom: sum})
	})
}

// errFound ends a walk early.
var errFound = errors.New("found")

// packageRelease returns the release of the kernel in a package, from the name of
// its image.
func packageRelease(r io.ReaderAt, size int64) (string, error) {
	release := ""
	err := deb.Walk(r, size, func(name string, info fs.FileInfo, _ io.Reader) error {
		if after, ok := strings.CutPrefix(name, "boot/vmlinuz-"); ok && info.Mode().IsRegular() && !strings.Contains(after, "/") {
			release = after
			return errFound
		}
		return nil
	})
	if err != nil && !errors.Is(err, errFound) {
		return "", err
	}
	if release == "" {
		return "", fmt.Errorf("%w: the package has no boot/vmlinuz-*", bzimage.ErrNotKernel)
	}
	return release, nil
}

// packageUnpacker copies what is needed of one linux-image package.
type packageUnpacker struct {
	staging *os.Root
	release string
	files   int
	bytes   int64
}

func (p *packageUnpacker) unpack(ctx context.Context, r io.ReaderAt, size int64) error {
	err := deb.Walk(contextReaderAt{ctx, r}, size, func(name string, info fs.FileInfo, content io.Reader) error {
		if !info.Mode().IsRegular() {
			return nil
		}
		if to := p.destination(name); to != "" {
			return p.copyFile(to, content)
		}
		return nil
	})
	if err != nil {
		return err
	}
	image, err := p.staging.Open(fileBzImage)
	if err != nil {
		return err
	}
	defer image.Close()
	info, err := image.Stat()
	if err != nil {
		return err
	}
	return unpackImage(ctx, p.staging, image, info.Size())
}

// destination maps a package's file to one of the cache's layout, or to "".
func (p *packageUnpacker) destination(name string) string {
	switch name {
	case "boot/vmlinuz-" + p.release:
		return fileBzImage
	case "boot/config-" + p.release:
		return "config"
	}
	tree := "lib/modules/" + p.release + "/"
	rest, ok := strings.CutPrefix(strings.TrimPrefix(name, "usr/"), tree)
	if !ok {
		return ""
	}
	return path.Join(dirModules, rest)
}

func (p *packageUnpacker) copyFile(to string, content io.Reader) error {
	if p.files++; p.files > maxModuleFiles {
		return fmt.Errorf("%w: more than %d files", bzimage.ErrTooLarge, maxModuleFiles)
	}
	if err := p.staging.MkdirAll(path.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := p.staging.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	n, err := io.Copy(out, io.LimitReader(content, maxModuleBytes-p.bytes+1))
	if err != nil {
		return err
	}
	if p.bytes += n; p.bytes > maxModuleBytes {
		return fmt.Errorf("%w: more than %d MiB of modules", bzimage.ErrTooLarge, maxModuleBytes>>20)
	}
	return out.Close()
}

// writeLines writes files of one line each.
func writeLines(root *os.Root, lines map[string]string) error {
	for name, line := range lines {
		if err := root.WriteFile(name, []byte(line+"\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// contextReaderAt fails once its context is done.
type contextReaderAt struct {
	ctx context.Context
	r   io.ReaderAt
}

// ReadAt implements io.ReaderAt.
func (c contextReaderAt) ReadAt(p []byte, offset int64) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.ReadAt(p, offset)
}
