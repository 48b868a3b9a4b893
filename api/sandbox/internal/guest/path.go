package guest

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"github.com/forkvm/forkvm/guestagent/client"
)

const (
	maxPath  = 4095 // bytes, as Linux has it with the NUL at the end
	maxLinks = 40   // symbolic links on the way to a file, as Linux has it
)

// CheckPath tells what is wrong with a path that the field has. Otherwise it
// returns the shortest path that says the same: without double slashes, dots, or
// a slash at the end. What has ".." is refused, as what that means depends on
// links.
func CheckPath(field, p string) (string, error) {
	switch {
	case p == "":
		return "", badField(field, "empty")
	case len(p) > maxPath:
		return "", badField(field, "longer than %d bytes", maxPath)
	case hasNUL(p):
		return "", badField(field, "has a NUL byte")
	case p[0] != '/':
		return "", badField(field, "%.80q is not absolute", p)
	}
	for elem := range strings.SplitSeq(p, "/") {
		if elem == ".." {
			return "", badField(field, "%.80q has ..", p)
		}
	}
	return path.Clean(p), nil
}

// throughLinks returns where p leads if it is a symbolic link, which then need
// not exist, and p if it is none.
func throughLinks(f *client.FS, p string) (string, error) {
	fi, err := f.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil || fi.Mode()&fs.ModeSymlink == 0 {
		return p, err
	}
	return realPath(f, p)
}

// realPath follows every link of p one after the other, as realpath(3) does.
// The agent takes ".." as it is written, which is wrong behind a link.
func realPath(f *client.FS, p string) (string, error) {
	done, todo := "/", strings.Split(p, "/")
	links := 0
	for steps := 0; len(todo) > 0; steps++ {
		if steps+len(todo) > maxPath { // each asks the agent
			return "", &fs.PathError{Op: "open", Path: p, Err: syscall.ENAMETOOLONG}
		}
		elem := todo[0]
		todo = todo[1:]
		switch elem {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, elem)
		target, err := f.Readlink(next)
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrNotExist) {
			done = next // no link
			continue
		}
		if err != nil {
			return "", err
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "open", Path: p, Err: syscall.ELOOP}
		}
		if path.IsAbs(target) {
			done = "/"
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return done, nil
}

// onPath calls do with a path that was checked, and makes its error one of the
// API.
func onPath[T any](ctx context.Context, g *Guest, p string, do func(*client.FS, string) (T, error)) (v T, err error) {
	p, err = CheckPath("path", p)
	if err != nil {
		return v, err
	}
	v, err = do(g.files(ctx), p)
	return v, fail(ctx, err)
}
