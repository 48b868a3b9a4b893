package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// Outgoing is a snapshot to be taken elsewhere: its manifest, with the state,
// and its layers. Everything was verified.
type Outgoing struct {
	// Manifest is for [Store.Incoming] of another store.
	Manifest []byte
	// Infos describe the layers, in the order of the manifest.
	Infos []LayerInfo
	// Layers are open until Close.
	Layers []*Layer
}

// Outgoing loads a snapshot as [Store.Load] does, but to be copied.
func (s *Store) Outgoing(ctx context.Context, id string) (*Outgoing, error) {
	out, err := s.outgoing(ctx, id)
	return out, wrapf(err, "snapshot: load %.60q", id)
}

func (s *Store) outgoing(ctx context.Context, id string) (*Outgoing, error) {
	c, files, err := s.openSnapshot(ctx, id)
	if err != nil {
		return nil, err
	}
	raw, err := c.encode()
	if err == nil {
		_, _, err = decodeSections(c.sections)
	}
	if err != nil {
		closeAll(files)
		return nil, err
	}
	layers, err := s.verified(ctx, c, files, nil)
	if err != nil {
		return nil, err
	}
	return &Outgoing{raw, c.layers, layers}, nil
}

// Close gives up the layers.
func (o *Outgoing) Close() { releaseAll(o.Layers) }

// Incoming is a snapshot that comes from elsewhere and is not trusted. It is
// not safe for concurrent use. While it is open the store collects no garbage.
type Incoming struct {
	stage *stage
	c     *contents
	raw   []byte
	next  int // layer
}

// Incoming begins to store a snapshot that has this manifest. It fails with
// [ErrCorrupt], [ErrVersion], or with [ErrExists] if the store has a snapshot
// of that id.
func (s *Store) Incoming(ctx context.Context, manifest []byte) (*Incoming, error) {
	in, err := s.incoming(ctx, manifest)
	return in, wrapf(err, "snapshot: import")
}

func (s *Store) incoming(ctx context.Context, manifest []byte) (*Incoming, error) {
	c, err := decode(manifest)
	if err != nil {
		return nil, err
	}
	if _, _, err := decodeSections(c.sections); err != nil {
		return nil, err
	}
	if s.hasManifest(c.ID) {
		return nil, fmt.Errorf("%w: %s", ErrExists, c.ID)
	}
	st, err := s.newStage(ctx)
	if err != nil {
		return nil, err
	}
	return &Incoming{stage: st, c: c, raw: manifest}, nil
}

// Infos describe the layers that WriteLayer wants, in this order.
func (in *Incoming) Infos() []LayerInfo { return in.c.layers }

// WriteLayer stores the next layer, of which next returns the pages that are
// not all zeros, in order, in pieces of any number of pages, and io.EOF after
// the last. It fails with [ErrCorrupt] if that is not the layer that the
// manifest names, and with [ErrNoSpace].
func (in *Incoming) WriteLayer(ctx context.Context, next func() (off int64, p []byte, err error)) error {
	return wrapf(in.writeLayer(ctx, next), "snapshot: import layer %d", in.next)
}

func (in *Incoming) writeLayer(ctx context.Context, next func() (int64, []byte, error)) error {
	if in.next == len(in.c.layers) {
		return corrupt("more layers than the manifest names")
	}
	info := in.c.layers[in.next]
	w := blockWriter{info: info, block: blocks.Get().(*block)}
	defer blocks.Put(w.block)
	w.block.reset(0)
	if !in.stage.has(info) {
		var err error
		if w.file, err = in.stage.create(); err != nil {
			return err
		}
		defer w.file.abandon()
		if err := w.file.truncate(info.Size); err != nil {
			return err
		}
	}
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		off, p, err := next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = w.write(off, p)
		}
		if err != nil {
			return err
		}
	}
	if err := w.finish(); err != nil {
		return err
	}
	in.next++
	if w.file == nil {
		return nil
	}
	return in.stage.finish(w.file, info)
}

// Commit publishes the snapshot when all layers have been written.
func (in *Incoming) Commit(ctx context.Context) (Info, error) {
	err := error(nil)
	if in.next < len(in.c.layers) {
		err = corrupt("%d of %d layers", in.next, len(in.c.layers))
	}
	if err == nil {
		err = in.stage.publish(ctx, in.c.ID, in.raw)
	}
	if err != nil {
		return Info{}, wrapf(err, "snapshot: import")
	}
	return in.c.info(in.stage.added), nil
}

// Close gives up what was not committed, without a trace. It must be called
// after Commit as well, and once.
func (in *Incoming) Close() { in.stage.close() }

// blockWriter writes a layer that arrives in pieces, and sums it up.
type blockWriter struct {
	info  LayerInfo
	file  *newFile // nil if the layer need not be written
	block *block
	sums  []blockSum
	at    int64 // end of the last piece
	data  int64
}

func (w *blockWriter) write(off int64, p []byte) error {
	n := int64(len(p))
	if off%PageSize != 0 || n%PageSize != 0 || n == 0 || off < w.at || off > w.info.Size-n {
		return corrupt("piece of %d bytes at %d", n, off)
	}
	w.at = off + n
	if w.data += n; w.data > w.info.Data {
		return corrupt("more than %d bytes", w.info.Data)
	}
	for ; len(p) > 0; off, p = off+PageSize, p[PageSize:] {
		if bytes.Equal(p[:PageSize], zeroPage[:]) {
			return corrupt("a page of zeros at %d", off)
		}
		if start := off / blockSize * blockSize; start != w.block.off {
			if err := w.flush(); err != nil {
				return err
			}
			w.block.reset(start)
		}
		copy(w.block.buf[off-w.block.off:], p[:PageSize])
		w.block.used[(off-w.block.off)/PageSize] = true
	}
	return nil
}

func (w *blockWriter) flush() error {
	w.sums = append(w.sums, w.block.sum())
	if w.file == nil {
		return nil
	}
	for off, p := range w.block.runs() {
		if err := w.file.writeAt(off, p); err != nil {
			return err
		}
	}
	return nil
}

// finish writes what is left and compares the sum.
func (w *blockWriter) finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	if got := layerInfo(w.info.Size, w.sums); got != w.info {
		return corrupt("its bytes have the sum %s", got.Sum)
	}
	return nil
}
