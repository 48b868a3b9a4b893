// Package bzimage unpacks x86-64 Linux kernel images to the ELF vmlinux inside,
// on the host, so that the guest need not run the decompressor.
//
// The layout of a bzImage is that of the kernel's boot protocol
// (Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header"). Images are
// hostile input: all offsets are checked and the output is bounded.
package bzimage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/forkvm/forkvm/initrd/decompress"
)

// MaxVmlinux bounds, in bytes, the ELF that an image may unpack to. Distribution
// kernels without debug information take 40 to 80 MiB.
const MaxVmlinux = 512 << 20

var (
	// ErrNotKernel is wrapped by errors about files that are no Linux kernel image.
	ErrNotKernel = errors.New("not a Linux kernel image")
	// ErrTruncated is wrapped by errors about images that end too early.
	ErrTruncated = errors.New("kernel image is truncated")
	// ErrWrongArch is wrapped by errors about kernels that are not 64-bit x86.
	ErrWrongArch = errors.New("not a 64-bit x86 kernel")
	// ErrTooOld is wrapped by errors about images before boot protocol 2.08
	// (Linux 2.6.26), which do not tell where their payload is.
	ErrTooOld = errors.New("boot protocol too old")
	// ErrTooLarge is wrapped by errors about images beyond MaxVmlinux.
	ErrTooLarge = errors.New("kernel too large")
)

// Offsets of header fields in the image, and constants of the boot protocol.
const (
	offSetupSects    = 0x1f1
	offBootFlag      = 0x1fe
	offMagic         = 0x202
	offVersion       = 0x206
	offKernelVersion = 0x20e
	offXLoadFlags    = 0x236
	offPayloadOffset = 0x248
	offPayloadLength = 0x24c
	headerLen        = 0x250

	bootFlag           = 0xaa55
	sectorLen          = 512
	minVersion         = 0x0208
	xloadflagsVersion  = 0x020c
	xlfKernel64        = 1 << 0
	defaultSetupSects  = 4
	maxReleaseTextSize = 256
)

// Header is what the setup header of a bzImage tells.
type Header struct {
	Version       uint16 // boot protocol, 0x020f for 2.15
	Release       string // of `uname -r`; empty if the image does not say
	PayloadOffset int64  // of the compressed vmlinux, in bytes from the image's start
	PayloadLength int64  // in bytes
	Compression   decompress.Format
}

// Parse reads the setup header of the bzImage r of size bytes.
func Parse(r io.ReaderAt, size int64) (*Header, error) {
	raw := make([]byte, headerLen)
	n, err := r.ReadAt(raw, 0)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("bzimage: %w", err)
	}
	if err := checkMagic(raw[:n]); err != nil {
		return nil, err
	}
	if n < headerLen {
		return nil, fmt.Errorf("bzimage: %w: within the setup header", ErrTruncated)
	}
	h := &Header{Version: binary.LittleEndian.Uint16(raw[offVersion:])}
	if h.Version < minVersion {
		return nil, fmt.Errorf("bzimage: %w: %d.%02d", ErrTooOld, h.Version>>8, h.Version&0xff)
	}
	if h.Version >= xloadflagsVersion && binary.LittleEndian.Uint16(raw[offXLoadFlags:])&xlfKernel64 == 0 {
		return nil, fmt.Errorf("bzimage: %w: no 64-bit entry point", ErrWrongArch)
	}
	h.Release = release(r, binary.LittleEndian.Uint16(raw[offKernelVersion:]))
	if err := h.locatePayload(raw, r, size); err != nil {
		return nil, err
	}
	return h, nil
}

// checkMagic tells a bzImage from other files, and names those that people are
// likely to pass by mistake.
func checkMagic(raw []byte) error {
	if len(raw) >= offMagic+4 && string(raw[offMagic:offMagic+4]) == "HdrS" &&
		binary.LittleEndian.Uint16(raw[offBootFlag:]) == bootFlag {
		return nil
	}
	switch {
	case len(raw) >= 0x3c && string(raw[0x38:0x3c]) == "ARM\x64":
		return fmt.Errorf("bzimage: %w: an arm64 image", ErrWrongArch)
	case len(raw) >= 0x38 && string(raw[0x30:0x35]) == "RISCV":
		return fmt.Errorf("bzimage: %w: a RISC-V image", ErrWrongArch)
	case len(raw) < headerLen && len(raw) > 2 && string(raw[:2]) == "MZ":
		return fmt.Errorf("bzimage: %w: within the boot sector", ErrTruncated)
	case len(raw) == 0:
		return fmt.Errorf("bzimage: %w: the file is empty", ErrTruncated)
	}
	return fmt.Errorf("bzimage: %w: neither a bzImage nor an ELF file", ErrNotKernel)
}

// release reads the text at the kernel_version pointer, which counts from the end
// of the boot sector, up to its first space.
func release(r io.ReaderAt, pointer uint16) string {
	if pointer == 0 {
		return ""
	}
	text := make([]byte, maxReleaseTextSize)
	n, _ := r.ReadAt(text, int64(pointer)+sectorLen)
	word, _, terminated := bytes.Cut(text[:n], []byte{' '})
	if !terminated || !isRelease(word) {
		return ""
	}
	return string(word)
}

// isRelease accepts what may be a kernel release and is safe as a file name.
func isRelease(word []byte) bool {
	if len(word) == 0 || len(word) > 64 || word[0] < '0' || word[0] > '9' {
		return false
	}
	for _, c := range word {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		case c == '.', c == '-', c == '+', c == '_', c == '~':
		default:
			return false
		}
	}
	return true
}

func (h *Header) locatePayload(raw []byte, r io.ReaderAt, size int64) error {
	sects := int64(raw[offSetupSects])
	if sects == 0 {
		sects = defaultSetupSects
	}
	h.PayloadOffset = (sects+1)*sectorLen + int64(binary.LittleEndian.Uint32(raw[offPayloadOffset:]))
	h.PayloadLength = int64(binary.LittleEndian.Uint32(raw[offPayloadLength:]))
	if h.PayloadLength < decompress.DetectLen+sizeTrailerLen {
		return fmt.Errorf("bzimage: %w: no payload", ErrNotKernel)
	}
	if h.PayloadOffset+h.PayloadLength > size {
		return fmt.Errorf("bzimage: %w: the payload ends at byte %d, the file at %d", ErrTruncated,
			h.PayloadOffset+h.PayloadLength, size)
	}
	magic := make([]byte, decompress.DetectLen)
	if _, err := r.ReadAt(magic, h.PayloadOffset); err != nil {
		return fmt.Errorf("bzimage: %w", err)
	}
	h.Compression = decompress.Detect(magic)
	return nil
}

// sizeTrailerLen is the length of the number that ends every payload: the size of
// what it unpacks to. gzip has it by format, the kernel's build appends it for all
// others.
const sizeTrailerLen = 4

// Unpack writes the vmlinux inside the bzImage r of size bytes to w and returns
// its length. It does not look at the ELF: see CheckVmlinux. (The payload may be
// followed by relocation tables, which are written too: an ELF file may end in
// anything.) Errors of decompression wrap the sentinels of package decompress
// besides, where they say more.
func Unpack(w io.Writer, r io.ReaderAt, size int64) (int64, error) {
	h, err := Parse(r, size)
	if err != nil {
		return 0, err
	}
	var trailer [sizeTrailerLen]byte
	if _, err := r.ReadAt(trailer[:], h.PayloadOffset+h.PayloadLength-sizeTrailerLen); err != nil {
		return 0, fmt.Errorf("bzimage: %w", err)
	}
	want := int64(binary.LittleEndian.Uint32(trailer[:]))
	if want > MaxVmlinux {
		return 0, fmt.Errorf("bzimage: %w: unpacks to %d MiB, the limit is %d", ErrTooLarge, want>>20, MaxVmlinux>>20)
	}
	length := h.PayloadLength
	if h.Compression != decompress.Gzip {
		length -= sizeTrailerLen
	}
	return unpackPayload(w, io.NewSectionReader(r, h.PayloadOffset, length), h.Compression, want)
}

func unpackPayload(w io.Writer, payload io.Reader, format decompress.Format, want int64) (int64, error) {
	zr, err := decompress.NewReader(payload, format, want)
	if err != nil {
		return 0, fmt.Errorf("bzimage: payload: %w", err)
	}
	defer zr.Close()
	n, err := io.Copy(w, zr)
	if err != nil {
		return n, fmt.Errorf("bzimage: payload: %w", err)
	}
	if n != want {
		return n, fmt.Errorf("bzimage: payload: %w: %d bytes of %d", decompress.ErrCorrupt, n, want)
	}
	return n, nil
}
