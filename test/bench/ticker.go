package main

import (
	"encoding/binary"
	"time"
)

const (
	// tickerPath is a program in the guest's initramfs: init of the baselines,
	// an ordinary process of our own guests.
	tickerPath = "/bench-ticker"

	// initLine is what it says first.
	initLine = "init reached"

	// tick is how long it sleeps between bytes.
	tick = 10 * time.Millisecond
)

const (
	tickerAddr = 0x400000
	ehdrSize   = 64
	phdrSize   = 56
)

// ticker is a static ELF program that writes a line to the file that its
// argument names, or to its standard output, and then a byte every so often
// for ever: the least that a process can do to be seen, and to be seen again
// after a fork.
func ticker(line string) []byte {
	const timespec, byteAt, lineAt = 0, 16, 17 // offsets in data
	data := binary.LittleEndian.AppendUint64(nil, 0)
	data = binary.LittleEndian.AppendUint64(data, uint64(tick))
	data = append(append(data, '.'), line...)
	return elfProgram(append(tickerCode(timespec, byteAt, lineAt, len(line)), data...))
}

// tickerCode refers to data that follows it, by offset.
func tickerCode(timespec, byteAt, lineAt, lineSize int) []byte {
	le := binary.LittleEndian
	var code []byte
	var refs []int // ends of the instructions that refer to data, 4 bytes before
	op := func(b ...byte) { code = append(code, b...) }
	op32 := func(v int, b ...byte) { code = le.AppendUint32(append(code, b...), uint32(v)) }
	lea := func(offset int, b ...byte) {
		op32(offset, b...)
		refs = append(refs, len(code))
	}
	op(0x83, 0x3c, 0x24, 0x01)       // cmp dword [rsp], 1: arguments
	op(0x76, 0x15)                   // jbe standard
	op(0x48, 0x8b, 0x7c, 0x24, 0x10) // mov rdi, [rsp+16]: the first after the name
	op32(2, 0xb8)                    // mov eax, 2 (open)
	op32(1, 0xbe)                    // mov esi, 1 (for writing)
	op(0x0f, 0x05)                   // syscall
	op(0x85, 0xc0)                   // test eax, eax
	op(0x79, 0x05)                   // jns open
	op32(1, 0xb8)                    // standard: mov eax, 1
	op(0x89, 0xc3)                   // open: mov ebx, eax
	lea(lineAt, 0x48, 0x8d, 0x35)    // lea rsi, [line]
	op32(lineSize, 0xba)             // mov edx, its size
	again := len(code)
	op32(1, 0xb8)                     // again: mov eax, 1 (write)
	op(0x89, 0xdf)                    // mov edi, ebx
	op(0x0f, 0x05)                    // syscall
	op32(35, 0xb8)                    // mov eax, 35 (nanosleep)
	lea(timespec, 0x48, 0x8d, 0x3d)   // lea rdi, [timespec]
	op(0x31, 0xf6)                    // xor esi, esi
	op(0x0f, 0x05)                    // syscall
	lea(byteAt, 0x48, 0x8d, 0x35)     // lea rsi, [byte]
	op32(1, 0xba)                     // mov edx, 1
	op(0xeb, byte(again-len(code)-2)) // jmp again
	for _, end := range refs {
		at := code[end-4:]
		le.PutUint32(at, le.Uint32(at)+uint32(len(code)-end))
	}
	return code
}

// elfProgram is a static program of one segment, which is entered at its
// begin.
func elfProgram(segment []byte) []byte {
	le := binary.LittleEndian
	size := uint64(ehdrSize + phdrSize + len(segment))
	b := make([]byte, 0, size)
	b = append(b, 0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0) // 64 bits, little endian
	b = le.AppendUint16(b, 2)                                              // ET_EXEC
	b = le.AppendUint16(b, 62)                                             // EM_X86_64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, tickerAddr+ehdrSize+phdrSize) // entry
	b = le.AppendUint64(b, ehdrSize)                     // program headers
	b = le.AppendUint64(b, 0)                            // no section headers
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{ehdrSize, phdrSize, 1, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint32(b, 1) // PT_LOAD
	b = le.AppendUint32(b, 5) // readable, executable
	for _, v := range []uint64{0, tickerAddr, tickerAddr, size, size, 0x1000} {
		b = le.AppendUint64(b, v)
	}
	return append(b, segment...)
}
