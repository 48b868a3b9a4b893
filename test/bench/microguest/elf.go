package microguest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
)

// ELF is the guest as a kernel that monitors boot by the 64-bit protocol of
// Linux: an ELF file of one segment.
func ELF(p Params) ([]byte, error) {
	image, err := Image(p)
	if err != nil {
		return nil, err
	}
	const headers = 64 + 56 // bytes of the file header and one program header
	h := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Entry: Entry, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1,
	}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS] = byte(elf.ELFCLASS64)
	h.Ident[elf.EI_DATA] = byte(elf.ELFDATA2LSB)
	h.Ident[elf.EI_VERSION] = byte(elf.EV_CURRENT)
	segment := elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W | elf.PF_X),
		Off: PageSize, Vaddr: Base, Paddr: Base, Filesz: imageSize, Memsz: imageSize, Align: PageSize,
	}
	var b bytes.Buffer
	for _, v := range []any{&h, &segment, make([]byte, PageSize-headers), image} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			return nil, fmt.Errorf("microguest: ELF: %w", err)
		}
	}
	return b.Bytes(), nil
}
