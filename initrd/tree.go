package initrd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"
	"golang.org/x/sys/unix"
)

const (
	maxEntries = 1 << 20
	maxPath    = 4095 // PATH_MAX without its NUL, which bounds names in newc archives
	maxName    = 255
	maxFile    = math.MaxUint32 // newc sizes are 32 bits
)

// entry is one file of the initramfs.
type entry struct {
	path         string // slash-separated, relative, clean
	mode         fs.FileMode
	size         int64
	open         func() (io.ReadCloser, error) // content of a regular file; nil otherwise
	link         string                        // target of a symbolic link
	major, minor uint64                        // of a device
}

// memoryFile is a regular file whose content is at hand.
func memoryFile(path string, mode fs.FileMode, data []byte) entry {
	return entry{path: path, mode: mode, size: int64(len(data)), open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(data)), nil
	}}
}

// tree collects entries and holds their invariants: each path once, and below
// directories only, so that unpacking follows no symbolic link.
type tree struct {
	entries map[string]entry
	size    int64 // of contents, in bytes
	limit   int64
}

func newTree(limit int64) *tree { return &tree{entries: map[string]entry{}, limit: limit} }

// add puts e into the tree, with the directories above it. A directory may be added
// again: the first one's mode stays.
func (t *tree) add(e entry) error {
	if err := checkPath(e.path); err != nil {
		return err
	}
	if old, taken := t.entries[e.path]; taken {
		if old.mode.IsDir() && e.mode.IsDir() {
			return nil
		}
		return fmt.Errorf("%w: /%s", ErrCollision, e.path)
	}
	if err := t.addParents(e.path); err != nil {
		return err
	}
	if e.size > maxFile {
		return fmt.Errorf("%w: /%s has %d bytes, a file may have %d", ErrTooLarge, e.path, e.size, int64(maxFile))
	}
	if t.size += e.size; t.size > t.limit {
		return fmt.Errorf("%w: beyond %d bytes with /%s", ErrTooLarge, t.limit, e.path)
	}
	if len(t.entries) >= maxEntries {
		return fmt.Errorf("%w: more than %d files", ErrTooLarge, maxEntries)
	}
	t.entries[e.path] = e
	return nil
}

func (t *tree) addParents(name string) error {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		old, ok := t.entries[dir]
		if !ok {
			t.entries[dir] = entry{path: dir, mode: fs.ModeDir | 0o755}
			continue
		}
		if !old.mode.IsDir() {
			return fmt.Errorf("%w: /%s is no directory, so there is no /%s", ErrCollision, dir, name)
		}
		return nil // and so are all above
	}
	return nil
}

func checkPath(name string) error {
	if name == "." || !fs.ValidPath(name) || strings.ContainsRune(name, 0) || len(name) > maxPath || name == cpio.Trailer {
		return fmt.Errorf("%w: %q", ErrBadPath, name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > maxName {
			return fmt.Errorf("%w: a name of %d bytes in %.40q", ErrBadPath, len(part), name)
		}
	}
	return nil
}

// addFS adds all of fsys, which may be nil.
func (t *tree) addFS(ctx context.Context, fsys fs.FS) error {
	if fsys == nil {
		return nil
	}
	return fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || name == "." {
			return err
		}
		e, err := entryOf(fsys, name, d)
		if err != nil {
			return err
		}
		return t.add(e)
	})
}

func entryOf(fsys fs.FS, name string, d fs.DirEntry) (entry, error) {
	info, err := d.Info()
	if err != nil {
		return entry{}, err
	}
	e := entry{path: name, mode: info.Mode()}
	switch {
	case info.Mode().IsRegular():
		e.size = info.Size()
		e.open = func() (io.ReadCloser, error) { return fsys.Open(name) }
	case info.Mode()&fs.ModeSymlink != 0:
		if e.link, err = fs.ReadLink(fsys, name); err != nil {
			return entry{}, err
		}
		e.size = int64(len(e.link))
		if e.size == 0 || e.size > maxPath || strings.ContainsRune(e.link, 0) {
			return entry{}, fmt.Errorf("%w: the target of link /%s", ErrBadPath, name)
		}
	case !info.IsDir():
		return entry{}, fmt.Errorf("%w: /%s (%s)", ErrBadFile, name, info.Mode().Type())
	}
	return e, nil
}

// addHostFile adds one file of the host.
func (t *tree) addHostFile(f HostFile) error {
	guest, absolute := strings.CutPrefix(f.Guest, "/")
	if !absolute {
		return fmt.Errorf("%w: %q is not absolute", ErrBadPath, f.Guest)
	}
	info, err := os.Stat(f.Host)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: %s (%s)", ErrBadFile, f.Host, info.Mode().Type())
	}
	if f.Mode.Type() != 0 {
		return fmt.Errorf("%w: mode %s for %s", ErrBadFile, f.Mode, f.Guest)
	}
	return t.add(entry{path: guest, mode: cmp.Or(f.Mode, info.Mode()), size: info.Size(),
		open: func() (io.ReadCloser, error) { return os.Open(f.Host) }})
}

// sorted returns the entries by path. A directory's path is a prefix of those
// inside it, so it comes before them, as unpacking needs it.
func (t *tree) sorted() []entry {
	list := make([]entry, 0, len(t.entries))
	for _, e := range t.entries {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	return list
}

// newc layout (Documentation/driver-api/early-userspace/buffer-format.rst): a header
// of 110 bytes, the name with its NUL, the content; the last two padded to four.
const newcHeaderLen = 110

// archiveSize returns the length of the archive of entries, in bytes.
func archiveSize(entries []entry) int64 {
	pad := func(n int64) int64 { return (n + 3) &^ 3 }
	size := pad(newcHeaderLen + int64(len(cpio.Trailer)) + 1)
	for _, e := range entries {
		size += pad(newcHeaderLen+int64(len(e.path))+1) + pad(e.size)
	}
	return size
}

// writeTo writes the entry as one record. Owner and times are zero: the same inputs
// give the same archive.
func (e entry) writeTo(archive cpio.RecordWriter, inode uint64) error {
	record := cpio.Record{Info: cpio.Info{Name: e.path, Ino: inode, NLink: 1, Mode: unixMode(e.mode),
		FileSize: uint64(e.size), Rmajor: e.major, Rminor: e.minor}}
	switch {
	case e.link != "":
		record.ReaderAt = strings.NewReader(e.link)
	case e.open != nil:
		content, err := e.open()
		if err != nil {
			return err
		}
		defer content.Close()
		record.ReaderAt = &sequentialReaderAt{r: content, size: e.size}
	}
	return archive.WriteRecord(record)
}

// unixMode converts a mode to that of stat(2).
func unixMode(m fs.FileMode) uint64 {
	mode := uint64(m.Perm())
	for _, bit := range []struct {
		from fs.FileMode
		to   uint64
	}{{fs.ModeSetuid, unix.S_ISUID}, {fs.ModeSetgid, unix.S_ISGID}, {fs.ModeSticky, unix.S_ISVTX}} {
		if m&bit.from != 0 {
			mode |= bit.to
		}
	}
	switch {
	case m.IsDir():
		return mode | unix.S_IFDIR
	case m&fs.ModeSymlink != 0:
		return mode | unix.S_IFLNK
	case m&fs.ModeCharDevice != 0:
		return mode | unix.S_IFCHR
	}
	return mode | unix.S_IFREG
}

var errChanged = errors.New("the file changed while it was packed")

// sequentialReaderAt lets an fs.File, which can only be read on, pass for the
// io.ReaderAt a record wants: the archive is written front to back. A file that is
// not as long as it was when planned is an error, since its header is written.
type sequentialReaderAt struct {
	r    io.Reader
	pos  int64
	size int64
}

// ReadAt implements io.ReaderAt for offsets that follow on each other.
func (s *sequentialReaderAt) ReadAt(p []byte, offset int64) (int, error) {
	if offset != s.pos {
		return 0, fmt.Errorf("read at %d, not %d", offset, s.pos)
	}
	n, err := io.ReadFull(s.r, p[:min(int64(len(p)), s.size-s.pos)])
	s.pos += int64(n)
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return n, errChanged
	case err == nil && s.pos == s.size:
		return n, s.atEnd()
	}
	return n, err
}

// atEnd returns io.EOF if the file really ends here.
func (s *sequentialReaderAt) atEnd() error {
	var more [1]byte
	if n, _ := s.r.Read(more[:]); n > 0 {
		return errChanged
	}
	return io.EOF
}
