package snapshot

import (
	"errors"
	"io"
	"testing"
)

// hostile is the manifest of a layer whose sum was made of pages of which one
// is zeros: no store would ever come to that sum.
func hostile(t *testing.T) (manifest []byte, layer []byte) {
	t.Helper()
	content := pages{1, 0, 2}
	b := &block{buf: content.bytes()}
	for i := range content {
		b.used[i] = true
	}
	c := contents{
		Manifest: mustCreate(t, openStore(t, t.TempDir()), Draft{Memory: tableOf(t, content)}).Manifest,
		layers:   []LayerInfo{layerInfo(3*page, []blockSum{b.sum()})},
		memory:   tableInfo{Size: 3 * page, Extents: [][4]int64{{0, 3 * page, 0, 0}}},
	}
	raw, err := c.encode()
	if err != nil {
		t.Fatal(err)
	}
	return raw, b.buf
}

func TestIncomingRefusesPagesOfZeros(t *testing.T) {
	manifest, layer := hostile(t)
	dir := t.TempDir()
	in, err := openStore(t, dir).Incoming(ctx, manifest)
	if err != nil {
		t.Fatal(err)
	}
	sent := false
	err = in.WriteLayer(ctx, func() (int64, []byte, error) {
		if sent {
			return 0, nil, io.EOF
		}
		sent = true
		return 0, layer, nil
	})
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("%v, want ErrCorrupt", err)
	}
	if _, err := in.Commit(ctx); !errors.Is(err, ErrCorrupt) {
		t.Errorf("committed without its layer: %v", err)
	}
	in.Close()
	if got := files(t, dir); len(got) > 0 {
		t.Errorf("left over: %v", got)
	}
}

func TestIncomingTakesNoLayerTooMany(t *testing.T) {
	from, to := openStore(t, t.TempDir()), openStore(t, t.TempDir())
	out, err := from.Outgoing(ctx, mustCreate(t, from, Draft{Memory: NewTable(page)}).ID)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := to.Incoming(ctx, out.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := in.WriteLayer(ctx, func() (int64, []byte, error) { return 0, nil, io.EOF }); !errors.Is(err, ErrCorrupt) {
		t.Errorf("%v, want ErrCorrupt", err)
	}
	if _, err := in.Commit(ctx); err != nil {
		t.Error(err)
	}
}
