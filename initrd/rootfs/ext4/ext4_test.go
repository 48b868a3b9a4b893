package ext4

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/forkvm/forkvm/initrd/rootfs/internal/tooltest"
)

var uuid = [16]byte{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0x4d, 0xef, 0x81, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef}

// tool runs a program of e2fsprogs, which must succeed and say nothing is wrong.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	return tooltest.Run(t, "e2fsprogs", name, args...)
}

func write(t *testing.T, size int64, opts Options) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := Write(path, size, opts); err != nil {
		t.Fatal(err)
	}
	return path
}

// field returns the value of a line of dumpe2fs.
func field(t *testing.T, dump, name string) string {
	t.Helper()
	for line := range strings.Lines(dump) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("no %q in\n%s", name, dump)
	return ""
}

// Sizes around every border: one group, a last group too small for its metadata, one
// just large enough, each size of the journal, several blocks of descriptors.
func TestCheckedByE2fsck(t *testing.T) {
	const group = 128 << 20
	for _, size := range []int64{
		MinSize, MinSize + 4097, 20 << 20, group - 4096, group, group + 4096, group + 9<<20, group + 64<<20,
		256 << 20, 512<<20 - 4096, 512 << 20, 513 << 20, 516 << 20, 1 << 30, 9 << 30, 16 << 30, 33<<30 + 12288, 100 << 30,
	} {
		t.Run(strconv.FormatInt(size, 10), func(t *testing.T) {
			t.Parallel()
			path := write(t, size, Options{UUID: uuid, Label: "disk", Directories: []string{"upper", "work"}})
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.Size() != size/4096*4096 {
				t.Errorf("%d bytes", info.Size())
			}
			if used := info.Sys().(*syscall.Stat_t).Blocks * 512; used > 4<<20 {
				t.Errorf("%d bytes are in use", used)
			}
			out := tool(t, "e2fsck", "-fn", path)
			if !strings.Contains(out, "disk: 13/") {
				t.Errorf("%s", out)
			}
		})
	}
}

func TestLargest(t *testing.T) {
	path := write(t, MaxSize, Options{UUID: uuid})
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	if used := st.Blocks * 512; used > 32<<20 {
		t.Errorf("%d bytes are in use", used)
	}
	dump := tool(t, "dumpe2fs", "-h", path)
	if got := field(t, dump, "Block count"); got != strconv.Itoa(MaxSize/4096) {
		t.Error(got)
	}
	if testing.Short() {
		return
	}
	tool(t, "e2fsck", "-fn", path)
}

func TestWhatIsAskedFor(t *testing.T) {
	made := time.Date(2026, 11, 30, 1, 2, 3, 0, time.UTC)
	path := write(t, 1<<30, Options{UUID: uuid, Label: "sixteen letters!", Directories: []string{"upper", "work"}, Time: made})
	dump := tool(t, "dumpe2fs", path)
	for name, want := range map[string]string{
		"Filesystem UUID":         "12345678-9abc-4def-8123-456789abcdef",
		"Filesystem volume name":  "sixteen letters!",
		"Filesystem state":        "clean",
		"Block size":              "4096",
		"Inode count":             "65536",
		"Reserved block count":    "0",
		"Total journal size":      "16M",
		"Filesystem features":     "has_journal ext_attr dir_index filetype extent 64bit sparse_super large_file huge_file dir_nlink extra_isize metadata_csum",
		"First inode":             "11",
		"Default mount options":   "user_xattr acl",
		"Maximum mount count":     "-1",
		"Journal sequence":        "0x00000001",
		"Default directory hash":  "half_md4",
		"Directory Hash Seed":     "12345678-9abc-4def-8123-456789abcdef",
		"Checksum type":           "crc32c",
		"Journal backup":          "inode blocks",
		"Required extra isize":    "32",
		"Filesystem revision #":   "1 (dynamic)",
		"Filesystem magic number": "0xEF53",
		"Inodes per group":        "8192",
		"Journal inode":           "8",
		"Errors behavior":         "Continue",
		"Filesystem OS type":      "Linux",
		"Inode size":              "256",
		"Desired extra isize":     "32",
		"Free inodes":             "65523",
		"Blocks per group":        "32768",
		"Journal start":           "0",
		"Group descriptor size":   "64",
		"Fragments per group":     "32768",
		"Inode blocks per group":  "512",
		"First block":             "0",
		"Block count":             "262144",
		"Reserved blocks gid":     "0 (group root)",
		"Reserved blocks uid":     "0 (user root)",
		"Last mount time":         "n/a",
		"Mount count":             "0",
		"Check interval":          "0 (<none>)",
		"Total journal blocks":    "4096",
		"Journal features":        "(none)",
		"Fragment size":           "4096",
		"Last mounted on":         "<not available>",
		"Filesystem created":      made.Local().Format("Mon Jan _2 15:04:05 2006"),
	} {
		if got := field(t, dump, name); got != want {
			t.Errorf("%s: %s, not %s", name, got, want)
		}
	}
	list := tool(t, "debugfs", "-R", "ls -l /", path)
	for _, want := range []string{"lost+found", "40700", "upper", "work", "40755 (2)      0      0    4096 30-Nov-2026"} {
		if !strings.Contains(list, want) {
			t.Errorf("no %s in\n%s", want, list)
		}
	}
}

// Each copy of the superblock is whole. What is behind it is not read by the tools as it is.
func TestBackups(t *testing.T) {
	path := write(t, 9<<30, Options{UUID: uuid})
	for _, group := range []int{1, 3, 5, 7, 9, 25, 27, 49} {
		block := strconv.Itoa(group * groupBlocks)
		dump := tool(t, "dumpe2fs", "-h", "-o", "superblock="+block, "-o", "blocksize=4096", path)
		if got := field(t, dump, "Block count"); got != strconv.Itoa(9<<30/blockSize) {
			t.Errorf("group %d: %s blocks", group, got)
		}
	}
}

func TestSameOptionsSameBytes(t *testing.T) {
	opts := Options{UUID: uuid, Label: "x", Directories: []string{"upper"}}
	read := func(opts Options) []byte {
		data, err := os.ReadFile(write(t, MinSize, opts))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	one := read(opts)
	if !bytes.Equal(one, read(opts)) {
		t.Error("two bytes of the same file system differ")
	}
	opts.UUID[0]++
	if bytes.Equal(one, read(opts)) {
		t.Error("the UUID is nowhere")
	}
}

func TestRefused(t *testing.T) {
	for name, c := range map[string]struct {
		size int64
		opts Options
		want error
	}{
		"negative":      {-1, Options{}, ErrSize},
		"too small":     {MinSize - 1, Options{}, ErrSize},
		"too large":     {MaxSize + 1, Options{}, ErrSize},
		"label":         {MinSize, Options{Label: "seventeen letters"}, ErrOption},
		"slash":         {MinSize, Options{Directories: []string{"a/b"}}, ErrOption},
		"dots":          {MinSize, Options{Directories: []string{".."}}, ErrOption},
		"twice":         {MinSize, Options{Directories: []string{"a", "a"}}, ErrOption},
		"lost+found":    {MinSize, Options{Directories: []string{"lost+found"}}, ErrOption},
		"many":          {MinSize, Options{Directories: make([]string, 17)}, ErrOption},
		"before 1970":   {MinSize, Options{Time: time.Unix(-1, 0)}, ErrOption},
		"no such place": {MinSize, Options{}, os.ErrNotExist},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "disk")
		if c.want == os.ErrNotExist {
			path = filepath.Join(dir, "no", "disk")
		}
		if err := Write(path, c.size, c.opts); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
			t.Errorf("%s: left %q", name, left)
		}
	}
}

// Write replaces what is at the path.
func TestReplaces(t *testing.T) {
	path := write(t, MinSize, Options{})
	if err := Write(path, 2*MinSize, Options{}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 2*MinSize || info.Mode() != 0o644 {
		t.Errorf("%v %v", info, err)
	}
}
