package acpi

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func TestIntegers(t *testing.T) {
	for v, want := range map[uint64][]byte{
		0:          {0x00},
		1:          {0x01},
		2:          {0x0a, 2},
		0xff:       {0x0a, 0xff},
		0x100:      {0x0b, 0x00, 0x01},
		0xffff:     {0x0b, 0xff, 0xff},
		0x10000:    {0x0c, 0, 0, 1, 0},
		0xffffffff: {0x0c, 0xff, 0xff, 0xff, 0xff},
		1 << 32:    {0x0e, 0, 0, 0, 0, 1, 0, 0, 0},
	} {
		if got := integer(v); !bytes.Equal(got, want) {
			t.Errorf("integer(%#x) = % x, want % x", v, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	for n, want := range map[string]string{
		"COM1":           "COM1",
		"RTC":            "RTC_",
		`\_SB`:           `\_SB_`,
		`\_SB.VGEN`:      `\` + "\x2e_SB_VGEN",
		`\_SB.PCI0.COM1`: `\` + "\x2f\x03_SB_PCI0COM1",
	} {
		if got := path(n); string(got) != want {
			t.Errorf("path(%s) = %q, want %q", n, got, want)
		}
	}
}

func TestEISAIdentifiers(t *testing.T) {
	for id, want := range map[string][]byte{
		"PNP0501": {0x0c, 0x41, 0xd0, 0x05, 0x01},
		"PNP0B00": {0x0c, 0x41, 0xd0, 0x0b, 0x00},
		"PNP0A03": {0x0c, 0x41, 0xd0, 0x0a, 0x03},
	} {
		if got := eisaID(id); !bytes.Equal(got, want) {
			t.Errorf("eisaID(%s) = % x, want % x", id, got, want)
		}
	}
}

func TestPackageLengths(t *testing.T) {
	for n, want := range map[int][]byte{
		0:       {0x01},
		62:      {0x3f},
		63:      {0x41, 0x04}, // 65 in all
		4093:    {0x4f, 0xff}, // 4095
		4094:    {0x81, 0x00, 0x01},
		1048572: {0x8f, 0xff, 0xff},
		1048573: {0xc1, 0x00, 0x00, 0x01},
	} {
		if got := packageLength(n); !bytes.Equal(got, want) {
			t.Errorf("packageLength(%d) = % x, want % x", n, got, want)
		}
	}
	// Its own length is part of it.
	for n := range 5000 {
		p := packageLength(n)
		if total := decodePackageLength(p); total != n+len(p) {
			t.Fatalf("packageLength(%d) says %d bytes, not %d", n, total, n+len(p))
		}
	}
}

func decodePackageLength(p []byte) int {
	more := int(p[0] >> 6)
	if more == 0 {
		return int(p[0] & 0x3f)
	}
	total := int(p[0] & 0xf)
	for i := range more {
		total |= int(p[1+i]) << (4 + 8*i)
	}
	return total
}

// decoder turns machine language back into text, as far as this package uses
// the language. It knows nothing of the encoder: opcodes are written out.
type decoder struct {
	p   []byte
	err error
	out strings.Builder
}

// decode returns the text of a list of terms, one a line, indented.
func decode(p []byte) (string, error) {
	d := &decoder{p: p}
	d.terms(0)
	return d.out.String(), d.err
}

func (d *decoder) terms(depth int) {
	for len(d.p) > 0 && d.err == nil {
		d.term(depth)
	}
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
	d.p = nil
}

func (d *decoder) take(n int) []byte {
	if n > len(d.p) || n < 0 {
		d.fail("%d bytes wanted, %d left", n, len(d.p))
		return make([]byte, max(n, 0))
	}
	p := d.p[:n]
	d.p = d.p[n:]
	return p
}

func (d *decoder) line(depth int, format string, args ...any) {
	fmt.Fprintf(&d.out, "%s%s\n", strings.Repeat("  ", depth), fmt.Sprintf(format, args...))
}

// inner runs f on the package that comes next and on nothing else.
func (d *decoder) inner(f func()) {
	if len(d.p) == 0 {
		d.fail("no package length")
		return
	}
	size := 1 + int(d.p[0]>>6)
	if len(d.p) < size {
		d.fail("cut-off package length")
		return
	}
	total := decodePackageLength(d.p)
	d.take(size)
	body := d.take(total - size)
	rest := d.p
	d.p = body
	f()
	if len(d.p) > 0 {
		d.fail("%d bytes left over in a package", len(d.p))
	}
	if d.err == nil {
		d.p = rest
	}
}

func (d *decoder) term(depth int) {
	switch op := d.take(1)[0]; op {
	case 0x08:
		n := d.name()
		d.line(depth, "Name %s %s", n, d.value())
	case 0x10:
		d.inner(func() { d.line(depth, "Scope %s", d.name()); d.terms(depth + 1) })
	case 0x14:
		d.inner(func() {
			n := d.name()
			d.line(depth, "Method %s flags %#x", n, d.take(1)[0])
			d.terms(depth + 1)
		})
	case 0x5b:
		if ext := d.take(1)[0]; ext != 0x82 {
			d.fail("extended opcode %#x", ext)
			return
		}
		d.inner(func() { d.line(depth, "Device %s", d.name()); d.terms(depth + 1) })
	case 0x86:
		n := d.name()
		d.line(depth, "Notify %s %s", n, d.value())
	case 0xa0:
		d.inner(func() {
			if eq := d.take(1)[0]; eq != 0x93 {
				d.fail("predicate %#x", eq)
			}
			l := d.value()
			d.line(depth, "If %s == %s", l, d.value())
			d.terms(depth + 1)
		})
	default:
		d.fail("opcode %#x", op)
	}
}

func (d *decoder) name() string {
	var s string
	if len(d.p) > 0 && d.p[0] == '\\' {
		d.take(1)
		s = `\`
	}
	n := 1
	if len(d.p) > 0 && d.p[0] == 0x2e {
		d.take(1)
		n = 2
	}
	segments := make([]string, n)
	for i := range segments {
		seg := d.take(4)
		for _, c := range seg {
			if c != '_' && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
				d.fail("name segment %q", seg)
			}
		}
		segments[i] = string(seg)
	}
	return s + strings.Join(segments, ".")
}

func (d *decoder) value() string {
	switch op := d.take(1)[0]; op {
	case 0x00, 0x01:
		return fmt.Sprint(op)
	case 0x68:
		return "Arg0"
	case 0x0a, 0x0b, 0x0c, 0x0e:
		var v uint64
		for i, b := range d.take(map[byte]int{0x0a: 1, 0x0b: 2, 0x0c: 4, 0x0e: 8}[op]) {
			v |= uint64(b) << (8 * i)
		}
		return fmt.Sprintf("%#x", v)
	case 0x0d:
		end := bytes.IndexByte(d.p, 0)
		s := d.take(end + 1)
		return fmt.Sprintf("%q", s[:max(end, 0)])
	case 0x11:
		var s string
		d.inner(func() {
			size := d.value()
			s = fmt.Sprintf("Buffer(%s) [% x]", size, d.take(len(d.p)))
		})
		return s
	case 0x12:
		var elements []string
		d.inner(func() {
			n := int(d.take(1)[0])
			for range n {
				elements = append(elements, d.value())
			}
		})
		return "{" + strings.Join(elements, ", ") + "}"
	default:
		d.fail("value %#x", op)
		return ""
	}
}
