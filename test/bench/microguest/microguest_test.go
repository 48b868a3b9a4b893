package microguest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"testing"
)

func TestELFHoldsTheImage(t *testing.T) {
	p := Params{Pages: 3, ChildPages: 7, Halt: true}
	b, err := ELF(p)
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if f.Class != elf.ELFCLASS64 || f.Machine != elf.EM_X86_64 || f.Type != elf.ET_EXEC || f.Entry != Entry || len(f.Progs) != 1 {
		t.Fatalf("%+v", f.FileHeader)
	}
	s := f.Progs[0]
	if s.Type != elf.PT_LOAD || s.Paddr != Base || s.Filesz != s.Memsz {
		t.Errorf("segment %+v", s.ProgHeader)
	}
	image := make([]byte, s.Filesz)
	if _, err := s.ReadAt(image, 0); err != nil {
		t.Fatal(err)
	}
	if want, _ := Image(p); !bytes.Equal(image, want) {
		t.Error("the segment is not the image")
	}
}

// TestPageTables walks the tables as a CPU does.
func TestPageTables(t *testing.T) {
	b, err := Image(Params{})
	if err != nil {
		t.Fatal(err)
	}
	entry := func(table, index uint64) uint64 { return binary.LittleEndian.Uint64(b[table-Base+8*index:]) }
	const address, user, huge = 0x000ffffffffff000, 1<<2 | 1<<1 | 1<<0, 1 << 7
	for _, addr := range []uint64{0, Entry, GenerationAddr, Data, mapped - 1} {
		at := uint64(PageTables)
		for _, shift := range []int{39, 30, 21} {
			e := entry(at, addr>>shift&511)
			if e&user != user {
				t.Fatalf("%#x: entry %#x cannot be used at privilege level 3", addr, e)
			}
			at = e & address
			if (e&huge != 0) != (shift == 21) {
				t.Errorf("%#x: entry %#x at the wrong level", addr, e)
			}
		}
		if got := at&^0xfff | addr&0x1fffff; got != addr {
			t.Errorf("%#x is mapped to %#x", addr, got)
		}
	}
	if e := entry(PageTables, mapped>>39+1); e != 0 {
		t.Errorf("more is mapped: %#x", e)
	}
}

func TestCodeFitsItsPage(t *testing.T) {
	program, fault := code()
	if len(program) > PageSize || fault < Base || fault >= Base+uint64(len(program)) {
		t.Errorf("%d bytes, fault handler at %#x", len(program), fault)
	}
}

func TestParams(t *testing.T) {
	for p, want := range map[Params]bool{
		{}:                                    true,
		{Pages: 100_000}:                      true,
		{Pages: -1}:                           false,
		{ChildPages: -1}:                      false,
		{Pages: 1 << 62}:                      false,
		{Pages: 200_000, ChildPages: 200_000}: false,
	} {
		if _, err := ELF(p); (err == nil) != want {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if got := (Params{Once: 5, Pages: 2, ChildPages: 1}).End(4); got != Data+(5+4*3)*PageSize {
		t.Errorf("end %#x", got)
	}
}
