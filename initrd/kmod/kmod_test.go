package kmod

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// module returns a relocatable ELF64 file with nothing but a .modinfo section.
func module(machine uint16, info ...string) []byte {
	const headerLen, sectionLen = 64, 64
	strtab := "\x00.modinfo\x00.shstrtab\x00"
	modinfo := strings.Join(info, "\x00") + "\x00"
	le := binary.LittleEndian
	out := make([]byte, headerLen)
	copy(out, "\x7fELF\x02\x01\x01")
	le.PutUint16(out[16:], 1)
	le.PutUint16(out[18:], machine)
	le.PutUint32(out[20:], 1)
	sections := uint64(headerLen + len(modinfo) + len(strtab))
	le.PutUint64(out[40:], sections)
	le.PutUint16(out[52:], headerLen)
	le.PutUint16(out[58:], sectionLen)
	le.PutUint16(out[60:], 3)
	le.PutUint16(out[62:], 2)
	out = append(append(out, modinfo...), strtab...)
	section := func(name, kind uint32, offset, size int) {
		s := make([]byte, sectionLen)
		le.PutUint32(s, name)
		le.PutUint32(s[4:], kind)
		le.PutUint64(s[24:], uint64(offset))
		le.PutUint64(s[32:], uint64(size))
		out = append(out, s...)
	}
	section(0, 0, 0, 0)
	section(1, 1, headerLen, len(modinfo))
	section(10, 3, headerLen+len(modinfo), len(strtab))
	return out
}

const amd64 = 62

func packed(t *testing.T, ext string, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser
	var err error
	switch ext {
	case ".gz":
		w = gzip.NewWriter(&out)
	case ".xz":
		w, err = xz.NewWriter(&out)
	case ".zst":
		w, err = zstd.NewWriter(&out)
	}
	if err == nil {
		_, err = w.Write(data)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func testTree(t *testing.T) *Tree {
	t.Helper()
	file := func(data []byte) *fstest.MapFile { return &fstest.MapFile{Data: data} }
	tree, err := Open(fstest.MapFS{
		"modules.builtin":              file([]byte("kernel/fs/ext4/ext4.ko\nkernel/lib/crc-base.ko\n")),
		"kernel/net/transport.ko.xz":   file(packed(t, ".xz", module(amd64, "license=GPL", "depends=common,vsock"))),
		"kernel/net/common.ko.zst":     file(packed(t, ".zst", module(amd64, "depends=vsock"))),
		"kernel/net/vsock.ko.gz":       file(packed(t, ".gz", module(amd64, "depends="))),
		"kernel/drivers/virtio-rng.ko": file(module(amd64, "depends=")),
		"kernel/fs/erofs.ko":           file(module(amd64, "depends=libcrc,ext4", "softdep=pre: missing helper-soft post: vsock")),
		"kernel/lib/libcrc.ko":         file(module(amd64, "depends=crc_base")),
		"kernel/lib/helper_soft.ko":    file(module(amd64)),
		"kernel/bad/lost.ko":           file(module(amd64, "depends=nowhere")),
		"kernel/bad/a.ko":              file(module(amd64, "depends=b")),
		"kernel/bad/b.ko":              file(module(amd64, "depends=a")),
		"kernel/bad/arm.ko":            file(module(183, "depends=")),
		"kernel/bad/text.ko":           file([]byte("hello")),
		"kernel/bad/cut.ko.xz":         file(packed(t, ".xz", module(amd64, "depends="))[:40]),
		"kernel/bad/empty.ko.xz":       file(nil),
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func TestResolveOrder(t *testing.T) {
	tests := []struct {
		ask  []string
		want string
	}{
		{[]string{"transport"}, "vsock common transport"},
		{[]string{"common", "transport", "vsock"}, "vsock common transport"},
		{[]string{"virtio_rng"}, "virtio_rng"},
		{[]string{"virtio-rng", "virtio_rng"}, "virtio_rng"},
		{[]string{"ext4"}, ""},
		{[]string{"erofs"}, "helper_soft libcrc erofs"},
		{nil, ""},
	}
	for _, tt := range tests {
		got, err := testTree(t).Resolve(tt.ask...)
		if err != nil {
			t.Errorf("%q: %v", tt.ask, err)
			continue
		}
		var names []string
		for _, m := range got {
			names = append(names, m.Name)
		}
		if strings.Join(names, " ") != tt.want {
			t.Errorf("%q: got %q, want %q", tt.ask, names, tt.want)
		}
	}
}

func TestResolveDecompresses(t *testing.T) {
	got, err := testTree(t).Resolve("transport")
	if err != nil {
		t.Fatal(err)
	}
	last := got[len(got)-1]
	if last.Path != "kernel/net/transport.ko" {
		t.Errorf("path %q", last.Path)
	}
	if !bytes.Equal(last.Data, module(amd64, "license=GPL", "depends=common,vsock")) {
		t.Errorf("module does not come out as it went in")
	}
}

func TestResolveErrors(t *testing.T) {
	tests := map[string]error{
		"nowhere": ErrNotFound, "lost": ErrNotFound, "a": ErrBadModule, "arm": ErrBadModule,
		"text": ErrBadModule, "cut": ErrBadModule, "empty": ErrBadModule,
	}
	for name, want := range tests {
		_, err := testTree(t).Resolve(name)
		if !errors.Is(err, want) {
			t.Errorf("%s: error %v, want %v", name, err, want)
		}
	}
}

func TestEndlessDependencies(t *testing.T) {
	tree := fstest.MapFS{}
	for i := range maxClosure + 10 {
		tree[fmt.Sprintf("m%d.ko", i)] = &fstest.MapFile{Data: module(amd64, fmt.Sprintf("depends=m%d", i+1))}
	}
	opened, err := Open(tree)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := opened.Resolve("m0"); !errors.Is(err, ErrBadModule) {
		t.Errorf("error %v", err)
	}
}

func TestHasAndBuiltin(t *testing.T) {
	tree := testTree(t)
	if !tree.Has("virtio_rng") || tree.Has("ext4") || !tree.Builtin("ext4") || !tree.Builtin("crc_base") || tree.Builtin("vsock") {
		t.Error("modules and built-in names confused")
	}
}

func FuzzModinfo(f *testing.F) {
	f.Add(module(amd64, "license=GPL", "depends=a,b", "softdep=pre: x post: y"))
	f.Add(module(amd64))
	f.Fuzz(func(t *testing.T, data []byte) {
		info, err := readModinfo(data)
		if err != nil && (info.depends != nil || info.soft != nil) {
			t.Errorf("%+v besides %v", info, err)
		}
	})
}
