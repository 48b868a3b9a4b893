package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/forkvm/forkvm/test/lab/internal/image"
	"github.com/forkvm/forkvm/test/lab/internal/session"
)

// newFlags returns a flag set that reports errors to its caller.
func newFlags(name, arguments string) *flag.FlagSet {
	fs := flag.NewFlagSet("lab "+name, flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprintf(fs.Output(), "usage: lab %s %s\n", name, arguments)
		fs.PrintDefaults()
	}
	return fs
}

// listFlag is a flag that may be given several times.
func listFlag[T any](fs *flag.FlagSet, list *[]T, name, usage string, parse func(string) (T, error)) {
	fs.Func(name, usage+" (may be repeated)", func(s string) error {
		v, err := parse(s)
		if err == nil {
			*list = append(*list, v)
		}
		return err
	})
}

// machineFlags adds the flags that say what machine to start.
func machineFlags(fs *flag.FlagSet, o *image.Options) {
	fs.IntVar(&o.MemoryMiB, "memory", 0, "the machine's memory in `MiB` (default 3072)")
	listFlag(fs, &o.Disks, "disk", "mount an ext4 `image[:dir]`, which keeps what is written to it", parseDisk)
	listFlag(fs, &o.Trees, "tree", "mount a copy of a `folder[:dir]`, made into a disk image: for large ones", parseTree)
}

func parseDisk(s string) (image.Mount, error) { return parseMount(s, os.FileMode.IsRegular) }

func parseTree(s string) (image.Mount, error) { return parseMount(s, os.FileMode.IsDir) }

func parseMount(s string, right func(os.FileMode) bool) (image.Mount, error) {
	host, guest, err := splitPair(s)
	if err != nil {
		return image.Mount{}, err
	}
	info, err := os.Stat(host)
	if err != nil {
		return image.Mount{}, err
	}
	if !right(info.Mode()) {
		return image.Mount{}, fmt.Errorf("%s has the wrong type: %v", host, info.Mode().Type())
	}
	return image.Mount{Host: host, Guest: guest}, nil
}

func parseFile(s string) (session.Copy, error) {
	host, guest, err := splitPair(s)
	if err != nil {
		return session.Copy{}, err
	}
	_, err = os.Stat(host)
	return session.Copy{Host: host, Guest: guest}, err
}

// An output is a file or folder to copy out afterwards.
type output struct {
	guest, host string
	// optional says that it need not be there.
	optional bool
}

func parseOutput(s string) (output, error) {
	guest, host, err := splitPair(s)
	return output{guest: guest, host: host}, err
}

// splitPair splits "path[:path]" into two absolute paths. One path stands for both.
func splitPair(s string) (first, second string, err error) {
	first, second, _ = strings.Cut(s, ":")
	if first == "" || strings.Contains(second, ":") {
		return "", "", fmt.Errorf("%q is not path[:path]", s)
	}
	if first, err = filepath.Abs(first); err != nil {
		return "", "", err
	}
	if second == "" {
		return first, first, nil
	}
	second, err = filepath.Abs(second)
	return first, second, err
}

// A forward makes a port inside the machine reachable on the host.
type forward struct{ host, guest uint16 }

func parseForward(s string) (forward, error) {
	host, guest, ok := strings.Cut(s, ":")
	if !ok {
		guest = host
	}
	h, err := strconv.ParseUint(host, 10, 16)
	g, err2 := strconv.ParseUint(guest, 10, 16)
	if err := errors.Join(err, err2); err != nil || h == 0 || g == 0 {
		return forward{}, fmt.Errorf("%q is not hostport:guestport", s)
	}
	return forward{host: uint16(h), guest: uint16(g)}, nil
}

func parseEnv(s string) (string, error) {
	if name, _, ok := strings.Cut(s, "="); !ok || name == "" {
		return "", fmt.Errorf("%q is not NAME=VALUE", s)
	}
	return s, nil
}
