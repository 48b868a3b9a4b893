package rootfs

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// pattern is content of which no two blocks are equal.
func pattern(size int) string {
	b := make([]byte, 0, size+16)
	for i := 0; len(b) < size; i++ {
		b = fmt.Appendf(b, "%d,", i)
	}
	return string(b[:size])
}

func withXattrs(e entry, xattrs map[string]string) entry {
	e.PAXRecords = map[string]string{}
	for name, value := range xattrs {
		e.PAXRecords["SCHILY.xattr."+name] = value
	}
	return e
}

// Everything that an archive can say is in the image.
func TestTarRoundTrip(t *testing.T) {
	want := map[string]file{}
	var entries []entry
	add := func(e entry, f file) {
		f.mode, f.uid, f.gid = uint32(e.Mode), uint32(e.Uid), uint32(e.Gid)
		f.mtime, f.nsec = e.ModTime.Unix(), uint32(e.ModTime.Nanosecond())
		if f.nlink == 0 {
			f.nlink = 1
		}
		entries = append(entries, e)
		want[strings.TrimSuffix(e.Name, "/")] = f
	}
	addFile := func(name, content string, change func(*entry)) {
		e := reg(name, content)
		if change != nil {
			change(&e)
		}
		add(e, file{kind: "-", size: int64(len(content)), content: sum(content)})
	}

	add(dir("d/"), file{kind: "d", nlink: 4})
	sticky := dir("d/sticky")
	sticky.Mode, sticky.Uid, sticky.Gid, sticky.ModTime = 0o1777, 70_000, 4_000_000_000, time.Unix(-5, 123_456_789)
	add(sticky, file{kind: "d", nlink: 2})
	for _, size := range []int{0, 1, 4095, 4096, 4097, 1<<20 - 1, 1 << 20, 1<<20 + 1, 3<<20 + 5} {
		addFile("d/size"+strconv.Itoa(size), pattern(size), nil)
	}
	addFile("zeros", strings.Repeat("\x00", 3<<20), nil)
	addFile("islands", strings.Repeat("\x00", 1<<20)+"x"+strings.Repeat("\x00", 2<<20)+"y", nil)
	addFile("setuid", "s", func(e *entry) { e.Mode = 0o6755; e.ModTime = time.Unix(1<<33, 999_999_999) })
	addFile(strings.Repeat("n", 255), "long name", nil)
	addFile("ünïcode \n\t\"name", "x", nil)
	addFile("d/more/implied", "parents are made", nil)
	want["d/more"] = file{kind: "d", mode: 0o755, nlink: 2}
	for _, length := range []int{1, 100, 2047, 2048, 2049, 4095} {
		target := strings.Repeat("t", length)
		add(sym("link"+strconv.Itoa(length), target), file{kind: "l", size: int64(length), content: target})
	}
	add(entry{Header: tar.Header{Typeflag: tar.TypeChar, Name: "null", Mode: 0o666, Devmajor: 1, Devminor: 3, ModTime: epoch}},
		file{kind: "c", rdev: 0x103})
	add(entry{Header: tar.Header{Typeflag: tar.TypeBlock, Name: "block", Mode: 0o660, Devmajor: 259, Devminor: 0x12345, ModTime: epoch}},
		file{kind: "b", rdev: 0x45 | 259<<8 | 0x12300<<12})
	add(entry{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "fifo", Mode: 0o600, ModTime: epoch}}, file{kind: "p"})

	xattrs := withXattrs(reg("attributes", "x"), map[string]string{
		"user.empty": "", "user.a": "1", "trusted.t": "two", "security.capability": "\x01\x00\x00\x02caps",
		"user.long": pattern(5000), "com.apple.quarantine": "left out", "user.": "left out",
	})
	add(xattrs, file{kind: "-", size: 1, content: sum("x"), xattrs: "security.capability=\x01\x00\x00\x02caps;trusted.t=two;" +
		"user.a=1;user.empty=;user.long=" + sum(pattern(5000)) + ";"})
	add(withXattrs(dir("labelled"), map[string]string{"user.d": strings.Repeat("v", 2500)}),
		file{kind: "d", nlink: 2, xattrs: "user.d=" + sum(strings.Repeat("v", 2500)) + ";"})

	one := reg("one", "same")
	add(one, file{kind: "-", nlink: 3, size: 4, content: sum("same")})
	entries = append(entries, hard("two", "one"), hard("d/three", "./two"))
	want["two"], want["d/three"] = want["one"], want["one"]
	entries = append(entries, hard("link1b", "link1"))
	link := want["link1"]
	link.nlink = 2
	want["link1"], want["link1b"] = link, link

	root := dir("./")
	root.Mode = 0o711
	add(root, file{kind: "d", nlink: 4})
	want["."] = want["."+"/"[1:]]
	delete(want, "")

	image := build(t, tarOf(t, entries...), Options{UUID: [16]byte{1, 2, 3}})
	got := image.list(t)
	for name, f := range want {
		if got[name] != f {
			t.Errorf("%.40q:\n is %+v\nnot %+v", name, got[name], f)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d files, not %d", len(got), len(want))
	}
	if inodes := len(want) - 3; image.Inodes != inodes {
		t.Errorf("%d inodes, not %d", image.Inodes, inodes)
	}
	image.fsck(t)
	dump := tool(t, "dump.erofs", "-s", image.path)
	for _, line := range []string{"01020300-0000-0000-0000-000000000000", "sb_csum mtime", "inode count: "} {
		if !strings.Contains(strings.Join(strings.Fields(dump), " "), line) {
			t.Errorf("no %s in\n%s", line, dump)
		}
	}
}

// Names that sort before ".", and directories of many blocks.
func TestLargeDirectories(t *testing.T) {
	for _, count := range []int{1, 100, 170, 171, 340, 5000} {
		entries := []entry{dir("d"), reg("d/!", ""), reg("d/-x", ""), reg("d/.a", ""), reg("d/...", "")}
		for i := range count {
			entries = append(entries, reg(fmt.Sprintf("d/name-%d", i*7919%count), ""))
		}
		image := build(t, tarOf(t, entries...), Options{})
		if files := image.list(t); len(files) != count+6 {
			t.Errorf("%d files of %d", len(files), count+6)
		}
		image.fsck(t)
		list := tool(t, "dump.erofs", "--ls", "--path=/d", image.path)
		for _, name := range []string{"!", "-x", "...", "name-0"} {
			if !slices.Contains(strings.Fields(list), name) {
				t.Errorf("%d: no %s", count, name)
			}
		}
	}
}

// fsck.erofs reads every byte and writes it out again.
func TestExtract(t *testing.T) {
	contents := map[string]string{}
	var entries []entry
	for i := range 300 {
		name := fmt.Sprintf("d%d/e%d/file%d", i%7, i%3, i)
		contents[name] = pattern(i * i)
		entries = append(entries, reg(name, contents[name]))
	}
	entries = append(entries, sym("link", "d1/e1"))
	image := build(t, tarOf(t, entries...), Options{})
	out := filepath.Join(t.TempDir(), "out")
	tool(t, "fsck.erofs", "--extract="+out, "--no-preserve", image.path)
	for name, want := range contents {
		if got, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(got) != want {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	if target, err := os.Readlink(filepath.Join(out, "link")); target != "d1/e1" {
		t.Errorf("%q %v", target, err)
	}
}

func compressed(t testing.TB, data []byte, format string) []byte {
	t.Helper()
	var buffer bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&buffer)
	if format == "zstd" {
		encoder, err := zstd.NewWriter(&buffer)
		if err != nil {
			t.Fatal(err)
		}
		w = encoder
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

// The same archive makes the same bytes, in whatever it is wrapped.
func TestDeterministic(t *testing.T) {
	entries := []entry{reg("a", pattern(10_000)), dir("d"), hard("d/b", "a"), withXattrs(reg("x", ""), map[string]string{
		"user.1": "1", "user.2": "2", "user.3": "3", "user.4": "4", "security.5": "5",
	})}
	for i := range 100 {
		entries = append(entries, reg(fmt.Sprint("d/", i), pattern(i)))
	}
	plain := pack(t, entries...)
	want := build(t, Tar(bytes.NewReader(plain)), Options{})
	data, err := os.ReadFile(want.path)
	if err != nil {
		t.Fatal(err)
	}
	if sum(string(data)) != fmt.Sprintf("%x", want.Sum) || int64(len(data)) != want.Size {
		t.Error("the sum or the size is of something else")
	}
	for name, data := range map[string][]byte{"plain": plain, "gzip": compressed(t, plain, "gzip"), "zstd": compressed(t, plain, "zstd")} {
		if got := build(t, Tar(bytes.NewReader(data)), Options{}); got.Sum != want.Sum {
			t.Errorf("%s: another image", name)
		}
	}
	entries[0].Mode = 0o600
	if got := build(t, tarOf(t, entries...), Options{}); got.Sum == want.Sum {
		t.Error("a mode is not in the image")
	}
}

// A name can look like the start of something compressed.
func TestNameLikeAMagic(t *testing.T) {
	if got := build(t, tarOf(t, reg("BZh91AY", ""), reg("a", "")), Options{}).names(t); got != "BZh91AY a" {
		t.Error(got)
	}
}

func TestRootOwns(t *testing.T) {
	e := reg("d/file", "x")
	e.Uid, e.Gid = 1000, 1001
	for name, f := range build(t, tarOf(t, e), Options{RootOwns: true}).list(t) {
		if f.uid != 0 || f.gid != 0 {
			t.Errorf("%s belongs to %d:%d", name, f.uid, f.gid)
		}
	}
}

// What comes later replaces what is there, as when an archive is unpacked.
func TestReplaced(t *testing.T) {
	for name, c := range map[string]struct {
		entries []entry
		want    string
	}{
		"file by file":            {[]entry{reg("a", "1"), reg("a", "2")}, "a"},
		"directory by file":       {[]entry{dir("a"), reg("a/b", "1"), reg("a", "2")}, "a"},
		"file by directory":       {[]entry{reg("a", "1"), dir("a"), reg("a/b", "2")}, "a/ a/b"},
		"directory by directory":  {[]entry{dir("a"), reg("a/b", "1"), dir("a")}, "a/ a/b"},
		"link by file":            {[]entry{sym("a", "b"), reg("a", "2")}, "a"},
		"link by directory":       {[]entry{dir("b"), sym("a", "b"), dir("a"), reg("a/c", "")}, "a/ a/c b/"},
		"one of two names":        {[]entry{reg("a", "1"), hard("b", "a"), reg("a", "2")}, "a b"},
		"a name by its own":       {[]entry{reg("a", "1"), hard("b", "a"), hard("b", "a"), hard("a", "a")}, "a* b*"},
		"directory by its file":   {[]entry{dir("a"), reg("a/b", "1"), hard("a", "a/b")}, "a"},
		"through a link":          {[]entry{dir("usr/lib"), sym("lib", "usr/lib"), reg("lib/x", "")}, "lib usr/ usr/lib/ usr/lib/x"},
		"through links":           {[]entry{sym("a", "/b/../../c"), sym("c", "./d"), reg("a/x", "")}, "a b/ c d/ d/x"},
		"links lead nowhere else": {[]entry{sym("a", "../../../etc"), reg("a/passwd", ""), reg("/abs", "")}, "a abs etc/ etc/passwd"},
		"hard link through links": {[]entry{reg("d/f", ""), sym("s", "d"), hard("g", "s/f")}, "d/ d/f* g* s"},
		"whiteouts are files":     {[]entry{reg("a", ""), reg(".wh.a", ""), reg(".wh..wh..opq", "")}, ".wh..wh..opq .wh.a a"},
	} {
		image := build(t, tarOf(t, c.entries...), Options{})
		if got := image.names(t); got != c.want {
			t.Errorf("%s: %s, not %s", name, got, c.want)
		}
		image.fsck(t)
	}
}

// Nothing of a file that was replaced is in the image, whether it had been written out
// already or not.
func TestReplacedContentIsGone(t *testing.T) {
	for _, size := range []int{10, 5000, 3 << 20} {
		secret := strings.Repeat("secret", size/6+1)
		image := build(t, tarOf(t, reg("before", "kept"), reg("a", secret), reg("between", "kept too"), reg("a", "")), Options{})
		data, err := os.ReadFile(image.path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte("secret")) {
			t.Errorf("%d bytes: still there", size)
		}
		if image.read(t, "before") != "kept" || image.read(t, "between") != "kept too" {
			t.Errorf("%d bytes: its neighbours are not", size)
		}
	}
}

// GNU tar's own sparse files, and those of PAX archives.
func TestSparse(t *testing.T) {
	want := strings.Repeat("\x00", 8192) + strings.Repeat("x", 512) + strings.Repeat("\x00", 8192)
	old := slices.Concat(raw("old", tar.TypeGNUSparse, 512, func(b []byte) {
		copy(b[257:], "ustar  \x00")
		copy(b[386:], fmt.Sprintf("%011o\x00%011o\x00", 8192, 512))
		copy(b[483:], fmt.Sprintf("%011o\x00", len(want)))
	}), []byte(strings.Repeat("x", 512)))
	var records string
	for _, r := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=new", "GNU.sparse.realsize=16896"} {
		records += fmt.Sprintf("%d %s\n", len(r)+4, r)
	}
	pax := slices.Concat(raw("PaxHeaders/new", tar.TypeXHeader, int64(len(records)), nil), padded(records),
		raw("GNUSparseFile/new", tar.TypeReg, 1024, nil), padded("1\n8192\n512\n"), []byte(strings.Repeat("x", 512)))
	archive := slices.Concat(old, pax, end)
	refused(t, Tar(bytes.NewReader(archive)), Options{Limits: Limits{Content: 20_000}}, ErrLimit) // of which it has 8192
	image := build(t, Tar(bytes.NewReader(archive)), Options{})
	for _, name := range []string{"old", "new"} {
		if got := image.read(t, name); got != want {
			t.Errorf("%s: %d bytes, %x", name, len(got), sum(got))
		}
	}
	image.fsck(t)
}

func TestHostileTar(t *testing.T) {
	device := entry{Header: tar.Header{Typeflag: tar.TypeChar, Name: "d", Devmajor: 1 << 12, ModTime: epoch}}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"nothing":                  {nil, ErrFormat},
		"text":                     {[]byte("this is not an archive\n"), ErrFormat},
		"much text":                {[]byte(pattern(10_000)), ErrFormat},
		"way out":                  {pack(t, reg("../x", "")), ErrFormat},
		"way out and in":           {pack(t, reg("a/../../x", "")), ErrFormat},
		"way out of a link":        {pack(t, reg("x", ""), hard("a", "../x")), ErrFormat},
		"long name":                {pack(t, reg(strings.Repeat("x", 256), "")), ErrLimit},
		"long target":              {pack(t, sym("a", strings.Repeat("x", 4096))), ErrLimit},
		"no target":                {pack(t, sym("a", "")), ErrFormat},
		"loop of links":            {pack(t, sym("a", "b"), sym("b", "a"), reg("a/x", "")), ErrFormat},
		"link to itself":           {pack(t, sym("a", "a"), reg("a/x", "")), ErrFormat},
		"chain of links":           {pack(t, append(chain(41), reg("l41/x", ""))...), ErrFormat},
		"hard link to nothing":     {pack(t, hard("a", "b")), ErrFormat},
		"hard link to itself":      {pack(t, hard("a", "a")), ErrFormat},
		"hard links in a circle":   {pack(t, hard("a", "b"), hard("b", "a")), ErrFormat},
		"hard link to a directory": {pack(t, dir("d"), hard("a", "d")), ErrFormat},
		"hard link to the root":    {pack(t, hard("a", "/")), ErrFormat},
		"the root a hard link":     {pack(t, reg("a", ""), hard("/", "a")), ErrFormat},
		"the root a file":          {pack(t, reg("/.", "")), ErrFormat},
		"the root a link":          {pack(t, sym("./", "x")), ErrFormat},
		"below a file":             {pack(t, reg("a", ""), reg("a/b", "")), ErrFormat},
		"below a link to a file":   {pack(t, reg("a", ""), sym("l", "a"), reg("l/b", "")), ErrFormat},
		"device":                   {pack(t, device), ErrFormat},
		"unknown type":             {slices.Concat(raw("a", 'Z', 0, nil), end), ErrFormat},
		"huge size":                {slices.Concat(raw("a", tar.TypeReg, 8<<30-1, nil), []byte("short")), ErrFormat},
		"huger size": {slices.Concat(raw("a", tar.TypeReg, 0, func(b []byte) {
			copy(b[124:136], "\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff")
		}), end), ErrLimit},
		"negative size": {slices.Concat(raw("a", tar.TypeReg, 0, func(b []byte) {
			copy(b[124:136], "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")
		}), end), ErrFormat},
		"owner": {slices.Concat(raw("a", tar.TypeReg, 0, func(b []byte) {
			copy(b[108:116], "\x80\x00\x00\x00\xff\xff\xff\xff")
		}), end), ErrFormat},
		"cut in a header": {pack(t, reg("a", "x"))[:300], ErrFormat},
		"cut in content":  {pack(t, reg("a", pattern(2000)))[:2000], ErrFormat},
		"cut at the end":  {pack(t, reg("a", "x"))[:1024], ErrFormat},
		"flipped":         {append([]byte{'b'}, pack(t, reg("a", "x"))[1:]...), ErrFormat},
		"cut gzip":        {compressed(t, pack(t, reg("a", pattern(5000))), "gzip")[:500], ErrFormat},
		"cut zstd":        {compressed(t, pack(t, reg("a", pattern(5000))), "zstd")[:500], ErrFormat},
		"gzip of text":    {compressed(t, []byte(pattern(5000)), "gzip"), ErrFormat},
		"gzip of nothing": {compressed(t, nil, "gzip"), ErrFormat},
		"gzip in gzip":    {compressed(t, compressed(t, pack(t), "gzip"), "gzip"), ErrFormat},
		"sparse beyond size": {slices.Concat(raw("a", tar.TypeGNUSparse, 512, func(b []byte) {
			copy(b[257:], "ustar  \x00")
			copy(b[386:], fmt.Sprintf("%011o\x00%011o\x00", 8192, 512))
			copy(b[483:], fmt.Sprintf("%011o\x00", 100))
		}), end, end), ErrFormat},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, Tar(bytes.NewReader(c.data)), Options{}, c.want)
		})
	}
}

// chain makes links, each to the one before.
func chain(n int) []entry {
	entries := []entry{dir("l0")}
	for i := range n {
		entries = append(entries, sym(fmt.Sprint("l", i+1), fmt.Sprint("l", i)))
	}
	return entries
}

func TestLinksUpToTheLimit(t *testing.T) {
	image := build(t, tarOf(t, append(chain(40), reg("l40/x", ""))...), Options{})
	if files := image.list(t); files["l0/x"].kind != "-" {
		t.Error("the file is somewhere else")
	}
}

func TestLimits(t *testing.T) {
	deep := strings.Repeat("d/", 10)
	var links []entry // the same depth, by way of a link to each level
	links = append(links, dir("d/d/d/d/d"), sym("s", "d/d/d/d/d"), dir("s/e/e/e/e/e/e"))
	for name, c := range map[string]struct {
		limits  Limits
		entries []entry
	}{
		"content":            {Limits{Content: 10_000}, []entry{reg("a", pattern(5000)), reg("b", pattern(5001))}},
		"content replaced":   {Limits{Content: 10_000}, []entry{reg("a", pattern(5000)), reg("a", pattern(5001))}},
		"archive":            {Limits{Content: 2000}, []entry{dir("a"), dir("b"), dir("c"), dir("d")}},
		"entries":            {Limits{Entries: 3}, []entry{dir("a"), dir("b"), dir("c"), dir("d")}},
		"entries replaced":   {Limits{Entries: 3}, []entry{dir("a"), dir("a"), dir("a"), dir("a")}},
		"entries of links":   {Limits{Entries: 3}, []entry{reg("a", ""), hard("b", "a"), hard("c", "a"), hard("d", "a")}},
		"depth":              {Limits{Depth: 9}, []entry{reg(deep+"x", "")}},
		"depth step by step": {Limits{Depth: 2}, []entry{dir("d"), dir("d/d"), dir("d/d/d"), dir("d/d/d/d")}},
		"depth by a link":    {Limits{Depth: 9}, links},
		"attributes":         {Limits{Xattrs: 10}, []entry{withXattrs(reg("a", ""), map[string]string{"user.a": "12345"})}},
		"long attributes":    {Limits{Xattrs: 1 << 30}, []entry{withXattrs(reg("a", ""), map[string]string{"user.a": pattern(1 << 16)})}},
		"attribute names":    {Limits{}, []entry{withXattrs(reg("a", ""), map[string]string{"user." + strings.Repeat("x", 256): ""})}},
		"steps of links":     {Limits{}, []entry{dir("d"), sym("l", strings.Repeat("d/../", 800)), sym("m", "l/l/l"), reg("m/x", "")}},
		"metadata":           {Limits{Metadata: 100}, []entry{sym("a", pattern(101))}},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, tarOf(t, c.entries...), Options{Limits: c.limits}, ErrLimit)
		})
	}
	exactly := Limits{Content: 10_240, Entries: 5, Depth: 10, Xattrs: 7, Metadata: 57}
	build(t, tarOf(t, reg(deep+"x", ""), withXattrs(reg("a", ""), map[string]string{"user.a": "1"}), reg("b", pattern(2000)),
		sym("c", pattern(31)), reg("e", "")), Options{Limits: exactly})
}

// bomb is an archive with one file of zeros that has hardly any bytes compressed.
func bomb(t *testing.T, size int64) []byte {
	t.Helper()
	var buffer bytes.Buffer
	w, err := zstd.NewWriter(&buffer)
	if err != nil {
		t.Fatal(err)
	}
	archive := tar.NewWriter(w)
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "zeros", Size: size}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(archive, zeros{}, size); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(archive.Close(), w.Close()); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

type zeros struct{}

// Read implements io.Reader.
func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// Neither a bomb nor a large file fills memory, and zeros fill no disk.
func TestBoundedMemory(t *testing.T) {
	data := bomb(t, 256<<20)
	refused(t, Tar(bytes.NewReader(data)), Options{Limits: Limits{Content: 64 << 20}}, ErrLimit)

	path := filepath.Join(t.TempDir(), "image")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := Build(t.Context(), path, Tar(bytes.NewReader(data)), Options{}); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 32<<20 {
		t.Errorf("%d MiB allocated for 256 MiB of content", used>>20)
	}
	if used := allocated(t, path); used > 64<<10 {
		t.Errorf("%d bytes on disk", used)
	}
}

// A build that is cancelled says so and leaves the old image.
func TestCancelled(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "image")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	data := pack(t, reg("a", pattern(5<<20)))
	_, err := Build(ctx, path, Tar(&cancelAt{bytes.NewReader(data), 1 << 20, cancel}), Options{})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left %v", left)
	}
	if old, err := os.ReadFile(path); string(old) != "old" {
		t.Errorf("%q %v", old, err)
	}
}

func TestProgress(t *testing.T) {
	var reports []Progress
	data := pack(t, reg("a", pattern(5<<20)), reg("b", ""))
	build(t, Tar(bytes.NewReader(data)), Options{Progress: func(p Progress) { reports = append(reports, p) }})
	if len(reports) < 5 || len(reports) > 7 {
		t.Errorf("%d reports", len(reports))
	}
	if last := reports[len(reports)-1]; last != (Progress{Bytes: int64(len(data)), Entries: 2}) {
		t.Errorf("%+v of %d bytes", last, len(data))
	}
}

// 200 MB in 5000 files, as in an image of a distribution.
func BenchmarkTar(b *testing.B) {
	var entries []entry
	content := pattern(40_000)
	for i := range 5000 {
		entries = append(entries, reg(fmt.Sprintf("usr/lib/d%d/f%d", i%50, i), content))
	}
	data := pack(b, entries...)
	path := filepath.Join(b.TempDir(), "image")
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Build(b.Context(), path, Tar(bytes.NewReader(data)), Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
