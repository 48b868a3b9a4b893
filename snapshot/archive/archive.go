// Package archive puts a snapshot into one compressed file and back into a
// store, be it on another machine.
//
// The file is a zstd stream of "forkvm-archive 1\n", the length of the
// manifest (32 bits) and the manifest, then each of its layers: the pages that
// are not all zeros in order, as pieces of an offset (64 bits), a length (32
// bits, at most 1 MiB) and the bytes, and after the last an offset of 2^64-1.
// Numbers are little-endian. Nothing follows.
package archive

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/klauspost/compress/zstd"

	"github.com/forkvm/forkvm/snapshot"
)

const (
	header = "forkvm-archive 1\n"
	family = "forkvm-archive "

	maxManifest = 16 << 20
	maxPiece    = 1 << 20
	endOfLayer  = math.MaxUint64

	// windowSize bounds what a decoder needs: a stream that asks for more
	// memory than maxWindow is refused.
	windowSize = 4 << 20
	maxWindow  = 8 << 20
)

// Export writes a snapshot to w. Its layers are verified as by
// [snapshot.Store.Load], whose errors it fails with. report, if not nil, is
// told of the bytes done and of those there are, before compression.
func Export(ctx context.Context, store *snapshot.Store, id string, w io.Writer, report func(done, total int64)) error {
	out, err := store.Outgoing(ctx, id)
	if err != nil {
		return fmt.Errorf("archive: export: %w", err)
	}
	defer out.Close()
	z, err := zstd.NewWriter(w, zstd.WithWindowSize(windowSize), zstd.WithEncoderCRC(true))
	if err != nil {
		return fmt.Errorf("archive: export: %w", err)
	}
	err = write(ctx, out, z, newCounter(out.Infos, report))
	if closed := z.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("archive: export: %w", err)
	}
	return nil
}

func write(ctx context.Context, out *snapshot.Outgoing, w io.Writer, c *counter) error {
	start := append([]byte(header), binary.LittleEndian.AppendUint32(nil, uint32(len(out.Manifest)))...)
	if _, err := w.Write(append(start, out.Manifest...)); err != nil {
		return err
	}
	for _, l := range out.Layers {
		err := l.Runs(ctx, func(off int64, p []byte) error {
			if err := writePiece(w, uint64(off), p); err != nil {
				return err
			}
			c.add(len(p))
			return nil
		})
		if err == nil {
			err = writePiece(w, endOfLayer, nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func writePiece(w io.Writer, off uint64, p []byte) error {
	head := binary.LittleEndian.AppendUint64(nil, off)
	head = binary.LittleEndian.AppendUint32(head, uint32(len(p)))
	if _, err := w.Write(head); err != nil {
		return err
	}
	_, err := w.Write(p)
	return err
}

// counter counts bytes for somebody who watches.
type counter struct {
	done, total int64
	report      func(done, total int64)
}

func newCounter(layers []snapshot.LayerInfo, report func(done, total int64)) *counter {
	c := &counter{report: report}
	for _, l := range layers {
		c.total += l.Data
	}
	c.add(0)
	return c
}

func (c *counter) add(n int) {
	c.done += int64(n)
	if c.report != nil {
		c.report(c.done, c.total)
	}
}
