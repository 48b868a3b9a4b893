package guest

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/forkvm/forkvm/api"
	"github.com/forkvm/forkvm/guestagent/agent"
)

const (
	large    = 256 << 20 // bytes of a stream
	flat     = 24 << 20  // bytes by which the heap may grow meanwhile
	perCheck = 16 << 20  // bytes between two looks at it
)

// heap looks at the heap of this process, which is that of the agent too, while
// a stream goes by.
type heap struct {
	t     testing.TB
	start uint64
	seen  int // bytes of the stream
	next  int
}

func heapOf(t testing.TB) *heap {
	runtime.GC()
	h := &heap{t: t}
	h.start = h.inUse()
	return h
}

func (h *heap) inUse() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

func (h *heap) pass(n int) {
	if h.seen += n; h.seen < h.next {
		return
	}
	h.next = h.seen + perCheck
	if in := h.inUse(); in > h.start+flat {
		h.t.Fatalf("after %d MiB the heap has grown by %d MiB", h.seen>>20, (in-h.start)>>20)
	}
}

// Write implements io.Writer.
func (h *heap) Write(b []byte) (int, error) {
	h.pass(len(b))
	return len(b), nil
}

// stream is n bytes that come by way of the heap's watch.
func (h *heap) stream(n int64) io.Reader {
	return io.LimitReader(readerFunc(func(b []byte) (int, error) {
		h.pass(len(b))
		return len(b), nil
	}), n)
}

func (h *heap) whole() {
	h.t.Helper()
	if h.seen < large {
		h.t.Errorf("%d bytes of %d", h.seen, large)
	}
}

// tarHeader is the begin of an archive that has one file.
func tarHeader(t testing.TB, name string, size int64) io.Reader {
	t.Helper()
	var buf bytes.Buffer
	if err := tar.NewWriter(&buf).WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: size}); err != nil {
		t.Fatal(err)
	}
	return &buf
}

// TestB26_FlatMemory moves large streams each way, of which no side may keep
// more than a few pieces.
func TestB26_FlatMemory(t *testing.T) {
	g := start(t, agent.Options{})
	ctx := within(t, 300*time.Second)
	dir := t.TempDir()
	p := filepath.Join(dir, "f")
	sparse := filepath.Join(dir, "tree/sparse")
	write(t, g, sparse, "")
	if err := os.Truncate(sparse, large); err != nil {
		t.Fatal(err)
	}
	t.Run("write", func(t *testing.T) {
		h := heapOf(t)
		info, err := g.WriteFile(ctx, p, h.stream(large), api.WriteOptions{})
		if err != nil || info.Size != large {
			t.Fatalf("%+v, %v", info, err)
		}
		h.whole()
		if err := g.Remove(ctx, p, api.RemoveOptions{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("read", func(t *testing.T) {
		h := heapOf(t)
		r, info, err := g.ReadFile(ctx, sparse)
		if err != nil || info.Size != large {
			t.Fatal(info, err)
		}
		defer r.Close()
		if _, err := io.Copy(h, r); err != nil {
			t.Fatal(err)
		}
		h.whole()
	})
	t.Run("read tree", func(t *testing.T) {
		h := heapOf(t)
		r, err := g.ReadTree(ctx, filepath.Dir(sparse))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if _, err := io.Copy(h, r); err != nil {
			t.Fatal(err)
		}
		h.whole()
	})
	t.Run("write tree", func(t *testing.T) {
		h := heapOf(t)
		archive := io.MultiReader(tarHeader(t, "f", large), h.stream(large), bytes.NewReader(make([]byte, 1024)))
		if err := g.WriteTree(ctx, filepath.Join(dir, "to"), archive); err != nil {
			t.Fatal(err)
		}
		h.whole()
		if err := g.Remove(ctx, filepath.Join(dir, "to"), api.RemoveOptions{Recursive: true}); err != nil {
			t.Error(err)
		}
	})
	t.Run("output", func(t *testing.T) {
		h := heapOf(t)
		r := api.StartRequest{Command: sh("head -c 268435456 /dev/zero")}
		if _, err := g.Run(ctx, r, api.Streams{Stdout: h}); err != nil {
			t.Fatal(err)
		}
		h.whole()
	})
	t.Run("input", func(t *testing.T) {
		h := heapOf(t)
		var count bytes.Buffer
		r := api.StartRequest{Command: sh("wc -c"), Stdin: true}
		if _, err := g.Run(ctx, r, api.Streams{Stdin: h.stream(large), Stdout: &count}); err != nil || count.String() != "268435456\n" {
			t.Fatalf("%q, %v", &count, err)
		}
		h.whole()
	})
	t.Run("dropped output", func(t *testing.T) {
		h := heapOf(t)
		res, err := g.Exec(ctx, api.ExecRequest{Command: sh("head -c 268435456 /dev/zero"), MaxOutputBytes: 1 << 10})
		if err != nil || len(res.Stdout) != 1<<10 || !res.Truncated {
			t.Fatal(err)
		}
		h.pass(large)
	})
}
