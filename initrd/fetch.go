package initrd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// ErrNoAPT is wrapped by errors of FetchDebianKernel on machines without apt.
var ErrNoAPT = errors.New("apt is not installed")

// debianPackage matches the signed cloud kernels of the series that is supported.
// Meta packages, -unsigned and -dbg ones do not match.
var debianPackage = regexp.MustCompile(`^linux-image-6\.12\.[0-9][0-9a-z.+~]*-cloud-amd64$`)

const fetchHint = "on a Debian machine run `apt-get update` as root and try again; " +
	"or download a linux-image-6.12*-cloud-amd64 package from packages.debian.org and name the file with FORKVM_KERNEL"

// FetchDebianKernel downloads the newest linux-image-6.12*-cloud-amd64 package that
// apt knows of, checked by apt against the distribution's signatures, and unpacks
// it into the cache. It needs the package lists of a Debian machine, and no root.
// A kernel that is in the cache already is not downloaded again. Errors wrap
// ErrNoAPT or ErrNoKernel, or carry apt's own words.
func FetchDebianKernel(ctx context.Context) (*Kernel, error) {
	f, err := newFinder()
	if err != nil {
		return nil, err
	}
	k, err := f.fetchDebian(ctx)
	if err != nil {
		return nil, fmt.Errorf("initrd: fetch: %w", err)
	}
	return k, nil
}

func (f *finder) fetchDebian(ctx context.Context) (*Kernel, error) {
	name, err := newestPackage(ctx)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(f.kernels, kindDebian+"-"+strings.TrimPrefix(name, "linux-image-"))
	if readLine(dir, fileBuiltFrom) != "" {
		if k, err := f.loadDir(dir); err == nil {
			return k, nil
		}
	}
	downloads, err := os.MkdirTemp("", "forkvm-kernel-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(downloads)
	// apt as root downloads as user _apt, who must be able to write here.
	if err := os.Chmod(downloads, 0o777); err != nil {
		return nil, err
	}
	if _, err := apt(ctx, downloads, "apt-get", "download", name); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(downloads, "*.deb"))
	if err != nil || len(files) != 1 {
		return nil, fmt.Errorf("apt-get download %s left %d packages", name, len(files))
	}
	return f.fromFile(ctx, files[0])
}

// newestPackage asks apt's lists for the newest kernel package.
func newestPackage(ctx context.Context) (string, error) {
	out, err := apt(ctx, "", "apt-cache", "pkgnames", "linux-image-6.12.")
	if err != nil {
		return "", err
	}
	newest := newestOf(strings.Fields(string(out)))
	if newest == "" {
		return "", fmt.Errorf("%w: apt knows of no linux-image-6.12*-cloud-amd64: %s", ErrNoKernel, fetchHint)
	}
	return newest, nil
}

func newestOf(packages []string) string {
	packages = slices.DeleteFunc(packages, func(name string) bool { return !debianPackage.MatchString(name) })
	if len(packages) == 0 {
		return ""
	}
	return slices.MaxFunc(packages, compareReleases)
}

// apt runs a program of apt in dir and returns what it printed.
func apt(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return nil, fmt.Errorf("%w: no %s: %s", ErrNoAPT, program, fetchHint)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, lastLine(stderr.String()))
	}
	return out, nil
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}
