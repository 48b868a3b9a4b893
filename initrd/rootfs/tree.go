package rootfs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	maxName   = 255  // of EROFS, and of Linux
	maxTarget = 4095 // PATH_MAX without its NUL
	// maxHops bounds the symbolic links followed for one path, as the kernel does, and
	// maxSteps the names looked up on the way, of which links may have thousands each.
	maxHops  = 40
	maxSteps = 4096
)

// inode is a file of any type. Contents of regular files are in the image already.
type inode struct {
	mode     uint16 // type and permissions, as in struct stat
	uid, gid uint32
	mtime    int64 // seconds since 1970
	nsec     uint32
	links    uint32 // directory entries; for directories filled in by layout
	rdev     uint32 // of devices, as the kernel encodes it
	size     int64
	block    uint32 // first block of the contents
	target   string // of a symbolic link
	xattrs   []xattr

	children map[string]child // of a directory
	pruned   int              // the last layer that hid what is below it
	place    *place           // where layout put it
}

// child is a directory entry, and the number of the layer that made it.
type child struct {
	*inode
	layer int
}

// xattr is an extended attribute, its name split as EROFS stores it.
type xattr struct {
	prefix uint8
	name   string
	value  string
}

func (i *inode) is(format uint16) bool { return i.mode&unix.S_IFMT == format }

func newDirectory() *inode {
	return &inode{mode: unix.S_IFDIR | 0o755, links: 1, children: map[string]child{}}
}

// tree is the merged file system.
type tree struct {
	root    *inode
	layer   int // the layer being read, counted from 1
	depth   int // limit
	release func(*inode) error
}

// walk is a position in the tree: the directories from the root down.
type walk struct {
	t     *tree
	stack []*inode
	hops  int
	steps int
}

// missing says what a walk does about a directory that does not exist.
type missing bool

const (
	create missing = true
	stop   missing = false
)

// splitPath splits the name of an entry. Absolute names are below the root like others.
func splitPath(name string) ([]string, error) {
	if strings.ContainsRune(name, 0) {
		return nil, fmt.Errorf("%w: name %.100q has a NUL", ErrFormat, name)
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			return nil, fmt.Errorf("%w: name %.100q leads out of its directory", ErrFormat, name)
		case len(part) > maxName:
			return nil, fmt.Errorf("%w: name %.100q… has more than %d bytes", ErrLimit, part, maxName)
		default:
			parts = append(parts, part)
		}
	}
	return parts, nil
}

// directory returns the directory that parts name, nil if it does not exist and is not
// to be created. Symbolic links on the way are followed inside the tree, as they would
// be when an archive is unpacked in a root of its own.
func (t *tree) directory(parts []string, m missing) (*inode, error) {
	w := walk{t: t, stack: []*inode{t.root}}
	found, err := w.descend(parts, m)
	if err != nil || !found {
		return nil, err
	}
	return w.at(), nil
}

func (w *walk) at() *inode { return w.stack[len(w.stack)-1] }

// descend goes down from where w is and reports whether there was a way.
func (w *walk) descend(parts []string, m missing) (bool, error) {
	for _, part := range parts {
		if found, err := w.step(part, m); err != nil || !found {
			return false, err
		}
	}
	return true, nil
}

func (w *walk) step(part string, m missing) (bool, error) {
	if w.steps++; w.steps > maxSteps {
		return false, fmt.Errorf("%w: more than %d names in one path", ErrLimit, maxSteps)
	}
	if part == ".." { // in the target of a symbolic link
		w.stack = w.stack[:max(1, len(w.stack)-1)]
		return true, nil
	}
	next, ok := w.at().children[part]
	switch {
	case !ok && m == stop:
		return false, nil
	case !ok:
		next = child{newDirectory(), w.t.layer}
		w.at().children[part] = next
	case next.is(unix.S_IFLNK):
		return w.follow(next.target, m)
	case !next.is(unix.S_IFDIR) && m == stop:
		return false, nil
	case !next.is(unix.S_IFDIR):
		return false, fmt.Errorf("%w: %q is not a directory, but has files", ErrFormat, part)
	}
	if len(w.stack) > w.t.depth {
		return false, fmt.Errorf("%w: more than %d directories deep", ErrLimit, w.t.depth)
	}
	w.stack = append(w.stack, next.inode)
	return true, nil
}

func (w *walk) follow(target string, m missing) (bool, error) {
	if w.hops++; w.hops > maxHops {
		return false, fmt.Errorf("%w: more than %d symbolic links in one path", ErrFormat, maxHops)
	}
	if strings.HasPrefix(target, "/") {
		w.stack = w.stack[:1]
	}
	var parts []string
	for part := range strings.SplitSeq(target, "/") {
		if part != "" && part != "." {
			parts = append(parts, part)
		}
	}
	return w.descend(parts, m)
}

// put makes i the file that parts name. What was there goes, unless both are
// directories: then the contents stay.
func (t *tree) put(parts []string, i *inode) error {
	if len(parts) == 0 {
		if !i.is(unix.S_IFDIR) {
			return fmt.Errorf("%w: the root is not a directory", ErrFormat)
		}
		t.root.takeMetadata(i)
		return nil
	}
	dir, err := t.directory(parts[:len(parts)-1], create)
	if err != nil {
		return err
	}
	return t.putIn(dir, parts[len(parts)-1], i)
}

func (t *tree) putIn(dir *inode, name string, i *inode) error {
	if len(name) > maxName {
		return fmt.Errorf("%w: name %.100q… has more than %d bytes", ErrLimit, name, maxName)
	}
	old, exists := dir.children[name]
	switch {
	case exists && old.inode == i:
		i.links-- // a hard link to itself
	case exists && old.is(unix.S_IFDIR) && i.is(unix.S_IFDIR):
		old.takeMetadata(i)
		i = old.inode
	case exists:
		if err := t.drop(old.inode); err != nil {
			return err
		}
	}
	dir.children[name] = child{i, t.layer}
	return nil
}

// takeMetadata gives the directory i owner, mode, time and attributes of another.
func (i *inode) takeMetadata(of *inode) {
	i.mode, i.uid, i.gid = of.mode, of.uid, of.gid
	i.mtime, i.nsec, i.xattrs = of.mtime, of.nsec, of.xattrs
}

// link makes the file that parts name another name of the file that target names.
func (t *tree) link(parts, target []string) error {
	if len(target) == 0 {
		return fmt.Errorf("%w: hard link to a directory", ErrFormat)
	}
	dir, err := t.directory(target[:len(target)-1], stop)
	if err != nil {
		return err
	}
	if dir == nil {
		return fmt.Errorf("%w: hard link to %.100q, which does not exist", ErrFormat, strings.Join(target, "/"))
	}
	old, ok := dir.children[target[len(target)-1]]
	switch {
	case !ok:
		return fmt.Errorf("%w: hard link to %.100q, which does not exist", ErrFormat, strings.Join(target, "/"))
	case old.is(unix.S_IFDIR):
		return fmt.Errorf("%w: hard link to the directory %.100q", ErrFormat, strings.Join(target, "/"))
	}
	old.links++
	return t.put(parts, old.inode)
}

// drop takes one link from i, and frees what nothing links to any more.
func (t *tree) drop(i *inode) error {
	for _, c := range i.children {
		if err := t.drop(c.inode); err != nil {
			return err
		}
	}
	if i.links--; i.links > 0 {
		return nil
	}
	return t.release(i)
}

// hide removes what layers below this one put at parts.
func (t *tree) hide(parts []string) error {
	dir, err := t.directory(parts[:len(parts)-1], stop)
	if err != nil || dir == nil {
		return err
	}
	return t.pruneChild(dir, parts[len(parts)-1])
}

// hideBelow removes what layers below this one put into the directory that parts name.
func (t *tree) hideBelow(parts []string) error {
	dir, err := t.directory(parts, stop)
	if err != nil || dir == nil {
		return err
	}
	return t.prune(dir)
}

// prune removes what is below dir and is of lower layers. Each layer does so once for a
// directory: there is nothing to do a second time, and markers may be repeated without end.
func (t *tree) prune(dir *inode) error {
	if dir.pruned == t.layer {
		return nil
	}
	dir.pruned = t.layer
	for name := range dir.children {
		if err := t.pruneChild(dir, name); err != nil {
			return err
		}
	}
	return nil
}

// pruneChild removes an entry of a lower layer; a directory stays as far as this layer
// has files in it, since a layer need not list the directories above its files.
func (t *tree) pruneChild(dir *inode, name string) error {
	c, ok := dir.children[name]
	if !ok {
		return nil
	}
	if c.is(unix.S_IFDIR) {
		if err := t.prune(c.inode); err != nil {
			return err
		}
	}
	if c.layer == t.layer || len(c.children) > 0 {
		return nil
	}
	delete(dir.children, name)
	return t.drop(c.inode)
}

// xattrPrefixes are the name spaces that EROFS can store, with their index.
var xattrPrefixes = []struct {
	index  uint8
	prefix string
	whole  bool // the prefix is the whole name
}{
	{1, "user.", false},
	{2, "system.posix_acl_access", true},
	{3, "system.posix_acl_default", true},
	{4, "trusted.", false},
	{6, "security.", false},
}

// makeXattrs sorts attributes by name and checks them against the limit of one inode.
// Names that no Linux file system has, like those of other systems' archives, are left out.
func makeXattrs(values map[string]string, limit int) ([]xattr, int, error) {
	var list []xattr
	size := 0
	for name, value := range values {
		x, ok := splitXattr(name, value)
		if !ok {
			continue
		}
		size += len(name) + len(value)
		if len(x.name) > maxName || len(value) > 0xffff || size > limit {
			return nil, 0, fmt.Errorf("%w: extended attributes of more than %d bytes", ErrLimit, limit)
		}
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b xattr) int {
		return cmp.Or(cmp.Compare(a.prefix, b.prefix), cmp.Compare(a.name, b.name))
	})
	return list, size, nil
}

func splitXattr(name, value string) (xattr, bool) {
	for _, p := range xattrPrefixes {
		rest, ok := strings.CutPrefix(name, p.prefix)
		if ok && (rest == "") == p.whole {
			return xattr{p.index, rest, value}, true
		}
	}
	return xattr{}, false
}
