package kmod

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/forkvm/forkvm/initrd/internal/fakekernel"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

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
		"kernel/net/transport.ko.xz":   file(packed(t, ".xz", fakekernel.Module(fakekernel.AMD64, "license=GPL", "depends=common,vsock"))),
		"kernel/net/common.ko.zst":     file(packed(t, ".zst", fakekernel.Module(fakekernel.AMD64, "depends=vsock"))),
		"kernel/net/vsock.ko.gz":       file(packed(t, ".gz", fakekernel.Module(fakekernel.AMD64, "depends="))),
		"kernel/drivers/virtio-rng.ko": file(fakekernel.Module(fakekernel.AMD64, "depends=")),
		"kernel/fs/erofs.ko":           file(fakekernel.Module(fakekernel.AMD64, "depends=libcrc,ext4", "softdep=pre: missing helper-soft post: vsock")),
		"kernel/lib/libcrc.ko":         file(fakekernel.Module(fakekernel.AMD64, "depends=crc_base")),
		"kernel/lib/helper_soft.ko":    file(fakekernel.Module(fakekernel.AMD64)),
		"kernel/bad/lost.ko":           file(fakekernel.Module(fakekernel.AMD64, "depends=nowhere")),
		"kernel/bad/a.ko":              file(fakekernel.Module(fakekernel.AMD64, "depends=b")),
		"kernel/bad/b.ko":              file(fakekernel.Module(fakekernel.AMD64, "depends=a")),
		"kernel/bad/arm.ko":            file(fakekernel.Module(fakekernel.ARM64, "depends=")),
		"kernel/bad/text.ko":           file([]byte("hello")),
		"kernel/bad/cut.ko.xz":         file(packed(t, ".xz", fakekernel.Module(fakekernel.AMD64, "depends="))[:40]),
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
	if !bytes.Equal(last.Data, fakekernel.Module(fakekernel.AMD64, "license=GPL", "depends=common,vsock")) {
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
		tree[fmt.Sprintf("m%d.ko", i)] = &fstest.MapFile{Data: fakekernel.Module(fakekernel.AMD64, fmt.Sprintf("depends=m%d", i+1))}
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
	f.Add(fakekernel.Module(fakekernel.AMD64, "license=GPL", "depends=a,b", "softdep=pre: x post: y"))
	f.Add(fakekernel.Module(fakekernel.AMD64))
	f.Fuzz(func(t *testing.T, data []byte) {
		info, err := readModinfo(data)
		if err != nil && (info.depends != nil || info.soft != nil) {
			t.Errorf("%+v besides %v", info, err)
		}
	})
}
