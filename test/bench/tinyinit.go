package main

import "encoding/binary"

// initLine is what the baselines' init says.
const initLine = "init reached"

const (
	tinyInitAddr = 0x400000
	ehdrSize     = 64
	phdrSize     = 56
)

// tinyInit is a static ELF program that writes text to its standard output
// and then sleeps for ever: the least that a first process can do to be seen.
func tinyInit(text string) []byte {
	le := binary.LittleEndian
	code := []byte{
		0xb8, 1, 0, 0, 0, // mov eax, 1 (write)
		0xbf, 1, 0, 0, 0, // mov edi, 1
		0x48, 0x8d, 0x35, 0, 0, 0, 0, // lea rsi, [rip+distance of the text]
		0xba, 0, 0, 0, 0, // mov edx, length of the text
		0x0f, 0x05, // syscall
		0xb8, 34, 0, 0, 0, // again: mov eax, 34 (pause)
		0x0f, 0x05, // syscall
		0xeb, 0xf7, // jmp again
	}
	const afterLea, leaAt, lengthAt = 17, 13, 18
	le.PutUint32(code[leaAt:], uint32(len(code)-afterLea))
	le.PutUint32(code[lengthAt:], uint32(len(text)))

	size := uint64(ehdrSize + phdrSize + len(code) + len(text))
	b := make([]byte, 0, size)
	b = append(b, 0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0) // 64 bits, little endian
	b = le.AppendUint16(b, 2)                                              // ET_EXEC
	b = le.AppendUint16(b, 62)                                             // EM_X86_64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, tinyInitAddr+ehdrSize+phdrSize) // entry
	b = le.AppendUint64(b, ehdrSize)                       // program headers
	b = le.AppendUint64(b, 0)                              // no section headers
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{ehdrSize, phdrSize, 1, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint32(b, 1) // PT_LOAD
	b = le.AppendUint32(b, 5) // readable, executable
	for _, v := range []uint64{0, tinyInitAddr, tinyInitAddr, size, size, 0x1000} {
		b = le.AppendUint64(b, v)
	}
	return append(append(b, code...), text...)
}
