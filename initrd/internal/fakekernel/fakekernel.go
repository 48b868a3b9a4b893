// Package fakekernel makes small files with the structure of kernel images, kernel
// modules and kernel packages, for tests.
package fakekernel

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
)

var le = binary.LittleEndian

// VmlinuxLen is the length of what Vmlinux returns, in bytes.
const VmlinuxLen = 64 + 56 + 4096

// Vmlinux returns an ELF64 x86-64 executable of one segment that names its release
// the way a kernel does.
func Vmlinux(release string) []byte {
	elf := make([]byte, VmlinuxLen)
	copy(elf, "\x7fELF\x02\x01\x01")
	le.PutUint16(elf[16:], 2)  // ET_EXEC
	le.PutUint16(elf[18:], 62) // EM_X86_64
	le.PutUint32(elf[20:], 1)
	le.PutUint64(elf[24:], 0x1000000) // entry
	le.PutUint64(elf[32:], 64)        // program headers
	le.PutUint16(elf[52:], 64)
	le.PutUint16(elf[54:], 56)
	le.PutUint16(elf[56:], 1)
	ph := elf[64:]
	le.PutUint32(ph, 1) // PT_LOAD
	le.PutUint32(ph[4:], 5)
	le.PutUint64(ph[16:], 0x1000000)
	le.PutUint64(ph[24:], 0x1000000)
	le.PutUint64(ph[32:], VmlinuxLen)
	le.PutUint64(ph[40:], VmlinuxLen)
	le.PutUint64(ph[48:], 0x1000)
	copy(elf[200:], "Linux version %s (\x00Linux version "+release+" (a@b) #1\x00")
	return elf
}

// Interpreted returns a program that asks for a dynamic linker.
func Interpreted() []byte {
	elf := Vmlinux("0")
	le.PutUint32(elf[64:], 3) // PT_INTERP
	return elf
}

// Image wraps a payload, which must end in its size trailer if it is no gzip, into
// a bzImage of boot protocol 2.15 with a 64-bit entry point.
func Image(release string, payload []byte) []byte {
	const setupSects = 2
	img := make([]byte, (setupSects+1)*512)
	copy(img, "MZ")
	img[0x1f1] = setupSects
	le.PutUint16(img[0x1fe:], 0xaa55)
	copy(img[0x202:], "HdrS")
	le.PutUint16(img[0x206:], 0x020f)
	le.PutUint16(img[0x20e:], 0x300-0x200) // kernel_version, from the second sector
	copy(img[0x300:], release+" (a@b) #1 SMP\x00")
	le.PutUint16(img[0x236:], 1) // XLF_KERNEL_64
	const stub = 100             // bytes of decompressor before the payload
	le.PutUint32(img[0x248:], stub)
	le.PutUint32(img[0x24c:], uint32(len(payload)))
	img = append(img, make([]byte, stub)...)
	img = append(img, payload...)
	return append(img, make([]byte, 333)...)
}

// BzImage returns a bzImage of Vmlinux(release), compressed with gzip.
func BzImage(release string) []byte { return Image(release, gzipped(Vmlinux(release))) }

func gzipped(data []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(data) // a bytes.Buffer takes everything
	_ = w.Close()
	return out.Bytes()
}

// Machine numbers of ELF files.
const (
	AMD64 = 62
	ARM64 = 183
)

// Module returns a relocatable ELF64 file with nothing but a .modinfo section of
// those "key=value" entries.
func Module(machine uint16, info ...string) []byte {
	const headerLen, sectionLen = 64, 64
	strtab := "\x00.modinfo\x00.shstrtab\x00"
	modinfo := strings.Join(info, "\x00") + "\x00"
	out := make([]byte, headerLen)
	copy(out, "\x7fELF\x02\x01\x01")
	le.PutUint16(out[16:], 1) // ET_REL
	le.PutUint16(out[18:], machine)
	le.PutUint32(out[20:], 1)
	le.PutUint64(out[40:], uint64(headerLen+len(modinfo)+len(strtab)))
	le.PutUint16(out[52:], headerLen)
	le.PutUint16(out[58:], sectionLen)
	le.PutUint16(out[60:], 3)
	le.PutUint16(out[62:], 2)
	out = append(append(out, modinfo...), strtab...)
	section := func(name, kind uint32, offset, size int) {
		s := make([]byte, sectionLen)
		le.PutUint32(s, name)
		le.PutUint32(s[4:], kind)
		le.PutUint64(s[24:], uint64(offset))
		le.PutUint64(s[32:], uint64(size))
		out = append(out, s...)
	}
	section(0, 0, 0, 0)
	section(1, 1, headerLen, len(modinfo))
	section(10, 3, headerLen+len(modinfo), len(strtab))
	return out
}

// ArMember is one file of an ar archive.
type ArMember struct {
	Name string
	Data []byte
}

// Member returns an ArMember.
func Member(name string, data []byte) ArMember { return ArMember{name, data} }

// Ar returns an ar archive.
func Ar(members ...ArMember) []byte {
	out := []byte("!<arch>\n")
	for _, m := range members {
		out = fmt.Appendf(out, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.Name, 0, 0, 0, "100644", len(m.Data))
		out = append(out, m.Data...)
		if len(m.Data)%2 == 1 {
			out = append(out, '\n')
		}
	}
	return out
}

// Deb returns a package with those files (name without leading slash to content).
func Deb(files map[string][]byte) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		// Neither call fails: headers are plain, and a bytes.Buffer takes everything.
		_ = w.WriteHeader(&tar.Header{Name: "./" + name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(files[name]))})
		_, _ = w.Write(files[name])
	}
	_ = w.Close()
	return Ar(Member("debian-binary", []byte("2.0\n")), Member("control.tar.gz", nil), Member("data.tar.gz", gzipped(out.Bytes())))
}
