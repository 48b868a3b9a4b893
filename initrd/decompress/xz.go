package decompress

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"

	"github.com/ulikunitz/xz/lzma"
)

// The .xz container, after "The .xz File Format" version 1.2.1. Section numbers
// below are of that document. LZMA2 itself is a library's; the container is ours
// because kernel images pass through the x86 filter, which the library refuses.

const (
	filterX86   = 0x04
	filterLZMA2 = 0x21
	maxFilters  = 4
)

// xzReader reads the concatenated streams of an .xz file.
type xzReader struct {
	src   *countingReader
	check byte // type of integrity check of the stream at hand
	block *xzBlock
	// records counts blocks of the stream at hand, to be compared with its index.
	records uint64
	started bool
	err     error
}

func newXZReader(r io.Reader) *xzReader {
	return &xzReader{src: &countingReader{r: bufio.NewReaderSize(r, 64<<10)}}
}

// Read implements io.Reader.
func (x *xzReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for x.err == nil {
		if x.block == nil {
			x.err = x.nextBlock()
			continue
		}
		n, err := x.block.Read(p)
		if err == io.EOF {
			x.block = nil
			err = nil
		}
		x.err = err
		if n > 0 {
			return n, nil
		}
	}
	return 0, x.err
}

// nextBlock reads on to the next block, through indexes, footers and headers of
// streams. It returns io.EOF after the last stream.
func (x *xzReader) nextBlock() error {
	for {
		if !x.started {
			if err := x.streamHeader(); err != nil {
				return err
			}
			x.started = true
		}
		size, err := x.src.ReadByte()
		if err != nil {
			return noEOF(err)
		}
		if size != 0 {
			x.records++
			x.block, err = x.openBlock(size)
			return err
		}
		if err := x.index(); err != nil {
			return err
		}
		if err := x.footer(); err != nil {
			return err
		}
		x.started = false
		if err := x.streamPadding(); err != nil {
			return err
		}
	}
}

// streamHeader reads a stream header (2.1.1).
func (x *xzReader) streamHeader() error {
	var h [12]byte
	if _, err := io.ReadFull(x.src, h[:]); err != nil {
		return noEOF(err)
	}
	if string(h[:6]) != "\xfd7zXZ\x00" {
		return errors.New("no stream header")
	}
	if crc32.ChecksumIEEE(h[6:8]) != binary.LittleEndian.Uint32(h[8:]) {
		return errors.New("stream header: wrong checksum")
	}
	if h[6] != 0 || h[7] > 0x0f {
		return fmt.Errorf("stream flags %#x: %w", h[6:8], ErrUnsupported)
	}
	x.check, x.records = h[7], 0
	return nil
}

// index reads and checks the index (4), whose indicator byte is already read. The
// number of records must be that of the blocks seen, which also bounds the loop.
func (x *xzReader) index() error {
	sum := crc32.NewIEEE()
	_, _ = sum.Write([]byte{0})
	start := x.src.n - 1
	x.src.tee = sum
	defer func() { x.src.tee = nil }()
	count, err := readVLI(x.src)
	if err != nil {
		return err
	}
	if count != x.records {
		return fmt.Errorf("index lists %d blocks of %d", count, x.records)
	}
	for range 2 * count { // unpadded and uncompressed size
		if _, err := readVLI(x.src); err != nil {
			return err
		}
	}
	if err := x.padding(start); err != nil {
		return err
	}
	x.src.tee = nil
	return x.expectCRC32(sum.Sum32(), "index")
}

// footer reads a stream footer (2.1.2).
func (x *xzReader) footer() error {
	var f [12]byte
	if _, err := io.ReadFull(x.src, f[:]); err != nil {
		return noEOF(err)
	}
	if crc32.ChecksumIEEE(f[4:10]) != binary.LittleEndian.Uint32(f[:]) || string(f[10:]) != "YZ" {
		return errors.New("stream footer damaged")
	}
	if f[8] != 0 || f[9] != x.check {
		return errors.New("stream footer contradicts the header")
	}
	return nil
}

// streamPadding skips the zero words after a stream (2.2); io.EOF ends the file.
func (x *xzReader) streamPadding() error {
	for {
		word, err := x.src.r.Peek(4)
		switch {
		case len(word) == 0:
			return err
		case len(word) < 4:
			return noEOF(err)
		case !bytes.Equal(word, make([]byte, 4)):
			return nil
		}
		if _, err := io.ReadFull(x.src, make([]byte, 4)); err != nil {
			return noEOF(err)
		}
	}
}

// padding reads zero bytes up to a multiple of four since start.
func (x *xzReader) padding(start int64) error {
	for (x.src.n-start)%4 != 0 {
		b, err := x.src.ReadByte()
		if err != nil {
			return noEOF(err)
		}
		if b != 0 {
			return errors.New("padding is not zero")
		}
	}
	return nil
}

func (x *xzReader) expectCRC32(sum uint32, what string) error {
	var want [4]byte
	if _, err := io.ReadFull(x.src, want[:]); err != nil {
		return noEOF(err)
	}
	if binary.LittleEndian.Uint32(want[:]) != sum {
		return fmt.Errorf("%s: wrong checksum", what)
	}
	return nil
}

// xzBlock reads one block (3) and checks it at its end.
type xzBlock struct {
	x     *xzReader
	data  io.Reader
	sum   hash.Hash // nil if the check type is none or unknown
	start int64     // source position of the compressed data
	size  uint64    // uncompressed bytes so far
	wantC uint64    // compressed size of the header, or sizeUnknown
	wantU uint64
}

const sizeUnknown = ^uint64(0)

// blockHeader is a parsed block header (3.1).
type blockHeader struct {
	compressed, uncompressed uint64
	x86                      bool
	x86Start                 uint32
	dictionary               uint64
}

func (x *xzReader) openBlock(sizeByte byte) (*xzBlock, error) {
	raw := make([]byte, (int(sizeByte)+1)*4)
	raw[0] = sizeByte
	if _, err := io.ReadFull(x.src, raw[1:]); err != nil {
		return nil, noEOF(err)
	}
	h, err := parseBlockHeader(raw)
	if err != nil {
		return nil, err
	}
	b := &xzBlock{x: x, sum: newCheck(x.check), start: x.src.n, wantC: h.compressed, wantU: h.uncompressed}
	config := lzma.Reader2Config{DictCap: int(max(h.dictionary, lzma.MinDictCap))}
	lr, err := config.NewReader2(x.src)
	if err != nil {
		return nil, err
	}
	b.data = lr
	if h.x86 {
		b.data = newX86Reader(lr, h.x86Start)
	}
	return b, nil
}

func parseBlockHeader(raw []byte) (blockHeader, error) {
	h := blockHeader{compressed: sizeUnknown, uncompressed: sizeUnknown}
	body, sum := raw[:len(raw)-4], raw[len(raw)-4:]
	if crc32.ChecksumIEEE(body) != binary.LittleEndian.Uint32(sum) {
		return h, errors.New("block header: wrong checksum")
	}
	flags := body[1]
	if flags&0x3c != 0 {
		return h, fmt.Errorf("block flags %#x: %w", flags, ErrUnsupported)
	}
	r := bytes.NewReader(body[2:])
	var err error
	if flags&0x40 != 0 {
		if h.compressed, err = readVLI(r); err != nil {
			return h, err
		}
	}
	if flags&0x80 != 0 {
		if h.uncompressed, err = readVLI(r); err != nil {
			return h, err
		}
	}
	if err := h.filters(r, int(flags&(maxFilters-1))+1); err != nil {
		return h, err
	}
	for r.Len() > 0 {
		if b, _ := r.ReadByte(); b != 0 {
			return h, fmt.Errorf("block header padding: %w", ErrUnsupported)
		}
	}
	return h, nil
}

// filters parses the list of count filters (5.3): x86 at most, then LZMA2.
func (h *blockHeader) filters(r *bytes.Reader, count int) error {
	for i := range count {
		id, err := readVLI(r)
		if err != nil {
			return err
		}
		size, err := readVLI(r)
		if err != nil {
			return err
		}
		if size > uint64(r.Len()) {
			return io.ErrUnexpectedEOF
		}
		props := make([]byte, size)
		_, _ = io.ReadFull(r, props)
		last := i == count-1
		switch {
		case id == filterLZMA2 && last && size == 1:
			if h.dictionary, err = dictionarySize(props[0]); err != nil {
				return err
			}
		case id == filterX86 && !last && !h.x86 && (size == 0 || size == 4):
			h.x86 = true
			if size == 4 {
				h.x86Start = binary.LittleEndian.Uint32(props)
			}
		default:
			return fmt.Errorf("filter %#x: %w", id, ErrUnsupported)
		}
	}
	return nil
}

// dictionarySize decodes the property byte of LZMA2 (5.3.1).
func dictionarySize(bits byte) (uint64, error) {
	if bits > 40 {
		return 0, fmt.Errorf("dictionary size %#x", bits)
	}
	size := uint64(2|bits&1) << (bits/2 + 11)
	if size > MaxDictionary {
		return 0, fmt.Errorf("dictionary of %d MiB: %w", size>>20, ErrUnsupported)
	}
	return size, nil
}

// Read implements io.Reader. It returns io.EOF only after the checks held.
func (b *xzBlock) Read(p []byte) (int, error) {
	n, err := b.data.Read(p)
	b.size += uint64(n)
	if b.sum != nil {
		_, _ = b.sum.Write(p[:n])
	}
	if err == io.EOF {
		if err := b.finish(); err != nil {
			return n, err
		}
	}
	return n, err
}

// finish checks sizes, padding and integrity (3.3, 3.4).
func (b *xzBlock) finish() error {
	if b.wantC != sizeUnknown && b.wantC != uint64(b.x.src.n-b.start) || b.wantU != sizeUnknown && b.wantU != b.size {
		return errors.New("block is not as long as its header says")
	}
	if err := b.x.padding(b.start); err != nil {
		return err
	}
	got := make([]byte, checkSize(b.x.check))
	if _, err := io.ReadFull(b.x.src, got); err != nil {
		return noEOF(err)
	}
	if b.sum == nil {
		return nil
	}
	want := b.sum.Sum(nil)
	if b.x.check != checkSHA256 { // the CRCs are stored little endian
		for i, j := 0, len(want)-1; i < j; i, j = i+1, j-1 {
			want[i], want[j] = want[j], want[i]
		}
	}
	if !bytes.Equal(got, want) {
		return errors.New("block: wrong checksum")
	}
	return nil
}

const (
	checkCRC32  = 1
	checkCRC64  = 4
	checkSHA256 = 10
)

func newCheck(kind byte) hash.Hash {
	switch kind {
	case checkCRC32:
		return crc32.NewIEEE()
	case checkCRC64:
		return crc64.New(crc64.MakeTable(crc64.ECMA))
	case checkSHA256:
		return sha256.New()
	}
	return nil
}

// checkSize is the length of a check in bytes (2.1.1.2); reserved kinds included.
func checkSize(kind byte) int {
	sizes := [...]int{0, 4, 8, 16, 32, 64}
	return sizes[(kind+2)/3]
}

// readVLI reads a variable length integer (1.2).
func readVLI(r io.ByteReader) (uint64, error) {
	var v uint64
	for i := range 9 {
		b, err := r.ReadByte()
		if err != nil {
			return 0, noEOF(err)
		}
		v |= uint64(b&0x7f) << (7 * i)
		if b&0x80 == 0 {
			if b == 0 && i > 0 {
				break // not the shortest form
			}
			return v, nil
		}
	}
	return 0, errors.New("malformed integer")
}

// noEOF makes an end of input in the middle of something an error.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// countingReader counts what is read, and copies it to tee if that is set.
type countingReader struct {
	r   *bufio.Reader
	n   int64
	tee io.Writer
}

// Read implements io.Reader.
func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if c.tee != nil {
		_, _ = c.tee.Write(p[:n])
	}
	return n, err
}

// ReadByte implements io.ByteReader.
func (c *countingReader) ReadByte() (byte, error) {
	b, err := c.r.ReadByte()
	if err != nil {
		return 0, err
	}
	c.n++
	if c.tee != nil {
		_, _ = c.tee.Write([]byte{b})
	}
	return b, nil
}
