package vmm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
)

const testEntry = 0x200000

// elfKernel is an ELF file of one segment with code at testEntry.
func elfKernel(code []byte) []byte {
	le := binary.LittleEndian
	h := make([]byte, 64+56)
	copy(h, "\x7fELF\x02\x01\x01") // 64-bit, little-endian
	le.PutUint16(h[16:], 2)        // ET_EXEC
	le.PutUint16(h[18:], 62)       // EM_X86_64
	le.PutUint32(h[20:], 1)
	le.PutUint64(h[24:], testEntry)
	le.PutUint64(h[32:], 64) // program headers
	le.PutUint16(h[52:], 64)
	le.PutUint16(h[54:], 56)
	le.PutUint16(h[56:], 1)
	p := h[64:]
	le.PutUint32(p[0:], 1)   // PT_LOAD
	le.PutUint32(p[4:], 7)   // rwx
	le.PutUint64(p[8:], 120) // offset
	le.PutUint64(p[16:], testEntry)
	le.PutUint64(p[24:], testEntry)
	le.PutUint64(p[32:], uint64(len(code)))
	le.PutUint64(p[40:], uint64(len(code)))
	return append(h, code...)
}

func edit(b []byte, f func([]byte)) []byte {
	b = bytes.Clone(b)
	f(b)
	return b
}

func TestLoadELF(t *testing.T) {
	good := elfKernel([]byte{0xf4, 1, 2, 3})
	m := newMemory(t, MinMemory)
	img, err := m.loadELF(bytes.NewReader(good))
	if err != nil {
		t.Fatal(err)
	}
	if img.entry != testEntry || img.kernelEnd != testEntry+4 {
		t.Errorf("entry %#x, end %#x", img.entry, img.kernelEnd)
	}
	if !bytes.Equal(m.ram[testEntry:testEntry+4], []byte{0xf4, 1, 2, 3}) {
		t.Error("segment is not in memory")
	}
	le := binary.LittleEndian
	bzImage := make([]byte, 0x400)
	copy(bzImage[0x202:], "HdrS")
	for name, c := range map[string]struct {
		data []byte
		want error
		says string
	}{
		"empty":       {nil, ErrKernel, ""},
		"text":        {[]byte(strings.Repeat("no kernel ", 100)), ErrKernel, ""},
		"bzImage":     {bzImage, ErrKernel, "bzImage"},
		"32-bit":      {edit(good, func(b []byte) { b[4] = 1 }), ErrKernel, ""},
		"i386":        {edit(good, func(b []byte) { le.PutUint16(b[18:], 3) }), ErrKernel, "EM_386"},
		"object":      {edit(good, func(b []byte) { le.PutUint16(b[16:], 1) }), ErrKernel, "ET_REL"},
		"cut header":  {good[:70], ErrKernel, ""},
		"cut segment": {good[:len(good)-1], ErrKernel, "truncated"},
		"no segment":  {edit(good, func(b []byte) { le.PutUint32(b[64:], 4) }), ErrKernel, "entry"},
		"low":         {edit(good, func(b []byte) { le.PutUint64(b[64+24:], 0x1000) }), ErrKernel, "below"},
		"too big":     {edit(good, func(b []byte) { le.PutUint64(b[64+40:], 1<<40) }), ErrKernelTooBig, ""},
		"too high":    {edit(good, func(b []byte) { le.PutUint64(b[64+24:], 1<<40) }), ErrKernelTooBig, ""},
		"wrapping":    {edit(good, func(b []byte) { le.PutUint64(b[64+24:], ^uint64(0)-1) }), ErrKernelTooBig, ""},
		"odd sizes":   {edit(good, func(b []byte) { le.PutUint64(b[64+32:], 5) }), ErrKernel, "larger"},
	} {
		_, err := newMemory(t, MinMemory).loadELF(bytes.NewReader(c.data))
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %v and %q", name, err, c.want, c.says)
		}
	}
}

func FuzzLoadELF(f *testing.F) {
	f.Add(elfKernel([]byte{0xf4}))
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, data []byte) {
		m := newMemory(t, MinMemory)
		img, err := m.loadELF(bytes.NewReader(data))
		if err == nil && (img.entry == 0 || img.kernelEnd > MinMemory) {
			t.Errorf("accepted with entry %#x, end %#x", img.entry, img.kernelEnd)
		}
	})
}

func TestInitramfsThatDoesNotFit(t *testing.T) {
	m := newMemory(t, MinMemory)
	img := bootImage{kernelEnd: 32 << 20}
	if err := m.loadInitramfs(&img, make([]byte, 33<<20)); !errors.Is(err, ErrInitrdTooBig) {
		t.Errorf("33 MiB above a kernel that ends at 32 of 64: %v", err)
	}
	if err := m.loadInitramfs(&img, make([]byte, 65<<20)); !errors.Is(err, ErrInitrdTooBig) {
		t.Errorf("65 MiB in 64: %v", err)
	}
	if err := m.loadInitramfs(&img, []byte("fits")); err != nil {
		t.Fatal(err)
	}
	if got, err := m.Slice(img.initrdAddr, img.initrdSize); err != nil || string(got) != "fits" {
		t.Errorf("initramfs at %#x: %q, %v", img.initrdAddr, got, err)
	}
}

func TestE820(t *testing.T) {
	for _, size := range []uint64{MinMemory, 256 << 20, 3 << 30, 4 << 30, 16 << 30} {
		var usable, at uint64
		for _, e := range e820(size) {
			if e.addr < at || e.size == 0 {
				t.Errorf("%d MiB: entry %#x+%#x overlaps or is empty", size>>20, e.addr, e.size)
			}
			at = e.addr + e.size
			if e.kind == 1 {
				usable += e.size
				if e.addr < gapEnd && at > gapStart {
					t.Errorf("%d MiB: usable memory in the gap", size>>20)
				}
			}
		}
		if missing := size - usable; missing != biosEnd-ebdaStart {
			t.Errorf("%d MiB: %#x bytes are not usable", size>>20, missing)
		}
	}
}

func TestConfigIsValidated(t *testing.T) {
	good := Config{Kernel: "vmlinux"}
	if err := good.withDefaults().validate(); err != nil {
		t.Fatal(err)
	}
	for field, f := range map[string]func(*Config){
		"Kernel":   func(c *Config) { c.Kernel = "" },
		"VCPUs":    func(c *Config) { c.VCPUs = 9 },
		"Memory":   func(c *Config) { c.Memory = 32 << 20 },
		"Hostname": func(c *Config) { c.Hostname = "two words" },
		"Cmdline":  func(c *Config) { c.Cmdline = "a\nb" },
	} {
		c := good.withDefaults()
		f(&c)
		if err := c.validate(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	c := good.withDefaults()
	c.Memory += 4096
	if err := c.validate(); !errors.Is(err, ErrConfig) {
		t.Errorf("memory of odd pages: %v", err)
	}
	c = good.withDefaults()
	c.Cmdline = strings.Repeat("x", cmdlineMax)
	if _, err := c.cmdline(); !errors.Is(err, ErrCmdlineTooLong) {
		t.Errorf("long command line: %v", err)
	}
}
