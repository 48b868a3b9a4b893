package acpi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// full is a configuration with everything in it.
func full() Config {
	return Config{
		VCPUs: 2,
		VirtioMMIO: []VirtioMMIO{
			{Base: 0xd0000000, Size: 0x1000, GSI: 6},
			{Base: 0xd0001000, Size: 0x1000, GSI: 23},
		},
		COM1:      &COM1{Port: 0x3f8, GSI: 4},
		RTC:       true,
		VMGenID:   &VMGenID{Addr: 0x1_0009f008, GSI: 5},
		PowerPort: 0x600,
	}
}

// memory is guest memory that holds tables, for a reader that trusts nothing.
type memory struct {
	base  uint64
	bytes []byte
}

func (m memory) at(addr, n uint64) ([]byte, error) {
	if addr < m.base || addr-m.base > uint64(len(m.bytes)) || n > uint64(len(m.bytes))-(addr-m.base) {
		return nil, fmt.Errorf("%#x, %d bytes: outside the tables", addr, n)
	}
	return m.bytes[addr-m.base:][:n], nil
}

// table returns the table at addr after checking signature, length, checksum
// and alignment.
func (m memory) table(addr uint64, signature string) ([]byte, error) {
	h, err := m.at(addr, 36)
	if err != nil {
		return nil, err
	}
	if string(h[:4]) != signature {
		return nil, fmt.Errorf("signature %q at %#x, want %q", h[:4], addr, signature)
	}
	if addr%16 != 0 {
		return nil, fmt.Errorf("%s at %#x: not aligned", signature, addr)
	}
	t, err := m.at(addr, uint64(binary.LittleEndian.Uint32(h[4:])))
	if err != nil {
		return nil, err
	}
	if s := checksum(t); s != 0 {
		return nil, fmt.Errorf("%s: bytes add up to %#x", signature, s)
	}
	return t, nil
}

func checksum(p []byte) (s byte) {
	for _, b := range p {
		s += b
	}
	return s
}

type parsed struct{ fadt, madt, dsdt []byte }

// parse finds the tables the way a kernel does, from the RSDP.
func parse(m memory, rsdp uint64) (p parsed, err error) {
	r, err := m.at(rsdp, 36)
	if err != nil {
		return p, err
	}
	if string(r[:8]) != "RSD PTR " || r[15] != 2 || binary.LittleEndian.Uint32(r[20:]) != 36 {
		return p, fmt.Errorf("RSDP % x", r)
	}
	if checksum(r[:20]) != 0 || checksum(r) != 0 {
		return p, fmt.Errorf("RSDP checksums %#x, %#x", checksum(r[:20]), checksum(r))
	}
	xsdt, err := m.table(binary.LittleEndian.Uint64(r[24:]), "XSDT")
	if err != nil {
		return p, err
	}
	if len(xsdt) != 36+2*8 {
		return p, fmt.Errorf("XSDT has %d bytes", len(xsdt))
	}
	if p.fadt, err = m.table(binary.LittleEndian.Uint64(xsdt[36:]), "FACP"); err != nil {
		return p, err
	}
	if p.madt, err = m.table(binary.LittleEndian.Uint64(xsdt[44:]), "APIC"); err != nil {
		return p, err
	}
	if len(p.fadt) != 276 {
		return p, fmt.Errorf("FADT has %d bytes", len(p.fadt))
	}
	p.dsdt, err = m.table(binary.LittleEndian.Uint64(p.fadt[140:]), "DSDT")
	return p, err
}

func build(t *testing.T, base uint64, cfg Config) parsed {
	t.Helper()
	b, rsdp, err := Build(base, cfg)
	if err != nil {
		t.Fatal(err)
	}
	p, err := parse(memory{base, b}, rsdp)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestTablesAtAnyAddress(t *testing.T) {
	var first []byte
	for _, base := range []uint64{0xe0000, 0, 0x7_00000010} {
		p := build(t, base, full())
		if first == nil {
			first = p.dsdt
		}
		if !bytes.Equal(p.dsdt, first) {
			t.Errorf("at %#x the DSDT differs", base)
		}
	}
	// One machine of the largest kind still fits into the BIOS area.
	cfg := Config{VCPUs: MaxVCPUs, RTC: true, PowerPort: 0x600}
	for i := range uint32(IOAPICPins) {
		cfg.VirtioMMIO = append(cfg.VirtioMMIO, VirtioMMIO{Base: 0xd0000000 + uint64(i)<<12, Size: 1 << 12, GSI: i})
	}
	b, _, err := Build(0xe0000, cfg)
	if err != nil || len(b) > 16<<10 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func TestFADT(t *testing.T) {
	f := build(t, 0xe0000, full()).fadt
	u16, u32 := binary.LittleEndian.Uint16, binary.LittleEndian.Uint32
	for _, c := range []struct {
		what      string
		got, want uint64
	}{
		{"revision", uint64(f[8]), 6},
		{"minor revision", uint64(f[131]), 3},
		{"FIRMWARE_CTRL", uint64(u32(f[36:])), 0},
		{"DSDT", uint64(u32(f[40:])), 0}, // X_DSDT is used
		{"SCI_INT", uint64(u16(f[46:])), 0},
		{"CENTURY", uint64(f[108]), 0x32},
		{"flags", uint64(u32(f[112:])), 1<<20 | 1<<12 | 1<<10 | 1<<6 | 1<<5 | 1<<4 | 1<<2 | 1<<0},
		{"8042 in IAPC_BOOT_ARCH", uint64(u16(f[109:]) & (1 << 1)), 0},
		{"CMOS RTC absent in IAPC_BOOT_ARCH", uint64(u16(f[109:]) & (1 << 5)), 0},
		{"RESET_VALUE", uint64(f[128]), 0xfe},
	} {
		if c.got != c.want {
			t.Errorf("%s is %#x, want %#x", c.what, c.got, c.want)
		}
	}
	for what, c := range map[string]struct {
		off  int
		port byte
		high byte
	}{
		"RESET_REG":          {116, 0x64, 0},
		"SLEEP_CONTROL_REG":  {244, 0x00, 0x06},
		"SLEEP_STATUS_REG":   {256, 0x01, 0x06},
		"X_PM1a_EVT_BLK":     {148, 0, 0},
		"X_PM1a_CNT_BLK":     {172, 0, 0},
		"X_GPE0_BLK":         {220, 0, 0},
		"X_PM_TMR_BLK, none": {208, 0, 0},
	} {
		want := make([]byte, 12)
		if c.port != 0 || c.high != 0 {
			want = []byte{1, 8, 0, 1, c.port, c.high, 0, 0, 0, 0, 0, 0}
		}
		if got := f[c.off:][:12]; !bytes.Equal(got, want) {
			t.Errorf("%s is % x, want % x", what, got, want)
		}
	}
	bare := build(t, 0xe0000, Config{VCPUs: 1}).fadt
	if bare[108] != 0 || u16(bare[109:])&(1<<5) == 0 {
		t.Error("without RTC the FADT does not say so")
	}
	if !bytes.Equal(bare[244:268], make([]byte, 24)) {
		t.Error("without power device the FADT has sleep registers")
	}
}

func TestMADT(t *testing.T) {
	for _, n := range []int{1, 2, MaxVCPUs} {
		m := build(t, 0xe0000, Config{VCPUs: n}).madt
		if a := binary.LittleEndian.Uint32(m[36:]); a != 0xfee00000 {
			t.Errorf("local APICs at %#x", a)
		}
		if f := binary.LittleEndian.Uint32(m[40:]); f != 0 {
			t.Errorf("flags %#x", f)
		}
		var cpus, ioapics int
		for p := m[44:]; len(p) > 0; p = p[p[1]:] {
			switch {
			case p[0] == 0 && p[1] == 8:
				if int(p[2]) != cpus || int(p[3]) != cpus || p[4] != 1 {
					t.Errorf("processor %d: % x", cpus, p[:8])
				}
				cpus++
			case p[0] == 1 && p[1] == 12:
				if !bytes.Equal(p[4:12], []byte{0, 0, 0xc0, 0xfe, 0, 0, 0, 0}) {
					t.Errorf("I/O APIC % x", p[:12])
				}
				ioapics++
			default:
				t.Fatalf("entry % x", p[:2])
			}
		}
		if cpus != n || ioapics != 1 {
			t.Errorf("%d processors and %d I/O APICs, want %d and 1", cpus, ioapics, n)
		}
	}
}

func TestDSDT(t *testing.T) {
	got, err := decode(build(t, 0xe0000, full()).dsdt[36:])
	if err != nil {
		t.Fatalf("%v after\n%s", err, got)
	}
	want := `Name \_S5_ {0x5, 0, 0, 0}
Scope \_SB_
  Device V000
    Name _HID "LNRO0005"
    Name _UID 0
    Name _CRS Buffer(0x17) [86 09 00 01 00 00 00 d0 00 10 00 00 89 06 00 03 01 06 00 00 00 79 00]
  Device V001
    Name _HID "LNRO0005"
    Name _UID 1
    Name _CRS Buffer(0x17) [86 09 00 01 00 10 00 d0 00 10 00 00 89 06 00 03 01 17 00 00 00 79 00]
  Device COM1
    Name _HID 0x105d041
    Name _UID 1
    Name _CRS Buffer(0x13) [47 01 f8 03 f8 03 01 08 89 06 00 03 01 04 00 00 00 79 00]
  Device RTC_
    Name _HID 0xbd041
    Name _CRS Buffer(0xa) [47 01 70 00 70 00 01 02 79 00]
  Device VGEN
    Name _HID "VMGENCTR"
    Name _CID "VM_Gen_Counter"
    Name _DDN "VM_Gen_Counter"
    Name ADDR {0x9f008, 1}
  Device GED_
    Name _HID "ACPI0013"
    Name _UID 0
    Name _CRS Buffer(0xb) [89 06 00 03 01 05 00 00 00 79 00]
    Method _EVT flags 0x9
      If Arg0 == 0x5
        Notify \_SB_.VGEN 0x80
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("DSDT (-want +got):\n%s", diff)
	}
}

func TestDSDTOfABareMachine(t *testing.T) {
	got, err := decode(build(t, 0xe0000, Config{VCPUs: 1}).dsdt[36:])
	if err != nil || got != "Scope \\_SB_\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestBuildRefuses(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no vCPU":                  func(c *Config) { c.VCPUs = 0 },
		"negative vCPUs":           func(c *Config) { c.VCPUs = -1 },
		"too many vCPUs":           func(c *Config) { c.VCPUs = 255 },
		"interrupt beyond IOAPIC":  func(c *Config) { c.VirtioMMIO[1].GSI = 24 },
		"COM1 beyond IOAPIC":       func(c *Config) { c.COM1.GSI = 1 << 31 },
		"VMGenID beyond IOAPIC":    func(c *Config) { c.VMGenID.GSI = 24 },
		"shared interrupt":         func(c *Config) { c.VirtioMMIO[1].GSI = 6 },
		"interrupt shared w/ COM1": func(c *Config) { c.VMGenID.GSI = 4 },
		"empty window":             func(c *Config) { c.VirtioMMIO[0].Size = 0 },
		"window above 4 GiB":       func(c *Config) { c.VirtioMMIO[0].Base = 1 << 32 },
		"window across 4 GiB":      func(c *Config) { c.VirtioMMIO[0].Base = 1<<32 - 0xfff },
		"window wraps":             func(c *Config) { c.VirtioMMIO[0].Base = 1<<64 - 1 },
		"windows overlap":          func(c *Config) { c.VirtioMMIO[0].Base += 0xfff },
		"VMGenID not aligned":      func(c *Config) { c.VMGenID.Addr += 4 },
		"VMGenID wraps":            func(c *Config) { c.VMGenID.Addr = 1<<64 - 8 },
		"COM1 past the last port":  func(c *Config) { c.COM1.Port = 0xfff9 },
		"COM1 on the RTC":          func(c *Config) { c.COM1.Port = 0x69 + 2 },
		"COM1 on the reset port":   func(c *Config) { c.COM1.Port = 0x60 },
		"power device on COM1":     func(c *Config) { c.PowerPort = 0x3ff },
		"power device at the end":  func(c *Config) { c.PowerPort = 0xffff },
	} {
		cfg := full()
		change(&cfg)
		if b, _, err := Build(0xe0000, cfg); !errors.Is(err, ErrConfig) || b != nil {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		} else if !strings.HasPrefix(err.Error(), "acpi: build: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, base := range []uint64{8, 1<<64 - 16} {
		if _, _, err := Build(base, full()); !errors.Is(err, ErrConfig) {
			t.Errorf("at %#x: %v", base, err)
		}
	}
	// The limits themselves are allowed.
	cfg := full()
	cfg.VirtioMMIO[0].Base = 1<<32 - 0x1000
	if _, _, err := Build(0xe0000, cfg); err != nil {
		t.Error(err)
	}
}

// FuzzBuild gives Build any configuration: it refuses it or builds tables that
// a suspicious reader accepts.
func FuzzBuild(f *testing.F) {
	f.Add(uint64(0xe0000), 2, uint64(0xd0000000), uint32(0x1000), uint32(5), uint16(0x3f8), uint64(0x9f000), uint16(0x600), uint8(20))
	f.Add(uint64(0), 254, uint64(1)<<32-1, uint32(1), uint32(23), uint16(0xffff), uint64(8), uint16(0), uint8(255))
	f.Fuzz(func(t *testing.T, base uint64, vcpus int, mmio uint64, size, gsi uint32, port uint16, gen uint64, power uint16, n uint8) {
		cfg := Config{
			VCPUs: vcpus, RTC: n&1 != 0, PowerPort: power,
			COM1: &COM1{Port: port, GSI: gsi}, VMGenID: &VMGenID{Addr: gen, GSI: gsi + 1},
		}
		for i := range uint32(n / 2) {
			cfg.VirtioMMIO = append(cfg.VirtioMMIO, VirtioMMIO{mmio + uint64(i)*uint64(size), size, gsi + 2 + i})
		}
		b, rsdp, err := Build(base, cfg)
		if err != nil {
			return
		}
		p, err := parse(memory{base, b}, rsdp)
		if err != nil {
			t.Fatal(err)
		}
		text, err := decode(p.dsdt[36:])
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(text, "LNRO0005"); got != len(cfg.VirtioMMIO) {
			t.Fatalf("%d virtio devices, want %d", got, len(cfg.VirtioMMIO))
		}
	})
}
