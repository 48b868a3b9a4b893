// Package decompress reads the compression formats that Linux distributions use
// for kernel images, modules and packages, with a bound on what comes out.
//
// Inputs are hostile: every reader returns errors that wrap one of the sentinels
// below, allocates at most a dictionary of MaxDictionary bytes besides constant
// buffers, and stops at the limit it was given.
package decompress

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"github.com/ulikunitz/xz/lzma"
)

// MaxDictionary is the largest history window, in bytes, a compressed stream may
// ask for. It is what `xz -9e` and `zstd --ultra -22` (kernel images) use at most.
const MaxDictionary = 128 << 20

var (
	// ErrUnsupported is wrapped by errors about formats, or features of a format,
	// that are known and not read here: LZO, or a BCJ filter of another processor.
	ErrUnsupported = errors.New("unsupported compression")
	// ErrCorrupt is wrapped by errors about streams that break their own format.
	ErrCorrupt = errors.New("corrupt compressed data")
	// ErrTooLarge is wrapped by the error of a reader that met its output limit.
	ErrTooLarge = errors.New("decompressed data too large")
)

// Format is a compression format.
type Format int

// The formats that Detect tells apart. LZO is recognised and never read.
const (
	Unknown Format = iota
	Gzip
	XZ
	Zstd
	LZ4 // frames, and the legacy frames of kernel images
	LZMA
	Bzip2
	LZO
)

// String returns the format's usual name.
func (f Format) String() string {
	names := [...]string{"unknown format", "gzip", "xz", "zstd", "lz4", "lzma", "bzip2", "lzo"}
	if f < 0 || int(f) >= len(names) {
		return names[Unknown]
	}
	return names[f]
}

// DetectLen is the number of leading bytes Detect wants to see.
const DetectLen = 6

// magics are ordered so that no entry hides a later one. LZMA has no magic: its
// first byte holds the usual lc, lp and pb, the dictionary is a multiple of 64 KiB.
var magics = []struct {
	format Format
	magic  string
}{
	{XZ, "\xfd7zXZ\x00"},
	{Zstd, "\x28\xb5\x2f\xfd"},
	{LZ4, "\x02\x21\x4c\x18"},
	{LZ4, "\x04\x22\x4d\x18"},
	{LZO, "\x89LZO"},
	{Bzip2, "BZh"},
	{LZMA, "\x5d\x00\x00"},
	{Gzip, "\x1f\x8b"},
}

// Detect returns the format of a stream that begins with prefix.
func Detect(prefix []byte) Format {
	for _, m := range magics {
		if bytes.HasPrefix(prefix, []byte(m.magic)) {
			return m.format
		}
	}
	return Unknown
}

// NewReader returns the decompressed content of r, which is in format f. Reading
// more than limit bytes of output fails with ErrTooLarge. Close releases the
// decoder and does not close r. The reader may read r past the end of the stream.
func NewReader(r io.Reader, f Format, limit int64) (io.ReadCloser, error) {
	inner, err := open(r, f)
	if err != nil {
		return nil, fmt.Errorf("decompress: %s: %w", f, classify(err))
	}
	return &reader{inner: inner, format: f, left: limit}, nil
}

func open(r io.Reader, f Format) (io.ReadCloser, error) {
	switch f {
	case Gzip:
		return openGzip(r)
	case XZ:
		return io.NopCloser(newXZReader(r)), nil
	case Zstd:
		return openZstd(r)
	case LZ4:
		return io.NopCloser(lz4.NewReader(r)), nil
	case LZMA:
		lr, err := lzma.ReaderConfig{DictCap: MaxDictionary}.NewReader(bufio.NewReader(r))
		return io.NopCloser(lr), err
	case Bzip2:
		return io.NopCloser(bzip2.NewReader(r)), nil
	default:
		return nil, ErrUnsupported
	}
}

func openGzip(r io.Reader) (io.ReadCloser, error) {
	zr, err := gzip.NewReader(r)
	if err != nil {
		return nil, err // a typed nil in the interface would look like a reader
	}
	return zr, nil
}

func openZstd(r io.Reader) (io.ReadCloser, error) {
	// No frame at all is a valid stream to the decoder, and a cut file to us.
	br := bufio.NewReader(r)
	if _, err := br.Peek(1); err != nil {
		return nil, err
	}
	d, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxWindow(MaxDictionary))
	if err != nil {
		return nil, err
	}
	return d.IOReadCloser(), nil
}

// reader adds the output limit and the sentinels to a decoder.
type reader struct {
	inner  io.ReadCloser
	format Format
	left   int64
	err    error // sticky
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	// One byte more than is left tells a stream that ends at the limit from one
	// that goes on.
	if int64(len(p)) > r.left+1 {
		p = p[:r.left+1]
	}
	n, err := r.inner.Read(p)
	if int64(n) > r.left {
		n, err = int(r.left), ErrTooLarge
	}
	r.left -= int64(n)
	if err != nil && err != io.EOF {
		err = fmt.Errorf("decompress: %s: %w", r.format, classify(err))
	}
	r.err = err
	return n, err
}

// Close implements io.Closer.
func (r *reader) Close() error { return r.inner.Close() }

// classify wraps the decoders' own errors, which have no type in common, in
// ErrCorrupt. Errors of ours, of files and of contexts stay what they are.
func classify(err error) error {
	for _, known := range []error{ErrUnsupported, ErrTooLarge, ErrCorrupt, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return err
		}
	}
	if fileError := (*fs.PathError)(nil); errors.As(err, &fileError) {
		return err
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", ErrCorrupt, err)
}
