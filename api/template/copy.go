package template

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// copy does a COPY. sum is that of what it copies, when the build began.
func (b *builder) copy(ctx context.Context, guest guestFiles, s step, sum string) error {
	var own *owner
	if s.chown != "" {
		var err error
		if own, err = lookupOwner(guest, s.chown); err != nil {
			return err
		}
	}
	dir, base, err := b.context.target(guest, s)
	if err != nil {
		return err
	}
	made, err := makeDir(guest, dir)
	if err != nil {
		return err
	}
	h := sha256.New()
	var all, links []entry
	r, w := io.Pipe()
	written := make(chan struct{})
	go func() {
		defer close(written)
		var err error
		all, links, err = b.context.archive(ctx, s, base, w, h)
		w.CloseWithError(err)
	}()
	err = guest.TarIn(ctx, dir, r)
	r.CloseWithError(io.ErrClosedPipe) // who fills it is to end now
	<-written
	if err != nil {
		return err
	}
	if hex.EncodeToString(h.Sum(nil)) != sum {
		return fmt.Errorf("a file in the context directory: %w", errChanged)
	}
	for _, l := range links {
		if err := link(guest, path.Join(dir, l.name), l.link); err != nil {
			return err
		}
	}
	if own == nil {
		return nil
	}
	return own.give(guest, dir, made, all)
}

// target is the directory in the guest to copy into, and how a single file is
// named there.
func (c *copyContext) target(guest guestFiles, s step) (dir, base string, err error) {
	dest := path.Clean(s.dest)
	if s.intoDir {
		return dest, "", nil
	}
	found, err := c.find(s.sources[0]) // there is one, see entries
	if err != nil {
		return "", "", err
	}
	info, err := c.root.Stat(found[0])
	if err != nil {
		return "", "", err
	}
	if info.IsDir() {
		return dest, "", nil
	}
	there, err := guest.Stat(dest)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return "", "", err
	case there.IsDir():
		return dest, path.Base(found[0]), nil
	}
	return path.Dir(dest), path.Base(dest), nil
}

// makeDir makes a directory if it is not there.
func makeDir(guest guestFiles, dir string) (made bool, err error) {
	if _, err = guest.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, guest.MkdirAll(dir, 0o755)
}

// link makes a symbolic link in the place of what is there.
func link(guest guestFiles, name, to string) error {
	if err := guest.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	if err := guest.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return guest.Symlink(to, name)
}

// owner is whom copied files belong to.
type owner struct{ uid, gid int }

// give makes the owner that of all that was copied into dir, and of dir if it
// was made for that.
func (o *owner) give(guest guestFiles, dir string, made bool, all []entry) error {
	if made {
		if err := guest.Chown(dir, o.uid, o.gid); err != nil {
			return err
		}
	}
	for _, e := range all {
		if err := guest.Chown(path.Join(dir, e.name), o.uid, o.gid); err != nil {
			return err
		}
	}
	return nil
}

// maxAccounts is how long a guest's list of users may be, in bytes.
const maxAccounts = 1 << 20

// lookupOwner resolves USER or USER:GROUP, names of the guest or numbers.
// Without a group it is the user's own, or that of the same number.
func lookupOwner(guest guestFiles, spec string) (*owner, error) {
	user, group, hasGroup := strings.Cut(spec, ":")
	uid, gid, err := lookupAccount(guest, "/etc/passwd", user)
	if err != nil {
		return nil, fmt.Errorf("--chown: user %q: %w", user, err)
	}
	if hasGroup {
		if gid, _, err = lookupAccount(guest, "/etc/group", group); err != nil {
			return nil, fmt.Errorf("--chown: group %q: %w", group, err)
		}
	}
	return &owner{uid, gid}, nil
}

// lookupAccount finds a name, or a number, in a file of lines such as
// name:password:number:number. The second number is the first one if there is
// no such line.
func lookupAccount(guest guestFiles, file, name string) (id, second int, err error) {
	number, err := strconv.ParseUint(name, 10, 31)
	numeric := err == nil
	info, err := guest.Stat(file)
	if err == nil && info.Size() > maxAccounts {
		err = fmt.Errorf("%s is longer than %d bytes", file, maxAccounts)
	}
	var text []byte
	if err == nil {
		text, err = guest.ReadFile(file)
	}
	if err != nil && !(numeric && errors.Is(err, fs.ErrNotExist)) {
		return 0, 0, err
	}
	for l := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSpace(l), ":")
		if len(f) < 4 {
			continue
		}
		id, err := strconv.ParseUint(f[2], 10, 31)
		if err != nil || f[0] != name && !(numeric && id == number) {
			continue
		}
		second, err := strconv.ParseUint(f[3], 10, 31)
		if err != nil {
			second = id // of a group: there are names
		}
		return int(id), int(second), nil
	}
	if numeric {
		return int(number), int(number), nil
	}
	return 0, 0, errors.New("the guest has none of that name")
}
