package archive

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/forkvm/forkvm/snapshot"
)

// Import reads a snapshot that Export wrote, and believes nothing of it: it is
// in the store, under its id, when every byte was verified, or not at all. It
// fails with [snapshot.ErrCorrupt], [snapshot.ErrVersion],
// [snapshot.ErrExists] or [snapshot.ErrNoSpace], or with the error of r. ctx
// is looked at between reads of r.
func Import(ctx context.Context, store *snapshot.Store, r io.Reader, report func(done, total int64)) (snapshot.Info, error) {
	src := &source{r: r}
	z, err := zstd.NewReader(src,
		zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderLowmem(true),
		zstd.WithDecodeBuffersBelow(0), // never all at once in memory
		zstd.WithDecoderConcurrency(1), // in this goroutine, which reads src.err
	)
	if err != nil {
		return snapshot.Info{}, fmt.Errorf("archive: import: %w", err)
	}
	defer z.Close()
	info, err := read(ctx, store, decoder{z, src}, report)
	if err != nil {
		return snapshot.Info{}, fmt.Errorf("archive: import: %w", err)
	}
	return info, nil
}

// source remembers how reading failed.
type source struct {
	r   io.Reader
	err error // but for io.EOF
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// decoder says whose fault an error is: the source's or the archive's.
type decoder struct {
	z   *zstd.Decoder
	src *source
}

func (d decoder) Read(p []byte) (int, error) {
	n, err := d.z.Read(p)
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return n, err
	case d.src.err != nil:
		return n, d.src.err
	}
	return n, corrupt("%w", err)
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %w", snapshot.ErrCorrupt, fmt.Errorf(format, args...))
}

// read imports the decompressed stream.
func read(ctx context.Context, store *snapshot.Store, r io.Reader, report func(done, total int64)) (snapshot.Info, error) {
	manifest, err := readManifest(r)
	if err != nil {
		return snapshot.Info{}, err
	}
	in, err := store.Incoming(ctx, manifest)
	if err != nil {
		return snapshot.Info{}, err
	}
	defer in.Close()
	pieces := reader{r: r, buf: make([]byte, maxPiece), counter: newCounter(in.Infos(), report)}
	for range in.Infos() {
		if err := in.WriteLayer(ctx, pieces.next); err != nil {
			return snapshot.Info{}, err
		}
	}
	switch n, err := io.ReadFull(r, make([]byte, 1)); {
	case n > 0:
		return snapshot.Info{}, corrupt("something follows the last layer")
	case !errors.Is(err, io.EOF): // the decoder compares its checksum at the end
		return snapshot.Info{}, err
	}
	return in.Commit(ctx)
}

func readManifest(r io.Reader) ([]byte, error) {
	head := make([]byte, len(header)+4)
	if err := readFull(r, head); err != nil {
		return nil, err
	}
	switch start := string(head[:len(header)]); {
	case start == header:
	case strings.HasPrefix(start, family):
		return nil, fmt.Errorf("%w: archive begins with %q, this program reads %q", snapshot.ErrVersion, start, header)
	default:
		return nil, corrupt("not an archive")
	}
	n := binary.LittleEndian.Uint32(head[len(header):])
	if n > maxManifest {
		return nil, corrupt("manifest of %d bytes", n)
	}
	manifest := make([]byte, n)
	return manifest, readFull(r, manifest)
}

// readFull reads all of p: an archive that ends before is damaged.
func readFull(r io.Reader, p []byte) error {
	_, err := io.ReadFull(r, p)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return corrupt("archive ends too soon")
	}
	return err
}

// reader reads the pieces of layers.
type reader struct {
	r       io.Reader
	buf     []byte
	counter *counter
}

// next returns a piece, or io.EOF at the end of a layer.
func (r *reader) next() (off int64, p []byte, err error) {
	var head [12]byte
	if err := readFull(r.r, head[:]); err != nil {
		return 0, nil, err
	}
	start, n := binary.LittleEndian.Uint64(head[:8]), binary.LittleEndian.Uint32(head[8:])
	switch {
	case start == endOfLayer && n == 0:
		return 0, nil, io.EOF
	case int64(start) < 0 || n > maxPiece:
		return 0, nil, corrupt("piece of %d bytes at %#x", n, start)
	}
	p = r.buf[:n]
	if err := readFull(r.r, p); err != nil {
		return 0, nil, err
	}
	r.counter.add(len(p))
	return int64(start), p, nil
}
