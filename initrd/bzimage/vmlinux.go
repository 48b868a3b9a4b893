package bzimage

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// ELF constants (System V ABI, chapter 4) that matter for a kernel.
const (
	elfMagic      = "\x7fELF"
	elfClass64    = 2
	elfLSB        = 1
	elfExec       = 2
	elfDyn        = 3
	elfMachineX86 = 62
	elfHeaderLen  = 64
	elfPhdrLen    = 56
	elfLoad       = 1
	maxPhdrs      = 128
)

// IsELF tells whether a file that begins with prefix is an ELF file.
func IsELF(prefix []byte) bool { return bytes.HasPrefix(prefix, []byte(elfMagic)) }

// CheckVmlinux checks that r, of size bytes, is an ELF kernel that can be loaded:
// 64-bit x86, executable, with all its segments inside the file. Debug sections
// and what follows the segments do not matter.
func CheckVmlinux(r io.ReaderAt, size int64) error {
	raw := make([]byte, elfHeaderLen)
	n, err := r.ReadAt(raw, 0)
	if err != nil && err != io.EOF {
		return fmt.Errorf("bzimage: vmlinux: %w", err)
	}
	if !IsELF(raw[:n]) {
		return fmt.Errorf("bzimage: vmlinux: %w: not an ELF file", ErrNotKernel)
	}
	if n < elfHeaderLen {
		return fmt.Errorf("bzimage: vmlinux: %w: within the ELF header", ErrTruncated)
	}
	if raw[4] != elfClass64 || raw[5] != elfLSB {
		return fmt.Errorf("bzimage: vmlinux: %w: a 32-bit or big-endian ELF file", ErrWrongArch)
	}
	if machine := binary.LittleEndian.Uint16(raw[18:]); machine != elfMachineX86 {
		return fmt.Errorf("bzimage: vmlinux: %w: ELF machine %d", ErrWrongArch, machine)
	}
	if kind := binary.LittleEndian.Uint16(raw[16:]); kind != elfExec && kind != elfDyn {
		return fmt.Errorf("bzimage: vmlinux: %w: ELF type %d is not executable", ErrNotKernel, kind)
	}
	return checkSegments(r, size, raw)
}

func checkSegments(r io.ReaderAt, size int64, header []byte) error {
	offset := binary.LittleEndian.Uint64(header[32:])
	entry := int64(binary.LittleEndian.Uint16(header[54:]))
	count := int64(binary.LittleEndian.Uint16(header[56:]))
	if entry != elfPhdrLen || count == 0 || count > maxPhdrs {
		return fmt.Errorf("bzimage: vmlinux: %w: no usable program headers", ErrNotKernel)
	}
	if offset > uint64(size) || int64(offset)+entry*count > size {
		return fmt.Errorf("bzimage: vmlinux: %w: before the program headers", ErrTruncated)
	}
	table := make([]byte, entry*count)
	if _, err := r.ReadAt(table, int64(offset)); err != nil && err != io.EOF {
		return fmt.Errorf("bzimage: vmlinux: %w", err)
	}
	loads := 0
	for ; len(table) > 0; table = table[entry:] {
		if binary.LittleEndian.Uint32(table) != elfLoad {
			continue
		}
		loads++
		start, length := binary.LittleEndian.Uint64(table[8:]), binary.LittleEndian.Uint64(table[32:])
		if start > uint64(size) || length > uint64(size)-start {
			return fmt.Errorf("bzimage: vmlinux: %w: a segment ends at byte %d, the file at %d", ErrTruncated, start+length, size)
		}
	}
	if loads == 0 {
		return fmt.Errorf("bzimage: vmlinux: %w: nothing to load", ErrNotKernel)
	}
	return nil
}

// banner precedes the release in every kernel: it is what the kernel prints first.
const banner = "Linux version "

// Release finds the release in a vmlinux, reading r to its end at most, or returns
// "" if there is none.
func Release(r io.Reader) (string, error) {
	buf := make([]byte, 1<<20)
	held := 0
	for {
		n, err := io.ReadFull(r, buf[held:])
		held += n
		if found := findBanner(buf[:held]); found != "" {
			return found, nil
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return "", nil
		default:
			return "", fmt.Errorf("bzimage: vmlinux: %w", err)
		}
		// A banner cut by the end of the buffer is looked for again.
		held = copy(buf, buf[held-maxReleaseTextSize:held])
	}
}

// findBanner skips format strings ("Linux version %s"), which look alike.
func findBanner(data []byte) string {
	for {
		_, rest, found := bytes.Cut(data, []byte(banner))
		if !found {
			return ""
		}
		if word, _, ok := bytes.Cut(rest[:min(len(rest), maxReleaseTextSize)], []byte{' '}); ok && isRelease(word) {
			return string(word)
		}
		data = rest
	}
}
